"""Attention of higher order with several heads."""

import numpy as np
import pytest

import keyhole
from keyhole import SelfAttention, TensorAttention, TensorHeads, evaluate
from keyhole.errors import InvalidInput


def test_heads_of_order_two_are_a_layer_of_self_attention(rng):
    Q, K = rng.normal(size=(2, 3, 4, 2))
    V = rng.normal(size=(3, 4, 5))
    heads = [TensorAttention(q, (k,), (v,)) for q, k, v in zip(Q, K, V, strict=True)]
    layer = TensorHeads(tuple(heads))
    X = rng.normal(size=(2, 6, 4))
    np.testing.assert_allclose(layer(X), SelfAttention(Q, K, V)(X), atol=1e-12)
    assert (layer.order, layer.width, layer.embed, layer.outputs) == (2, 4, 2, 5)
    form = "fixed:6.9"
    np.testing.assert_allclose(
        evaluate(layer, X, form), evaluate(SelfAttention(Q, K, V), X, form), atol=1e-12
    )


def test_a_layer_of_order_three_adds_up_its_heads_as_loops_do(rng):
    layer = TensorHeads.random(3, heads=2, order=3, embed=2, outputs=2, rng=rng)
    X = rng.normal(size=(1, 4, 3))
    expected = np.zeros((4, 2))
    for head in layer.heads:
        for i, x in enumerate(X[0]):
            pairs = [(a, b) for a in X[0] for b in X[0]]
            scores = [np.sum(x @ head.Q * (a @ head.K[0]) * (b @ head.K[1])) for a, b in pairs]
            weights = np.exp(scores) / np.sum(np.exp(scores))
            values = [(a @ head.V[0]) * (b @ head.V[1]) for a, b in pairs]
            expected[i] += weights @ np.array(values)
    np.testing.assert_allclose(layer(X)[0], expected, atol=1e-12)
    np.testing.assert_allclose(layer.dense(X)[0], expected, atol=1e-12)


def test_a_layer_comes_back_from_its_file(tmp_path, rng):
    layer = TensorHeads.random(3, heads=2, order=4, embed=2, outputs=3, rng=rng)
    X = rng.normal(size=(1, 3, 3))
    keyhole.save(layer, tmp_path / "layer.safetensors")
    np.testing.assert_array_equal(keyhole.load(tmp_path / "layer.safetensors")(X), layer(X))


def test_heads_that_differ_in_kind_are_no_layer(rng):
    one = TensorAttention.random(3, order=3, embed=2, rng=rng)
    for other in (
        TensorAttention.random(3, order=4, embed=2, rng=rng),
        TensorAttention.random(3, order=3, embed=3, rng=rng),
        TensorAttention.random(3, order=3, embed=2, outputs=2, rng=rng),
    ):
        with pytest.raises(InvalidInput, match="2 heads of 2 kinds"):
            TensorHeads((one, other))
    with pytest.raises(InvalidInput, match="0 heads"):
        TensorHeads(())
