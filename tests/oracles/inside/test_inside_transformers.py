"""Models of transformers from small configurations: what is found in each, and layers recovered
through `open_layer` and held against the module's own output.
"""

import numpy as np
import pytest

import keyhole
from keyhole.errors import InvalidInput
from keyhole.lab.targets.advising import advise, list_wiring
from support.transformer_models import CONFIGS, GROUPS, HEADS, HIDDEN, WIDTH, build_model, torch

SELF = {
    "bert": "encoder.layer.{}.attention.self",
    "roberta": "encoder.layer.{}.attention.self",
    "gpt2": "h.{}.attn",
    "opt": "decoder.layers.{}.self_attn",
    "vit": "layers.{}.attention",
    "t5": "encoder.block.{}.layer.0.SelfAttention",
    "bloom": "h.{}.self_attention",
    "neox": "layers.{}.attention",
    "llama": "layers.{}.self_attn",
    "mistral": "layers.{}.self_attn",
    "qwen2": "layers.{}.self_attn",
    "qwen3": "layers.{}.self_attn",
    "olmo2": "layers.{}.self_attn",
    "gemma2": "layers.{}.self_attn",
}
# Positions, the activation of the network, its hidden units, the kind of norm.
ABOUT = {
    "bert": ("none", "gelu", HIDDEN, "layer"),
    "roberta": ("none", "gelu", HIDDEN, "layer"),
    "gpt2": ("none", "gelu_tanh", 4 * WIDTH, "layer"),
    "opt": ("none", "relu", HIDDEN, "layer"),
    "vit": ("none", "gelu", HIDDEN, "layer"),
    "t5": ("table", "relu", HIDDEN, "rms"),
    "bloom": ("alibi", "gelu_tanh", 4 * WIDTH, "layer"),
    "neox": ("rope", "gelu", HIDDEN, "layer"),
    "llama": ("rope", "silu", HIDDEN, "rms"),
    "mistral": ("rope", "silu", HIDDEN, "rms"),
    "qwen2": ("rope", "silu", HIDDEN, "rms"),
    "qwen3": ("rope", "silu", HIDDEN, "rms"),
    "olmo2": ("rope", "silu", HIDDEN, "rms"),
    "gemma2": ("rope", "gelu_tanh", HIDDEN, "rms"),
}
PLAIN = ("bert", "roberta", "gpt2", "opt", "vit")


@pytest.fixture(scope="module")
def models():
    return {name: build_model(name) for name in CONFIGS}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_layer_is_found_with_its_sizes(models, name):
    inside = keyhole.inspect(models[name])
    positions, activation, hidden, norm = ABOUT[name]
    names = {part.name for part in inside.attention}
    assert {SELF[name].format(i) for i in range(2)} <= names
    for part in inside.attention:
        assert (part.width, part.heads, part.head_size) == (WIDTH, HEADS, WIDTH // HEADS)
        shared = models[name].config.to_dict().get("num_key_value_heads") is not None
        assert part.groups == (GROUPS if shared else HEADS)
        assert part.positions == positions
    assert {(net.hidden, net.activation) for net in inside.networks} == {(hidden, activation)}
    assert {part.norm for part in inside.norms} == {norm}
    assert all(0 < part.eps < 1e-4 for part in inside.norms)


def test_caps_windows_shares_and_bases_are_read(models):
    first, second = keyhole.inspect(models["gemma2"]).attention
    config = models["gemma2"].config
    assert first.softcap == second.softcap == config.attn_logit_softcapping
    # Every other layer looks through a window.
    assert (first.window, second.window) == (config.sliding_window, None)
    assert first.scale == config.query_pre_attn_scalar**-0.5
    rotated = keyhole.inspect(models["neox"]).attention[0]
    assert rotated.rotary_share == models["neox"].config.rope_parameters["partial_rotary_factor"]
    assert rotated.rope_base == models["neox"].config.rope_parameters["rope_theta"]


def test_attention_to_other_tokens_is_told_apart_and_refused(models):
    cross = [part.name for part in keyhole.inspect(models["t5"]).attention if part.cross]
    assert cross == [f"decoder.block.{i}.layer.1.EncDecAttention" for i in range(2)]
    with pytest.raises(InvalidInput, match="keys and values come from other tokens"):
        keyhole.open_layer(models["t5"], cross[0])


def run_module(model, name, X):
    """The module's own answers at the last token, by a call of its own."""
    part = model.get_submodule(SELF[name].format(0))
    with torch.no_grad():
        mixed = part(torch.from_numpy(X))[0]
        if name in ("bert", "roberta"):
            mixed = model.encoder.layer[0].attention.output.dense(mixed)
    return mixed[:, -1].numpy()


@pytest.mark.parametrize("name", PLAIN)
def test_layers_without_positions_come_back_exactly(models, name, rng):
    model = models[name]
    recovery = keyhole.learn(keyhole.open_layer(model, SELF[name].format(0)), rng=0)
    assert recovery.verdict is keyhole.Verdict.EXACT
    for length in (1, 2, 8, 32):
        X = rng.normal(size=(4, length, WIDTH))
        truth = run_module(model, name, X)
        gap = np.abs(recovery.model(X) - truth).max()
        assert gap <= 1e-9 * np.abs(truth).max()


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in PLAIN])
def test_layers_with_positions_are_asked_as_the_model_runs_them(models, name, rng):
    """Hooks put the question into the whole model: masks, tables and rotations are its own."""
    model, layer = models[name], SELF[name].format(1)
    X = rng.normal(size=(2, 7, WIDTH))
    caught = []

    def put(module, args, kwargs):
        tokens = torch.from_numpy(X)
        # Bloom adds its residual inside the layer.
        if name == "bloom":
            return (tokens, torch.zeros_like(tokens), *args[2:]), kwargs
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": tokens}
        return (tokens, *args[1:]), kwargs

    part = model.get_submodule(layer)
    handles = [
        part.register_forward_pre_hook(put, with_kwargs=True),
        part.register_forward_hook(lambda module, args, answer: caught.append(answer[0])),
    ]
    ids = torch.ones(2, 7, dtype=torch.long)
    with torch.no_grad():
        model.encoder(input_ids=ids) if name == "t5" else model(input_ids=ids)
    for handle in handles:
        handle.remove()
    answers = keyhole.open_layer(model, layer).ask(X)
    np.testing.assert_allclose(answers, caught[0][:, -1].numpy(), atol=1e-12)


