"""Theorem BSHK26/6.1: a head from answers that are wrong by up to tau, at its edge and outside."""

import itertools
import math

import numpy as np
import pytest

import keyhole
from keyhole import (
    Bounded,
    Budgeted,
    Cast,
    Declared,
    Disturbed,
    Head,
    Imperfection,
    InvalidInput,
    Local,
    MultiHead,
    Noisy,
    Outcome,
    Rounded,
    Signs,
    Status,
    Tolerant,
    Verdict,
    guarantee,
)
from keyhole.learners.choosing import choose_learner
from keyhole.learners.confronting import confront
from keyhole.learners.registry import Hints
from support.tolerant_heads import STRATEGIES, attacked, drawn, error, is_within

pytestmark = pytest.mark.theorem("BSHK26/6.1")


# ---- at the edge


@pytest.mark.parametrize("seed", range(3))
def test_a_norm_bound_that_is_just_met_by_one_entry_is_no_trouble(seed):
    rng = np.random.default_rng(seed)
    W = np.zeros((6, 6))
    W[tuple(rng.integers(6, size=2))] = rng.choice([-1.0, 1.0]) * 3.0
    head = Head(W, drawn(6, 1.0, 0.1, seed).V)
    for strategy in STRATEGIES:
        _, recovery = attacked(head, 3.0, 0.1, 1e-6, strategy, seed)
        is_within(head, recovery, 3.0, 0.1, 1e-6)


@pytest.mark.parametrize("part", [0.5, 0.9, 0.999, 1.0 - 1e-9])
def test_a_tolerance_close_to_the_margin_promises_little_and_keeps_it(part):
    mu = 0.1
    for seed, strategy in enumerate(STRATEGIES):
        head = drawn(5, 1.0, mu, seed)
        _, recovery = attacked(head, 1.0, mu, part * mu, strategy, seed)
        is_within(head, recovery, 1.0, mu, part * mu)
        assert recovery.status is Status.EMPTY_GUARANTEE
        assert recovery.verdict is Verdict.UNVERIFIED


@pytest.mark.parametrize("tau", [0.1, 0.2, 5.0])
def test_from_the_margin_on_nothing_is_promised(tau):
    for seed, strategy in enumerate(STRATEGIES):
        head = drawn(5, 1.0, 0.1, seed)
        _, recovery = attacked(head, 1.0, 0.1, tau, strategy, seed)
        assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.EMPTY_GUARANTEE)
        assert recovery.certificate.outcome is Outcome.SILENT
        assert (
            np.abs(np.asarray(recovery.model.W) - np.asarray(head.W)).max() <= recovery.bars["W"][0]
        )
    assert guarantee(5, 1.0, 0.1, tau).eps_W == math.inf


def test_answers_about_tokens_without_value_leave_the_relative_gap_finite(rng):
    head = drawn(4, 1.0, 0.1, 3)
    oracle = Disturbed(Local(head), 1e-9)
    hints = Hints(norm_bound=1.0, margin=0.1)
    recovery = keyhole.learn(oracle, rng=rng, learner="tolerant", hints=hints)
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE
    assert recovery.fresh.relative < 1.0


def test_a_loose_margin_costs_no_accuracy_of_the_error_bar(rng):
    head = drawn(6, 1.0, 0.5, 0)
    loose, tight = (
        Tolerant(1.0, mu)
        .run(Disturbed(Local(head), 1e-7), rng=np.random.default_rng(0))
        .bars["W"][0]
        for mu in (1e-3, 0.5)
    )
    assert loose == tight


def test_perfect_answers_are_called_exact_only_where_they_agree_to_rounding(rng):
    head = drawn(6, 1.0, 0.5, 0)
    tight, loose = (Tolerant(B, 0.5).run(Local(head), rng=rng) for B in (1.0, 1e6))
    assert tight.verdict is Verdict.EXACT
    assert (loose.verdict, loose.status) == (Verdict.UNVERIFIED, Status.IMPRECISE)
    assert loose.certificate.outcome is Outcome.HOLDS
    assert error(loose.model, head) <= 6 * loose.bars["W"][0]


# ---- outside


def refused(recovery, oracle):
    """The bounds were refused, and asking the counterexample again shows the same."""
    assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.BEYOND_BOUNDS)
    assert recovery.certificate.outcome is Outcome.SILENT
    case = recovery.counterexample
    again = oracle.ask(case.tokens[None])[0]
    # Answers to long tokens are large, and rounded accordingly.
    rounding = 1e-12 * max(1.0, float(np.abs(case.tokens).max()))
    assert np.abs(again - case.answer) <= 2 * oracle.imperfection.tolerance + rounding
    assert case.gap > 0


