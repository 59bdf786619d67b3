"""Sums of heads behind float32 answers: read roughly, routed, and read again."""

import numpy as np
import pytest

from keyhole import (
    Declared,
    Imperfection,
    Local,
    MultiHead,
    Outcome,
    SeveralHeads,
    Verdict,
    WholeLayer,
    compare,
)
from keyhole.learners.coarse_heads.two_readings import Recalling, can_read_coarsely
from keyhole.oracles import Counted
from support.measures import asked

FLOAT32 = Imperfection.cast("f32")


def draw_thin_sum(shape, rank, rng, *, wired=False):
    """Heads whose W and V have a rank; wired ones with score biases and a residual."""
    heads, width, outputs = shape
    left, right = rng.normal(size=(2, heads, width, rank))
    W = left @ right.swapaxes(1, 2) / np.sqrt(width * rank)
    C, S = rng.normal(size=(heads, width, rank)), rng.normal(size=(heads, rank, outputs))
    h = rng.normal(size=(heads, width)) if wired else None
    U = rng.normal(size=(width, outputs)) / np.sqrt(width) if wired else None
    return MultiHead(W, C @ S / np.sqrt(width * rank), h, None, U)


def compute_narrowly(model):
    """The formula in float32 throughout, written down anew."""
    W, V = (part.astype(np.float32) for part in (model.W, model.V))
    h = None if model.h is None else model.h.astype(np.float32)
    U = None if model.U is None else model.U.astype(np.float32)

    def answer(X):
        X = X.astype(np.float32)
        out = np.zeros((len(X), model.outputs), np.float32)
        for at in range(len(W)):
            query = X[:, -1] @ W[at].T
            query = query if h is None else query + h[at]
            scores = np.einsum("bnd,bd->bn", X, query)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            out += np.einsum("bn,bnd->bd", shares, X) @ V[at]
        return out if U is None else out + X[:, -1] @ U

    return answer


def learn_narrow(model, rng, learner=None):
    """The recovery of a target that computes in float32 and says so."""
    oracle = Declared(Local(compute_narrowly(model), model.width), FLOAT32)
    return (learner or SeveralHeads()).run(oracle, rng=rng)


def count_ranks(stack):
    return [int(np.linalg.matrix_rank(part, 1e-6)) for part in stack]


@pytest.mark.parametrize("learner", [SeveralHeads(), WholeLayer()])
def test_ranks_are_right_and_queries_within_three_times_those_of_float64(learner):
    right, ratios = 0, []
    for seed in range(8):
        building, exact, narrow = np.random.default_rng([21, seed]).spawn(3)
        model = draw_thin_sum((4, 16, 16), 4, building)
        recovery = learn_narrow(model, narrow, learner)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE, recovery.sentence
        found = recovery.unwrap()
        assert compare(found, model).largest <= 3e-3
        right += count_ranks(found.W) == count_ranks(found.V) == [4] * 4
        ratios.append(asked(recovery) / asked(learner.run(Local(model), rng=exact)))
    assert right >= 7
    assert np.median(ratios) <= 3.0


def test_biases_and_a_residual_come_back():
    for seed in range(4):
        building, learning = np.random.default_rng([22, seed]).spawn(2)
        model = draw_thin_sum((4, 16, 16), 16, building, wired=True)
        recovery = learn_narrow(model, learning)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE, recovery.sentence
        assert recovery.certificate.outcome is Outcome.SILENT
        assert compare(recovery.unwrap(), model).largest <= 3e-3


def test_answers_that_are_cast_and_no_more_are_read_closer_than_declared(rng):
    model = draw_thin_sum((4, 16, 16), 16, rng)

    def answer(X):
        return model(X).astype(np.float32)

    recovery = SeveralHeads().run(Declared(Local(answer, 16), FLOAT32), rng=rng)
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE
    assert compare(recovery.unwrap(), model).largest <= 1e-4


def test_nothing_is_asked_twice(rng):
    model = draw_thin_sum((2, 4, 4), 4, rng)
    oracle = Counted(Local(model))
    recalling = Recalling(oracle)
    X = rng.normal(size=(6, 3, 4))
    first = recalling.ask(X[:4])
    np.testing.assert_array_equal(recalling.ask(X)[:4], first)
    np.testing.assert_array_equal(recalling.ask(X[::-1]), model(X)[::-1])
    assert oracle.ledger.total().sequences == 6


@pytest.mark.parametrize(
    ("stated", "outputs", "fine"),
    [
        (FLOAT32, 2, True),
        (FLOAT32, 1, False),
        (Imperfection.cast("f16"), 2, False),
        (Imperfection.cast("bf16"), 2, False),
        (Imperfection.decimals(9), 2, False),
        (Imperfection(levels=2), 2, False),
    ],
)
def test_coarser_answers_are_left_to_other_ways(stated, outputs, fine):
    assert can_read_coarsely(stated, outputs) is fine
