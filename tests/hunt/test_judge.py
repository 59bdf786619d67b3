"""The hunt itself: changes show where they are said to, and false verdicts are told from true."""

from types import SimpleNamespace

import numpy as np
import pytest

from hunt.base import Kind, Recording, Target, Truth
from hunt.demands import GROUPS, list_complaints
from hunt.deviations import BASES, CHANGED, DEVIATIONS, Deviation, answer_changed, make_base
from hunt.judge import Fault, Row, differs, find_faults, learn_target
from hunt.own_classes import wrap_model
from hunt.shortfalls import SHORTFALLS, Shortfall
from hunt.tables import format_table, read_rows, write_rows
from hunt.targets import KINDS, list_draws, make_target
from keyhole import Head, Verdict


def found(verdict, model=None):
    return SimpleNamespace(verdict=verdict, model=model)


def asked(model, rng):
    """A target that was asked a few questions."""
    recording = Recording(wrap_model(model))
    recording(rng.normal(size=(5, 3, model.width)))
    return recording


def test_there_are_enough_kinds():
    assert len(GROUPS) >= 35
    assert {name for name, _ in list_draws(len(KINDS))} == set(KINDS)


@pytest.mark.parametrize("truth", Truth)
def test_every_target_answers_short_and_long_sequences(truth, rng):
    for name in (name for name, kind in KINDS.items() if kind.truth is truth):
        target, _ = make_target(name, 0, seed=5)
        for length in (1, 2, 300):
            answers = target(rng.normal(size=(3, length, target.width)))
            assert answers.shape == (3, target.outputs), name
            assert np.isfinite(answers).all(), name


@pytest.mark.parametrize("base", BASES)
def test_a_model_with_no_change_answers_as_it_is(base, rng):
    model = make_base(base, rng)
    X = rng.normal(size=(20, 7, model.width))
    same = answer_changed(model, Deviation(draw=None), X)
    np.testing.assert_allclose(same, model(X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_change_shows_on_the_questions_drawn_for_it(name, rng):
    for kind in (kind for kind in CHANGED if kind.startswith(name)):
        target, _ = make_target(kind, 0, seed=5)
        model = target.answer.args[0]
        told = found(Verdict.EXACT, model)
        assert any(differs(target, told, X, target(X), 0.0) for X in target.draw(rng)), kind
        plain = wrap_model(model)
        assert not any(differs(plain, told, X, plain(X), 0.0) for X in target.draw(rng)), kind


def test_a_wrong_model_that_is_called_exact_is_found(rng):
    truth, other = (Head.random(3, rng=rng) for _ in range(2))
    kind = Kind(Truth.OURS, None)
    recording = asked(truth, rng)
    wrong = find_faults(kind, recording, found(Verdict.EXACT, other), rng)
    assert wrong == (Fault.AGAINST_OWN_ANSWERS, Fault.WRONG)
    assert find_faults(kind, recording, found(Verdict.EXACT, truth), rng) == ()


def test_a_tolerance_covers_what_answers_are_truly_off_and_no_more(rng):
    head = Head.random(3, rng=rng)
    X = rng.normal(size=(5, 3, 3))
    target = Target(head, 3, 1, None, absolute=1e-4)
    within, exact = found(Verdict.WITHIN_TOLERANCE, head), found(Verdict.EXACT, head)
    assert not differs(target, within, X, head(X) + 1e-4, 0.0)
    assert differs(target, within, X, head(X) + 1e-2, 0.0)
    assert differs(target, exact, X, head(X) + 1e-4, 0.0)


def test_an_answer_that_overflowed_says_nothing(rng):
    head = Head.random(3, rng=rng)
    X = rng.normal(size=(5, 3, 3))
    target = Target(head, 3, 1, None, relative=2**-11)
    answers = head(X)
    answers[0] = np.inf
    told = found(Verdict.WITHIN_TOLERANCE, head)
    assert not differs(target, told, X, answers, 0.0)
    answers[1] += 1e6
    assert differs(target, told, X, answers, 0.0)


@pytest.mark.parametrize(
    ("verdict", "fault"),
    [
        (Verdict.CLASS_REFUTED, Fault.REFUTED),
        (Verdict.NOT_IDENTIFIABLE, Fault.FREE),
        (Verdict.UNVERIFIED, Fault.UNVERIFIED),
        (Verdict.BUDGET_SPENT, Fault.UNVERIFIED),
    ],
)
def test_a_refusal_is_a_fault_on_our_classes_alone(verdict, fault, rng):
    recording = asked(Head.random(3, rng=rng), rng)
    for truth in Truth:
        faults = find_faults(Kind(truth, None), recording, found(verdict), rng)
        assert faults == ((fault,) if truth is Truth.OURS else ())


def test_what_truly_stays_open_may_be_called_so(rng):
    recording = asked(Head.random(3, rng=rng), rng)
    kind = Kind(Truth.OURS, None, free=True)
    assert find_faults(kind, recording, found(Verdict.NOT_IDENTIFIABLE), rng) == ()


def test_answers_that_scatter_refute_nothing(rng):
    recording = asked(Head.random(3, rng=rng), rng)
    kind = Kind(Truth.FOREIGN, None, scatters=True)
    assert find_faults(kind, recording, found(Verdict.CLASS_REFUTED), rng) == (Fault.REFUTED,)


def test_an_exception_is_a_crash_unless_the_target_failed(rng):
    def fail(X):
        raise OSError("the line is dead")

    kind = Kind(Truth.OURS, None)
    verdict, said, faults = learn_target(kind, Recording(Target(fail, 3, 1, None)), rng)
    assert (verdict, faults) == ("TargetFailed", ())
    assert "the line is dead" in said
    verdict, _, faults = learn_target(kind, Recording(Target(fail, 0, 1, None)), rng)
    assert (verdict, faults) == ("InvalidInput", (Fault.CRASHED,))


def row(kind, *faults):
    return Row(kind, 0, "EXACT", "RECOVERED", faults, 100, 0.5)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.UNVERIFIED])
