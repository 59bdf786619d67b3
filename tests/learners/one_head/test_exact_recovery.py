"""Theorem BSHK26/4.1: a softmax head from d^2 + d exact value queries."""

import numpy as np
import pytest

import keyhole
from keyhole import Exact, Head, Local, MultiHead, Outcome, Status, Verdict
from support.measures import gap
from support.seeds import few

pytestmark = pytest.mark.theorem("BSHK26/4.1")


def readouts(kind, width, rng):
    v = rng.normal(size=width)
    if kind == "tiny":
        v *= 1e-20
    if kind == "mostly zero":
        v[rng.permutation(width)[: int(0.8 * width)]] = 0.0
    if kind == "graded":
        v *= 10.0 ** rng.uniform(-15, 0, size=width)
    return v[:, None]


@pytest.mark.parametrize("width", [1, 2, 3, 8, 24])
def test_weights_come_back_exactly(width, rng):
    truth = Head.random(width, rng=rng)
    recovery = Exact().run(Local(truth), rng=rng)
    assert recovery.certificate.outcome is Outcome.HOLDS
    np.testing.assert_allclose(recovery.unwrap().W, truth.W, atol=1e-12)
    np.testing.assert_allclose(recovery.unwrap().V, truth.V, atol=1e-14)


@pytest.mark.parametrize("kind", ["plain", "tiny", "mostly zero", "graded"])
def test_every_scale_and_readout_is_recovered(kind):
    """No failure, errors at rounding, a few queries above d^2 + d."""
    errors, extra = [], []
    for seed in few(80):
        rng = np.random.default_rng([seed, len(kind)])
        d = int(rng.integers(1, 41))
        truth = Head(rng.normal(size=(d, d)) * 10.0 ** rng.uniform(-30, 30), readouts(kind, d, rng))
        recovery = Exact().run(Local(truth), rng=rng)
        assert recovery.verdict is Verdict.EXACT, (kind, seed)
        errors.append(max(gap(recovery.model.W, truth.W), gap(recovery.model.V, truth.V)))
        extra.append(recovery.ledger.total(without="verify").sequences - d * d - d)
    assert max(errors) <= 1e-12
    assert np.median(errors) <= 1e-14
    assert max(extra) <= 70


def test_the_default_learner_stays_within_the_same_bounds():
    """Rank unknown, full rank: the checks for a lower rank cost fewer than seventy queries,
    recognition forty, and eight more each time it asks shorter tokens.
    """
    for seed in few(20):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(1, 65))
        truth = Head.random(d, scale=10.0 ** rng.uniform(-20, 20), rng=rng)
        recovery = keyhole.learn(truth, rng=rng)
        assert recovery.verdict is Verdict.EXACT
        assert recovery.rank == d
        assert gap(recovery.model.W, truth.W) <= 1e-12
        first = recovery.ledger["recognise"].sequences
        assert first <= 40 + 3 * 8
        assert recovery.ledger.total(without="verify").sequences - first <= d * d + d + 70


def test_a_blind_readout_is_outside_the_theorem(rng):
    recovery = Exact().run(Local(Head(np.eye(3), np.zeros((3, 1)))), rng=rng)
    assert recovery.certificate.outcome is Outcome.SILENT
    assert recovery.verdict is Verdict.NOT_IDENTIFIABLE
    assert recovery.status is Status.NO_READOUT
    assert "any values fit" in recovery.determined


def test_two_heads_are_outside_the_theorem(rng):
    target = MultiHead.random(4, heads=2, rng=rng)
    recovery = keyhole.learn(target, learner="exact", rng=rng)
    assert recovery.verdict is Verdict.CLASS_REFUTED
    assert recovery.counterexample.rule in ("copies", "odds")
    assert recovery.certificate is None or recovery.certificate.outcome is Outcome.SILENT


def test_the_error_bar_covers_the_error():
    """All but one bar in twenty cover the true error, and none is more than a thousand times too
    wide.
    """
    covered = []
    for seed in few(60):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(2, 20))
        truth = Head.random(d, rng=rng)
        recovery = Exact().run(Local(truth), rng=rng)
        error = np.sqrt(np.mean((recovery.model.W - truth.W) ** 2))
        covered.append(error <= recovery.bars["W"][0])
        assert recovery.bars["W"][0] <= 1e3 * max(error, 1e-16)
    assert sum(covered) >= 0.95 * len(covered) - 1


@pytest.mark.parametrize("budget", [0, 1, 9, 60, 100])
def test_a_budget_is_used_to_the_last_query_and_never_exceeded(budget, rng):
    truth, asked = Head.random(8, rng=rng), []

    def target(X):
        asked.append(len(X))
        return truth(X)

    recovery = keyhole.learn(Local(target, 8), rng=np.random.default_rng(0), budget=budget)
    full = keyhole.learn(truth, rng=np.random.default_rng(0))
    needed = full.ledger.total(without="verify").sequences
    assert sum(asked) == budget == recovery.ledger.total().sequences
    assert recovery.verdict is (Verdict.BUDGET_SPENT if budget < needed else Verdict.UNVERIFIED)


def test_one_query_short_is_spent_and_one_query_short_of_verification_is_unverified(rng):
    truth = Head.random(8, rng=rng)
    full = keyhole.learn(truth, rng=np.random.default_rng(0))
    needed, total = full.ledger.total(without="verify").sequences, full.ledger.total().sequences
    short = keyhole.learn(truth, rng=np.random.default_rng(0), budget=needed - 1)
    unchecked = keyhole.learn(truth, rng=np.random.default_rng(0), budget=total - 1)
    assert (short.verdict, short.ledger.total().sequences) == (Verdict.BUDGET_SPENT, needed - 1)
    assert short.model is not None
    assert (unchecked.verdict, unchecked.status) == (Verdict.UNVERIFIED, Status.UNCHECKED)
    assert gap(unchecked.model.W, truth.W) <= 1e-12


def test_a_refusal_that_could_not_be_asked_again_is_not_a_refutation(rng):
    """With the last query of the budget spent on the witness, noise and another class look the
    same.
    """
    target = MultiHead.random(4, heads=2, rng=rng)
    full = keyhole.learn(target, learner="low-rank", rng=np.random.default_rng(0))
    asked = full.ledger.total().sequences
    short = keyhole.learn(
        target, learner="low-rank", rng=np.random.default_rng(0), budget=asked - 1
    )
    assert (full.verdict, short.verdict) == (Verdict.CLASS_REFUTED, Verdict.UNVERIFIED)
    assert short.ledger.total().sequences == asked - 1


def test_a_rank_above_the_width_is_refused_before_anything_is_asked(rng):
    asked = []
    with pytest.raises(keyhole.InvalidInput, match="at most the width 3"):
        keyhole.LowRank(4).run(Local(lambda X: asked.append(1), 3), rng=rng)
    assert not asked


@pytest.mark.parametrize("distance", [10.0, 100.0])
def test_a_head_with_a_hinge_far_away_is_not_taken_for_a_head(distance):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        head = Head.random(6, rng=rng)

        def hinged(X, head=head):
            return head(X) + np.maximum(np.abs(X[:, -1] @ head.V) - distance, 0.0)

        assert not keyhole.learn(Local(hinged, 6), learner="low-rank", rng=rng).verdict.verified
