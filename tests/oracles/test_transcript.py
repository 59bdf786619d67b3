"""The transcript: nothing answered is asked again, nothing asked goes uncounted."""

import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from keyhole.errors import BadAnswer, BudgetSpent, DifferentRun, InvalidInput, TargetFailed
from keyhole.oracles import Budgeted, Chunked, Local, Recorded
from keyhole.oracles.transcript import take_checksum

RUN = {"target": "a.safetensors", "seed": 3, "learner": "auto"}


class Fragile:
    """Answers two numbers per sequence; fails on the call it is told to, after having been
    asked.
    """

    width, outputs = 3, 2

    def __init__(self, fails_at=None, error=KeyboardInterrupt):
        self.asked, self.fails_at, self.error = [], fails_at, error

    @property
    def sequences(self):
        return sum(map(len, self.asked))

    def ask(self, X):
        self.asked.append(X.copy())
        if len(self.asked) - 1 == self.fails_at:
            raise self.error("stopped")
        return answers(X)


def answers(X):
    return np.stack([X.sum(axis=(1, 2)) / 3.0, X[:, -1, 0]], axis=1)


def batches(*sizes):
    rng = np.random.default_rng(11)
    return [rng.normal(size=(size, 2, 3)) for size in sizes]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "transcript.sqlite"


def run_through(path, inner, questions, run=RUN):
    """Ask every question in order and close, whatever happens."""
    recorded = Recorded(inner, path, run)
    try:
        return [recorded.ask(X) for X in questions]
    finally:
        recorded.close()


# --- replay ---------------------------------------------------------------------------------------


def test_a_finished_run_is_replayed_without_asking(path):
    questions, again = batches(4, 1, 7), Fragile()
    first = run_through(path, Fragile(), questions)
    second = run_through(path, again, questions)
    assert again.asked == []
    for X, one, two in zip(questions, first, second, strict=True):
        np.testing.assert_array_equal(one, answers(X))
        np.testing.assert_array_equal(two, answers(X))


def test_a_run_goes_on_where_its_transcript_ends(path):
    questions, again = batches(4, 1, 7), Fragile()
    run_through(path, Fragile(), questions[:2])
    run_through(path, again, questions)
    assert [len(X) for X in again.asked] == [7]


def test_outputs_are_known_from_the_transcript_alone(path):
    questions = batches(4)
    run_through(path, Fragile(), questions)
    silent = Local(lambda X: answers(X), 3)
    recorded = Recorded(silent, path, RUN)
    recorded.ask(questions[0])
    assert (recorded.width, recorded.outputs) == (3, 2)
    recorded.close()


def test_replayed_answers_may_be_written_on(path):
    questions = batches(4)
    run_through(path, Fragile(), questions)
    run_through(path, Fragile(), questions)[0][0, 0] = 5.0


def test_the_cost_is_on_file_before_the_target_is_asked(path):
    class Looking(Fragile):
        def ask(self, X):
            self.seen = recorded.charged
            return super().ask(X)

    recorded = Recorded(Looking(), path, RUN)
    recorded.ask(batches(6)[0])
    assert recorded.inner.seen == 6
    recorded.close()


# --- what was in flight ---------------------------------------------------------------------------


def test_a_batch_in_flight_is_charged_and_asked_again(path):
    questions, killed, again = batches(4, 5, 2), Fragile(fails_at=1), Fragile()
    with pytest.raises(KeyboardInterrupt):
        run_through(path, killed, questions)
    recorded = Recorded(again, path, RUN)
    assert (recorded.charged, recorded.lost) == (9, 5)
    for X in questions:
        np.testing.assert_array_equal(recorded.ask(X), answers(X))
    assert [len(X) for X in again.asked] == [5, 2]
    assert recorded.charged == killed.sequences + again.sequences == 16
    assert recorded.lost == 5
    recorded.close()


def test_every_loss_of_the_same_batch_is_charged(path):
    questions = batches(4, 5)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run_through(path, Fragile(fails_at=0), questions[:1])
    recorded = Recorded(Fragile(), path, RUN)
    assert (recorded.charged, recorded.lost) == (12, 12)
    recorded.ask(questions[0])
    assert (recorded.charged, recorded.lost) == (16, 12)
    recorded.close()


