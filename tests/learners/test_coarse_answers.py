"""Answers and arithmetic in float32: within the stated tolerance, never called exact."""

import numpy as np
import pytest

import keyhole
from keyhole import Head, Local, MultiHead, Verdict
from keyhole._arrays import softmax
from keyhole.oracles import Cast, Declared, Imperfection
from support.measures import gap
from support.seeds import few

pytestmark = pytest.mark.theorem("BSHK26/4.1")

KINDS = [{}, {"rank": 3}, {"outputs": 8}, {"outputs": 8, "rank": 3}, {"biases": True}]


def single(head):
    """The head computed in float32 from its formula."""
    W, V = np.asarray(head.W, np.float32), head.V.astype(np.float32)
    h = np.float32(0) if head.h is None else head.h.astype(np.float32)
    c = np.float32(0) if head.c is None else head.c.astype(np.float32)

    def answer(X):
        X = X.astype(np.float32)
        scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T + h)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return np.einsum("bn,bnd->bd", weights, X) @ V + c

    return answer


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_float32_arithmetic_is_recovered_within_its_tolerance(kind):
    for seed in few(10):
        rng = np.random.default_rng(seed)
        truth = Head.random(int(rng.integers(8, 32)), rng=rng, **kind)
        oracle = Declared(Local(single(truth), truth.width), Imperfection.cast("f32"))
        recovery = keyhole.learn(oracle, rng=rng)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE, (kind, seed)
        assert "6.0e-08" in recovery.sentence
        assert gap(recovery.model.W, truth.W) <= 5e-4


def test_exact_answers_that_are_declared_coarse_are_not_called_exact(rng):
    oracle = Declared(Local(Head.random(6, rng=rng)), Imperfection.cast("f32"))
    assert keyhole.learn(oracle, rng=rng).verdict is Verdict.WITHIN_TOLERANCE


def test_two_heads_are_refuted_in_float32_too():
    for seed in few(10):
        rng = np.random.default_rng(seed)
        heads = MultiHead.random(6, heads=2, rng=rng)
        oracle = Declared(
            Local(lambda X, heads=heads: heads(X).astype(np.float32), 6), Imperfection.cast("f32")
        )
        assert keyhole.learn(oracle, rng=rng, learner="low-rank").verdict is Verdict.CLASS_REFUTED


def clip_scores(scores):
    return softmax(np.clip(scores, -15.0, 15.0))


def drop_small_weights(scores):
    weights = softmax(scores)
    weights = np.where(weights < 1e-3, 0.0, weights)
    return weights / weights.sum(axis=1, keepdims=True)


def window_scores(scores):
    seen = np.arange(scores.shape[1]) >= scores.shape[1] - 40
    return softmax(np.where(seen, scores, -np.inf))


@pytest.mark.parametrize("weigh", [clip_scores, drop_small_weights, window_scores])
@pytest.mark.parametrize(("heads", "outputs"), [(1, 1), (1, 4), (3, 8)])
def test_float32_hides_no_other_attention(weigh, heads, outputs):
    for seed in few(4):
        rng = np.random.default_rng(seed)
        W = rng.normal(size=(heads, 8, 8)) / np.sqrt(8)
        V = rng.normal(size=(heads, 8, outputs))

        def answer(X, W=W, V=V):
            scores = np.einsum("bnd,hde,be->hbn", X, W, X[:, -1])
            mixed = np.stack([np.einsum("bn,bnd->bd", weigh(s), X) for s in scores])
            return np.einsum("hbd,hdo->bo", mixed, V)

        recovery = keyhole.learn(Cast(Local(answer, 8), "f32"), rng=rng)
        assert not recovery.verdict.verified, (seed, recovery.sentence)


@pytest.mark.parametrize("weigh", [clip_scores, drop_small_weights, window_scores])
def test_arithmetic_in_float32_hides_no_other_attention(weigh):
    """Where every number is read once, as a constant demands, right heads are off by a rounding."""
    for seed in few(4):
        rng = np.random.default_rng(seed)
        W, v = rng.normal(size=(8, 8)) / np.sqrt(8), rng.normal(size=(8, 1))

        def answer(X, W=W, v=v, weigh=weigh):
            X = X.astype(np.float32).astype(float)
            weights = weigh(np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T))
            return np.einsum("bn,bnd->bd", weights, X) @ v + 2.0

        found = keyhole.learn(Cast(Local(answer, 8), "f32"), rng=rng)
        assert not found.verdict.verified, (seed, found.sentence)
        right = keyhole.learn(Cast(Local(lambda X: answer(X, weigh=softmax), 8), "f32"), rng=rng)
        assert right.verdict is Verdict.WITHIN_TOLERANCE, seed


def test_coarse_answers_that_nobody_declared_are_never_called_exact(rng):
    truth = Head.random(6, rng=rng)
    recovery = keyhole.learn(Local(single(truth), 6), rng=rng)
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE
    assert "Answers were seen to be f32 numbers, which was not declared." in recovery.sentence
    named = keyhole.learn(Local(single(truth), 6), rng=rng, learner="low-rank")
    assert not named.verdict.verified