# Of a head of 4 a quarter is rotated, which is no pair; one norm over all heads is another layer.
REFUSED = {
    "neox": "1 entries of a head, which are no pairs",
    "olmo2": "its queries and keys are normed in a way",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_cannot_be_recovered_is_said_by_its_wiring(models, name):
    inside = keyhole.inspect(models[name])
    part = next(part for part in inside.attention if part.name == SELF[name].format(1))
    advice = advise(part, "my_model:model", inside)
    assert advice.recoverable == (name not in REFUSED)
    assert REFUSED.get(name, "recovered: all its heads") in advice.reason
    assert (advice.command is not None) == advice.recoverable
    told = f"--norm none --positions {part.positions}" in (advice.command or "")
    assert told == (advice.recoverable and part.positions != "none")


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2", "qwen3", "gemma2")),
    ],
)
def test_heads_that_share_keys_come_back_to_the_rounding_of_rotary_tables(models, name, rng):
    layer = keyhole.open_layer(models[name], SELF[name].format(0))
    part = keyhole.inspect(models[name]).attention[0]
    recovery = keyhole.learn(layer, wiring=keyhole.Wiring(**list_wiring(part)), rng=0)
    assert recovery.verdict is keyhole.Verdict.WITHIN_TOLERANCE
    assert (recovery.model.heads, recovery.model.groups) == (HEADS, GROUPS)
    for length in (1, 2, 8, 32):
        X = rng.normal(size=(4, length, WIDTH))
        gap = np.abs(recovery.model(X) - layer.ask(X)).max()
        assert gap <= 1e-5 * np.abs(layer.ask(X)).max()


@pytest.mark.parametrize("name", ["opt", "llama"])
def test_networks_come_back_exactly(models, name, rng):
    model = models[name]
    net = keyhole.inspect(model).networks[0]
    recovery = keyhole.learn(keyhole.open_layer(model, net.name), rng=0)
    assert recovery.verdict is keyhole.Verdict.EXACT
    X = rng.normal(size=(8, 1, WIDTH))
    tokens = torch.from_numpy(X[:, -1])
    with torch.no_grad():
        if name == "opt":
            block = model.decoder.layers[0]
            truth = block.fc2(torch.relu(block.fc1(tokens)))
        else:
            truth = model.layers[0].mlp(tokens)
    np.testing.assert_allclose(recovery.model(X), truth.numpy(), atol=1e-8)