@pytest.mark.parametrize("tau", [1e-8, 1e-5, 1e-3])
def test_a_margin_that_is_not_there_is_refused_by_a_single_token(tau):
    for seed in range(5):
        head = drawn(6, 1.0, 0.1, seed)
        blind = Head(head.W, np.where(np.arange(6)[:, None] == seed, 0.0, head.V))
        oracle = Disturbed(Local(blind), tau)
        recovery = Tolerant(1.0, 0.1).run(oracle, rng=np.random.default_rng(seed))
        refused(recovery, oracle)
        np.testing.assert_array_equal(recovery.counterexample.tokens, np.eye(6)[seed : seed + 1])
        assert recovery.ledger.total().sequences == 6 + 2


@pytest.mark.parametrize("tau", [1e-8, 1e-6, 1e-4])
def test_an_entry_of_w_beyond_the_norm_bound_is_refused(tau):
    for seed in range(5):
        head = drawn(6, 1.0, 0.2, seed)
        W = np.array(head.W)
        W[seed, 5 - seed] = 1.5
        oracle = Disturbed(Local(Head(W, head.V)), tau)
        recovery = Tolerant(1.0, 0.2).run(oracle, rng=np.random.default_rng(seed))
        refused(recovery, oracle)
        assert recovery.counterexample.tokens.shape == (2, 6)
        assert recovery.ledger["verify"].sequences == 2  # seen while measuring


def test_a_norm_bound_broken_by_any_factor_never_gives_a_false_claim():
    """Entries beyond B refuse; a norm beyond B with every entry inside keeps its bars, and the
    theorem is silent.
    """
    verdicts = set()
    for seed, factor, tau in itertools.product(range(4), (1.01, 3.0, 10.0, 100.0), (1e-8, 1e-4)):
        head = drawn(8, factor, 0.2, seed)
        recovery = Tolerant(1.0, 0.2).run(
            Disturbed(Local(head), tau), rng=np.random.default_rng(seed)
        )
        verdicts.add(recovery.verdict)
        assert recovery.certificate.outcome is not Outcome.REFUTED
        if recovery.verdict.verified:
            assert (
                np.abs(np.asarray(recovery.model.W) - np.asarray(head.W)).max()
                <= recovery.bars["W"][0]
            )
            assert np.abs(np.asarray(head.W)).max() <= 1.0
        truly = confront(head, recovery, rng=np.random.default_rng(seed))
        assert truly.outcome is Outcome.SILENT
    assert verdicts == {Verdict.UNVERIFIED, Verdict.WITHIN_TOLERANCE}


def test_a_norm_beyond_the_bound_is_seen_though_every_entry_is_inside(rng):
    head = Head(0.9 * np.eye(6), np.ones((6, 1)))
    recovery = Tolerant(1.0, 0.5).run(Disturbed(Local(head), 1e-7), rng=rng)
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE
    assert [c.name for c in recovery.certificate.assumptions if not c.holds] == [
        "least |W|_F that the answers allow"
    ]
    assert recovery.certificate.outcome is Outcome.SILENT


OTHERS = {
    "two heads": lambda rng: MultiHead(
        rng.normal(size=(2, 6, 6)) / 6, rng.uniform(0.5, 1, size=(2, 6, 1))
    ),
    "a constant": lambda rng: Head(np.eye(6) / 6, np.ones((6, 1)), c=np.array([0.3])),
    "a score bias": lambda rng: Head(np.eye(6) / 6, np.ones((6, 1)), h=rng.normal(size=6)),
    "a residual": lambda rng: Head(np.eye(6) / 6, np.ones((6, 1)), U=rng.normal(size=(6, 1))),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_not_such_a_head_is_refused(kind):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        oracle = Disturbed(Local(OTHERS[kind](rng)), 1e-6)
        refused(Tolerant(1.0, 0.01).run(oracle, rng=rng), oracle)


def test_a_target_that_takes_an_answer_back_is_called_inconsistent(rng):
    head, calls = Head(np.eye(4) / 4, np.ones((4, 1))), []

    def answer(X):
        calls.append(X)
        return head(X) + (0.5 if len(calls) == 2 else 0.0)

    recovery = Tolerant(1.0, 0.5).run(
        Declared(Local(answer, 4), Imperfection(tolerance=1e-6)), rng=rng
    )
    assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.INCONSISTENT)
    assert "differ by 5.0e-01" in recovery.sentence
    assert recovery.certificate.outcome is Outcome.SILENT


def test_answers_less_precise_than_declared_are_not_believed(rng):
    head = drawn(6, 1.0, 0.2, 0)
    oracle = Declared(Local(lambda X: np.round(head(X), 3), 6), Imperfection(tolerance=1e-8))
    recovery = Tolerant(1.0, 0.2).run(oracle, rng=rng)
    assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.BEYOND_BOUNDS)


# ---- what may be asked, and how much of it


def test_tokens_keep_the_bound_of_the_target():
    for seed, tau in itertools.product(range(5), (1e-7, 1e-4)):
        head = drawn(7, 3.0, 0.2, seed)
        oracle = Bounded(Disturbed(Local(head), tau), 1.0)
        recovery = Tolerant(3.0, 0.2).run(oracle, rng=np.random.default_rng(seed))
        is_within(head, recovery, 3.0, 0.2, tau)