def test_a_budget_counts_what_was_lost(path):
    questions, again = batches(4, 5, 2), Fragile()
    with pytest.raises(KeyboardInterrupt):
        run_through(path, Fragile(fails_at=1), questions)
    recorded = Recorded(again, path, RUN)
    oracle = Budgeted(recorded, 12, recorded.lost)
    oracle.ask(questions[0])
    with pytest.raises(BudgetSpent) as spent:
        oracle.ask(questions[1])
    assert spent.value.answered == 3
    assert recorded.charged == 9 + again.sequences == 12
    recorded.close()


def test_a_target_that_failed_is_asked_again_once_it_is_mended(path):
    questions, again = batches(4, 5), Fragile()
    with pytest.raises(TargetFailed):
        run_through(path, Fragile(fails_at=1, error=TargetFailed), questions)
    run_through(path, again, questions)
    assert [len(X) for X in again.asked] == [5]


class Picky(Fragile):
    """Cannot bear batches of three."""

    def ask(self, X):
        got = super().ask(X)
        if len(X) == 3:
            raise BadAnswer("not finite")
        return got


def living_with_it(oracle):
    """A learner that asks something else where an answer is bad."""
    first, bad, instead = batches(2, 3, 4)
    oracle.ask(first)
    with pytest.raises(BadAnswer):
        oracle.ask(bad)
    np.testing.assert_array_equal(oracle.ask(instead), answers(instead))


def test_a_bad_answer_the_learner_lived_with_does_not_spoil_the_transcript(path):
    one, two = Picky(), Picky()
    for inner in (one, two):
        recorded = Recorded(inner, path, RUN)
        living_with_it(recorded)
        charged = recorded.charged
        recorded.close()
    assert {len(X) for X in two.asked} <= {3}
    assert charged == one.sequences + two.sequences


def test_a_bad_answer_the_learner_lived_with_is_paid_once(path):
    for _ in range(3):
        recorded = Recorded(Picky(), path, RUN)
        living_with_it(Budgeted(recorded, 2 + 3 + 4, recorded.lost))
        recorded.close()


def test_a_bad_answer_that_ended_the_run_is_asked_again_once_the_target_is_mended(path):
    questions, mended = batches(2, 3), Fragile()
    with pytest.raises(BadAnswer):
        run_through(path, Picky(), questions)
    run_through(path, mended, questions)
    assert [len(X) for X in mended.asked] == [3]


# --- a cut batch ----------------------------------------------------------------------------------


def cut(path, inner, budget, questions):
    recorded = Recorded(inner, path, RUN)
    oracle = Budgeted(Chunked(recorded), budget, recorded.lost)
    try:
        return [oracle.ask(X) for X in questions]
    finally:
        recorded.close()


def test_a_cut_prefix_is_resumed_with_a_larger_budget(path):
    questions, one, two = batches(4, 9), Fragile(), Fragile()
    with pytest.raises(BudgetSpent):
        cut(path, one, 7, questions)
    got = cut(path, two, 20, questions)
    assert (one.sequences, two.sequences) == (7, 6)
    for X, answer in zip(questions, got, strict=True):
        np.testing.assert_array_equal(answer, answers(X))


def test_a_batch_cut_several_times_is_still_asked_once(path):
    questions, inner = batches(9, 3), Fragile()
    for budget in (2, 5, 8, 11):
        with pytest.raises(BudgetSpent):
            cut(path, inner, budget, questions)
        assert inner.sequences == budget
    np.testing.assert_array_equal(cut(path, inner, 12, questions)[1], answers(questions[1]))
    assert inner.sequences == 12


def test_a_resumed_cut_batch_can_be_replayed_whole(path):
    questions, silent = batches(4, 9), Fragile()
    with pytest.raises(BudgetSpent):
        cut(path, Fragile(), 7, questions)
    cut(path, Fragile(), 20, questions)
    np.testing.assert_array_equal(cut(path, silent, 13, questions)[1], answers(questions[1]))
    assert silent.asked == []


# --- whose transcript it is -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 4), ("target", "b.safetensors"), ("learner", "exact")]
)
def test_another_run_is_refused_by_the_field_that_differs(name, value, path):
    run_through(path, Fragile(), batches(2))
    with pytest.raises(DifferentRun) as refusal:
        Recorded(Fragile(), path, RUN | {name: value})
    said = str(refusal.value)
    assert f"{name} was " in said
    assert str(RUN[name]) in said
    assert str(value) in said
    assert "another --out" in said


