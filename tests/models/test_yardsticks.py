"""What rounding explains of a gap, against evaluation in extended precision."""

from dataclasses import replace

import numpy as np
import pytest

from keyhole._arrays import EPS
from keyhole.models import AbsAffine, Head, MultiHead, OneLayer, ReluNet

SEEDS = range(40)


def answer_exactly(model, X):
    """The same formula in extended precision, tokens in the opposite order."""
    X = np.asarray(X, dtype=np.longdouble)
    y = X[:, -1]
    if isinstance(model, MultiHead):
        return sum(answer_exactly(head, X) for head in model.heads)
    if isinstance(model, Head):
        W, V = (np.asarray(part, dtype=np.longdouble) for part in (model.W, model.V))
        q = y @ W.T + (0 if model.h is None else model.h)
        scores = (X[:, ::-1] * q[:, None]).sum(axis=2)
        a = np.exp(scores - scores.max(axis=1, keepdims=True))
        a /= a.sum(axis=1, keepdims=True)
        answers = (a[..., None] * X[:, ::-1]).sum(axis=1) @ V
        answers = answers if model.U is None else answers + y @ model.U
        return answers if model.c is None else answers + model.c
    if isinstance(model, OneLayer):
        inputs = answer_exactly(model.head, X) + (y if model.residual else 0)
        return answer_exactly(model.net, inputs[:, None])
    if isinstance(model, AbsAffine):
        return np.abs(y @ model.n.T - model.t) @ model.D / 2 + y @ model.P.T + model.q
    return np.maximum(y @ model.W1.T + model.b1, 0) @ model.W2.T + model.b2


def draw_model(kind, rng):
    d = int(rng.integers(1, 9))
    scale = 10.0 ** rng.uniform(-6, 6)
    if kind == "head":
        return Head.random(d, scale=scale, biases=True, rng=rng)
    if kind == "residual":
        head = Head.random(d, outputs=2, scale=scale, rng=rng)
        return replace(head, U=-head.V)
    if kind == "heads that cancel":
        W, V = rng.normal(size=(3, d, d)) * scale, rng.normal(size=(3, d, 1))
        V[2] = -V[0] - V[1]
        return MultiHead(W, V)
    if kind == "one layer":
        return OneLayer.random(d, hidden=5, scale=scale, residual=True, biases=True, rng=rng)
    net = ReluNet.random(d, hidden=7, outputs=2, scale=scale, rng=rng)
    return net if kind == "relu" else net.normal_form()


KINDS = ("head", "residual", "heads that cancel", "one layer", "relu", "absolute values")


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_moves_no_answer_by_more_than_the_yardstick_says(kind):
    """Spec 10 section 6 found at most 0.57 of E for another order of arithmetic; 16 is allowed."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        model = draw_model(kind, rng)
        for length in (1, 2, 7, 60):
            size = 10.0 ** rng.uniform(-3, 3)
            X = size * rng.normal(size=(6, length, model.width))
            gap = np.abs(model(X) - answer_exactly(model, X)).max(axis=1)
            assert (gap <= 4.0 * model.yardstick(X, EPS).rounding).all(), seed


@pytest.mark.parametrize("kind", KINDS[:3])
def test_last_digits_of_the_largest_entries_are_within_the_coarse_yardstick(kind):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        model = draw_model(kind, rng)
        moved = {}
        for name in ("W", "V"):
            entries = np.asarray(getattr(model, name))
            ulps = 4 * EPS * np.abs(entries).max()
            moved[name] = entries + ulps * rng.uniform(-1, 1, size=entries.shape)
        other = replace(model, **moved)
        X = rng.normal(size=(20, 5, model.width))
        gap = np.abs(model(X) - other(X)).max(axis=1)
        assert (gap <= 16 * model.yardstick(X, EPS).coarse).all(), seed


def test_size_adds_up_what_cancels():
    V = np.array([[[1.0]], [[2.0]], [[-3.0]]])
    model = MultiHead(np.zeros((3, 1, 1)), V)
    by = model.yardstick(np.array([[[2.0], [1.0]]]), EPS)
    assert model(np.array([[[2.0], [1.0]]])) == 0.0
    np.testing.assert_allclose(by.size, [2.0 * (1 + 2 + 3)])


def test_a_lone_token_feels_no_error_of_its_score():
    head = Head(np.array([[1e9]]), np.array([[1.0]]))
    lone = head.yardstick(np.array([[[1.0]]]), EPS)
    pair = head.yardstick(np.array([[[1.0], [1.0]]]), EPS)
    np.testing.assert_allclose(lone.rounding, [5 * EPS])
    np.testing.assert_allclose(pair.rounding, [(2**0.5 + 4 + 2e9) * EPS])


def test_a_constant_adds_to_rounding_and_not_to_size():
    head = Head(np.zeros((1, 1)), np.array([[1.0]]), c=np.array([1e6]))
    by = head.yardstick(np.array([[[2.0]]]), EPS)
    np.testing.assert_allclose(by.size, [2.0])
    np.testing.assert_allclose(by.rounding, [EPS * (5 * 2.0 + 4e6)])


@pytest.mark.parametrize("seed", SEEDS)
def test_parallel_hyperplanes_are_as_large_as_they_can_become_together(seed):
    """Answers to two tokens differ by no more than both sizes, and a ridge is as large as high."""
    rng = np.random.default_rng(seed)
    d, height = 5, 10.0 ** -rng.uniform(1, 6)
    n, t, D = rng.normal(size=(3, d)), rng.normal(size=3), rng.normal(size=(3, 2))
    n /= np.linalg.norm(n, axis=1, keepdims=True)
    # Every direction twice, one of the two turned round.
    pairs = AbsAffine(
        np.concatenate([n, -n]),
        np.concatenate([t, -(t + height)]),
        np.concatenate([D, -D]),
        np.zeros((2, d)),
        np.zeros(2),
    )
    x = 10.0 ** rng.uniform(-2, 4, size=(400, 1)) * rng.normal(size=(400, d))
    size, answers = pairs.yardstick(x[:, None], EPS).size, pairs.points(x)
    assert (np.abs(answers[1:] - answers[:-1]).max(axis=1) <= 1.0001 * (size[1:] + size[:-1])).all()
    together = height * np.abs(D).sum(axis=0).max()
    assert (size <= 1.0001 * (together + 1e-3 * measure_bends(pairs, x))).all()
    # One hyperplane alone is as large as before.
    alone = replace(pairs, n=n, t=t, D=D)
    assert np.allclose(alone.yardstick(x[:, None], EPS).size, measure_bends(alone, x))


def measure_bends(model, x):
    return (np.abs(x) @ np.abs(model.n).T @ np.abs(model.D) / 2).max(axis=1)
