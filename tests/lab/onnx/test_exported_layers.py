"""Attention layers of every wiring as ONNX files and torch modules."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import keyhole
from keyhole import Wiring, export_onnx, export_torch, random_layer
from keyhole.errors import InvalidInput, TargetFailed
from keyhole.lab.jobs import LearnJob
from keyhole.lab.running import run_job
from keyhole.models.tensor import TensorAttention
from keyhole.oracles.onnx_file import OnnxFile
from support.wired_layers import WIRINGS, answer_in_torch, draw_wired

LENGTHS = (1, 2, 7, 40)
BARE = {
    "sinks in a window": Wiring(positions="alibi", sinks=True, window=4, groups=2),
    "capped table": Wiring(positions="table", softcap=0.7, residual=True),
    "normed heads": Wiring(qk_norm=True, eps=0.0),
    "absolute without a norm": Wiring(positions="absolute", groups=1),
}
ALL = WIRINGS | BARE


def draw_any(name, rng, biases):
    wiring = ALL[name]
    # The root of 12 is no number of float32: runtimes that fold it into a product show.
    return random_layer(8, heads=4, rank=12, wiring=wiring, biases=biases, rng=rng)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_a_layer_answers_from_its_onnx_file_as_torch_does(name, biases, tmp_path, rng):
    layer = draw_any(name, rng, biases)
    export_onnx(layer, tmp_path / "layer.onnx")
    oracle = OnnxFile(tmp_path / "layer.onnx")
    for length in LENGTHS:
        X = rng.normal(size=(5, length, 8))
        np.testing.assert_allclose(oracle.ask(X), answer_in_torch(layer, X), rtol=0, atol=1e-12)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_a_layer_as_a_torch_module_answers_as_torch_does(name, biases, rng):
    layer = draw_any(name, rng, biases)
    module = export_torch(layer)
    for length in LENGTHS:
        X = rng.normal(size=(5, length, 8))
        with torch.no_grad():
            answers = module(torch.tensor(X)).numpy()
        np.testing.assert_allclose(answers, answer_in_torch(layer, X), rtol=0, atol=1e-12)


def test_heads_whose_values_are_wider_than_their_queries_are_written(tmp_path, rng):
    layer = draw_wired("grouped", rng)
    wide = replace(layer, Wv=rng.normal(size=(2, 6, 8)), Wo=rng.normal(size=(4, 5, 6)))
    export_onnx(wide, tmp_path / "layer.onnx")
    X = rng.normal(size=(3, 4, 8))
    expected = answer_in_torch(wide, X)
    np.testing.assert_allclose(
        OnnxFile(tmp_path / "layer.onnx").ask(X), expected, rtol=0, atol=1e-11
    )
    module = export_torch(wide)
    np.testing.assert_allclose(
        module(torch.tensor(X)).detach().numpy(), expected, rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_zero_and_huge_tokens_are_answered_behind_a_norm(norm, tmp_path, rng):
    layer = random_layer(8, heads=2, wiring=Wiring(norm=norm, eps=0.0), rng=rng)
    export_onnx(layer, tmp_path / "layer.onnx")
    X = rng.normal(size=(3, 4, 8)) * np.array([0.0, 1.0, 1e200])[:, None, None]
    assert np.isfinite(layer(X)).all()
    np.testing.assert_allclose(
        OnnxFile(tmp_path / "layer.onnx").ask(X), layer(X), rtol=0, atol=1e-12
    )
    answers = export_torch(layer)(torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(answers, layer(X), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["table", "absolute"])
def test_a_sequence_longer_than_its_positions_is_refused_by_file_and_module(name, tmp_path, rng):
    for known in (1, 5):
        layer = draw_wired(name, rng, displacements=known)
        export_onnx(layer, tmp_path / "layer.onnx")
        X = rng.normal(size=(2, known + 1, 8))
        with pytest.raises(TargetFailed):
            OnnxFile(tmp_path / "layer.onnx").ask(X)
        with pytest.raises(InvalidInput, match=f"knows {known} positions; got sequences of"):
            export_torch(layer)(torch.tensor(X))


def test_a_module_is_trained_and_its_weights_are_those_of_the_file(tmp_path, rng):
    layer = draw_wired("rms rope", rng, biases=True)
    module = export_torch(layer)
    keyhole.save(layer, tmp_path / "layer.safetensors")
    from safetensors.torch import load_file

    module.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    module(torch.tensor(rng.normal(size=(2, 3, 8)))).sum().backward()
    assert all(float(w.grad.abs().max()) > 0 for w in module.parameters())


def test_a_model_of_another_kind_is_no_torch_module(rng):
    unit = TensorAttention(np.eye(3), (np.eye(3),) * 2, (np.eye(3),) * 2)
    with pytest.raises(InvalidInput, match="a TensorAttention is not written as a torch module"):
        export_torch(unit)


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_an_exported_layer_is_learned_as_a_black_box(form, tmp_path, rng):
    wiring = Wiring(norm="rms", positions="rope", residual=True)
    layer = random_layer(8, heads=2, wiring=wiring, rng=rng)
    if form == "torch":
        recovery = keyhole.learn(export_torch(layer), wiring=wiring, rng=rng)
        assert recovery.verdict.name == "EXACT"
        return
    export_onnx(layer, tmp_path / "layer.onnx")
    job = LearnJob(
        str(tmp_path / "layer.onnx"),
        out=str(tmp_path / "run"),
        norm="rms",
        positions="rope",
        residual=True,
    )
    assert run_job(job).data.verdict == "EXACT"
