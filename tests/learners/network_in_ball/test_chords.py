"""keyhole/chords: ReLU networks inside a ball, and the share of it on which the model may be
wrong.
"""

import numpy as np
import pytest

from keyhole import Bounded, Budgeted, Head, Local, NetworkInBall, Outcome, ReluNet, Verdict
from keyhole.errors import InvalidInput

pytestmark = pytest.mark.theorem("keyhole/chords")


def inside(count, width, radius, rng):
    x = rng.normal(size=(count, width))
    return (
        x
        * radius
        * rng.random((count, 1)) ** (1 / width)
        / np.linalg.norm(x, axis=1, keepdims=True)
    )


def wrong_share(truth, model, radius, rng):
    x = inside(5000, truth.width, radius, rng)
    y = truth.points(x)
    return np.mean(
        np.abs(model.points(x) - y).max(axis=1) > 1e-8 * (np.abs(y - y.mean(axis=0)).max() or 1.0)
    )


def tried(truth, radius, seed):
    return NetworkInBall().run(Bounded(Local(truth), radius), rng=np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("d", "k", "m", "radius", "seeds"),
    [(10, 20, 1, 3.0, 10), (8, 32, 8, 3.0, 2), (1, 5, 1, 3.0, 3)],
)
def test_no_verdict_breaks_its_stated_share(d, k, m, radius, seeds):
    queries = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, d, k, 5])
        truth = ReluNet.random(d, hidden=k, outputs=m, rng=rng)
        recovery = tried(truth, radius, seed)
        assert recovery.verdict is Verdict.EXACT, recovery.sentence
        assert recovery.certificate.outcome is Outcome.HOLDS
        assert "95 % confidence" in recovery.determined
        assert wrong_share(truth, recovery.model, radius, rng) <= 0.02
        queries.append(recovery.ledger.total().sequences)
    assert np.median(queries) <= 1400


@pytest.mark.slow
def test_large_networks_come_back(rng):
    truth = ReluNet.random(32, hidden=128, rng=rng)
    recovery = tried(truth, 6.0, 0)
    assert recovery.verdict is Verdict.EXACT
    assert recovery.ledger.total().sequences <= 9500
    assert wrong_share(truth, recovery.model, 6.0, rng) <= 0.02


def constant(rng):
    return ReluNet(np.zeros((1, 5)), np.ones(1), np.zeros((1, 1)), np.full(1, 3.0))


def duplicates(rng):
    net = ReluNet.random(5, hidden=6, rng=rng)
    return ReluNet(
        np.vstack([net.W1] * 2), np.tile(net.b1, 2), np.hstack([net.W2, 2 * net.W2]), net.b2
    )


def dead(rng):
    net = ReluNet.random(5, hidden=6, rng=rng)
    return ReluNet(net.W1, net.b1, net.W2 * (np.arange(6) % 2), net.b2)


def just_outside(rng):
    net = ReluNet.random(5, hidden=6, rng=rng)
    b = net.b1.copy()
    b[0] = -3.001 * np.linalg.norm(net.W1[0])
    return ReluNet(net.W1, b, net.W2, net.b2)


@pytest.mark.parametrize("make", [constant, duplicates, dead, just_outside])
def test_awkward_networks_come_back(make, rng):
    truth = make(rng)
    recovery = tried(truth, 3.0, 1)
    assert recovery.verdict is Verdict.EXACT, recovery.sentence
    assert wrong_share(truth, recovery.model, 3.0, rng) <= 0.02


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: ReluNet.random(5, hidden=8, activation="gelu", rng=rng),
        lambda rng: Head.random(5, rng=rng),
        lambda rng: lambda X: np.sin(X[:, -1].sum(axis=1)),
        lambda rng: lambda X: np.floor(X[:, -1, 0]) + X[:, -1, 1],
        lambda rng: (
            lambda X: np.abs(X[:, -1, 0]) + 1e-6 * np.random.default_rng().normal(size=len(X))
        ),
    ],
)
def test_what_is_no_such_network_is_never_verified(make, rng):
    oracle = Bounded(Local(make(rng), 5), 3.0)
    learner = NetworkInBall(most=64)
    recovery = learner.run(oracle, rng=rng)
    assert recovery.verdict is Verdict.UNVERIFIED
    assert recovery.ledger.total().sequences <= learner.plan(5).at_most


@pytest.mark.parametrize("budget", [0, 5, 100, 400])
def test_a_spent_budget_is_said(budget, rng):
    truth = ReluNet.random(6, hidden=12, rng=rng)
    recovery = NetworkInBall().run(Budgeted(Bounded(Local(truth), 3.0), budget), rng=rng)
    assert recovery.verdict in (Verdict.BUDGET_SPENT, Verdict.UNVERIFIED)
    assert recovery.ledger.total().sequences == budget


def test_a_ball_is_needed(rng):
    with pytest.raises(InvalidInput, match="--token-bound"):
        NetworkInBall().run(Local(ReluNet.random(3, hidden=2, rng=rng)), rng=rng)