def test_a_bound_on_tokens_that_is_too_tight_is_refused_with_a_way_out(rng):
    head = drawn(4, 0.5, 0.2, 0)
    with pytest.raises(
        InvalidInput,
        match=r"norm 2\.5; the target takes them up to 1\.5\. A norm bound of 1 or more",
    ):
        Tolerant(0.5, 0.2).run(Bounded(Local(head), 1.5), rng=rng)
    assert Tolerant(1.0, 0.2).run(Bounded(Local(head), 1.5), rng=rng).verdict is Verdict.EXACT
    with pytest.raises(InvalidInput, match="No norm bound keeps its tokens that short"):
        Tolerant(0.5, 0.2).run(Bounded(Local(head), 0.9), rng=rng)


@pytest.mark.parametrize("budget", [0, 3, 5, 6, 20, 41, 42, 100, 201, 202])
def test_a_budget_is_kept_and_what_is_known_is_handed_over(budget, rng):
    head = drawn(6, 1.0, 0.2, 0)
    oracle = Budgeted(Disturbed(Local(head), 1e-7), budget)
    recovery = Tolerant(1.0, 0.2).run(oracle, rng=rng)
    expected = (
        Verdict.BUDGET_SPENT
        if budget < 42
        else Verdict.UNVERIFIED
        if budget < 202
        else Verdict.WITHIN_TOLERANCE
    )
    assert (recovery.verdict, oracle.spent) == (expected, budget)
    assert recovery.ledger.total().sequences == budget
    assert (recovery.model is None) == (budget < 6)
    if budget >= 6:
        assert (
            np.abs(np.asarray(recovery.model.W) - np.asarray(head.W)).max() <= recovery.bars["W"][0]
        )
    if budget == 20:
        rows = (np.asarray(recovery.model.W) != 0).sum(axis=1)
        assert rows.tolist() == [6, 6, 2, 0, 0, 0]
        assert "2 of 6 rows" in recovery.determined


def test_a_budget_without_room_to_ask_again_refutes_nothing(rng):
    oracle = Budgeted(Disturbed(Local(Head(np.eye(4), np.zeros((4, 1)))), 1e-7), 5)
    recovery = Tolerant(1.0, 0.2).run(oracle, rng=rng)
    assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.UNCHECKED)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_a_number_format_counts_as_a_tolerance_relative_to_the_values(name):
    for seed in range(5):
        head = drawn(5, 1.0, 0.5, seed)
        recovery = Tolerant(1.0, 0.5).run(Cast(Local(head), name), rng=np.random.default_rng(seed))
        assert recovery.certificate.outcome is not Outcome.REFUTED
        assert recovery.verdict in (Verdict.WITHIN_TOLERANCE, Verdict.UNVERIFIED)
        assert (
            np.abs(np.asarray(recovery.model.W) - np.asarray(head.W)).max() <= recovery.bars["W"][0]
        )


def test_misuse_is_refused_with_a_sentence(rng):
    head = drawn(4, 1.0, 0.2, 0)
    with pytest.raises(InvalidInput, match="a norm bound is a finite number > 0; got 0"):
        Tolerant(0.0, 1.0)
    with pytest.raises(InvalidInput, match="a margin is a finite number > 0; got nan"):
        Tolerant(1.0, math.nan)
    with pytest.raises(InvalidInput, match="declares random noise"):
        Tolerant(1.0, 0.2).run(Noisy(Local(head), 1e-5), rng=rng)
    with pytest.raises(InvalidInput, match="declares labels"):
        Tolerant(1.0, 0.2).run(Signs(Local(head)), rng=rng)
    with pytest.raises(InvalidInput, match="one output; the target answers 3 numbers"):
        Tolerant(1.0, 0.2).run(Local(Head.random(4, outputs=3, rng=rng)), rng=rng)
    with pytest.raises(InvalidInput, match="one output; the target answers 2 numbers"):
        Tolerant(1.0, 0.2).run(Local(lambda X: np.ones((len(X), 2)), 4), rng=rng)
    with pytest.raises(InvalidInput, match="one output"):
        Tolerant(1.0, 0.2).plan(4, outputs=2)


def test_the_learner_is_chosen_by_name_with_both_bounds():
    assert choose_learner("tolerant", Hints(norm_bound=2.0, margin=0.1)) == Tolerant(2.0, 0.1)
    with pytest.raises(InvalidInput, match="tolerant needs --norm-bound"):
        choose_learner("tolerant", Hints(margin=0.1))
    with pytest.raises(InvalidInput, match="tolerant needs --margin"):
        choose_learner("tolerant", Hints(norm_bound=0.1))


def test_the_front_door_takes_the_learner(rng):
    head = drawn(5, 1.0, 0.2, 0)
    recovery = keyhole.learn(Rounded(Local(head), 6), learner=Tolerant(1.0, 0.2), rng=rng)
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE
    assert "Answers are within 5.0e-07, so v is within 1.1e-06" in recovery.sentence
