"""Attention before smooth and gated networks: scores from where pairs lie on known segments."""

from dataclasses import replace

import numpy as np
import pytest

from keyhole import (
    Budgeted,
    Gated,
    Head,
    Local,
    OneLayer,
    Outcome,
    ReluNet,
    SmoothLayer,
    Verdict,
    learn,
    load,
    save,
)
from keyhole.learners.one_layer.segments import Segments, cut_to_one_way, find_shares
from keyhole.learners.one_layer.smooth_mixing import measure_slopes
from keyhole.learners.verifying.swelling import is_swollen

pytestmark = pytest.mark.theorem("keyhole/segment-scores")

WIDTH = 5


def draw_layer(rng, activation="gelu", *, outputs=3, gated=False, **options):
    drawn = OneLayer.random(WIDTH, hidden=8, outputs=outputs, biases=True, **options, rng=rng)
    if gated:
        net = Gated.random(WIDTH, hidden=8, outputs=outputs, activation=activation, rng=rng)
        return OneLayer(drawn.head, net, drawn.residual)
    return replace(drawn, net=replace(drawn.net, activation=activation))


def check_recovery(truth, rng, tolerance=1e-8):
    recovery = SmoothLayer().run(Local(truth), rng=rng)
    assert recovery.verdict is Verdict.EXACT, recovery.sentence
    assert recovery.certificate.theorem == "keyhole/segment-scores"
    assert recovery.certificate.outcome is Outcome.HOLDS
    model = recovery.unwrap()
    W = np.asarray(truth.head.W)
    np.testing.assert_allclose(model.head.W, W, atol=tolerance * np.abs(W).max())
    np.testing.assert_allclose(model.head.h, truth.head.h, atol=tolerance)
    X = rng.normal(size=(50, 3, WIDTH))
    np.testing.assert_allclose(model(X), truth(X), atol=1e-7)
    return recovery


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_attention_before_smooth_units_comes_back(activation, outputs, rng):
    check_recovery(draw_layer(rng, activation, outputs=outputs), rng)


def test_attention_before_gated_units_comes_back(rng):
    check_recovery(draw_layer(rng, "silu", outputs=5, gated=True), rng)


@pytest.mark.parametrize(("activation", "gated"), [("gelu", False), ("silu", True)])
def test_the_units_of_the_network_are_told_one_by_one(activation, gated, rng):
    truth = draw_layer(rng, activation, outputs=5, gated=gated)
    recovery = check_recovery(truth, rng)
    units = recovery.units
    assert units.activation == activation
    assert len(units.sizes) == len(units.bars) == truth.net.hidden
    assert units.bars.max() < 1e-6
    assert f"8 {activation} units, the faintest" in recovery.determined


def test_a_gated_network_of_one_output_behind_attention_comes_back(rng):
    check_recovery(draw_layer(rng, "silu", outputs=1, gated=True), rng)


def test_a_residual_past_the_attention_comes_back(rng):
    recovery = check_recovery(draw_layer(rng, residual=True), rng)
    assert "a residual acts" in recovery.reason


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_scores_of_any_size_come_back(scale, rng):
    truth = draw_layer(rng)
    head = Head(scale * np.asarray(truth.head.W), truth.head.V, truth.head.h, truth.head.c)
    check_recovery(replace(truth, head=head), rng, tolerance=1e-7)


def test_no_scores_are_found_to_be_none(rng):
    truth = draw_layer(rng)
    truth = replace(truth, head=Head(np.zeros((WIDTH, WIDTH)), truth.head.V))
    recovery = SmoothLayer().run(Local(truth), rng=rng)
    assert recovery.verdict is Verdict.EXACT, recovery.sentence
    assert not np.asarray(recovery.unwrap().head.W).any()


def test_two_heads_before_a_smooth_network_are_not_called_exact(rng):
    a, b = (draw_layer(rng).head for _ in range(2))
    net = ReluNet.random(WIDTH, hidden=8, outputs=3, activation="gelu", rng=rng)
    target = Local(lambda X: net.points(a(X) + b(X)), WIDTH)
    assert SmoothLayer().run(target, rng=rng).verdict is Verdict.UNVERIFIED


@pytest.mark.parametrize("budget", [30, 100, 200])
def test_a_budget_is_kept_and_said(budget, rng):
    oracle = Budgeted(Local(draw_layer(rng)), budget)
    recovery = SmoothLayer().run(oracle, rng=rng)
    assert recovery.verdict is Verdict.BUDGET_SPENT
    assert recovery.ledger.total().sequences <= budget


@pytest.mark.parametrize("gated", [False, True])
def test_auto_ends_with_the_layer(gated, rng):
    truth = draw_layer(rng, "silu", outputs=5, gated=gated)
    recovery = learn(Local(truth), rng=rng)
    assert recovery.verdict is Verdict.EXACT, recovery.sentence
    assert isinstance(recovery.model.net, Gated if gated else ReluNet)


def test_a_gated_network_behind_attention_keeps_its_file(rng, tmp_path):
    truth = draw_layer(rng, "silu", gated=True, residual=True)
    save(truth, tmp_path / "layer.safetensors")
    X = rng.normal(size=(9, 4, WIDTH))
    np.testing.assert_array_equal(load(tmp_path / "layer.safetensors")(X), truth(X))


@pytest.mark.parametrize("gated", [False, True])
def test_a_lone_token_meets_the_network_of_the_layer(gated, rng):
    truth = draw_layer(rng, "silu", gated=gated, residual=True)
    x = rng.normal(size=(9, WIDTH))
    np.testing.assert_allclose(truth.lone().points(x), truth(x[:, None]), atol=1e-13)


def test_the_share_of_a_segment_is_read_from_its_answer(rng):
    net = ReluNet.random(WIDTH, hidden=8, outputs=1, activation="silu", rng=rng)
    z, x = rng.normal(size=(2, 40, WIDTH))
    segments = cut_to_one_way(net, Segments(z, x, x))
    share = rng.uniform(0.01, 0.99, size=40)
    found = find_shares(net, segments, net.points(segments.at(share)))
    np.testing.assert_allclose(found, share, atol=1e-9)


def test_slopes_by_differences_are_those_of_the_formula(rng):
    net = ReluNet.random(WIDTH, hidden=8, outputs=2, activation="silu", rng=rng)
    z = rng.normal(size=WIDTH)
    inner = net.W1 @ z + net.b1
    sigmoid = 1 / (1 + np.exp(-inner))
    slope = net.W2 @ ((sigmoid + inner * sigmoid * (1 - sigmoid))[:, None] * net.W1)
    np.testing.assert_allclose(measure_slopes(net, z, 1e-5), slope, atol=1e-9)


def test_parts_that_dwarf_their_answers_are_swollen(rng):
    truth = draw_layer(rng)
    v = rng.normal(size=(1, WIDTH))
    W1 = np.concatenate([truth.net.W1, v, v])
    b1, far = np.concatenate([truth.net.b1, [0.0, 0.0]]), np.full((3, 1), 1e9)
    swollen = ReluNet(W1, b1, np.hstack([truth.net.W2, far, -far]), truth.net.b2, "gelu")
    assert not is_swollen(truth, 1.0)
    assert is_swollen(replace(truth, net=swollen), 1.0)
