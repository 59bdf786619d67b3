"""Whoever watches hears of every answer once, under the phase that asked for it."""

import numpy as np
import pytest

from keyhole.errors import BudgetSpent
from keyhole.learners.choosing import learn
from keyhole.models import Head
from keyhole.oracles import Budgeted, Counted, Local, Watched, watch_batches


@pytest.fixture
def heard():
    return {}


@pytest.fixture
def tell(heard):
    def add(phase, queries):
        heard[phase] = heard.get(phase, 0) + queries

    return add


def test_a_learner_is_heard_phase_by_phase(heard, tell, rng):
    with watch_batches(tell), Watched(Local(Head.random(4, rng=rng)), 100) as oracle:
        found = learn(oracle, rng=rng)
    assert heard == {name: entry.sequences for name, entry in found.ledger.phases.items()}


def test_the_outermost_phase_is_told_whatever_counts_inside(heard, tell, rng):
    inner = Counted(Local(Head.random(3, rng=rng)))
    with watch_batches(tell), Watched(inner, 10) as oracle:
        outer = Counted(oracle)
        with outer.phase("measure"):
            outer.ask(np.zeros((5, 2, 3)))
        oracle.ask(np.zeros((2, 2, 3)))
    assert heard == {"measure": 5, "ask": 2}


def test_what_a_budget_still_answers_is_heard(heard, tell, rng):
    four = Budgeted(Local(Head.random(3, rng=rng)), 4)
    with watch_batches(tell), Watched(four, 10) as oracle, pytest.raises(BudgetSpent):
        oracle.ask(np.zeros((6, 2, 3)))
    assert heard == {"ask": 4}


def test_nobody_hears_what_was_made_outside(heard, tell, rng):
    with watch_batches(tell):
        pass
    with Watched(Local(Head.random(3, rng=rng)), 10) as oracle:
        oracle.ask(np.zeros((6, 2, 3)))
    assert heard == {}