def test_a_setting_added_or_missing_is_another_run(path):
    run_through(path, Fragile(), batches(2))
    with pytest.raises(DifferentRun, match="noise was None"):
        Recorded(Fragile(), path, RUN | {"noise": 1e-3})
    with pytest.raises(DifferentRun, match="seed was 3, now None"):
        Recorded(Fragile(), path, {"target": "a.safetensors", "learner": "auto"})


def test_a_refused_run_leaves_the_transcript_usable(path):
    questions, again = batches(2, 3), Fragile()
    run_through(path, Fragile(), questions)
    with pytest.raises(DifferentRun):
        Recorded(Fragile(), path, RUN | {"seed": 4})
    run_through(path, again, questions)
    assert again.asked == []


def test_other_questions_are_refused_and_never_answered_from_the_transcript(path):
    first, second = batches(4, 4)
    run_through(path, Fragile(), [first])
    with pytest.raises(DifferentRun, match="holds other questions from batch 0 on"):
        run_through(path, Fragile(), [second])


def test_a_shorter_question_than_the_stored_one_is_refused(path):
    (X,) = batches(4)
    run_through(path, Fragile(), [X])
    with pytest.raises(DifferentRun, match="holds other questions"):
        run_through(path, Fragile(), [X[:3]])


def test_the_checksum_sees_every_number_and_the_shape():
    (X,) = batches(4)
    other = X.copy()
    other[2, 1, 0] = np.nextafter(other[2, 1, 0], 9.0)
    assert take_checksum(X) == take_checksum(X.copy())
    assert take_checksum(other) != take_checksum(X)
    assert take_checksum(X[::-1]) != take_checksum(X)
    assert take_checksum(X.reshape(4, 1, 6)) != take_checksum(X)


def test_a_second_user_of_the_same_file_is_refused(path):
    recorded = Recorded(Fragile(), path, RUN)
    with pytest.raises(InvalidInput, match=r"another process may be writing it.*another --out"):
        Recorded(Fragile(), path, RUN)
    recorded.close()
    Recorded(Fragile(), path, RUN).close()


def test_a_second_process_on_the_same_file_is_refused(path):
    recorded = Recorded(Fragile(), path, RUN)
    recorded.ask(batches(2)[0])
    code = (
        "import sys, pathlib, keyhole\n"
        "target = keyhole.Local(lambda X: X[:, -1, 0], 3, 1)\n"
        f"try:\n    keyhole.Recorded(target, pathlib.Path(sys.argv[1]), {RUN!r})\n"
        "except keyhole.InvalidInput as refusal:\n    sys.exit(str(refusal))\n"
    )
    second = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert second.returncode == 1
    assert "another process may be writing it" in second.stderr
    recorded.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "transcript.sqlite"
    path.write_bytes(b"dear diary, " * 200)
    with pytest.raises(InvalidInput, match="is not a transcript"):
        Recorded(Fragile(), path, RUN)
    assert path.read_bytes() == b"dear diary, " * 200


def test_a_database_of_something_else_is_refused(tmp_path):
    path = tmp_path / "transcript.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE run (song TEXT)")
    other.execute("CREATE TABLE batch (number INTEGER)")
    other.commit()
    other.close()
    with pytest.raises(InvalidInput, match=str(path)):
        Recorded(Fragile(), path, RUN)


def test_a_run_interrupted_while_it_writes_who_it_is_leaves_nothing_behind(path):
    Recorded(Fragile(), path, RUN).close()
    base = sqlite3.connect(path)
    last = list(RUN)[-1]
    base.execute("DELETE FROM run")
    stop = (
        f"CREATE TRIGGER stop BEFORE INSERT ON run WHEN NEW.field = '{last}' BEGIN SELECT"
        " RAISE(ABORT, 'cut'); END"
    )
    base.execute(stop)
    base.commit()
    base.close()
    with pytest.raises(InvalidInput, match="cut"):
        Recorded(Fragile(), path, RUN)
    base = sqlite3.connect(path)
    assert base.execute("SELECT COUNT(*) FROM run").fetchone() == (0,)
    base.close()
