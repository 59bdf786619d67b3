"""keyhole/grown-network: ReLU networks from answers with errors."""

import numpy as np
import pytest

from keyhole import (
    Bounded,
    Cast,
    Disturbed,
    Head,
    Local,
    NetworkUnderNoise,
    Noisy,
    Outcome,
    ReluNet,
    Rounded,
    Verdict,
)
from keyhole.learners.choosing import learn
from keyhole.oracles import Declared, Imperfection
from support.seeds import few

pytestmark = pytest.mark.theorem("keyhole/grown-network")


def error(truth, model, radius, rng):
    x = rng.normal(size=(2000, truth.width))
    x *= radius / np.linalg.norm(x, axis=1, keepdims=True) * rng.random((2000, 1))
    return np.sqrt(np.mean((truth.points(x) - model.points(x)) ** 2))


@pytest.mark.parametrize("noise", [1e-3, 1e-4, 1e-6])
def test_noise_hides_no_unit_where_tokens_may_be_long(noise):
    for seed in few(10):
        rng = np.random.default_rng([seed, 31])
        truth = ReluNet.random(10, hidden=20, rng=rng)
        recovery = NetworkUnderNoise().run(Noisy(Local(truth), noise, seed), rng=rng)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE, recovery.sentence
        assert recovery.certificate.outcome is Outcome.HOLDS
        assert recovery.model.hidden == 20
        assert error(truth, recovery.model, 5.0, rng) <= noise


@pytest.mark.parametrize(("policy", "size"), [(Rounded, 3), (Disturbed, 1e-3)])
def test_a_tolerance_and_decimals_neither(policy, size, rng):
    truth = ReluNet.random(6, hidden=9, rng=rng)
    recovery = NetworkUnderNoise().run(policy(Local(truth), size), rng=rng)
    assert (recovery.verdict, recovery.model.hidden) == (Verdict.WITHIN_TOLERANCE, 9)


def test_a_small_network_is_grown_inside_a_ball(rng):
    truth = ReluNet.random(4, hidden=4, rng=rng)
    recovery = NetworkUnderNoise().run(Bounded(Noisy(Local(truth), 1e-4), 5.0), rng=rng)
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE, recovery.sentence
    assert error(truth, recovery.model, 5.0, rng) <= 1e-4
    assert "inside the ball" in recovery.determined


def test_float32_answers_are_learned_or_said_not_to_be(rng):
    truth = ReluNet.random(4, hidden=4, rng=rng)
    recovery = NetworkUnderNoise().run(Cast(Local(truth), "f32"), rng=rng)
    assert recovery.verdict in (Verdict.WITHIN_TOLERANCE, Verdict.UNVERIFIED)
    if recovery.verdict.verified:
        assert error(truth, recovery.model, 5.0, rng) <= 1e-5


def test_a_lie_about_the_noise_is_not_verified(rng):
    net, own = ReluNet.random(4, hidden=3, rng=rng), np.random.default_rng(3)
    loud = Local(lambda X: net(X) + 1e-3 * own.normal(size=(len(X), 1)), 4)
    recovery = NetworkUnderNoise(most=8).run(
        Declared(loud, Imperfection(noise=1e-5, token_bound=4.0)), rng=rng
    )
    assert recovery.verdict is Verdict.UNVERIFIED


def test_a_head_is_refuted_by_earlier_tokens(rng):
    target = Bounded(Noisy(Local(Head.random(4, rng=rng)), 1e-4), 3.0)
    recovery = learn(target, rng=rng, learner=NetworkUnderNoise())
    assert recovery.verdict is Verdict.CLASS_REFUTED
    assert recovery.counterexample.rule == "earlier tokens"
