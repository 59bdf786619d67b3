"""Oracles that count, keep a budget, ask in pieces and show progress, one behaviour each."""

import io
import sys
import time

import numpy as np
import pytest

from keyhole.errors import BudgetSpent, InvalidInput, TargetFailed
from keyhole.oracles import Budgeted, Chunked, Counted, Ledger, Local, Watched
from keyhole.oracles.base import Imperfection, read_imperfection
from support.batches import batch


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


# --- what a target declares -----------------------------------------------------------------------


class Coarse(Last):
    imperfection = Imperfection(roundoff=2.0**-24)


def test_a_declared_imperfection_is_found_through_wrappers():
    assert read_imperfection(Counted(Chunked(Coarse()))).roundoff == 2.0**-24
    assert not read_imperfection(Counted(Chunked(Coarse()))).perfect


def test_a_target_that_declares_nothing_is_perfect():
    assert read_imperfection(Counted(Last())).perfect
