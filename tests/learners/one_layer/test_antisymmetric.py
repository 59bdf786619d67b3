"""Theorem BSHK26/one-layer: without biases f(X) - f(-X) is a single head, and lone tokens give the
network.
"""

import numpy as np
import pytest

from keyhole import (
    Antisymmetric,
    Budgeted,
    BudgetSpent,
    Counted,
    Head,
    Local,
    Network,
    OneLayer,
    Outcome,
    ReluNet,
    SmoothNetwork,
    Status,
    Verdict,
)
from keyhole.identify import one_layer_distance
from keyhole.learners.one_layer.antisymmetric import Odd
from support.seeds import few

pytestmark = pytest.mark.theorem("BSHK26/one-layer")


def bias_free(width, rng, *, hidden=8, outputs=1, rank=None):
    drawn = OneLayer.random(width, hidden=hidden, outputs=outputs, rank=rank, rng=rng)
    return OneLayer(
        drawn.head, ReluNet(drawn.net.W1, np.zeros(hidden), drawn.net.W2, np.zeros(outputs))
    )


def recovered(model, rng):
    return Antisymmetric().run(Local(model), rng=rng)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_layer_without_biases_comes_back(width, outputs, rng):
    truth = bias_free(width, rng, outputs=outputs)
    recovery = recovered(truth, rng)
    assert recovery.verdict is Verdict.EXACT
    assert recovery.certificate.theorem == "BSHK26/one-layer"
    assert recovery.certificate.outcome is Outcome.HOLDS
    assert one_layer_distance(truth, recovery.unwrap()).W < 1e-9


@pytest.mark.slow
def test_forty_layers_out_of_forty_come_back():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        assert recovered(bias_free(4 + seed % 5, rng, hidden=16), rng).verdict is Verdict.EXACT


def test_w_costs_twice_what_it_does_in_a_head(rng):
    recovery = recovered(bias_free(6, rng), rng)
    assert 2 * (36 + 6) <= recovery.ledger["odd"].sequences <= 2 * (36 + 6 + 16)


def test_the_odd_part_is_the_head_the_theorem_says(rng):
    model, X = bias_free(4, rng, outputs=2), rng.normal(size=(6, 5, 4))
    head = Head(model.head.W, model.head.V @ model.net.W1.T @ model.net.W2.T)
    np.testing.assert_allclose(Odd(Local(model)).ask(X.copy()), head(X), rtol=1e-10, atol=1e-12)


def test_biases_are_outside_the_theorem_and_are_refused_every_time():
    for seed in few(20):
        rng = np.random.default_rng(seed)
        target = OneLayer.random(4, hidden=8, rng=rng)
        recovery = recovered(target, rng)
        assert recovery.verdict is Verdict.UNVERIFIED
        assert recovery.certificate.outcome is Outcome.SILENT
        assert recovery.counterexample.gap > 0


def test_the_counterexample_can_be_asked_again(rng):
    target = OneLayer.random(4, hidden=8, rng=rng)
    recovery = recovered(target, rng)
    case = recovery.counterexample
    assert recovery.status is Status.NOT_A_HEAD
    odd = target(case.tokens[None]) - target(-case.tokens[None])
    np.testing.assert_allclose(odd[0], case.answer, rtol=1e-12)
    assert np.abs(odd[0] - case.predicted).max() > 1e-6


def test_an_even_network_has_no_odd_part(rng):
    drawn = bias_free(4, rng)
    W1, W2 = drawn.net.W1, drawn.net.W2
    even = OneLayer(
        drawn.head, ReluNet(np.vstack([W1, -W1]), np.zeros(16), np.hstack([W2, W2]), np.zeros(1))
    )
    recovery = recovered(even, rng)
    assert recovery.status is Status.NO_ODD_PART
    assert not recovery.verdict.verified
    assert recovery.certificate.outcome is Outcome.SILENT


def test_a_residual_is_not_called_verified(rng):
    drawn = bias_free(4, rng)
    recovery = recovered(OneLayer(drawn.head, drawn.net, residual=True), rng)
    assert recovery.verdict is Verdict.UNVERIFIED


def test_the_odd_part_keeps_whole_pairs_when_the_budget_ends(rng):
    model, X = bias_free(3, rng), rng.normal(size=(4, 2, 3))
    with pytest.raises(BudgetSpent) as spent:
        Odd(Budgeted(Local(model), 5)).ask(X.copy())
    np.testing.assert_allclose(spent.value.answers, (model(X) - model(-X))[:2], atol=1e-12)


@pytest.mark.parametrize("budget", [0, 7, 40, 90, 150, 230])
def test_a_budget_is_kept_and_said(budget, rng):
    oracle = Counted(Budgeted(Local(bias_free(4, rng)), budget))
    recovery = Antisymmetric().run(oracle, rng=rng)
    assert oracle.ledger.total().sequences <= budget
    assert recovery.verdict in (Verdict.BUDGET_SPENT, Verdict.UNVERIFIED)


def test_the_plan_covers_what_is_asked(rng):
    plan, recovery = Antisymmetric(hidden=8).plan(5), recovered(bias_free(5, rng), rng)
    assert recovery.ledger.total().sequences <= 1.5 * plan.queries
    assert plan.queries < plan.at_most


@pytest.mark.parametrize(
    ("activation", "learner"),
    [("relu", Network()), ("gelu", SmoothNetwork()), ("silu", SmoothNetwork())],
)
def test_any_learner_of_networks_may_stand_behind_the_odd_part(activation, learner):
    """GELU and SiLU of t and -t differ by t as ReLU does."""
    for seed in range(2):
        rng = np.random.default_rng([8, seed])
        net = ReluNet.random(5, hidden=6, outputs=5, activation=activation, rng=rng)
        plain = ReluNet(net.W1, 0.0 * net.b1, net.W2, 0.0 * net.b2, activation)
        truth = OneLayer(Head.random(5, outputs=5, rng=rng), plain)
        found = Antisymmetric(network=learner).run(Local(truth), rng=rng)
        assert found.verdict is Verdict.EXACT, found.sentence
        X = rng.normal(size=(40, 5, 5))
        np.testing.assert_allclose(found.unwrap()(X), truth(X), atol=1e-9)
