"""Steps of fits of blocks, beside those of derivatives written out."""

from dataclasses import replace

import numpy as np
import pytest

from keyhole.learners.blocks.post_norm.attention_fit import AttentionFit, WholeFront
from keyhole.learners.blocks.post_norm.direction_fit import Front, TokenMap, TokenModel
from keyhole.learners.blocks.post_norm.direction_rest import DirectionMap
from keyhole.learners.blocks.solving import (
    Following,
    FrontSlopes,
    StructuredSlopes,
    UnitSlopes,
)
from keyhole.learners.positions.ball import NormBall

POINTS, UNITS, OUTPUTS, INPUTS = 30, 4, 5, 3


def draw_slopes(rng, following=None):
    """Derivatives at random points, and the same written out, one column for each unknown."""
    units = UnitSlopes(
        rng.normal(size=(POINTS, UNITS)),
        rng.normal(size=(POINTS, INPUTS)),
        rng.normal(size=(UNITS, OUTPUTS)),
    )
    front = FrontSlopes(
        rng.normal(size=(POINTS, OUTPUTS, 2)), rng.normal(size=(POINTS, INPUTS)), following
    )
    Q = np.linalg.qr(rng.normal(size=(POINTS, 6)))[0]
    by_unit = np.einsum("pk,pc,ko->pokc", units.slopes, units.nu, units.D)
    by_front = np.einsum("poe,pf->poef", front.G, front.n)
    columns = np.concatenate(
        [by_unit.reshape(POINTS, OUTPUTS, -1), by_front.reshape(POINTS, OUTPUTS, -1)], axis=2
    )
    columns -= np.tensordot(Q, np.tensordot(Q.T, columns, 1), 1)
    return StructuredSlopes(Q, units, [front]), columns.reshape(POINTS * OUTPUTS, -1)


@pytest.mark.parametrize("follows", [False, True])
def test_a_step_is_that_of_derivatives_written_out(follows, rng):
    """Whether units follow what stands before them changes how a step is found, not which it is."""
    following = None
    if follows:
        following = Following(
            rng.normal(size=(UNITS, 2)),
            rng.normal(size=(INPUTS, INPUTS)),
            rng.normal(size=(POINTS, OUTPUTS, 2)),
        )
    slopes, columns = draw_slopes(rng, following)
    left = rng.normal(size=(POINTS, OUTPUTS))
    step = np.concatenate([part.ravel() for part in slopes.solve(left, 0.0)])
    wanted = np.linalg.lstsq(columns, left.ravel(), rcond=None)[0]
    np.testing.assert_allclose(step, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())


def draw_front(rng, width, heads, rank):
    """Random maps of heads behind a known token map."""
    D = width - 1
    sizes = ((D, rank), (rank, width), (rank, width), (rank,), (rank, width))
    return WholeFront(*(rng.normal(size=(heads, *size)) / 4 for size in sizes), 1.1)


def test_a_step_of_attention_makes_up_for_a_small_change_of_every_map(rng):
    """Answers of heads that were changed a little are fitted to second order by one step."""
    width, heads, rank, hidden = 6, 2, 2, 5
    D, basis = width - 1, NormBall.of(width, "layer", 0.0).basis
    truth = draw_front(rng, width, heads, rank)
    behind = DirectionMap(
        rng.normal(size=(hidden, D)),
        rng.normal(size=hidden),
        rng.normal(size=(hidden, D)),
        rng.normal(size=D),
        rng.uniform(0.5, 1.5, size=width),
        "gelu",
    )
    K = (basis.T + np.einsum("hdr,hrc->dc", truth.U, truth.W)) / truth.omega
    known = TokenMap(Front(K, rng.normal(size=D)), behind, np.ones(1))
    model = TokenModel(basis, 1e-12)
    X = rng.normal(size=(120, 9, width))
    none = np.zeros((len(X), D))
    answers = -AttentionFit(model, known, [(X, none)])._look(truth)[0].left
    fit = AttentionFit(model, known, [(X, answers)])
    moved = replace(
        truth, **{name: getattr(truth, name) * 1.001 for name in ("U", "W", "Wq", "bq", "Wk")}
    )
    found, left = fit.fit(moved)
    assert left < 1e-13
    made = np.einsum("hdr,hrc->hdc", found.U, found.W)
    np.testing.assert_allclose(made, np.einsum("hdr,hrc->hdc", truth.U, truth.W), atol=1e-9)
