"""Attention of higher order: hand-computed values, the dense formula, scales, and what is
refused.
"""

import itertools
import math

import numpy as np
import pytest

from keyhole import InvalidInput, SelfAttention, TensorAttention
from keyhole.models.tensor import Partial


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def written_out(unit, X):
    """The definition, one score at a time, in exact sums."""
    length = len(X)
    rows = []
    for i in range(length):
        terms = []
        for places in itertools.product(range(length), repeat=unit.order - 1):
            q = X[i] @ unit.Q
            keys = [X[j] @ K for j, K in zip(places, unit.K, strict=True)]
            score = math.fsum(
                float(np.prod([q[e], *(k[e] for k in keys)])) for e in range(unit.embed)
            )
            values = [X[j] @ V for j, V in zip(places, unit.V, strict=True)]
            terms.append((score, np.prod(values, axis=0)))
        top = max(score for score, _ in terms)
        weights = [math.exp(score - top) for score, _ in terms]
        summed = np.sum([w * v for w, (_, v) in zip(weights, terms, strict=True)], axis=0)
        rows.append(summed / math.fsum(weights))
    return np.array(rows)


def test_a_pair_of_two_tokens_is_weighed_by_hand():
    one = np.ones((1, 1))
    unit = TensorAttention(Q=one, K=(one, one), V=(one, one))
    X = np.array([[[math.log(2.0)], [0.0]]])
    score = math.log(2.0) ** 3
    expected = math.exp(score) * math.log(2.0) ** 2 / (math.exp(score) + 3)
    np.testing.assert_allclose(unit(X)[0, :, 0], [expected, math.log(2.0) ** 2 / 4], rtol=1e-14)


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_blocks_and_the_dense_table_agree_with_the_definition(order, rng):
    unit = TensorAttention.random(3, order=order, embed=4, outputs=2, scale=3.0, rng=rng)
    X = rng.normal(size=(2, 4, 3))
    expected = np.stack([written_out(unit, x) for x in X])
    np.testing.assert_allclose(unit(X), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(unit.dense(X), expected, rtol=0, atol=1e-12)
    assert (unit.width, unit.embed, unit.outputs, unit.order) == (3, 4, 2, order)


def test_order_two_is_a_self_attention_unit_with_one_head(rng):
    Q, K = rng.normal(size=(2, 5, 3))
    V = rng.normal(size=(5, 2))
    X = rng.normal(size=(6, 40, 5))
    np.testing.assert_allclose(
        TensorAttention(Q, (K,), (V,))(X),
        SelfAttention(Q[None], K[None], V[None])(X),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("room", [1, 7, 64, 1000])
def test_the_size_of_the_blocks_does_not_matter(room, rng, monkeypatch):
    unit = TensorAttention.random(3, order=3, embed=4, outputs=2, scale=5.0, rng=rng)
    X = rng.normal(size=(5, 6, 3))
    monkeypatch.setattr("keyhole.models.tensor.ROOM", room)
    np.testing.assert_allclose(unit(X), unit.dense(X), rtol=0, atol=1e-13)


def test_long_sequences_need_no_table_of_all_scores(rng):
    import tracemalloc

    unit = TensorAttention.random(3, order=3, embed=4, rng=rng)
    X = rng.normal(size=(1, 160, 3))
    tracemalloc.start()
    unit(X)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16e6 < 160**3 * 8


@pytest.mark.parametrize("order", [2, 3, 5])
@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1.0, 1e3, 1e6])
def test_no_scale_of_the_scores_makes_a_nan(order, scale, rng):
    drawn = TensorAttention.random(3, order=order, embed=4, outputs=2, rng=rng)
    unit = TensorAttention(drawn.Q * scale, drawn.K, drawn.V)
    X = rng.normal(size=(3, 7, 3))
    answers = unit(X)
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(answers, unit.dense(X), rtol=0, atol=1e-9)


def test_huge_and_tiny_factors_that_cancel_are_multiplied_safely(rng):
    unit = TensorAttention.random(3, order=4, embed=4, outputs=2, rng=rng)
    K, V = unit.K, unit.V
    apart = TensorAttention(
        unit.Q * 1e-200,
        (K[0] * 1e200, K[1] * 1e300, K[2] * 1e-300),
        (V[0] * 1e200, V[1] * 1e250, V[2] * 1e-300),
    )
    X = rng.normal(size=(2, 5, 3))
    np.testing.assert_allclose(apart(X), 1e150 * unit.dense(X), rtol=1e-9)


def test_scores_beyond_the_largest_number_are_refused(rng):
    unit = TensorAttention.random(3, order=3, embed=4, rng=rng)
    with pytest.raises(InvalidInput, match="scale the tokens or the weights down"):
        unit(1e120 * rng.normal(size=(2, 5, 3)))


def test_parts_of_a_softmax_join_to_the_whole(rng):
    scores, values = 30 * rng.normal(size=(4, 12)), rng.normal(size=(12, 3))
    parts = Partial.of(scores[:, :5], values[:5]).join(Partial.of(scores[:, 5:], values[5:]))
    whole = np.exp(scores) @ values / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(parts.mean, whole, rtol=0, atol=1e-12)


def test_the_numbers_of_key_and_value_matrices_must_agree():
    one = np.ones((2, 1))
    with pytest.raises(InvalidInput, match="got 2 and 1"):
        TensorAttention(one, (one, one), (one,))
    with pytest.raises(InvalidInput, match="got 0 and 0"):
        TensorAttention(one, (), ())


def test_shapes_are_checked_with_the_name_of_the_matrix():
    one = np.ones((2, 1))
    with pytest.raises(InvalidInput, match=r"K2 must have shape \(2, 1\); got \(2, 2\)"):
        TensorAttention(one, (one, np.ones((2, 2))), (one, one))
    with pytest.raises(InvalidInput, match=r"V2 must have shape \(2, 1\); got \(2, 2\)"):
        TensorAttention(one, (one, one), (one, np.ones((2, 2))))
    with pytest.raises(InvalidInput, match="V1 must be finite"):
        TensorAttention(one, (one, one), (one * np.inf, one))


def test_weights_cannot_be_changed(rng):
    unit = TensorAttention.random(3, order=3, embed=4, rng=rng)
    with pytest.raises(ValueError, match="read-only"):
        unit.K[1][0, 0] = 1.0
