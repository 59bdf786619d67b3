"""Layers in torch's layout: against torch where it is installed, and against its formula written
out.
"""

import importlib.util

import numpy as np
import pytest

from keyhole import SelfAttention, torch_multihead

# heads, width, embed, outputs
SHAPES = [(1, 4, 3, 2), (2, 5, 1, 1), (3, 4, 6, 2), (2, 3, 2, 7), (4, 16, 4, 4)]


def drawn(heads, width, embed, outputs):
    rng = np.random.default_rng(heads + 10 * width)
    Q, K = rng.normal(size=(2, heads, width, embed))
    return SelfAttention(Q, K, rng.normal(size=(heads, width, outputs))), rng.normal(
        size=(3, 6, width)
    )


def as_torch_computes(weights, X):
    """Scaled dot-product attention with joined heads, as the documentation of the module gives
    it.
    """
    batch, length, width = X.shape
    size = width // weights.heads
    q, k, v = (
        (X @ W.T).reshape(batch, length, weights.heads, size).swapaxes(1, 2)
        for W in np.split(weights.in_proj_weight, 3)
    )
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(size)
    chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
    heads = (chances / chances.sum(axis=-1, keepdims=True)) @ v
    return heads.swapaxes(1, 2).reshape(batch, length, width) @ weights.out_proj_weight.T


@pytest.mark.parametrize("shape", SHAPES)
def test_torchs_formula_gives_the_layers_answers(shape):
    layer, X = drawn(*shape)
    weights = torch_multihead(layer)
    answers = as_torch_computes(weights, weights.pad(X))
    np.testing.assert_allclose(answers[..., : layer.outputs], layer(X), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(answers[..., layer.outputs :], 0)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_torch_module_with_these_weights_gives_the_layers_answers(shape):
    import torch

    layer, X = drawn(*shape)
    weights = torch_multihead(layer)
    module = torch.nn.MultiheadAttention(
        weights.width, weights.heads, bias=False, batch_first=True, dtype=torch.float64
    ).eval()
    names = {"in_proj_weight": weights.in_proj_weight, "out_proj.weight": weights.out_proj_weight}
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in names.items()})
    tokens = torch.from_numpy(weights.pad(X))
    with torch.no_grad():
        answers, _ = module(tokens, tokens, tokens)
    np.testing.assert_allclose(answers.numpy()[..., : layer.outputs], layer(X), rtol=0, atol=1e-10)
