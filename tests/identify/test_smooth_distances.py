"""Distances of smooth and gated networks do not see what answers do not determine."""

from dataclasses import replace

import numpy as np
import pytest

from keyhole import Gated, InvalidInput, ReluNet, compare


@pytest.fixture
def smooth(rng):
    return ReluNet.random(4, hidden=6, outputs=3, activation="silu", rng=rng)


@pytest.fixture
def gated(rng):
    return Gated.random(4, hidden=6, outputs=3, rng=rng)


def test_order_and_sides_of_smooth_units_do_not_count(smooth, rng):
    order, side = rng.permutation(6), np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0])
    W1, b1, W2 = smooth.W1 * side[:, None], smooth.b1 * side, smooth.W2
    # phi(z) = phi(-z) + z: the linear part of a turned unit is carried by a pair of units
    W, b = smooth.W1[side < 0], smooth.b1[side < 0]
    pair = W2[:, side < 0]
    same = ReluNet(
        np.concatenate([W1[order], W, -W]),
        np.concatenate([b1[order], 0 * b, 0 * b]),
        np.hstack([W2[:, order], pair, -pair]),
        smooth.b2 + pair @ b,
        "silu",
    )
    x = rng.normal(size=(20, 4))
    np.testing.assert_allclose(same.points(x), smooth.points(x), atol=1e-12)
    apart = compare(smooth, same)
    assert apart.hidden == (6, 6)
    assert apart.largest < 1e-12


def test_a_factor_between_rows_and_outputs_of_gated_units_does_not_count(gated, rng):
    order, scale = rng.permutation(6), rng.normal(size=6)
    same = Gated(
        gated.A[order],
        gated.a[order],
        (gated.B * scale[:, None])[order],
        (gated.b * scale)[order],
        (gated.C / scale)[:, order],
        gated.c,
    )
    assert compare(gated, same).largest < 1e-12


@pytest.mark.parametrize("name", ["W1", "b1", "W2", "b2"])
def test_a_change_of_a_smooth_weight_counts(name, smooth):
    moved = getattr(smooth, name).copy()
    moved.flat[0] += 1e-3
    assert 1e-5 < compare(smooth, replace(smooth, **{name: moved})).largest < 1e-1


@pytest.mark.parametrize("name", ["A", "a", "B", "b", "C", "c"])
def test_a_change_of_a_gated_weight_counts(name, gated):
    moved = getattr(gated, name).copy()
    moved.flat[0] += 1e-3
    assert 1e-5 < compare(gated, replace(gated, **{name: moved})).largest < 1e-1


def test_networks_of_two_activations_are_not_compared(smooth):
    with pytest.raises(InvalidInput, match="one activation"):
        compare(smooth, replace(smooth, activation="gelu"))
