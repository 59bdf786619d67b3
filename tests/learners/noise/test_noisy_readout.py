"""Pieces of the learner for answers with errors: intervals, budgets, the bound on tokens,
refusals.
"""

import numpy as np
import pytest

from keyhole import Bounded, Budgeted, Head, InvalidInput, Local, Noisy, Verdict
from keyhole.claims import Certificate
from keyhole.learners.base import Recovery, Status
from keyhole.learners.noise.learner import UnderNoise
from keyhole.learners.noise.noisy_readout import Errors
from keyhole.oracles import Ledger


def recovery(model, bars):
    return Recovery(
        model=model, status=Status.RECOVERED, verdict=Verdict.WITHIN_TOLERANCE, reason="",
        determined="", ledger=Ledger(), bars=bars,
    )  # fmt: skip


def test_an_interval_is_the_estimate_and_its_bar_times_the_normal_quantile():
    head = Head(np.eye(2), np.ones((2, 1)))
    low, high = recovery(head, {"W": np.full((2, 2), 0.1)}).interval("W")
    np.testing.assert_allclose(high - head.W, 0.19599639845, rtol=1e-9)
    np.testing.assert_allclose(head.W - low, 0.19599639845, rtol=1e-9)
    wide = recovery(head, {"W": np.full((2, 2), 0.1)}).interval("W", 0.99)[1]
    np.testing.assert_allclose(wide - head.W, 0.25758293035, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "level"), [("V", 0.95), ("h", 0.95), ("W", 0.0), ("W", 1.0), ("W", float("nan"))]
)
def test_an_interval_that_cannot_be_given_is_refused(name, level):
    head = Head(np.eye(2), np.ones((2, 1)))
    with pytest.raises(InvalidInput):
        recovery(head, {"W": np.ones((2, 2)), "h": np.ones(2)}).interval(name, level)


def test_variances_add_and_only_noise_averages_out():
    np.testing.assert_allclose(Errors(3.0, 4.0, 0.0).deviation(0.0), 5.0)
    np.testing.assert_allclose(Errors(3.0, 4.0, 0.0).deviation(0.0, 9), np.sqrt(17.0))
    np.testing.assert_allclose(Errors(0.0, 0.0, 1e-3).deviation(np.array([1.0, 2.0])), [4e-3, 8e-3])


@pytest.mark.parametrize("options", [{"repeats": 0}, {"rank": -1}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidInput):
        UnderNoise(**options)


HEADS = {
    "plain": lambda d, rng: Head.random(d, scale=4.0, rng=rng),
    "strong": lambda d, rng: Head.random(d, scale=1e3, rng=rng),
    "biased": lambda d, rng: Head.random(d, outputs=2, biases=True, rng=rng),
    "blind": lambda d, rng: Head(np.eye(d), np.zeros((d, 1)), U=rng.normal(size=(d, 1))),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("bound", [0.3, 1.0, 50.0])
def test_no_token_is_longer_than_the_bound(name, bound, rng):
    head, longest = HEADS[name](int(rng.integers(1, 8)), rng), []

    def target(X):
        longest.append(np.linalg.norm(X, axis=2).max())
        return head(X)

    learned = UnderNoise().run(Bounded(Noisy(Local(target, head.width), 1e-5), bound), rng=rng)
    assert learned.verdict in (Verdict.WITHIN_TOLERANCE, Verdict.NOT_IDENTIFIABLE)
    assert max(longest) <= bound * (1 + 1e-12)


def test_a_budget_cut_anywhere_is_kept_and_never_verified(rng):
    head = Head.random(3, biases=True, rng=rng)
    whole = UnderNoise().run(Bounded(Noisy(Local(head), 1e-6), 1.0), rng=np.random.default_rng(1))
    needed = whole.ledger.total().sequences
    assert whole.verdict is Verdict.WITHIN_TOLERANCE
    for budget in [*range(0, needed, 13), needed - 1]:
        oracle = Budgeted(Bounded(Noisy(Local(head), 1e-6), 1.0), budget)
        cut = UnderNoise().run(oracle, rng=np.random.default_rng(1))
        assert cut.verdict in (Verdict.BUDGET_SPENT, Verdict.UNVERIFIED), budget
        assert cut.ledger.total().sequences <= budget


def test_a_residual_that_cancels_the_read_out_hides_nothing(rng):
    head = Head.random(6, rng=rng)
    truth = Head(head.W, head.V, U=-head.V)
    learned = UnderNoise().run(Noisy(Local(truth), 1e-3), rng=rng)
    assert learned.verdict is Verdict.WITHIN_TOLERANCE
    np.testing.assert_allclose(np.asarray(learned.model.W), truth.W, atol=1e-9)


def test_the_rank_does_not_count_the_score_bias(rng):
    truth = Head(np.zeros((6, 6)), rng.normal(size=(6, 1)), rng.normal(size=6))
    assert UnderNoise().run(Bounded(Noisy(Local(truth), 1e-5), 1.0), rng=rng).rank == 0


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [2e-5, 5e-5, 1e-4, 2e-4])
def test_biases_about_as_small_as_the_noise_refute_no_head(size, seeds):
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        head, a = Head.random(8, scale=4.0, rng=rng), size * rng.normal(size=8)
        for truth in (
            Head(head.W, head.V, a),
            Head(head.W, head.V, U=a[:, None]),
            Head(head.W, a[:, None]),
        ):
            learned = UnderNoise().run(Bounded(Noisy(Local(truth), 1e-5, seed=seed), 1.0), rng=rng)
            assert learned.verdict is not Verdict.CLASS_REFUTED


def test_noise_that_hides_everything_verifies_nothing(rng):
    truth = Head.random(6, rng=rng)
    learned = UnderNoise().run(Bounded(Noisy(Local(truth), 0.3), 1.0), rng=rng)
    assert not learned.verdict.verified
    assert learned.verdict is not Verdict.CLASS_REFUTED


def test_the_certificate_is_silent_without_a_bound(rng):
    learned = UnderNoise().run(Noisy(Local(Head.random(4, rng=rng)), 1e-5), rng=rng)
    assert isinstance(learned.certificate, Certificate)
    assert learned.certificate.outcome.name == "SILENT"
