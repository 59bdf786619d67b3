"""Theorem BSHK26/orthogonal-heads: heads in orthogonal subspaces with known bases, one by one."""

import numpy as np
import pytest

from keyhole import Head, InvalidInput, Local, MultiHead, Orthogonal, Outcome, Verdict
from keyhole.identify import distance

pytestmark = pytest.mark.theorem("BSHK26/orthogonal-heads")


def hidden(ranks, spare, outputs, rng, *, biases=False):
    """Heads in random orthogonal subspaces of a space with some directions to spare, and the
    bases.
    """
    d = sum(ranks) + spare
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    bases = np.split(turn[:, : sum(ranks)], np.cumsum(ranks)[:-1], axis=1)
    W = np.stack([B @ rng.normal(size=(B.shape[1],) * 2) @ B.T for B in bases])
    V = np.stack([B @ rng.normal(size=(B.shape[1], outputs)) for B in bases])
    h = np.stack([B @ rng.normal(size=B.shape[1]) for B in bases]) if biases else None
    return MultiHead(W, V, h, rng.normal(size=outputs) if biases else None), bases


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_heads_come_back_with_the_promised_number_of_queries(outputs, biases):
    for seed in range(10):
        rng = np.random.default_rng([seed, outputs])
        ranks = [int(r) for r in rng.integers(1, 7, size=int(rng.integers(1, 5)))]
        model, bases = hidden(ranks, int(rng.integers(0, 4)), outputs, rng, biases=biases)
        recovery = Orthogonal([B @ rng.normal(size=(B.shape[1],) * 2) for B in bases]).run(
            Local(model), rng=rng
        )
        assert recovery.verdict is Verdict.EXACT, recovery.sentence
        assert recovery.certificate.outcome is Outcome.HOLDS
        assert distance(recovery.model, model).largest <= 1e-9
        asked = recovery.ledger.total(without="verify").sequences
        assert asked <= sum(r * r + (1 + biases) * r for r in ranks) + 30 * len(ranks)


def test_heads_that_leave_their_subspaces_are_refused():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        model, bases = hidden([3, 3], 2, 1, rng)
        other = MultiHead(model.W + 1e-3 * rng.normal(size=model.W.shape), model.V)
        recovery = Orthogonal(bases).run(Local(other), rng=rng)
        assert not recovery.verdict.verified
        assert recovery.certificate is None or recovery.certificate.outcome is Outcome.SILENT
        generic = MultiHead.random(8, heads=2, rng=rng)
        refused = Orthogonal(bases).run(Local(generic), rng=rng)
        assert refused.verdict is Verdict.UNVERIFIED
        case = refused.counterexample
        np.testing.assert_allclose(generic(case.tokens[None])[0], case.answer, rtol=1e-9)


def test_a_residual_is_refused(rng):
    model, bases = hidden([3, 2], 0, 1, rng)
    target = Head(model.W[0], model.V[0], U=rng.normal(size=(5, 1)))
    assert not Orthogonal(bases).run(Local(target), rng=rng).verdict.verified


def test_heads_without_readout_are_not_identifiable(rng):
    model, bases = hidden([3, 2], 1, 1, rng)
    recovery = Orthogonal(bases).run(Local(MultiHead(model.W, 0 * model.V)), rng=rng)
    assert recovery.verdict is Verdict.NOT_IDENTIFIABLE


@pytest.mark.parametrize("budget", [0, 5, 20, 40])
def test_a_budget_ends_with_what_was_found(budget, rng):
    from keyhole import learn

    model, bases = hidden([3, 3, 4], 0, 1, rng)
    recovery = learn(model, rng=rng, learner=Orthogonal(bases), budget=budget)
    assert recovery.verdict is Verdict.BUDGET_SPENT
    assert recovery.ledger.total().sequences == budget
    assert (recovery.model is not None) == (budget >= 30)


def test_the_plan_counts_r_squared_plus_r(rng):
    bases = np.split(np.eye(7), [3], axis=1)
    plan = Orthogonal(bases).plan(7)
    assert plan.by_phase["measure"] + plan.by_phase["read"] == (9 + 3 + 5) + (16 + 4 + 5)
    assert plan.degrees_of_freedom == 9 + 3 + 16 + 4


def test_bases_that_cannot_be_used_are_refused(rng):
    with pytest.raises(InvalidInput, match="must be orthogonal"):
        Orthogonal([np.eye(3)[:, :2], np.eye(3)[:, 1:]])
    with pytest.raises(InvalidInput, match="independent"):
        Orthogonal([np.ones((3, 2))])
    with pytest.raises(InvalidInput, match="one basis per head"):
        Orthogonal([])
    with pytest.raises(InvalidInput, match="width of a token"):
        Orthogonal([np.eye(3)]).run(Local(MultiHead.random(4, heads=2, rng=rng)), rng=rng)
