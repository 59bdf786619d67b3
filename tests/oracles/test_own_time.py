"""The clock may stop a recovery, never steer it."""

from itertools import count

import numpy as np
import pytest

from keyhole.errors import InvalidInput, OutOfTime
from keyhole.learners.choosing import learn
from keyhole.models import Head
from keyhole.oracles import Local
from keyhole.oracles.own_time import Paced, Stopwatch, bound_own_work, check_own_time


def tick():
    """A clock that goes on by one second each time it is looked at."""
    seconds = count()
    return lambda: float(next(seconds))


def test_time_that_is_paused_does_not_count():
    now = [0.0]
    watch = Stopwatch(5.0, lambda: now[0])
    now[0] = 3.0
    with watch.paused():
        now[0] = 100.0
    now[0] = 102.0
    assert watch.seconds == 5.0
    watch.check()
    now[0] = 102.5
    with pytest.raises(OutOfTime, match="5 s of own work"):
        watch.check()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(limit):
    with pytest.raises(InvalidInput, match="--max-seconds"):
        Stopwatch(limit)


def test_a_loop_is_stopped_only_inside_the_bound():
    check_own_time()
    with bound_own_work(Stopwatch(3.0, tick())):
        check_own_time()
        check_own_time()
        check_own_time()
        with pytest.raises(OutOfTime):
            check_own_time()
    check_own_time()


class Slow:
    """A head that asks for a long time of our own, as a hard target does."""

    width = 3

    def __init__(self):
        self.head = Head.random(3, rng=0)
        self.asked = []

    def __call__(self, X):
        self.asked.append(X.copy())
        return self.head(X)


def test_a_run_that_is_stopped_asked_a_prefix_of_what_it_asks_with_more_time():
    whole, cut = Slow(), Slow()
    assert learn(whole, rng=0).verdict.name == "EXACT"
    found = learn(cut, rng=0, max_seconds=1e-9)
    assert (found.status.name, found.verdict.name) == ("OUT_OF_TIME", "UNVERIFIED")
    assert found.model is None
    assert len(cut.asked) < len(whole.asked)
    assert found.ledger.total().sequences == sum(map(len, cut.asked))
    for one, other in zip(cut.asked, whole.asked, strict=False):
        np.testing.assert_array_equal(one, other)


def test_a_stopped_run_says_what_each_phase_cost():
    target = Local(Head.random(3, rng=0))
    paced = Paced(target, watch=Stopwatch(1e9))
    with bound_own_work(paced.watch):
        found = learn(paced, rng=0)
    assert paced.ledger.total().sequences == found.ledger.total().sequences
    assert "verify" in paced.ledger.phases


def test_the_command_exits_with_three_and_goes_on_where_it_stopped(keyhole, head):
    ran = keyhole("learn", "head.safetensors", "--out", "run", "--max-seconds", 1e-6, "--json")
    assert ran.code == 3
    assert (ran.json["status"], ran.json["verdict"]) == ("OUT_OF_TIME", "UNVERIFIED")
    assert ran.json["max_seconds"] == 1e-6
    again = keyhole("learn", "head.safetensors", "--out", "run", "--resume", "--json")
    assert again.code == 0
    assert again.json["verdict"] == "EXACT"
