"""How closely networks are measured where one line alone is not enough."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from keyhole import Local, Network, ReluNet, Verdict
from keyhole.learners.networks.lines import CHECKS, FINE
from keyhole.learners.networks.rounds import FRUGAL, Given, Learning
from support.measures import function_error
from support.seeds import few

EPS = float(np.finfo(float).eps)


def given(truth, rng):
    return Given(
        ask=truth.points,
        width=truth.width,
        outputs=truth.outputs,
        rng=rng,
        phase=lambda name: nullcontext(),
        roundoff=EPS,
        most=2048,
        rounds=4,
        fine=FINE,
        care=FRUGAL,
        radii=CHECKS,
    )


def test_wide_networks_of_one_output_are_measured_until_all_their_errors_are_small():
    errors = []
    for seed in few(8):
        rng = np.random.default_rng([3100, seed])
        truth = ReluNet.random(16, hidden=512, rng=rng)
        recovery = Network().run(Local(truth), rng=rng)
        assert recovery.verdict is Verdict.EXACT
        assert len(recovery.model.t) == 512
        errors.append(function_error(truth, recovery.model, rng))
    assert np.median(errors) < 2e-10


def test_what_a_hyperplane_taken_back_leaves_of_the_affine_part_is_measured(rng):
    truth = ReluNet.random(7, hidden=30, rng=rng)
    model = truth.normal_form()
    off = replace(model, P=model.P + 1e-8 * rng.normal(size=model.P.shape), q=model.q + 1e-8)
    state = Learning(given(truth, rng), off, np.full(30, 1e-12), joined=True)
    state.refine(1e-8)
    assert state.asked == 2 * 7 + 2
    assert np.abs(state.model.P - model.P).max() < 1e-13
    assert np.abs(state.model.q - model.q).max() < 1e-13


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_so_many_hyperplanes_are_measured_again_that_the_others_explain_less_than_is_fine(
    scale, rng
):
    truth = ReluNet.random(5, hidden=40, rng=rng)
    state = Learning(given(truth, rng), truth.normal_form(), scale * 1e-9 * np.arange(1.0, 41))
    share = state.weigh_bars()
    # The error seen is a thirtieth of what bars say.
    gap = np.linalg.norm(share) / 30
    count = state._count_imprecise(gap, 3)
    rest = np.linalg.norm(np.sort(share)[: 40 - count]) / 30
    assert rest <= FINE
    assert np.linalg.norm(np.sort(share)[: 40 - count + 4]) / 30 > FINE / 8
    # Bars that do not explain the error do not tell which hyperplanes are off.
    assert state._count_imprecise(100 * np.linalg.norm(share), 3) == 3
