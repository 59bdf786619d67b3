"""keyhole/saturate-and-isolate: sums of heads from d^2 + 4d + O(1) queries per head."""

import numpy as np
import pytest

from keyhole import (
    Budgeted,
    Declared,
    Head,
    Imperfection,
    InvalidInput,
    Local,
    MultiHead,
    Outcome,
    SeveralHeads,
    Status,
    Verdict,
    compare,
)
from keyhole.learners.choosing import learn
from keyhole.learners.verifying.rules import replay_witness
from support.measures import rates

pytestmark = pytest.mark.theorem("keyhole/saturate-and-isolate")

CELLS = [(1, 4), (2, 4), (4, 4), (2, 8), (4, 8), (6, 8), (4, 16)]
WIDE = [(16, 4), (8, 8), (16, 8), (8, 16), (16, 16), (4, 32), (8, 32), (8, 64)]
SEEDS = 20


def learnt(make, seed, wrap=Local):
    """A hidden model and what the learner makes of it; neither sees the other's generator."""
    building, learning = np.random.default_rng([20261116, seed]).spawn(2)
    hidden = make(building)
    return hidden, SeveralHeads().run(wrap(hidden), rng=learning)


@pytest.mark.parametrize(("heads", "width"), CELLS)
def test_every_seed_is_verified_and_every_head_right(heads, width):
    errors, _ = rates(learnt, heads, width, 2)
    assert max(errors) <= 1e-9
    assert np.median(errors) <= 1e-11


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "width"), CELLS + WIDE)
def test_every_seed_is_verified_in_the_large_cells_too(heads, width):
    errors, _ = rates(learnt, heads, width, SEEDS if width < 64 else 4)
    assert max(errors) <= 1e-9
    assert np.median(errors) <= 1e-11


@pytest.mark.parametrize(
    ("heads", "width", "seeds", "ratio"), [(2, 8, 7, 1.5), (4, 16, 3, 1.3), (4, 32, 1, 1.2)]
)
def test_queries_per_parameter_are_close_to_one(heads, width, seeds, ratio):
    _, asked = rates(learnt, heads, width, seeds)
    assert asked <= ratio


@pytest.mark.slow
def test_six_heads_of_width_eight_come_back_to_forty_bits():
    errors, _ = rates(learnt, 6, 8, SEEDS)
    assert max(errors) <= 2.0**-40


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_ranks_are_found(rank):
    for seed in range(2):
        hidden, recovery = learnt(
            lambda rng: MultiHead.random(12, heads=3, rank=rank, rng=rng), seed
        )
        assert recovery.verdict is Verdict.EXACT
        assert recovery.rank == rank
        assert compare(hidden, recovery.unwrap()).largest <= 1e-7


def test_low_rank_costs_less_than_full_rank():
    _, low = learnt(lambda rng: MultiHead.random(24, heads=2, rank=2, rng=rng), 0)
    assert low.ledger.total(without="verify").sequences < 2 * 24 * 24 // 2


def test_several_outputs_cost_no_more():
    asked = {}
    for outputs in (1, 5):
        hidden, recovery = learnt(
            lambda rng, o=outputs: MultiHead.random(8, heads=3, outputs=o, rng=rng), 1
        )
        assert compare(hidden, recovery.unwrap()).largest <= 1e-10
        asked[outputs] = recovery.ledger.total(without="verify").sequences
    assert asked[5] <= 1.3 * asked[1]


@pytest.mark.parametrize("scale", [1e-10, 1e-4, 1e4, 1e10])
@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_no_scale_is_special(scale, size):
    def make(rng):
        model = MultiHead.random(6, heads=3, scale=scale, rng=rng)
        return MultiHead(model.W, model.V * size)

    hidden, recovery = learnt(make, 3)
    assert recovery.verdict is Verdict.EXACT
    assert compare(hidden, recovery.unwrap()).largest <= 1e-9


def test_a_constant_is_found():
    def make(rng):
        model = MultiHead.random(6, heads=3, outputs=2, rng=rng)
        return MultiHead(model.W, model.V, None, np.array([3.0, -100.0]))

    hidden, recovery = learnt(make, 0)
    assert compare(hidden, recovery.unwrap()).largest <= 1e-9


def test_the_certificate_holds_on_generic_heads():
    # With no more heads than coordinates all read-outs would be known before any score.
    _, recovery = learnt(lambda rng: MultiHead.random(4, heads=6, rng=rng), 0)
    assert recovery.certificate.theorem == "keyhole/saturate-and-isolate"
    assert recovery.certificate.outcome is Outcome.HOLDS


