"""Heads whose sizes add up to more than the outputs come back, all of them fitted together."""

from dataclasses import replace

import numpy as np
import pytest

from keyhole import Local, WiredLayer, Wiring, random_layer
from keyhole.claims import Verdict
from keyhole.identify.layers import layer_distance
from keyhole.learners.base import Status
from keyhole.learners.positions.ball import NormBall
from keyhole.learners.positions.placed import Asking, Placed, measure_linear_part
from keyhole.learners.positions.score_form import HeadScores, ScoreForm
from keyhole.learners.positions.wide.shift_split import split_by_shifts
from keyhole.learners.positions.wide.wide_fit import fit_heads
from keyhole.oracles.limits import Sized
from support.seeds import few
from support.wired_layers import answer_in_torch

ROPE = Wiring(norm="rms", eps=1e-5, residual=True, positions="rope")


def measure_error(truth, model, rng):
    """The largest relative error; what is true is written a second time, in torch."""
    errors = []
    for length in (1, 2, 7, 16):
        X = rng.normal(size=(8, length, truth.width))
        answers = answer_in_torch(truth, X)
        errors.append(np.linalg.norm(model(X) - answers) / np.linalg.norm(answers))
    return max(errors)


CASES = {
    "rope": (ROPE, 3, 8),
    "no positions": (replace(ROPE, positions="none"), 3, 8),
    "groups of wide heads": (replace(ROPE, groups=2), 4, 6),
    "as large as a token": (ROPE, 2, 12),
}


SLOW = ("as large as a token", "no positions")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def test_wide_heads_come_back(name):
    wiring, heads, rank = CASES[name]
    for seed in few(4):
        truth_rng, rng, fresh = np.random.default_rng(9000 + seed).spawn(3)
        truth = random_layer(12, heads=heads, rank=rank, wiring=wiring, rng=truth_rng)
        found = WiredLayer(wiring).run(Local(truth), rng=rng)
        assert found.verdict is Verdict.EXACT
        assert (found.model.heads, found.model.rank) == (heads, rank)
        assert found.model.groups == truth.groups
        assert measure_error(truth, found.model, fresh) <= 1e-9
        assert layer_distance(truth, found.model).largest <= 1e-6
        plan = WiredLayer(wiring).plan(12, outputs=12)
        assert found.ledger.total().sequences <= plan.at_most


def test_shifts_of_the_last_token_tell_the_map_of_every_head(rng):
    truth = random_layer(12, heads=3, rank=8, wiring=ROPE, rng=rng)
    asking = Asking(Local(truth), NormBall.of(12, "rms", 1e-5), residual=True)
    linear = measure_linear_part(asking, size=0.8, rng=rng)
    split = split_by_shifts(asking, linear, longest=None, rng=rng)
    assert split.rank == 8
    maps = truth.Wo @ (truth.Wv * truth.gain)
    for A in maps:
        gaps = np.linalg.norm(split.A - A, axis=(1, 2)) / np.linalg.norm(A)
        assert gaps.min() < 1e-3


def test_a_joint_fit_from_wrong_scores_does_not_call_itself_found(rng):
    """Answers that are those of no head at all leave much."""
    form = ScoreForm(np.zeros(0), np.zeros((4, 0)), None, False)
    n = rng.normal(size=(40, 3, 4))
    at = np.tile(np.array([2, 1, 0]), (40, 1))
    placed = Placed(n, at, 3, rng.normal(size=(40, 5)), np.ones(40))
    start = [
        HeadScores(
            rng.normal(size=(2, 4)),
            np.zeros(2),
            rng.normal(size=(2, 4)),
            np.zeros(2),
            np.zeros(0),
        )
    ]
    assert not fit_heads(start, [placed], form).found


def test_wide_heads_in_short_sequences_end_unverified():
    truth = random_layer(12, heads=3, rank=8, wiring=ROPE, rng=91)
    oracle = Sized(Local(truth), (1, 64))
    found = WiredLayer(ROPE).run(oracle, rng=np.random.default_rng(92))
    assert (found.verdict, found.status) == (Verdict.UNVERIFIED, Status.UNSEPARATED)
