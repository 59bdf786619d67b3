"""Beyond BSHK26/5.1: one round of questions, and weights on a grid with fewer queries than
parameters.
"""

import numpy as np
import pytest

import keyhole
from keyhole import Head, Local, Outcome, Status, Verdict
from keyhole.errors import InvalidInput
from keyhole.learners.choosing import choose_learner
from keyhole.learners.one_head.grid import Grid
from keyhole.learners.one_head.nystrom import Nystrom
from keyhole.learners.registry import Hints
from support.measures import gap
from support.seeds import few

pytestmark = pytest.mark.theorem("BSHK26/5.1")


def test_nystrom_recovers_in_one_round():
    for seed in few(20):
        rng = np.random.default_rng(seed)
        d, outputs = int(rng.integers(8, 40)), int(rng.choice([1, 3]))
        rank = int(rng.integers(1, d // 3))
        truth = Head.random(d, rank=rank, outputs=outputs, rng=rng)
        recovery = Nystrom(rank).run(Local(truth), rng=rng)
        assert (recovery.verdict, recovery.rank) == (Verdict.EXACT, rank)
        assert recovery.certificate.outcome is Outcome.HOLDS
        assert gap(recovery.model.W, truth.W) <= 1e-10


def test_the_questions_of_nystrom_do_not_depend_on_what_w_answers(rng):
    """Two heads of one scale and one read-out are asked the same questions, but for rounding of the
    scale.
    """
    first = Head.random(12, rank=2, rng=rng)
    asked = []
    for W in (np.asarray(first.W), -np.asarray(first.W)):
        seen = []
        head = Head(W, first.V)

        def target(X, head=head, seen=seen):
            seen.append(X.copy())
            return head(X)

        recovery = Nystrom(2).run(Local(target, 12), rng=np.random.default_rng(0))
        # The last call of that length belongs to the examination, which goes by the model.
        pairs = [X for X in seen if X.shape[1] == 2][:-1]
        assert sum(map(len, pairs)) >= recovery.ledger["measure"].sequences
        asked.append(np.concatenate([X.ravel() for X in pairs]))
    np.testing.assert_allclose(*asked, rtol=1e-12)


def test_a_rank_above_that_of_nystrom_is_refused(rng):
    recovery = Nystrom(2, oversampling=1).run(Local(Head.random(16, rank=9, rng=rng)), rng=rng)
    assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.DISAGREES)


@pytest.mark.parametrize(("levels", "fewer"), [(1, 8.0), (7, 5.0), (127, 3.0)])
def test_weights_on_a_grid_need_fewer_queries_than_parameters(levels, fewer):
    for seed in few(6):
        rng = np.random.default_rng(seed)
        d, step = 48, 10.0 ** rng.uniform(-6, 3)
        N = rng.integers(-levels, levels + 1, size=(d, d))
        recovery = Grid(step).run(Local(Head(step * N, rng.normal(size=(d, 1)))), rng=rng)
        assert recovery.verdict is Verdict.EXACT
        np.testing.assert_array_equal(np.round(recovery.model.W / step), N)
        assert recovery.ledger.total(without="verify").sequences <= (d * d + d) / fewer


def test_weights_off_the_grid_are_still_recovered(rng):
    truth = Head.random(10, rng=rng)
    recovery = Grid(0.5).run(Local(truth), rng=rng)
    assert recovery.verdict is Verdict.EXACT
    assert gap(recovery.model.W, truth.W) <= 1e-11


def test_levels_that_are_given_too_small_are_never_believed(rng):
    N = rng.integers(-50, 51, size=(12, 12))
    recovery = Grid(1e-2, levels=1).run(Local(Head(1e-2 * N, rng.normal(size=(12, 1)))), rng=rng)
    right = np.array_equal(np.round(np.asarray(recovery.model.W) / 1e-2), N)
    assert right or recovery.verdict is not Verdict.EXACT


@pytest.mark.parametrize(
    ("name", "hints"), [("nystrom", Hints()), ("grid", Hints()), ("wizard", Hints())]
)
def test_a_learner_that_lacks_its_hint_says_so(name, hints):
    with pytest.raises(InvalidInput, match=r"needs --|a learner is one of"):
        choose_learner(name, hints)


def test_hints_choose_the_learner(rng):
    assert isinstance(choose_learner("auto", Hints(grid=0.1)), Grid)
    assert choose_learner("auto", Hints(rank=3)).rank == 3
    assert keyhole.learn(Head.random(4, rng=rng), rng=rng, learner="exact").verdict is Verdict.EXACT