class Narrow:
    """A model evaluated in float32 throughout."""

    def __init__(self, model):
        self.W, self.V = model.W.astype(np.float32), model.V.astype(np.float32)
        self.width, self.outputs = model.width, model.outputs

    def __call__(self, X):
        X = X.astype(np.float32)
        scores = np.einsum("bnd,hde,be->bhn", X, self.W, X[:, -1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.einsum(
            "bhn,bnd,hdo->bo", weights / weights.sum(axis=-1, keepdims=True), X, self.V
        )


def test_float32_answers_are_enough_for_three_digits():
    verdicts = []
    for seed in range(3):
        hidden, recovery = learnt(
            lambda rng: MultiHead.random(8, heads=4, rng=rng),
            seed,
            lambda model: Declared(Local(Narrow(model)), Imperfection.cast("f32")),
        )
        verdicts.append(recovery.verdict)
        if recovery.verdict.verified:
            assert compare(hidden, recovery.unwrap()).largest <= 1e-3
    assert verdicts.count(Verdict.WITHIN_TOLERANCE) == len(verdicts)


@pytest.mark.parametrize("budget", [0, 5, 40, 150, 300])
def test_a_spent_budget_is_said_and_never_exceeded(budget, rng):
    oracle = Budgeted(Local(MultiHead.random(8, heads=4, rng=rng)), budget)
    recovery = SeveralHeads().run(oracle, rng=rng)
    assert recovery.verdict is Verdict.BUDGET_SPENT
    assert oracle.spent == budget


def test_a_budget_without_room_for_verification_leaves_the_model_unverified(rng):
    hidden = MultiHead.random(4, heads=2, rng=rng)
    full = SeveralHeads().run(Local(hidden), rng=np.random.default_rng(1))
    budget = full.ledger.total(without="verify").sequences + 1
    recovery = SeveralHeads().run(Budgeted(Local(hidden), budget), rng=np.random.default_rng(1))
    assert recovery.model is not None
    assert (recovery.status, recovery.verdict) == (Status.UNCHECKED, Verdict.UNVERIFIED)


def test_the_learners_own_cap_ends_the_search(rng):
    hidden = MultiHead.random(6, heads=3, rng=rng)
    recovery = SeveralHeads(queries=100).run(Local(hidden), rng=rng)
    assert (recovery.status, recovery.verdict) == (Status.UNRESOLVED, Verdict.UNVERIFIED)
    assert recovery.ledger.total().sequences <= 100


def test_options_are_refused_when_they_make_no_sense():
    with pytest.raises(InvalidInput, match="at least 1"):
        SeveralHeads(most=0)


def test_a_single_head_is_a_sum_of_one(rng):
    head = Head.random(6, rng=rng)
    recovery = SeveralHeads().run(Local(head), rng=rng)
    assert compare(head, recovery.unwrap()).largest <= 1e-9


def test_what_no_sum_of_heads_answers_is_refuted_by_a_witness(rng):
    class Cubic:
        width, outputs = 4, 1

        def __call__(self, X):
            return (X[:, -1].sum(axis=1) ** 3)[:, None]

    assert SeveralHeads().run(Local(Cubic()), rng=rng).verdict is Verdict.UNVERIFIED
    recovery = learn(Local(Cubic()), rng=rng, learner="several-heads")
    assert (recovery.status, recovery.verdict) == (Status.UNRESOLVED, Verdict.CLASS_REFUTED)
    witness = recovery.counterexample
    assert replay_witness(Local(Cubic()), witness).holds
    for question, answer in zip(witness.questions, witness.answers, strict=True):
        np.testing.assert_allclose(Cubic()(question[None])[0], answer)


def test_a_target_that_contradicts_itself_is_not_called_verified(rng):
    noise = np.random.default_rng(1)
    hidden = MultiHead.random(4, heads=2, rng=rng)

    class Noisy:
        width, outputs = 4, 1

        def __call__(self, X):
            return hidden(X) + 1e-3 * noise.normal(size=(len(X), 1))

    recovery = SeveralHeads().run(Local(Noisy()), rng=rng)
    assert not recovery.verdict.verified


def test_the_plan_covers_what_is_asked():
    _, recovery = learnt(lambda rng: MultiHead.random(8, heads=3, rng=rng), 5)
    plan = SeveralHeads().plan(8, heads=3)
    assert recovery.ledger.total().sequences <= 1.3 * plan.queries
    assert plan.queries <= plan.at_most
    assert plan.degrees_of_freedom == 3 * 72
