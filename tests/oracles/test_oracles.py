"""One behaviour per wrapper, and any callable as an oracle."""

import io
import sys
import time

import numpy as np
import pytest

import keyhole
from keyhole import Head, Verdict
from keyhole.errors import BadAnswer, BudgetSpent, InvalidInput, TargetFailed
from keyhole.oracles import Budgeted, Chunked, Counted, Ledger, Local, Oracle, Watched
from keyhole.oracles.base import Imperfection, read_imperfection


class Last:
    """Answers the sum of each last token, and remembers every batch it was asked."""

    width, outputs = 3, 1

    def __init__(self):
        self.asked = []

    @property
    def sequences(self):
        return sum(self.asked)

    def ask(self, X):
        self.asked.append(len(X))
        return X[:, -1].sum(axis=1, keepdims=True)


def batch(size, length=2):
    return np.arange(size * length * 3, dtype=np.float64).reshape(size, length, 3)


def expected(X):
    return np.array([[x[-1][0] + x[-1][1] + x[-1][2]] for x in X])


# --- Counted --------------------------------------------------------------------------------------


def test_sequences_tokens_and_calls_are_booked_under_the_phase():
    counted = Counted(Last())
    with counted.phase("read"):
        counted.ask(batch(5, length=4))
        counted.ask(batch(2, length=1))
    with counted.phase("verify"):
        counted.ask(batch(3, length=7))
    read, verify = counted.ledger["read"], counted.ledger["verify"]
    assert (read.sequences, read.tokens, read.calls) == (7, 22, 2)
    assert (verify.sequences, verify.tokens, verify.calls) == (3, 21, 1)
    assert list(counted.ledger.phases) == ["read", "verify"]


def test_phases_nest_and_end_even_when_something_is_raised():
    counted = Counted(Last())
    with counted.phase("outer"):
        with pytest.raises(RuntimeError), counted.phase("inner"):
            raise RuntimeError
        counted.ask(batch(1))
    counted.ask(batch(2))
    assert counted.ledger["outer"].sequences == 1
    assert counted.ledger["ask"].sequences == 2


def test_the_total_can_leave_one_phase_out():
    counted = Counted(Last())
    for name, size in (("read", 2), ("measure", 3), ("verify", 5)):
        with counted.phase(name):
            counted.ask(batch(size))
    assert counted.ledger.total().sequences == 10
    assert counted.ledger.total(without="verify").sequences == 5
    assert Ledger().total().sequences == 0


def test_seconds_are_those_spent_in_the_target():
    def slow(X):
        time.sleep(0.02)
        return X[:, -1, 0]

    counted = Counted(Local(slow, 3))
    counted.ask(batch(1))
    assert 0.02 <= counted.ledger["ask"].seconds < 1.0


def test_a_failed_call_is_counted_too():
    def broken(X):
        raise OSError("gone")

    counted = Counted(Local(broken, 3))
    with pytest.raises(TargetFailed):
        counted.ask(batch(4, length=2))
    entry = counted.ledger["ask"]
    assert (entry.sequences, entry.tokens, entry.calls) == (4, 8, 1)


def test_of_a_batch_cut_by_a_budget_only_the_answered_part_is_counted():
    counted = Counted(Budgeted(Last(), 3))
    with pytest.raises(BudgetSpent):
        counted.ask(batch(5, length=2))
    assert (counted.ledger["ask"].sequences, counted.ledger["ask"].tokens) == (3, 6)


# --- Budgeted -------------------------------------------------------------------------------------


def served(oracle, X):
    """The part of a batch that was answered, its answers, and whether the budget cut it."""
    try:
        return X, oracle.ask(X), False
    except BudgetSpent as spent:
        answers = np.zeros((0, 1)) if spent.answers is None else spent.answers
        return X[: spent.answered], answers, True


@pytest.mark.parametrize("budget", range(9))
@pytest.mark.parametrize("sizes", [(7,), (3, 4), (1, 1, 1, 1, 1, 1, 1), (2, 5)])
def test_a_budget_is_cut_exactly_and_the_prefix_is_handed_on(budget, sizes):
    last = Last()
    oracle = Budgeted(last, budget)
    parts = [served(oracle, batch(size)) for size in sizes]
    assert last.sequences == sum(len(X) for X, _, _ in parts) == min(budget, 7)
    assert any(cut for _, _, cut in parts) == (budget < 7)
    for X, answers, _ in parts:
        np.testing.assert_array_equal(answers, expected(X).reshape(-1, 1))


def test_a_budget_of_zero_asks_nothing():
    last = Last()
    with pytest.raises(BudgetSpent, match="budget of 0 queries") as spent:
        Budgeted(last, 0).ask(batch(2))
    assert last.asked == []
    assert spent.value.answers is None
    assert spent.value.answered == 0


