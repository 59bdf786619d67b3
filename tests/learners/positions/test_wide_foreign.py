"""Targets that look like rotary layers and are none: few long sequences, and no false verdict."""

from dataclasses import replace

import numpy as np
import pytest

from keyhole import Local, WiredLayer, Wiring, random_layer
from keyhole.claims import Verdict
from keyhole.learners.positions.ball import NormBall
from keyhole.learners.positions.placed import Asking, measure_linear_part
from keyhole.learners.positions.wide.short_denials import deny_wide_heads
from support.foreign_layers import CHANGES, EPS, draw_foreign
from support.seeds import few

ROPE = Wiring(norm="rms", eps=EPS, residual=True, positions="rope")
DENIED = (
    "distances in scores",
    "fading values",
    "gated heads",
    "normed queries and keys",
    "sigmoids",
    "two layers",
)
# Three searches of 120 sequences at one token and eight more tokens each asked 1,080 once.
TWO_SEARCHES = 720


def learn_foreign(change, seed, wiring=ROPE):
    drawing, rng = np.random.default_rng([seed, CHANGES.index(change)]).spawn(2)
    target = draw_foreign(change, drawing)
    return target, WiredLayer(wiring).run(Local(target), rng=rng)


@pytest.mark.parametrize("change", DENIED)
def test_short_sequences_deny_wide_heads(change):
    target, found = learn_foreign(change, 300)
    assert found.verdict is Verdict.UNVERIFIED
    assert target.long_sequences == 0


def test_a_cap_that_is_not_told_is_asked_few_long_sequences():
    target, found = learn_foreign("a cap of 5", 201)
    assert found.verdict is Verdict.UNVERIFIED
    assert target.long_sequences <= TWO_SEARCHES


@pytest.mark.parametrize("positions", ["rope", "none"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_short_sequences_deny_no_layer(positions, scale):
    wiring = replace(ROPE, positions=positions)
    for seed in range(5):
        drawing, rng = np.random.default_rng([seed, 7]).spawn(2)
        truth = random_layer(12, heads=3, rank=8, wiring=wiring, scale=scale, rng=drawing)
        asking = Asking(Local(truth), NormBall.of(12, "rms", EPS), residual=True)
        linear = measure_linear_part(asking, size=0.8, rng=rng)
        assert not deny_wide_heads(asking, linear, rng=rng)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_no_verdict_of_a_foreign_layer_is_false(change):
    for seed in few(16):
        wiring = replace(ROPE, positions="none" if seed % 4 == 3 else "rope")
        target, found = learn_foreign(change, 400 + seed, wiring)
        assert found.verdict is Verdict.UNVERIFIED
        assert target.long_sequences <= 3_000
