"""Third-order attention by pair sums and by matrix products, against every triple written out."""

import itertools

import numpy as np
import pytest

from keyhole import InvalidInput, TensorAttention
from keyhole.models import (
    Blank,
    build_circle_features,
    in_pairs,
    on_circle,
    pairwise_sum,
    shift_invariant,
)
from keyhole.models.tensor_sums import CircleRows


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def match3_unit(modulus, length):
    """The unit of width 5 that finds three tokens with sum zero."""
    g = 2 * np.sin(np.pi / modulus) ** 2
    c = 2 / g * np.log(8 * length**2)
    Q = c * np.array([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1 - g / 2], [0, 0, 0, 0, 0]])
    K1 = np.array([[1, 0, 0, -1, 0], [0, -1, -1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0]])
    K2 = np.array([[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0]])
    V = np.array([[0], [0], [1.0], [0]])
    return TensorAttention(Q, (K1, K2), (V, V))


def several_waves(modulus, length, frequencies, scale):
    """A unit whose scores are the mean of cosines of several frequencies, with a blank below the
    top.
    """
    k = len(frequencies)
    Q, K1, K2 = np.zeros((3, 2 * k + 2, 4 * k + 1))
    for f in range(k):
        c, s, at = f, k + f, 4 * f
        Q[[c, c, s, s], [at, at + 1, at + 2, at + 3]] = scale / k
        K1[[c, s, s, c], [at, at + 1, at + 2, at + 3]] = [1, -1, -1, -1]
        K2[[c, s, c, s], [at, at + 1, at + 2, at + 3]] = 1
    Q[-2, -1], K1[-1, -1], K2[-1, -1] = scale - np.log(8 * length**2), 1, 1
    V = np.zeros((2 * k + 2, 1))
    V[-2] = 1
    return TensorAttention(Q, (K1, K2), (V, V))


def written_out(scores, first, second):
    """Averages from a table of scores (i, j, k), each row from its own maximum, in extended
    precision.
    """
    rows = []
    for table in scores.astype(np.longdouble):
        weights = np.exp(table - table.max())
        rows.append(np.einsum("jk,jo,ko->o", weights, first, second) / weights.sum())
    return np.array(rows, dtype=np.float64)


def triples(kernel, x):
    return kernel[(x[:, None, None] + x[:, None] + x) % len(kernel)]