def test_a_spent_budget_stays_spent():
    last = Last()
    oracle = Budgeted(last, 2)
    for _ in range(3):
        with pytest.raises(BudgetSpent):
            oracle.ask(batch(3))
    assert last.sequences == oracle.spent == 2


def test_what_was_spent_before_counts():
    last = Last()
    with pytest.raises(BudgetSpent):
        Budgeted(last, 10, spent=8).ask(batch(3))
    assert last.sequences == 2


def test_a_batch_the_target_fails_on_is_spent():
    def broken(X):
        raise OSError("gone")

    oracle = Budgeted(Local(broken, 3), 5)
    for _ in range(2):
        with pytest.raises(TargetFailed):
            oracle.ask(batch(2))
    assert oracle.spent == 4


def test_a_negative_budget_is_refused():
    with pytest.raises(InvalidInput, match="budget is a whole number of queries >= 0; got -1"):
        Budgeted(Last(), -1)


# --- Chunked --------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [1, 6, 7, 13, 30, 1000])
def test_chunks_answer_as_the_whole_batch_does(numbers):
    last = Last()
    np.testing.assert_array_equal(Chunked(last, numbers).ask(batch(5)), expected(batch(5)))
    assert last.sequences == 5
    assert max(last.asked) * 6 <= max(numbers, 6)


def test_a_batch_that_fits_is_one_call():
    last = Last()
    Chunked(last, 30).ask(batch(5))
    assert last.asked == [5]


def test_chunks_above_a_budget_hand_on_the_whole_prefix():
    last = Last()
    with pytest.raises(BudgetSpent) as spent:
        Chunked(Budgeted(last, 5), 12).ask(batch(8))
    assert last.sequences == 5
    np.testing.assert_array_equal(spent.value.answers, expected(batch(8))[:5])


# --- Watched --------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_silent_when_standard_error_is_no_terminal(monkeypatch):
    quiet = io.StringIO()
    monkeypatch.setattr(sys, "stderr", quiet)
    with Watched(Last(), 5, "learning") as watched:
        np.testing.assert_array_equal(watched.ask(batch(5)), expected(batch(5)))
    assert quiet.getvalue() == ""


