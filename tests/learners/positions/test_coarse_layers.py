"""Layers as they are built behind answers in float32."""

import numpy as np
import pytest

import keyhole
from keyhole import Verdict, Wiring, random_layer
from keyhole.oracles import Cast, Local
from support.seeds import few

WIRINGS = {
    "rope, RMSNorm": Wiring(norm="rms", positions="rope"),
    "alibi, LayerNorm": Wiring(norm="layer", positions="alibi"),
    "table": Wiring(norm="none", positions="table"),
    "no positions, LayerNorm": Wiring(norm="layer", positions="none"),
}


@pytest.mark.parametrize("name", WIRINGS)
def test_a_layer_comes_back_from_answers_in_float32(name):
    wiring = WIRINGS[name]
    found = 0
    seeds = few(6)
    for seed in seeds:
        layer = random_layer(16, heads=2, wiring=wiring, biases=True, rng=7000 + seed)
        recovery = keyhole.learn(Cast(Local(layer), "f32"), wiring=wiring, rng=seed)
        assert recovery.verdict is not Verdict.EXACT
        if recovery.verdict is not Verdict.WITHIN_TOLERANCE:
            continue
        found += 1
        X = np.random.default_rng(seed).normal(size=(8, 12, 16))
        gap = np.abs(recovery.model(X) - layer(X)).max() / np.abs(layer(X)).max()
        assert gap < 1e-4
    assert found >= 0.8 * len(seeds)


def test_heads_that_do_not_explain_coarse_answers_are_not_vouched_for(rng):
    """Told of another base, the best layer is near on short sequences and wrong in every head."""
    truth = Wiring(norm="rms", positions="rope", rope_base=10_000.0)
    layer = random_layer(8, heads=2, wiring=truth, rng=rng)
    told = Wiring(norm="rms", positions="rope", rope_base=9_900.0)
    recovery = keyhole.learn(Cast(Local(layer), "f32"), wiring=told, rng=rng)
    assert not recovery.verdict.verified


@pytest.mark.parametrize("form", ["f16", "bf16"])
@pytest.mark.parametrize("name", WIRINGS)
def test_short_formats_end_in_a_verdict_that_holds(name, form):
    """Questions stay inside the ball and the range of the format; residual and eps are found."""
    wiring = WIRINGS[name]
    layer = random_layer(8, heads=2, wiring=wiring, biases=True, rng=8000)
    recovery = keyhole.learn(Cast(Local(layer), form), wiring=wiring, rng=0)
    assert recovery.verdict in (Verdict.UNVERIFIED, Verdict.WITHIN_TOLERANCE)
    assert recovery.status not in (keyhole.Status.NOT_COMPUTED, keyhole.Status.OUT_OF_PLAN)
    if recovery.verdict.verified:
        X = np.random.default_rng(1).normal(size=(8, 8, 8))
        assert np.abs(recovery.model(X) - layer(X)).max() < 0.03 * np.abs(layer(X)).max()
