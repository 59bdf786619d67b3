"""Layers of ordinary weight files as models that answer, against transformers' own."""

import json

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.targets.inspecting import open_layer
from keyhole.oracles.inside.weight_copying import copy_file_layer
from support.transformer_models import build_model, torch

LAYERS = {
    "bert": "encoder.layer.0.attention.self",
    "gpt2": "h.1.attn",
    "llama": "layers.0.self_attn",
    "qwen2": "layers.1.self_attn",
}
NETWORKS = {"llama": "layers.0.mlp", "gpt2": "h.0.mlp"}


def write_model(name, folder):
    """The model as transformers writes it: a weight file and its configuration."""
    from safetensors.torch import save_file

    model = build_model(name)
    save_file({k: v.clone() for k, v in model.state_dict().items()}, folder / "m.safetensors")
    (folder / "config.json").write_text(json.dumps(model.config.to_dict()))
    return model


@pytest.mark.parametrize("name", LAYERS)
def test_attention_of_a_weight_file_answers_as_transformers_does(tmp_path, name):
    model = write_model(name, tmp_path)
    copied = copy_file_layer(tmp_path / "m.safetensors", LAYERS[name])
    X = np.random.default_rng(3).normal(size=(6, 7, copied.width))
    # The rotary tables of transformers are float32.
    within = 1e-6 if copied.wiring.positions == "rope" else 1e-12
    np.testing.assert_allclose(copied(X), open_layer(model, LAYERS[name]).ask(X), atol=within)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_of_narrow_formats_are_read_as_the_numbers_they_are(tmp_path, dtype):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).to(kind)
    save_file(layer.state_dict(), tmp_path / "m.safetensors")
    copied = copy_file_layer(tmp_path / "m.safetensors", "", heads=2)
    X = torch.randn(5, 4, 8, dtype=torch.float64)
    said = layer.double()(X, X, X, need_weights=False)[0][:, -1].detach().numpy()
    np.testing.assert_allclose(copied(X.numpy()), said, atol=1e-13)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_a_weight_file_answers_as_transformers_does(tmp_path, name):
    model = write_model(name, tmp_path)
    copied = copy_file_layer(tmp_path / "m.safetensors", NETWORKS[name])
    X = np.random.default_rng(3).normal(size=(6, 1, copied.width))
    with torch.no_grad():
        said = model.get_submodule(NETWORKS[name])(torch.from_numpy(X))[:, -1].numpy()
    np.testing.assert_allclose(copied(X), said, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "layer", "said"),
    [
        ("t5", "encoder.block.0.layer.0.SelfAttention", "table"),
        ("neox", "layers.0.attention", "head by head"),
        ("bert", "encoder.layer.9", "near it"),
    ],
)
def test_what_a_file_does_not_say_enough_of_is_refused(tmp_path, name, layer, said):
    write_model(name, tmp_path)
    with pytest.raises(InvalidInput, match=said):
        copy_file_layer(tmp_path / "m.safetensors", layer)
