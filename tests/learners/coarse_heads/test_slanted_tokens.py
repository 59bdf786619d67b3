"""Sums of heads whose answers are rounded to decimals: tokens so long that rounding is nothing."""

import numpy as np
import pytest

from keyhole import (
    Budgeted,
    Declared,
    Imperfection,
    Local,
    MultiHead,
    SeveralHeads,
    Status,
    Verdict,
    compare,
    learn,
)
from keyhole.learners.coarse_heads.slanted_tokens import slant_tokens
from keyhole.oracles import Counted
from support.measures import asked


def round_answers(model, decimals):
    """A target that answers in so many decimals, and says so."""

    def answer(X):
        return np.round(model(X), decimals)

    return Declared(Local(answer, model.width), Imperfection.decimals(decimals))


def draw_sum(shape, rng, *, residual=False, biased=False):
    heads, width, outputs = shape
    model = MultiHead.random(width, heads=heads, outputs=outputs, rng=rng)
    U = rng.normal(size=(width, outputs)) / np.sqrt(width) if residual else None
    h = rng.normal(size=(heads, width)) if biased else None
    return MultiHead(model.W, model.V, h, rng.normal(size=outputs), U)


def test_slanted_tokens_are_answered_as_the_sum_itself(rng):
    model = draw_sum((3, 5, 2), rng, residual=True)
    slanted = slant_tokens(Counted(round_answers(model, 2)))
    for length in (1, 2, 6):
        X = rng.normal(size=(20, length, 5))
        off = slanted.ask(X) - model(X)
        # The constant alone is as rounded as any answer.
        assert np.abs(off - off[0]).max() <= 1e-11
        assert np.abs(off).max() <= 0.0051


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 8, 3), (3, 8, 1)])
@pytest.mark.parametrize("residual", [False, True])
def test_two_decimals_are_enough_for_nine_digits(shape, residual):
    for seed in range(4):
        building, learning, exact = np.random.default_rng([23, seed]).spawn(3)
        model = draw_sum(shape, building, residual=residual)
        recovery = SeveralHeads().run(round_answers(model, 2), rng=learning)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE, recovery.sentence
        found = compare(recovery.unwrap(), model)
        assert max(found.W, found.V) <= 1e-8
        assert np.abs(recovery.model.c - model.c).max() <= 0.0051
        # Two more questions tell whether a score bias acts.
        plain = SeveralHeads().run(Local(model), rng=exact)
        assert asked(recovery) <= 1.6 * asked(plain) + 20


def test_auto_goes_on_to_several_heads_behind_decimals(rng):
    model = draw_sum((2, 8, 8), rng)
    recovery = learn(round_answers(model, 6), rng=rng)
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE
    assert isinstance(recovery.model, MultiHead)


def test_a_score_bias_is_said_after_a_few_questions(rng):
    model = draw_sum((3, 8, 4), rng, biased=True)
    recovery = SeveralHeads().run(round_answers(model, 4), rng=rng)
    assert recovery.verdict is Verdict.UNVERIFIED
    assert recovery.status is Status.UNRESOLVED
    assert "score bias" in recovery.sentence
    assert recovery.ledger.total().sequences <= 8 + 3


def test_no_rounded_target_that_is_no_sum_of_heads_is_verified():
    for seed in range(6):
        rng = np.random.default_rng([24, seed])
        model = draw_sum((2, 6, 3), rng)

        def capped(X, model=model):
            scores = 4.0 * np.tanh(model.logits(X) / 4.0)
            shares = np.exp(scores - scores.max(axis=2, keepdims=True))
            shares /= shares.sum(axis=2, keepdims=True)
            return np.round(np.einsum("bhn,bnd,hdo->bo", shares, X, model.V) + model.c, 4)

        oracle = Declared(Local(capped, 6), Imperfection.decimals(4))
        recovery = SeveralHeads(queries=3000).run(oracle, rng=rng)
        assert not recovery.verdict.verified, recovery.sentence


@pytest.mark.parametrize("budget", [3, 12, 40, 100])
def test_a_spent_budget_is_said_and_never_exceeded(budget, rng):
    oracle = Counted(round_answers(draw_sum((3, 8, 3), rng), 3))
    recovery = SeveralHeads().run(Budgeted(oracle, budget), rng=rng)
    assert recovery.verdict is Verdict.BUDGET_SPENT
    assert oracle.ledger.total().sequences <= budget
    assert recovery.ledger.total().sequences <= budget
