"""Recoveries from Python that are kept in a file, and told of while they go on."""

from collections import Counter

import numpy as np
import pytest

from keyhole import Head, Hints, Local, LowRank, Verdict, learn
from keyhole.errors import DifferentRun, InvalidInput, TargetFailed

WIDTH = 6


class Target:
    """A head that may fail at one of its calls, once."""

    def __init__(self, fails_at=None):
        self.head = Head.random(WIDTH, rng=np.random.default_rng(8))
        self.width, self.fails_at, self.calls, self.asked = WIDTH, fails_at, 0, 0

    def __call__(self, X):
        self.calls += 1
        if self.calls == self.fails_at:
            raise ConnectionError("the line is dead")
        self.asked += len(X)
        return self.head(X)


def test_a_recovery_that_was_ended_goes_on_and_asks_nothing_again(tmp_path):
    calm = Target()
    undisturbed = learn(calm, rng=3)
    target = Target(fails_at=calm.calls // 2)
    with pytest.raises(TargetFailed):
        learn(target, rng=3, record=tmp_path / "run.sqlite")
    asked = target.asked
    assert 0 < asked < calm.asked
    resumed = learn(target, rng=3, record=tmp_path / "run.sqlite")
    assert resumed.verdict is Verdict.EXACT
    np.testing.assert_array_equal(resumed.model.W, undisturbed.model.W)
    assert target.asked == calm.asked
    # A third time everything is in the file.
    assert learn(target, rng=3, record=tmp_path / "run.sqlite").verdict is Verdict.EXACT
    assert target.asked == calm.asked


@pytest.mark.parametrize(
    "other",
    [
        {"rng": 4},
        {"rng": 3, "learner": "exact"},
        {"rng": 3, "hints": Hints(rank=2)},
        {"rng": 3, "learner": LowRank(rank=2)},
    ],
)
def test_a_record_is_of_one_run_alone(tmp_path, other):
    learn(Target(), rng=3, record=tmp_path / "run.sqlite")
    with pytest.raises(DifferentRun, match="another run"):
        learn(Target(), record=tmp_path / "run.sqlite", **other)


def test_tokens_that_may_be_asked_are_part_of_what_a_record_is_of(tmp_path):
    rows = np.random.default_rng(1).normal(size=(24, WIDTH))
    learn(Target(), rng=3, hints=Hints(tokens=rows), record=tmp_path / "run.sqlite")
    rows = rows.copy()
    rows[20, 3] += 1e-9
    with pytest.raises(DifferentRun, match="hints"):
        learn(Target(), rng=3, hints=Hints(tokens=rows), record=tmp_path / "run.sqlite")


def test_a_budget_counts_what_a_record_has_cost(tmp_path):
    target = Target()
    spent = learn(target, rng=3, record=tmp_path / "run.sqlite", budget=60)
    assert spent.verdict is Verdict.BUDGET_SPENT
    assert target.asked <= 60
    with pytest.raises(InvalidInput, match="already asked"):
        learn(target, rng=3, record=tmp_path / "run.sqlite", budget=20)
    whole = learn(target, rng=3, record=tmp_path / "run.sqlite", budget=1000)
    assert whole.verdict is Verdict.EXACT
    assert target.asked <= whole.ledger.total().sequences + 60


def test_whoever_wants_to_be_told_hears_of_every_answer():
    told = Counter()
    target = Target()
    found = learn(target, rng=3, progress=lambda phase, count: told.update({phase: count}))
    assert told.total() == found.ledger.total().sequences == target.asked
    assert {"recognise", "verify"} <= told.keys()


def test_a_bar_draws_nothing_where_there_is_no_terminal(capsys):
    assert learn(Local(Target().head), rng=3, progress=True).verdict is Verdict.EXACT
    assert capsys.readouterr() == ("", "")
