"""keyhole/hessian-pencil: sums of at most d heads, every token inside a ball."""

import numpy as np
import pytest

from keyhole import (
    Bounded,
    Budgeted,
    Head,
    HeadsInBall,
    InvalidInput,
    Local,
    MultiHead,
    Outcome,
    Status,
    Verdict,
    compare,
    learn,
)
from keyhole.learners.verifying.rules import replay_witness
from support.measures import rates

pytestmark = pytest.mark.theorem("keyhole/hessian-pencil")

CELLS = [(1, 4), (2, 4), (2, 8), (4, 8)]
SEEDS = 20


def learnt(make, seed, bound=None):
    """A hidden model in a ball of radius sqrt(d) or the given one, and what the learner makes of
    it.
    """
    building, learning = np.random.default_rng([20261117, seed]).spawn(2)
    hidden = make(building)
    oracle = Bounded(Local(hidden), np.sqrt(hidden.width) if bound is None else bound)
    return hidden, HeadsInBall().run(oracle, rng=learning)


@pytest.mark.parametrize(("heads", "width"), CELLS)
def test_every_seed_is_verified_and_every_head_right(heads, width):
    errors, asked = rates(learnt, heads, width, 4)
    assert max(errors) <= 1e-9
    assert asked <= 10


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "width"), CELLS)
def test_twenty_seeds_of_twenty_are_verified(heads, width):
    errors, asked = rates(learnt, heads, width, SEEDS)
    assert max(errors) <= 1e-9
    assert asked <= 10


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "width"), [(4, 16), (8, 16)])
def test_wider_heads_are_verified_too(heads, width):
    errors, asked = rates(learnt, heads, width, 3)
    assert max(errors) <= 1e-9
    assert asked <= 10


@pytest.mark.parametrize("outputs", [2, 5])
def test_several_outputs_are_read_together(outputs):
    hidden, recovery = learnt(lambda rng: MultiHead.random(6, heads=3, outputs=outputs, rng=rng), 0)
    assert compare(hidden, recovery.unwrap()).largest <= 1e-9


@pytest.mark.parametrize("factor", [0.5, 4.0, 1000.0])
def test_other_radii_do(factor):
    hidden, recovery = learnt(
        lambda rng: MultiHead.random(6, heads=2, rng=rng), 1, factor * np.sqrt(6)
    )
    assert compare(hidden, recovery.unwrap()).largest <= 1e-9


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_the_size_of_answers_does_not_matter(size):
    def make(rng):
        model = MultiHead.random(6, heads=3, rng=rng)
        return MultiHead(model.W, model.V * size)

    hidden, recovery = learnt(make, 3)
    assert recovery.verdict is Verdict.EXACT
    assert compare(hidden, recovery.unwrap()).largest <= 1e-9


def test_a_constant_and_a_mean_are_found():
    def make(rng):
        model = MultiHead.random(6, heads=3, outputs=2, rng=rng)
        return MultiHead(
            model.W * np.array([1, 1, 0])[:, None, None], model.V, None, np.array([3.0, -1.0])
        )

    hidden, recovery = learnt(make, 0)
    assert compare(hidden, recovery.unwrap()).largest <= 1e-9


def test_mirror_heads_are_taken_apart():
    def make(rng):
        model = MultiHead.random(6, heads=3, rng=rng)
        return MultiHead(np.stack([model.W[0], -model.W[0], model.W[2]]), model.V)

    hidden, recovery = learnt(make, 0)
    assert compare(hidden, recovery.unwrap()).largest <= 1e-8


def test_heads_of_rank_one_are_recovered():
    hidden, recovery = learnt(lambda rng: MultiHead.random(6, heads=2, rank=1, rng=rng), 0)
    assert compare(hidden, recovery.unwrap()).largest <= 1e-8


def test_the_certificate_holds_on_generic_heads():
    _, recovery = learnt(lambda rng: MultiHead.random(8, heads=2, rng=rng), 0)
    assert recovery.certificate.theorem == "keyhole/hessian-pencil"
    assert recovery.certificate.outcome is Outcome.HOLDS


@pytest.mark.parametrize("kind", ["proportional", "more than d"])
def test_heads_that_the_pencil_cannot_tell_apart_are_refused_within_the_cap(kind):
    def make(rng):
        model = MultiHead.random(3, heads=2 if kind == "proportional" else 5, rng=rng)
        return (
            MultiHead(np.stack([model.W[0], 2 * model.W[0]]), model.V)
            if kind == "proportional"
            else model
        )

    hidden, recovery = learnt(make, 0)
    assert (recovery.status, recovery.verdict) == (Status.UNRESOLVED, Verdict.UNVERIFIED)
    assert recovery.ledger.total().sequences <= HeadsInBall().plan(hidden.width).at_most


def test_what_no_sum_of_heads_answers_is_refuted_inside_the_ball(rng):
    class Cubic:
        width, outputs = 4, 1

        def __call__(self, X):
            return (X[:, -1].sum(axis=1) ** 3)[:, None]

    target = Bounded(Local(Cubic()), 2.0)
    recovery = learn(target, rng=rng, learner="heads-in-ball")
    assert (recovery.status, recovery.verdict) == (Status.UNRESOLVED, Verdict.CLASS_REFUTED)
    assert replay_witness(target, recovery.counterexample).holds


@pytest.mark.parametrize("budget", [0, 5, 40, 300])
def test_a_spent_budget_is_said_and_never_exceeded(budget, rng):
    oracle = Budgeted(Bounded(Local(MultiHead.random(8, heads=4, rng=rng)), 3.0), budget)
    recovery = HeadsInBall().run(oracle, rng=rng)
    assert recovery.verdict is Verdict.BUDGET_SPENT
    assert oracle.spent == budget


def test_the_learners_own_cap_ends_the_search(rng):
    recovery = HeadsInBall(2.0, queries=100).run(
        Local(MultiHead.random(6, heads=3, rng=rng)), rng=rng
    )
    assert (recovery.status, recovery.verdict) == (Status.UNRESOLVED, Verdict.UNVERIFIED)
    assert recovery.ledger.total().sequences <= 100


def test_answers_that_scatter_are_never_called_verified(rng):
    noise, hidden = np.random.default_rng(1), MultiHead.random(4, heads=2, rng=rng)

    class Noisy:
        width, outputs = 4, 1

        def __call__(self, X):
            return hidden(X) + 1e-3 * noise.normal(size=(len(X), 1))

    recovery = HeadsInBall(2.0).run(Local(Noisy()), rng=rng)
    assert not recovery.verdict.verified


def test_a_bound_is_needed_and_must_make_sense(rng):
    with pytest.raises(InvalidInput, match="need a bound"):
        HeadsInBall().run(Local(Head.random(3, rng=rng)), rng=rng)
    with pytest.raises(InvalidInput, match="finite number > 0"):
        HeadsInBall(0.0)
    with pytest.raises(InvalidInput, match="at least 1"):
        HeadsInBall(1.0, queries=0)


def test_the_plan_covers_what_is_asked():
    _, recovery = learnt(lambda rng: MultiHead.random(8, heads=2, rng=rng), 0)
    plan = HeadsInBall().plan(8, heads=2)
    assert recovery.ledger.total().sequences <= 1.5 * plan.queries
    assert plan.queries <= plan.at_most


def test_learn_goes_on_to_several_heads_in_a_ball(rng):
    hidden = MultiHead.random(6, heads=2, rng=rng)
    recovery = learn(Bounded(Local(hidden), np.sqrt(6)), rng=rng)
    assert recovery.verdict is Verdict.EXACT
    assert compare(hidden, recovery.unwrap()).largest <= 1e-9