def exact_match3(x, modulus, length):
    """The unit's rows with scores of extended precision: float64 loses c eps = 1e-3 of a score at M
    = 10^7.
    """
    g = 2 * np.sin(np.pi / modulus) ** 2
    c = 2 / g * np.log(8 * length**2)
    pi = 4 * np.arctan(np.longdouble(1))
    r = (x[:, None, None] + x[:, None] + x + modulus // 2) % modulus - modulus // 2
    below = -2 * np.longdouble(c) * np.sin(pi * r / modulus) ** 2
    blank = np.exp(np.longdouble(c * (1 - g / 2)) - np.longdouble(c))
    weights = np.exp(below).reshape(len(x), -1).sum(axis=1)
    return (weights / (weights + blank + 2 * len(x) * np.exp(-np.longdouble(c)))).astype(np.float64)


@pytest.mark.parametrize(
    ("modulus", "length"), [(2, 3), (3, 1), (10, 5), (50, 30), (97, 2), (5000, 40), (70000, 40)]
)
def test_match3_by_pair_sums_is_the_unit_itself(modulus, length, rng):
    unit = match3_unit(modulus, length)
    x = rng.integers(modulus, size=(4, length))
    x[0, 0] = -x[0, -1] - x[0, -2 % length]
    expected = unit.dense(build_circle_features(x, modulus))[:, 1:]
    np.testing.assert_allclose(on_circle(unit, x, modulus=modulus), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("modulus", [10**6, 4 * 10**6, 10**7, 10**9])
def test_match3_at_large_moduli_is_what_exact_scores_give(modulus, rng):
    length = 24
    x = rng.integers(modulus, size=(1, length))
    x[0, :3] = (-x[0, 3] - x[0, 4]) % modulus + np.arange(3)
    fast = on_circle(match3_unit(modulus, length), x, modulus=modulus)[0, :, 0]
    np.testing.assert_allclose(fast, exact_match3(x[0], modulus, length), rtol=0, atol=1e-9)
    assert fast[0] > 0.5 > fast[5]


def test_long_sequences_with_marked_sums_agree_with_single_rows(rng):
    length, modulus = 400, 10**6
    unit = match3_unit(modulus, length)
    x = rng.integers(modulus, size=(1, length))
    X = build_circle_features(x, modulus)
    expected = unit.rows(X[:, -5:], X)
    np.testing.assert_allclose(
        on_circle(unit, x, modulus=modulus)[:, -5:], expected, rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("frequencies", [(1,), (1, 5), (3, 17, 40, 101)])
def test_several_frequencies_are_one_kernel(frequencies, rng):
    modulus, length = 1009, 12
    unit = several_waves(modulus, length, frequencies, scale=200.0)
    x = rng.integers(modulus, size=(2, length))
    expected = unit.dense(build_circle_features(x, modulus, frequencies))[:, 1:]
    answers = on_circle(unit, x, modulus=modulus, frequencies=frequencies)
    np.testing.assert_allclose(answers, expected, rtol=0, atol=1e-9)


def test_a_phase_moves_the_peak(rng):
    modulus, length = 360, 9
    unit = match3_unit(modulus, length)
    turned = np.eye(4)
    turned[:2, :2] = [[np.cos(1.0), -np.sin(1.0)], [np.sin(1.0), np.cos(1.0)]]
    turned = TensorAttention(turned @ unit.Q, unit.K, unit.V)
    x = rng.integers(modulus, size=(2, length))
    X = build_circle_features(x, modulus)
    answers = on_circle(turned, x, modulus=modulus)
    np.testing.assert_allclose(answers, turned.dense(X)[:, 1:], rtol=0, atol=1e-9)
    assert np.abs(answers - unit.dense(X)[:, 1:]).max() > 0.1


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("modulus", [7, 300, 20000])
def test_any_kernel_at_any_scale_without_a_blank(scale, modulus, rng):
    kernel = scale * rng.normal(size=modulus)
    x = rng.integers(modulus, size=(2, 9))
    first, second = rng.normal(size=(2, 2, 9, 3))
    answers = shift_invariant(kernel, x, (first, second))
    expected = [
        written_out(triples(kernel, row), v, w) for row, v, w in zip(x, first, second, strict=True)
    ]
    np.testing.assert_allclose(answers, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0, 40.0, 1e3, 1e6])
def test_long_sequences_over_few_residues_use_transforms_where_these_are_sure(scale, rng):
    modulus, length = 500, 60
    kernel = -scale * (1 - np.cos(2 * np.pi * np.arange(modulus) / modulus))
    x = rng.integers(120, size=(1, length))
    values = rng.normal(size=(2, 1, length, 2))
    answers = shift_invariant(kernel, x, tuple(values))
    expected = written_out(triples(kernel, x[0]), values[0, 0], values[1, 0])
    np.testing.assert_allclose(answers[0], expected, rtol=0, atol=1e-9)


def test_a_transform_alone_serves_flat_kernels(rng, monkeypatch):
    monkeypatch.setattr(CircleRows, "_one_by_one", None)
    kernel, x = rng.normal(size=300), rng.integers(300, size=(2, 50))
    first, second = rng.normal(size=(2, 2, 50, 2))
    answers = shift_invariant(kernel, x, (first, second))
    expected = [
        written_out(triples(kernel, row), v, w) for row, v, w in zip(x, first, second, strict=True)
    ]
    np.testing.assert_allclose(answers, expected, rtol=0, atol=1e-9)


def test_rows_far_below_the_top_of_the_kernel_are_not_lost(rng):
    modulus = 5000
    kernel = np.linspace(0.0, -1e6, modulus)
    kernel[:100] = 1e6
    x = np.full((1, 30), 1000) + rng.integers(3, size=(1, 30))
    values = rng.normal(size=(2, 1, 30, 1))
    answers = shift_invariant(kernel, x, tuple(values))
    np.testing.assert_allclose(
        answers[0], written_out(triples(kernel, x[0]), *values[:, 0]), rtol=0, atol=1e-9
    )


def test_a_blank_joins_the_pairs(rng):
    kernel, x = 3 * rng.normal(size=11), rng.integers(11, size=(1, 6))
    values, own = rng.normal(size=(2, 1, 6, 2)), rng.normal(size=(2, 2))
    scores = np.full((6, 7, 7), 0.7)
    scores[:, 1:, 1:] = triples(kernel, x[0])
    scores[:, 0, 0] = 2.5
    expected = written_out(
        scores, *(np.concatenate([own[t][None], values[t, 0]]) for t in range(2))
    )
    blank = Blank(pair=2.5, mixed=0.7, values=(own[0], own[1]))
    np.testing.assert_allclose(
        shift_invariant(kernel, x, tuple(values), blank=blank)[0], expected, rtol=0, atol=1e-12
    )


def test_a_blank_far_above_or_below_every_pair(rng):
    kernel, x = rng.normal(size=2000), rng.integers(2000, size=(1, 6))
    ones = (np.ones((1, 6, 1)),) * 2
    assert np.abs(shift_invariant(kernel, x, ones, blank=Blank(pair=1e6))).max() == 0
    np.testing.assert_array_equal(
        shift_invariant(kernel, x, ones, blank=Blank(pair=-1e6, mixed=-1e6)), 1
    )


@pytest.mark.parametrize("scale", [1e-300, 1.0, 30.0, 300.0, 1e3, 1e6])
def test_pairwise_sums_at_any_scale(scale, rng):
    a, b, c = scale * rng.normal(size=(3, 2, 12, 12))
    first, second = rng.normal(size=(2, 2, 12, 3))
    scores = a[:, :, :, None] + b[:, None] + c.swapaxes(1, 2)[:, :, None, :]
    expected = [written_out(table, v, w) for table, v, w in zip(scores, first, second, strict=True)]
    answers = pairwise_sum(a, b, c, (first, second))
    np.testing.assert_allclose(answers, expected, rtol=0, atol=1e-9)


def test_pairwise_sums_where_separate_maxima_would_give_nothing_over_nothing(rng):
    a, b, c = -2000 * (1 - np.eye(8))[None].repeat(3, axis=0)[:, None]
    c = np.roll(c, 1, axis=1)
    first, second = rng.normal(size=(2, 1, 8, 1))
    scores = a[0][:, :, None] + b[0][None] + c[0].T[:, None, :]
    np.testing.assert_allclose(
        pairwise_sum(a, b, c, (first, second))[0],
        written_out(scores, first[0], second[0]),
        atol=1e-9,
    )


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_pairwise_sums_with_a_blank(scale, rng):
    a, b, c = scale * rng.normal(size=(3, 1, 6, 6))
    values = rng.normal(size=(2, 1, 6, 2))
    scores = np.full((6, 7, 7), 0.7)
    scores[:, 1:, 1:] = a[0][:, :, None] + b[0] + c[0].T[:, None, :]
    scores[:, 0, 0] = 2.5
    expected = written_out(
        scores, *(np.concatenate([np.zeros((1, 2)), values[t, 0]]) for t in range(2))
    )
    answers = pairwise_sum(a, b, c, tuple(values), blank=Blank(pair=2.5, mixed=0.7))
    np.testing.assert_allclose(answers[0], expected, rtol=0, atol=1e-9)


def triangle_unit(codes, length):
    """Directed triangles through an edge: tokens (code of tail, code of head, 1, blank)."""
    m = codes.shape[1]
    eye, none, one = np.eye(m), np.zeros((m, m)), np.ones((1, m))
    beta = 10.0 * np.log(8 * length**2)
    tail, head, real = (
        np.concatenate([block, np.zeros((1, m))])
        for block in (
            np.concatenate([eye, none, 0 * one]),
            np.concatenate([none, eye, 0 * one]),
            np.concatenate([none, none, one]),
        )
    )
    lone, blank = np.zeros((2, 2 * m + 2, 1))
    lone[-2], blank[-1] = 2.9, 1
    Q = beta * np.concatenate([head, real, tail, lone], axis=1)
    V = np.zeros((2 * m + 2, 1))
    V[-2] = 1
    return TensorAttention(
        Q,
        (
            np.concatenate([tail, head, real, blank], axis=1),
            np.concatenate([real, tail, head, blank], axis=1),
        ),
        (V, V),
    )


def test_the_triangle_unit_is_a_sum_over_sides(rng):
    codes = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    edges = np.array(list(itertools.permutations(range(5), 2)))
    edges = edges[rng.permutation(len(edges))[:9]]
    tokens = np.concatenate(
        [codes[edges[:, 0]], codes[edges[:, 1]], np.ones((9, 1)), np.zeros((9, 1))], axis=1
    )
    X = np.concatenate([np.eye(12)[-1:], tokens])[None]
    unit = triangle_unit(codes, 9)
    answers = in_pairs(unit, X, blank=True)
    np.testing.assert_allclose(answers, unit.dense(X)[:, 1:], rtol=0, atol=1e-9)
    present = {tuple(edge) for edge in edges}
    truth = [any((h, n) in present and (n, t) in present for n in range(5)) for t, h in edges]
    np.testing.assert_array_equal(answers[0, :, 0] > 0.5, truth)


def test_scores_of_three_tokens_are_not_taken_for_pairwise_sums(rng):
    unit = TensorAttention.random(3, order=3, embed=4, rng=rng)
    with pytest.raises(InvalidInput, match="column 0 of the scores depends on three tokens"):
        in_pairs(unit, rng.normal(size=(1, 4, 3)))


def test_scores_of_more_than_the_sum_are_not_taken_for_shift_invariant(rng):
    unit = match3_unit(20, 4)
    K1 = unit.K[0].copy()
    K1[0, 0] = -1.0
    with pytest.raises(InvalidInput, match="depend on more than the sum"):
        on_circle(
            TensorAttention(unit.Q, (K1, unit.K[1]), unit.V),
            rng.integers(20, size=(1, 4)),
            modulus=20,
        )


def test_other_orders_and_widths_are_refused(rng):
    x = rng.integers(20, size=(1, 4))
    with pytest.raises(InvalidInput, match="this one is of order 2"):
        on_circle(TensorAttention.random(4, order=2, embed=2, rng=rng), x, modulus=20)
    with pytest.raises(InvalidInput, match="2 frequencies take tokens of width 6; the unit has 4"):
        on_circle(match3_unit(20, 4), x, modulus=20, frequencies=(1, 2))
    with pytest.raises(InvalidInput, match="this one is of order 4"):
        in_pairs(TensorAttention.random(4, order=4, embed=2, rng=rng), rng.normal(size=(1, 3, 4)))


def test_tokens_that_are_not_whole_are_refused():
    with pytest.raises(InvalidInput, match="tokens must be whole numbers"):
        shift_invariant(np.zeros(5), np.array([[0.5]]), (np.ones((1, 1, 1)),) * 2)


def test_scores_beyond_the_largest_number_are_refused():
    huge = np.full((1, 2, 2), 1.5e308)
    with pytest.raises(InvalidInput, match="scores go beyond the largest float64"):
        pairwise_sum(huge, huge, huge, (np.ones((1, 2, 1)),) * 2)


def test_tiny_and_huge_values_keep_their_digits(rng):
    kernel, x = rng.normal(size=13), rng.integers(13, size=(1, 5))
    first, second = rng.normal(size=(2, 1, 5, 1))
    plain = shift_invariant(kernel, x, (first, second))
    np.testing.assert_allclose(
        shift_invariant(kernel, x, (first * 1e-300, second * 1e300)), plain, rtol=1e-12
    )
    a, b, c = rng.normal(size=(3, 1, 5, 5))
    plain = pairwise_sum(a, b, c, (first, second))
    np.testing.assert_allclose(
        pairwise_sum(a, b, c, (first * 1e-300, second)), 1e-300 * plain, rtol=1e-9
    )
