"""Asking in pieces of a service that fails, without any network: order, back-off, accounts."""

import threading
import time

import numpy as np
import pytest

from keyhole.errors import BadAnswer, BudgetSpent, TargetFailed
from keyhole.oracles import Budgeted, Recorded, count_asked_again
from keyhole.oracles.base import Meters
from keyhole.oracles.http.attempts import Asking, Missed, Pace, Patience

QUICK = Patience(attempts=3, first=1e-4)
BROKEN, REFUSED, LARGE = (
    Missed("it broke", answered=True, again=True),
    Missed("it refused", answered=False, again=True),
    Missed("too large", answered=False, again=False, too_large=True),
)


class Service:
    """Answers the first number of a sequence; attempt `n` fails as `plan[n]` says."""

    width, outputs = 1, 1

    def __init__(self, plan=None, size=2, connections=1):
        self.plan, self.size, self.connections = dict(plan or {}), size, connections
        self.meters, self.attempts, self.asked, self.lock = Meters(), 0, 0, threading.Lock()

    def send(self, X):
        with self.lock:
            self.attempts += 1
            fault = self.plan.get(self.attempts)
            self.asked += len(X) if fault is None or getattr(fault, "answered", True) else 0
        if fault is not None:
            raise fault
        return X[:, 0, :].copy()

    def ask(self, X):
        asking = Asking(
            send=self.send,
            size=self.size,
            connections=self.connections,
            patience=QUICK,
            pace=Pace(None),
            meters=self.meters,
            shrink=lambda: setattr(self, "size", 1),
        )
        return np.concatenate(asking.run(X))


def batch(count):
    return np.arange(float(count)).reshape(count, 1, 1)


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("plan", [{}, {1: BROKEN}, {2: REFUSED, 3: REFUSED}, {1: LARGE, 4: BROKEN}])
def test_answers_come_back_in_order_and_what_is_asked_again_is_counted(plan, connections):
    service = Service(plan, connections=connections)
    np.testing.assert_array_equal(service.ask(batch(9))[:, 0], np.arange(9))
    assert service.asked == 9 + count_asked_again(service)


@pytest.mark.parametrize("fault", [BROKEN, REFUSED])
@pytest.mark.parametrize("first", range(1, 5))
def test_a_service_that_is_given_up_on_costs_what_it_may_have_answered(fault, first, tmp_path):
    service = Service(dict.fromkeys(range(first, 99), fault))
    recorded = Recorded(service, tmp_path / "t.sqlite", {})
    budgeted = Budgeted(recorded, 100)
    with pytest.raises(TargetFailed, match=r"It was tried 3 times\."):
        budgeted.ask(batch(7))
    assert recorded.charged == budgeted.spent == service.asked
    recorded.close()


@pytest.mark.parametrize("budget", range(7, 14))
def test_asking_again_stops_where_the_budget_does(budget, tmp_path):
    service = Service({1: BROKEN, 3: BROKEN, 4: BROKEN, 6: BROKEN}, size=2)
    recorded = Recorded(service, tmp_path / "t.sqlite", {})
    budgeted = Budgeted(recorded, budget)
    if budget < 7 + 2 + 2 + 2 + 2:
        with pytest.raises(BudgetSpent):
            budgeted.ask(batch(7))
    assert recorded.charged == budgeted.spent == service.asked <= budget
    recorded.close()


def test_an_answer_that_is_no_number_is_paid_for_in_full(tmp_path):
    service = Service({2: BadAnswer("null")})
    recorded = Recorded(service, tmp_path / "t.sqlite", {})
    with pytest.raises(BadAnswer):
        recorded.ask(batch(7))
    assert recorded.charged == 7
    recorded.close()


def test_waits_double_up_to_the_longest_and_obey_the_service():
    patience = Patience(attempts=5, first=1.0, longest=3.0, obeyed=10.0)
    now = time.monotonic()
    assert [patience.wait(tries, BROKEN, now) for tries in range(1, 6)] == [
        1.0,
        2.0,
        3.0,
        3.0,
        None,
    ]
    assert patience.wait(1, Missed("", answered=False, again=True, after=7.0), now) == 7.0
    assert patience.wait(1, Missed("", answered=False, again=True, after=11.0), now) is None
    assert patience.wait(1, Missed("", answered=False, again=False), now) is None