def test_one_fault_in_a_thousand_is_complained_of(fault):
    rows = [row("relu")] * 999
    assert list_complaints(rows, {}) == []
    assert list_complaints([*rows, row("relu", fault)], {}) == [f"relu: 1 of 1000 {fault.name}"]


def test_three_in_a_hundred_of_our_classes_may_not_stay_open():
    open_rows = [row("relu", Fault.UNVERIFIED)]
    assert list_complaints(2 * open_rows + [row("one head")] * 98, {}) == []
    assert len(list_complaints(3 * open_rows + [row("one head")] * 97, {})) == 1


def test_misses_are_allowed_as_far_as_they_were_measured():
    kind = "zero tokens masked, head"
    assert list_complaints([row(kind)] * 38 + [row(kind, Fault.WRONG)] * 2, {}) == []
    assert len(list_complaints([row(kind)] * 37 + [row(kind, Fault.WRONG)] * 3, {})) == 1
    assert len(list_complaints([row("window 33, head", Fault.WRONG)], {})) == 1


def test_a_known_shortfall_is_no_complaint_until_it_is_gone():
    known = {("relu", Fault.WRONG): Shortfall(0.9, "for a reason")}
    assert list_complaints([row("relu", Fault.WRONG)], known) == []
    # One target without the fault may be luck; ten are not.
    assert list_complaints([row("relu")], known) == []
    assert len(list_complaints([row("relu")] * 10, known)) == 1


def test_shortfalls_are_of_kinds_that_exist_and_give_a_reason():
    assert {name for name, _ in SHORTFALLS} <= set(GROUPS)
    assert all(0 < known.share <= 1 and known.reason for known in SHORTFALLS.values())


def test_the_table_counts_verdicts_and_faults_by_kind():
    text = format_table([row("relu"), row("relu", Fault.WRONG), row("gelu")])
    heading, relu, gelu, everything = (line.split() for line in text.splitlines())
    wrong = heading.index("wrong") + 1
    assert (relu[0], relu[1], relu[wrong]) == ("relu", "2", "1")
    assert (gelu[0], gelu[1], gelu[wrong]) == ("gelu", "1", ".")
    assert everything[:3] == ["all", "3", "3"]


def test_rows_are_written_and_read_back():
    rows = [row("relu", Fault.WRONG, Fault.AGAINST_OWN_ANSWERS), row("gelu")]
    assert read_rows(write_rows(rows)) == rows
