"""Hidden units of recovered networks, one by one: kind, sizes, error bars, what would not show."""

from dataclasses import replace

import numpy as np
import pytest

from keyhole import Gated, GatedNetwork, Local, Network, ReluNet, SmoothNetwork
from keyhole.lab.runs.recording import record_recovery
from keyhole.lab.runs.recovery_records import LearnRecord


def turned(truth, found):
    """The angle of every normal found to the nearest true one."""
    truth, found = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (truth, found))
    pairs = truth[:, None], found[None]
    apart = np.minimum(*(np.linalg.norm(pairs[0] + s * pairs[1], axis=2) for s in (1, -1)))
    return apart.min(axis=0)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("outputs", [1, 6])
def test_error_bars_of_units_cover_their_errors(activation, outputs):
    shares = []
    for seed in range(4):
        rng = np.random.default_rng([seed, outputs])
        truth = ReluNet.random(6, hidden=12, outputs=outputs, activation=activation, rng=rng)
        learner = Network() if activation == "relu" else SmoothNetwork()
        recovery = learner.run(Local(truth), rng=rng)
        model, units = recovery.unwrap(), recovery.units
        normals = model.n if activation == "relu" else model.W1[: len(units.bars)]
        shares.append(turned(truth.W1, normals) <= 3 * units.bars)
        assert units.activation == activation
        assert units.sizes.max() == 1.0
    assert np.mean(shares) >= 0.9


def test_error_bars_of_gates_are_of_the_size_of_their_errors():
    off = []
    for seed in range(4):
        rng = np.random.default_rng([seed, 3])
        truth = Gated.random(6, hidden=10, outputs=6, rng=rng)
        recovery = GatedNetwork().run(Local(truth), rng=rng)
        off.append(turned(truth.A, recovery.unwrap().A) / recovery.units.bars)
    assert np.mean(np.concatenate(off) <= 3) >= 0.9
    assert np.median(np.concatenate(off)) >= 0.01


def test_a_record_tells_units_of_one_direction_the_faintest_and_what_would_not_show(rng):
    drawn = ReluNet.random(5, hidden=4, outputs=3, rng=rng)
    W1 = np.vstack([drawn.W1, drawn.W1[:1]])
    b1 = np.append(drawn.b1, drawn.b1[0] - 3.0)
    faint = 1e-3 * drawn.W2[:, 1:2]
    W2 = np.hstack([drawn.W2[:, :1], faint, drawn.W2[:, 2:], -drawn.W2[:, :1]])
    recovery = Network().run(Local(ReluNet(W1, b1, W2, drawn.b2)), rng=rng)
    record = record_recovery(recovery, LearnRecord)
    units, model = record.units, recovery.unwrap()
    weak = int(np.argmin(units.sizes))
    assert abs(model.n[weak] @ drawn.W1[1]) > 0.999 * np.linalg.norm(drawn.W1[1])
    (group,) = units.parallel
    assert np.linalg.matrix_rank(model.n[group], tol=1e-6) == 1
    assert len(units.sizes) == len(units.bars) == 5
    assert 1e-9 <= units.faint <= 5e-9
    assert f"faintest (unit {weak})" in units.sentence
    assert units.sentence in record.determined
    assert "Of one direction" in units.sentence


def test_units_are_told_of_no_network_without_units(rng):
    affine = replace(ReluNet.random(3, hidden=2, rng=rng), W2=np.zeros((1, 2)))
    recovery = Network().run(Local(affine), rng=rng)
    assert recovery.units is None
    assert "are not seen" in recovery.determined
