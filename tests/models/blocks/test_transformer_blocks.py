"""Whole Transformer blocks against those of transformers, their files, exports and distances."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import keyhole
from keyhole import InvalidInput, Norm, ReluNet, export_onnx, export_torch, random_block
from keyhole._arrays import EPS
from keyhole.lab.jobs import SampleJob
from keyhole.lab.running import run_job
from keyhole.models.blocks.random_blocks import BLOCK_STYLES
from keyhole.oracles.http.service import HttpService
from keyhole.oracles.local import Local
from keyhole.oracles.onnx_file import OnnxFile
from support.blocks import MAKERS
from support.served_head import serving

LENGTHS = (1, 2, 7)


@pytest.mark.parametrize("name", MAKERS)
def test_a_block_answers_as_the_same_block_of_transformers(name, rng):
    block, ask = MAKERS[name](rng)
    for length in LENGTHS:
        X = rng.normal(size=(5, length, 8))
        np.testing.assert_allclose(block(X), ask(X), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", MAKERS)
def test_a_block_answers_as_transformers_do_wherever_it_is_kept(name, tmp_path, rng):
    block, ask = MAKERS[name](rng)
    keyhole.save(block, tmp_path / "block.safetensors")
    export_onnx(block, tmp_path / "block.onnx")
    module = export_torch(block)
    oracle = OnnxFile(tmp_path / "block.onnx")
    again = keyhole.load(tmp_path / "block.safetensors")
    assert again == block
    for length in LENGTHS:
        X = rng.normal(size=(5, length, 8))
        np.testing.assert_allclose(again(X), ask(X), rtol=0, atol=1e-13)
        np.testing.assert_allclose(oracle.ask(X), ask(X), rtol=0, atol=1e-12)
        answers = module(torch.tensor(X)).detach().numpy()
        np.testing.assert_allclose(answers, ask(X), rtol=0, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "silu", "softplus"])
@pytest.mark.parametrize("style", ["pre", "post"])
def test_networks_of_every_activation_are_exported_with_their_block(
    activation, style, tmp_path, rng
):
    drawn = random_block(8, hidden=12, rng=rng)
    block = replace(drawn, style=style, network=replace(drawn.network, activation=activation))
    export_onnx(block, tmp_path / "block.onnx")
    keyhole.save(block, tmp_path / "block.safetensors")
    X = rng.normal(size=(5, 4, 8))
    module = torch.nn.Sequential(export_torch(block))
    np.testing.assert_allclose(module(torch.tensor(X)).detach().numpy(), block(X), atol=1e-12)
    np.testing.assert_allclose(OnnxFile(tmp_path / "block.onnx").ask(X), block(X), atol=1e-12)
    assert keyhole.load(tmp_path / "block.safetensors") == block


def test_a_module_takes_the_tensors_of_the_file_and_is_trained(tmp_path, rng):
    from safetensors.torch import load_file

    for style in BLOCK_STYLES:
        block = random_block(8, style=style, hidden=12, rng=rng)
        keyhole.save(block, tmp_path / "block.safetensors")
        module = export_torch(random_block(8, style=style, hidden=12, rng=rng))
        module.load_state_dict(load_file(tmp_path / "block.safetensors"))
        X = torch.tensor(rng.normal(size=(2, 3, 8)))
        np.testing.assert_allclose(module(X).detach().numpy(), block(X.numpy()), atol=1e-12)
        module(X).square().sum().backward()
        assert all(w.grad is not None for w in module.parameters())


def test_a_served_block_answers_a_client(rng):
    block, ask = MAKERS["bert"](rng)
    with serving(Local(block)) as (address, _):
        client = HttpService(address)
        X = rng.normal(size=(4, 5, 8))
        np.testing.assert_allclose(client.ask(X), ask(X), atol=1e-12)
        client.close()


@pytest.mark.parametrize("name", MAKERS)
def test_rounding_explains_what_another_order_of_arithmetic_gives(name, rng):
    block, ask = MAKERS[name](rng)
    for size in (1e-3, 1.0, 1e3):
        X = size * rng.normal(size=(20, 6, 8)) + size
        gap = np.abs(block(X) - ask(X)).max(axis=1)
        stick = block.yardstick(X, EPS)
        assert (gap <= 2 * stick.rounding).all()
        assert (stick.coarse >= 0.9 * stick.rounding).all()
        assert (stick.rounding < 1e-9 * stick.size + 1e-11).all()


def test_the_size_of_a_block_sums_what_its_parts_contribute(rng):
    block = random_block(8, heads=1, hidden=12, rng=rng)
    X = rng.normal(size=(4, 1, 8))
    front = block.front
    value = (front.normed(X)[:, 0] @ front.Wv[0].T + front.bv[0]) @ front.Wo[0].T
    r = block.front(X)
    parts = np.abs(value) + np.abs(X[:, 0])
    spread = np.sqrt(r.var(axis=1, keepdims=True) + 1e-5)
    inner = np.abs(block.norm2.gain) * (parts + parts.mean(axis=1, keepdims=True)) / spread
    inner += np.abs(block.norm2.shift)
    net = np.abs(block.network.W1) @ inner.T
    expected = (parts + (np.abs(block.network.W2) @ net).T).max(axis=1)
    np.testing.assert_allclose(block.magnitude(X), expected, rtol=1e-12)
    np.testing.assert_allclose(block.yardstick(X, EPS).size, expected, rtol=1e-12)


def disguise(block, rng):
    """Other parameters of the same function."""
    heads = block.attention
    C = rng.normal(size=(heads.groups, heads.rank, heads.rank))
    back = np.repeat(np.linalg.inv(C), heads.heads // heads.groups, axis=0)
    parts = {"Wv": C @ heads.Wv, "Wo": heads.Wo @ back}
    if heads.bv is not None:
        parts["bv"] = np.einsum("hij,hj->hi", C, heads.bv)
    attention = replace(heads, **parts)
    if block.norm1.kind == "rms":
        order = rng.permutation(block.network.hidden)
        net = block.network
        s = rng.normal(size=net.hidden)
        net = replace(net, B=net.B * s[:, None], b=net.b * s, C=net.C / s)
        kept = {name: getattr(net, name)[order] for name in ("A", "a", "B", "b")}
        gain = 2.0 * block.norm2.gain
        kept["A"], kept["B"] = kept["A"] / 2.0, kept["B"] / 2.0
        norm = replace(block.norm2, gain=gain)
        return replace(
            block, attention=attention, network=replace(net, C=net.C[:, order], **kept), norm2=norm
        )
    return disguise_layer_norm(replace(block, attention=attention), rng)


def disguise_layer_norm(block, rng):
    """Gains folded, units turned in pairs that cancel, equal entries moved."""
    net, before = block.network, block.norm2 if block.style == "pre" else block.norm1
    moved = 0.7
    if block.style == "pre":
        # The map before a norm takes the norm's gain and shift.
        W1 = net.W1 * before.gain
        net = replace(
            net, W1=W1 - W1.mean(axis=1, keepdims=True), b1=net.b1 + net.W1 @ before.shift
        )
        attention = replace(block.attention, bo=block.attention.bo + moved)
        net = replace(net, b2=net.b2 - moved)
        return replace(block, attention=attention, network=net, norm2=Norm("layer", before.eps))
    attention = replace(
        block.attention,
        Wo=block.attention.Wo + rng.normal(size=(block.attention.heads, 1, block.attention.rank)),
        bo=block.attention.bo + moved,
    )
    net = replace(net, W2=net.W2 + rng.normal(size=(1, net.hidden)), b2=net.b2 - moved)
    return replace(block, attention=attention, network=net)


@pytest.mark.parametrize("style", BLOCK_STYLES)
def test_disguised_blocks_answer_alike_and_are_no_distance_apart(style, rng):
    block = random_block(8, style=style, hidden=12, rng=rng)
    other = disguise(block, rng)
    X = rng.normal(size=(20, 6, 8))
    np.testing.assert_allclose(other(X), block(X), rtol=0, atol=1e-10)
    assert np.abs(other.attention.Wo - block.attention.Wo).max() > 1e-2
    assert keyhole.compare(block, other).largest <= 1e-9


CHANGES = {
    "attention": ("Wq", "Wk", "Wv", "Wo"),
    "network": ("W1", "b1", "W2", "A", "B", "C"),
    "norm1": ("gain", "shift"),
    "norm2": ("gain", "shift"),
}


@pytest.mark.parametrize("style", BLOCK_STYLES)
def test_a_change_of_any_part_is_a_distance_of_its_size(style, rng):
    block = random_block(8, style=style, hidden=12, rng=rng)
    X = rng.normal(size=(20, 6, 8))
    changed = 0
    for part, names in CHANGES.items():
        for name in names:
            held = getattr(getattr(block, part), name, None)
            if held is None:
                continue
            moved = replace(
                getattr(block, part), **{name: held + 1e-4 * rng.normal(size=held.shape)}
            )
            other = disguise(replace(block, **{part: moved}), rng)
            assert np.abs(other(X) - block(X)).max() > 1e-7
            assert 1e-6 < keyhole.compare(block, other).largest < 1e-2
            changed += 1
    assert changed >= 9


def test_a_factor_before_a_last_norm_is_no_distance_where_eps_is_small(rng):
    """With y + g(y) turned and scaled by a network that holds the residual too."""
    block = random_block(6, style="bert", hidden=10, rng=rng)
    d, net = 6, block.network
    # z = phi(z) - phi(-z) holds the linear part that takes y to 2.5 times what it was.
    linear = 1.5 * np.eye(d)
    other = replace(
        block,
        network=ReluNet(
            np.concatenate([net.W1, np.eye(d), -np.eye(d)]),
            np.concatenate([net.b1, np.zeros(2 * d)]),
            np.column_stack([2.5 * net.W2, linear, -linear]),
            2.5 * net.b2,
            "gelu",
        ),
    )
    X = rng.normal(size=(20, 6, 6))
    np.testing.assert_allclose(other(X), block(X), rtol=0, atol=1e-10)
    assert keyhole.compare(block, other).largest <= 1e-9


def test_blocks_of_other_builds_are_not_compared(rng):
    one, other = (random_block(8, style=style, rng=rng) for style in ("gpt2", "bert"))
    with pytest.raises(InvalidInput, match="one style, norms, network"):
        keyhole.compare(one, other)


def test_parts_that_do_not_fit_are_refused(rng):
    block = random_block(8, hidden=12, rng=rng)
    with pytest.raises(InvalidInput, match="style of a block is pre or post; got 'mid'"):
        replace(block, style="mid")
    with pytest.raises(InvalidInput, match="attention gives, and the network takes and gives, 8"):
        replace(block, network=ReluNet.random(8, hidden=4, outputs=3, rng=rng))
    with pytest.raises(InvalidInput, match="no norm and no residual"):
        replace(block, attention=block.front)
    with pytest.raises(InvalidInput, match="a norm is one of rms, layer"):
        Norm("batch")
    with pytest.raises(InvalidInput, match="eps of a norm lies between"):
        Norm("rms", -1.0)
    with pytest.raises(InvalidInput, match="a style is one of gpt2, bert, llama"):
        random_block(8, style="t5", rng=rng)
    with pytest.raises(InvalidInput, match="width 8 has 1 to 8 heads; got 9"):
        random_block(8, heads=9, rng=rng)


def test_a_file_that_lacks_what_it_should_say_is_refused(tmp_path, rng):
    from keyhole.models.blocks.block_files import describe_block

    words, tensors = describe_block(random_block(4, hidden=3, rng=rng))
    path = tmp_path / "block.safetensors"
    ours = {"kind": "block", "format": "1"} | words
    for changed, says in (
        ({"network_kind": "deep"}, "says network_kind"),
        ({"style": "mid"}, "pre or post"),
        ({"norm1": "{}"}, "says kind and eps of norm1"),
        ({"norm2": '{"kind": "rms", "eps": "x"}'}, "says kind and eps of norm2"),
    ):
        save_file(tensors, path, ours | changed)
        with pytest.raises(InvalidInput, match=says):
            keyhole.load(path)
    save_file(tensors | {"norm3.gain": np.ones(4)}, path, ours)
    with pytest.raises(InvalidInput, match="unknown"):
        keyhole.load(path)


@pytest.mark.parametrize("style", BLOCK_STYLES)
def test_sample_writes_a_block_of_the_style_that_is_asked_for(style, tmp_path):
    path = str(tmp_path / "block.safetensors")
    groups = 2 if style == "llama" else None
    job = SampleJob("block", width=16, heads=4, groups=groups, hidden=20, style=style, out=path)
    record = run_job(job)
    assert (record.data.width, record.data.outputs) == (16, 16)
    block = keyhole.load(path)
    assert block.attention.wiring.groups == (groups or 4)
    assert (block.style == "post") == (style == "bert")
    assert block.norm1.kind == ("rms" if style == "llama" else "layer")
    assert block.network.activation == ("silu" if style == "llama" else "gelu")
    assert block.network.hidden == 20