def test_progress_is_shown_on_a_terminal_and_never_on_standard_output(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Watched(Last(), 5, "learning") as watched:
        watched.ask(batch(5))
    assert "learning" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_a_watched_oracle_works_outside_its_context():
    np.testing.assert_array_equal(Watched(Last(), 5).ask(batch(2)), expected(batch(2)))


# --- Local ----------------------------------------------------------------------------------------


def test_answers_of_one_axis_become_one_output():
    oracle = Local(lambda X: X[:, -1, 0], 3)
    answers = oracle.ask(batch(4))
    assert answers.shape == (4, 1)
    assert oracle.outputs == 1
    np.testing.assert_array_equal(answers[:, 0], [3.0, 9.0, 15.0, 21.0])


def test_answers_of_two_axes_stay_as_they_are():
    oracle = Local(lambda X: X[:, -1, :2].tolist(), 3)
    np.testing.assert_array_equal(oracle.ask(batch(2)), [[3.0, 4.0], [9.0, 10.0]])
    assert oracle.outputs == 2


def test_float32_answers_are_read_as_float64():
    assert Local(lambda X: X[:, -1].astype(np.float32), 3).ask(batch(2)).dtype == np.float64


def test_the_width_is_the_callables_unless_it_is_given():
    def target(X):
        return X[:, -1, 0]

    target.width, target.outputs = 4, 1
    assert Local(target).width == 4
    assert Local(target).outputs == 1
    assert Local(target, 3).width == 3
    assert isinstance(Local(target), Oracle)


@pytest.mark.parametrize("width", [None, 0, -2, 2.5, "three"])
@pytest.mark.usefixtures("untyped")
def test_a_width_that_is_missing_or_no_size_is_refused_with_advice(width):
    with pytest.raises(
        InvalidInput, match=r"whole number >= 1; got .*--width .* `width` attribute"
    ):
        Local(lambda X: X[:, -1, 0], width)


@pytest.mark.usefixtures("untyped")
def test_outputs_that_are_no_size_are_refused():
    with pytest.raises(InvalidInput, match="outputs must be a whole number >= 1; got 0"):
        Local(lambda X: X[:, -1, 0], 3, 0)


def test_a_callable_that_does_not_say_its_outputs_is_an_oracle_before_its_first_answer():
    oracle = Local(lambda X: X[:, -1, :2], 3)
    assert isinstance(oracle, Oracle)
    assert Counted(oracle).ask(batch(2)).shape == (2, 2)
    assert oracle.outputs == 2


def text(X):
    return ["four"] * len(X)


def ragged(X):
    return [[1.0], [1.0, 2.0]] + [[1.0]] * (len(X) - 2)


@pytest.mark.parametrize(
    "answer",
    [
        lambda X: 1.0,
        lambda X: None,
        lambda X: X,
        lambda X: X[:-1, -1, 0],
        lambda X: np.zeros((len(X), 0)),
        text,
        ragged,
    ],
    ids=["number", "nothing", "three axes", "a row short", "no outputs", "text", "ragged"],
)
def test_a_wrong_shape_on_the_first_call_is_misuse(answer):
    with pytest.raises(InvalidInput, match=r"must answer a batch of 4"):
        Local(answer, 3).ask(batch(4))


def test_a_wrong_shape_says_what_was_needed_and_what_came():
    with pytest.raises(InvalidInput) as refusal:
        Local(lambda X: X, 3).ask(batch(4, length=2))
    assert "shape (4,) or (4, outputs); got (4, 2, 3)" in str(refusal.value)


def test_a_first_answer_of_another_size_than_declared_is_refused():
    with pytest.raises((InvalidInput, BadAnswer), match=r"\(4,\) or \(4, 2\); got \(4, 3\)"):
        Local(lambda X: X[:, -1], 3, 2).ask(batch(4))


def test_a_wrong_shape_later_is_a_bad_answer():
    answers = iter([np.zeros((4, 1)), np.zeros((4, 2))])
    oracle = Local(lambda X: next(answers), 3)
    oracle.ask(batch(4))
    with pytest.raises(BadAnswer, match=r"\(4,\) or \(4, 1\); got \(4, 2\)"):
        oracle.ask(batch(4))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_answer_that_is_not_finite_names_its_sequence(value):
    def answer(X):
        out = X[:, -1, 0]
        out[2] = value
        return out

    with pytest.raises(BadAnswer, match=r"to sequence 2 of a batch of 4; answers must be finite"):
        Local(answer, 3).ask(batch(4))


def test_a_target_that_raises_is_reported_with_its_words():
    def broken(X):
        raise RuntimeError("out of tea")

    with pytest.raises(
        TargetFailed, match=r"raised RuntimeError: out of tea, when asked .* \(4, 2, 3\)"
    ) as failure:
        Local(broken, 3).ask(batch(4))
    assert isinstance(failure.value.__cause__, RuntimeError)


def test_a_first_failure_about_shapes_asks_whether_the_width_is_right():
    weights = np.zeros((5, 1))
    with pytest.raises(InvalidInput, match="Is --width 3 right"):
        Local(lambda X: X[:, -1] @ weights, 3).ask(batch(4))


def test_the_same_failure_later_is_the_targets_own():
    def answer(X):
        if len(X) == 4:
            raise ValueError("shape mismatch")
        return X[:, -1, 0]

    oracle = Local(answer, 3)
    oracle.ask(batch(1))
    with pytest.raises(TargetFailed, match="shape mismatch"):
        oracle.ask(batch(4))


@pytest.mark.parametrize("width", [3, 256])
def test_a_target_may_write_on_its_input(width):
    head = Head.random(width, rank=2, rng=np.random.default_rng(0))

    def rude(X):
        answers = head(X)
        X[...] = 7.0
        return answers

    recovery = keyhole.learn(Local(rude, width), rng=np.random.default_rng(1))
    assert recovery.verdict is Verdict.EXACT
    assert np.linalg.norm(np.asarray(recovery.model.W) - np.asarray(head.W)) <= 1e-9


@pytest.mark.parametrize("width", [3, 256])
def test_a_target_may_keep_its_input(width):
    head, kept = Head.random(width, rank=1, rng=np.random.default_rng(0)), []

    def collector(X):
        kept.append((X, X.copy()))
        return head(X)

    keyhole.learn(Local(collector, width), rng=np.random.default_rng(1))
    assert all(np.array_equal(X, copy) for X, copy in kept)


def test_an_answer_that_is_a_view_of_the_question_is_not_tied_to_it():
    X = batch(4)
    answers = Local(lambda X: X[:, -1, :1], 3).ask(X)
    X[...] = 0.0
    np.testing.assert_array_equal(answers[:, 0], [3.0, 9.0, 15.0, 21.0])


# --- what a target declares -----------------------------------------------------------------------


class Coarse(Last):
    imperfection = Imperfection(roundoff=2.0**-24)


def test_a_declared_imperfection_is_found_through_wrappers():
    assert read_imperfection(Counted(Chunked(Coarse()))).roundoff == 2.0**-24
    assert not read_imperfection(Counted(Chunked(Coarse()))).perfect


def test_a_target_that_declares_nothing_is_perfect():
    assert read_imperfection(Counted(Last())).perfect
