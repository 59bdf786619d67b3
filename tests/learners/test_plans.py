"""What a plan says beforehand, held against what is asked."""

import numpy as np
import pytest

import keyhole
from keyhole import Head, MultiHead, ReluNet
from keyhole.learners.choosing import plan_recovery
from keyhole.learners.recognising.recognition import MOST_QUESTIONS, recognise
from keyhole.learners.registry import LEARNERS, Hints
from keyhole.oracles import Imperfection, Local


def drop_constant_pieces(x, w):
    return np.floor(x @ w) + np.sign(x[:, 0])


def repeat_ramp(x, w):
    return (x @ w) % 1.0


def add_ever_faster_waves(x, w):
    return np.cos((x @ w)[:, None] * 3.0 ** np.arange(12)) @ 0.5 ** np.arange(12)


def grow_without_bound(x, w):
    return np.sinh(np.clip(x @ w, -300.0, 300.0))


ADVERSARIES = (drop_constant_pieces, repeat_ramp, add_ever_faster_waves, grow_without_bound)


def oppose_learners(adversary, width, rng, *, context):
    """A target that reads the last token, or the sum of all tokens."""
    w = rng.normal(size=width)
    read = (lambda X: X.sum(axis=1)) if context else (lambda X: X[:, -1])
    return Local(lambda X: adversary(read(X), w)[:, None], width)


def count_queries(found):
    return found.ledger.total().sequences


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_no_target_makes_auto_ask_more_than_its_plan_says(adversary, context):
    for width in (1, 3):
        rng = np.random.default_rng(width)
        target = oppose_learners(adversary, width, rng, context=context)
        found = keyhole.learn(target, rng=rng)
        assert count_queries(found) <= plan_recovery(width=width).at_most
        assert not found.verdict.verified


@pytest.mark.parametrize("name", ["low-rank", "exact", "several-heads", "network", "one-layer"])
def test_no_target_makes_a_named_learner_ask_more_than_its_plan_says(name):
    rng = np.random.default_rng(7)
    target = oppose_learners(repeat_ramp, 2, rng, context=True)
    found = keyhole.learn(target, rng=rng, learner=name)
    assert count_queries(found) <= plan_recovery(name, width=2).at_most


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_recognition_keeps_to_the_questions_that_plans_count(adversary):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        target = oppose_learners(adversary, 1 + seed % 6, rng, context=bool(seed % 2))
        assert recognise(target, rng=rng).ledger.total().sequences <= MOST_QUESTIONS


def test_a_plan_of_auto_expects_what_targets_of_its_classes_take():
    rng = np.random.default_rng(3)
    targets = {
        "head": Head.random(5, rng=rng),
        "multihead": MultiHead.random(5, heads=2, rng=rng),
        "relu": ReluNet.random(5, hidden=4, rng=rng),
    }
    planned = {one.finds: one for one in reversed(plan_recovery(width=5).classes)}
    for finds, target in targets.items():
        found = keyhole.learn(target, rng=rng)
        assert found.verdict.verified
        # Plans of several heads are for as many as are looked for.
        assert 100 < count_queries(found) <= 1.5 * planned[finds].expected
        assert count_queries(found) <= planned[finds].at_most


def test_a_plan_of_auto_names_only_learners_that_bear_what_is_declared():
    for stated in (Imperfection(), Imperfection(tolerance=1e-6), Imperfection(token_bound=1.0)):
        names = {one.learner for one in plan_recovery(width=3, stated=stated).classes}
        assert names <= LEARNERS.keys()
    assert "grid" in {one.learner for one in plan_recovery(width=3, hints=Hints(grid=0.5)).classes}
