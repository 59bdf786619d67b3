"""Theorem KKG26/repetition: the published baseline, rational interpolation in the repetition
ratio.
"""

import numpy as np
import pytest

from keyhole import (
    Head,
    InvalidInput,
    Local,
    MultiHead,
    Outcome,
    Repetition,
    Status,
    Verdict,
    learn,
)
from keyhole.identify import distance

pytestmark = pytest.mark.theorem("KKG26/repetition")


def runs(heads, width, seeds):
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        model = MultiHead.random(width, heads=heads, rng=rng)
        yield model, Repetition(heads).run(Local(model), rng=rng)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_one_head_is_recovered_with_the_published_count(width):
    for model, recovery in runs(1, width, 10):
        assert recovery.verdict is Verdict.EXACT
        assert recovery.certificate.outcome is Outcome.HOLDS
        assert distance(recovery.model, model).largest <= 1e-12


def test_two_heads_are_mostly_recovered_and_never_wrong():
    verified = 0
    for model, recovery in runs(2, 4, 20):
        asked = recovery.ledger["read"].sequences + recovery.ledger["measure"].sequences
        assert asked <= 4 * 2 * 16 - 4 + 1 + 5
        assert recovery.verdict in (Verdict.EXACT, Verdict.UNVERIFIED)
        if recovery.verdict is Verdict.EXACT:
            verified += 1
            assert distance(recovery.model, model).largest <= 1e-6
    assert verified >= 15


@pytest.mark.parametrize("heads", [3, 4])
def test_more_heads_are_beyond_float64_and_said_to_be(heads):
    for _, recovery in runs(heads, 4, 10):
        assert recovery.verdict in (Verdict.EXACT, Verdict.UNVERIFIED)
        if recovery.verdict is Verdict.UNVERIFIED:
            assert recovery.status is Status.IMPRECISE
            assert "amplified rounding up to" in recovery.sentence
            assert recovery.certificate is None or recovery.certificate.outcome is Outcome.SILENT


def test_amplification_grows_with_the_number_of_heads():
    def worst(recovery):
        return float(recovery.sentence.split("up to ")[1].split(" times")[0])

    medians = [
        np.median([worst(recovery) for _, recovery in runs(heads, 3, 8)]) for heads in (1, 2, 3)
    ]
    assert medians[0] < 100 < 1e4 < medians[1] < medians[2]


def test_a_number_of_heads_too_small_is_never_verified():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        recovery = Repetition(1).run(Local(MultiHead.random(4, heads=2, rng=rng)), rng=rng)
        assert not recovery.verdict.verified


def test_what_the_baseline_does_not_take_is_refused(rng):
    biased = Repetition(1).run(Local(Head.random(3, biases=True, rng=rng)), rng=rng)
    several = Repetition(2).run(Local(MultiHead.random(3, heads=2, outputs=4, rng=rng)), rng=rng)
    for recovery in (biased, several):
        assert recovery.verdict is Verdict.UNVERIFIED
        assert "one output, without score biases" in recovery.sentence


@pytest.mark.parametrize("budget", [0, 3, 12, 60])
def test_a_budget_is_never_exceeded(budget, rng):
    recovery = learn(
        MultiHead.random(4, heads=2, rng=rng), rng=rng, learner=Repetition(2), budget=budget
    )
    assert recovery.verdict is Verdict.BUDGET_SPENT
    assert recovery.ledger.total().sequences == budget


def test_the_plan_is_what_a_run_costs(rng):
    plan = Repetition(2).plan(4)
    recovery = Repetition(2).run(Local(MultiHead.random(4, heads=2, rng=rng)), rng=rng)
    assert recovery.ledger["measure"].sequences == plan.by_phase["measure"] == 4 * (32 - 4)
    assert recovery.ledger.total().sequences <= plan.at_most
    with pytest.raises(InvalidInput, match="whole number"):
        Repetition(0)
