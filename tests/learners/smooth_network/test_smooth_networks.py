"""keyhole/smooth-units: networks of GELU or SiLU units, recovered exactly or refused."""

from functools import partial

import numpy as np
import pytest

from keyhole import (
    AbsAffine,
    Budgeted,
    Counted,
    InvalidInput,
    Local,
    Outcome,
    ReluNet,
    SmoothNetwork,
    Status,
    Verdict,
    learn,
    load,
    save,
)
from keyhole.learners.recognising.first_questions import suggest_learners
from support import measures

pytestmark = pytest.mark.theorem("keyhole/smooth-units")

RADII = np.array([0.3, 1.0, 3.0, 10.0, 1000.0])
function_error = partial(measures.function_error, radii=RADII, points=200)
BOTH = pytest.mark.parametrize("activation", ["gelu", "silu"])


def hidden_network(d, k, m, activation, seed, scale=1.0):
    rng = np.random.default_rng([seed, d, k, m])
    return ReluNet.random(d, hidden=k, outputs=m, activation=activation, scale=scale, rng=rng), rng


def check(d, k, m, activation, seed):
    truth, rng = hidden_network(d, k, m, activation, seed)
    recovery = SmoothNetwork().run(Local(truth), rng=rng)
    assert recovery.verdict is Verdict.EXACT, recovery.sentence
    assert recovery.certificate.theorem == "keyhole/smooth-units"
    assert recovery.certificate.outcome is Outcome.HOLDS
    assert recovery.model.activation == activation
    assert recovery.degrees_of_freedom == k * (d + 1 + m) + m * (d + 1)
    assert function_error(truth, recovery.model, rng) <= 1e-10
    return truth, recovery


@BOTH
@pytest.mark.parametrize(("d", "k", "m", "seeds"), [(10, 20, 1, 5), (8, 16, 8, 5), (3, 5, 2, 5)])
def test_networks_come_back_exactly_on_every_seed_with_their_activation_found(
    d, k, m, seeds, activation
):
    for seed in range(seeds):
        check(d, k, m, activation, seed)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    ("d", "k", "m", "seeds"), [(16, 64, 1, 10), (16, 64, 16, 10), (32, 128, 32, 2)]
)
def test_larger_networks_come_back_exactly_on_every_seed(d, k, m, seeds, activation):
    for seed in range(seeds):
        check(d, k, m, activation, seed)


@BOTH
def test_with_enough_outputs_the_very_units_come_back(activation):
    truth, recovery = check(8, 16, 8, activation, 7)
    model = recovery.unwrap()
    assert model.hidden == truth.hidden
    nearest = np.abs(model.W1[:, None] - truth.W1).max(axis=2).argmin(axis=0)
    assert sorted(nearest) == list(range(truth.hidden))
    assert np.abs(model.W1[nearest] - truth.W1).max() <= 1e-9
    assert np.abs(model.b1[nearest] - truth.b1).max() <= 1e-9
    assert np.abs(model.W2[:, nearest] - truth.W2).max() <= 1e-9


@BOTH
def test_a_linear_skip_becomes_pairs_of_units(activation):
    truth, rng = hidden_network(6, 10, 2, activation, 0)
    P = rng.normal(size=(2, 6))
    target = lambda X: truth(X) + X[:, -1] @ P.T  # noqa: E731
    recovery = SmoothNetwork().run(Local(target, 6), rng=rng)
    assert recovery.verdict is Verdict.EXACT, recovery.sentence
    assert recovery.model.hidden == 10 + 2 * 2
    assert function_error(target, recovery.model, rng) <= 1e-10


@pytest.mark.parametrize("scale", [0.02, 0.3, 5.0, 100.0])
def test_units_much_wider_or_narrower_than_one_come_back(scale):
    for activation in ("gelu", "silu"):
        truth, rng = hidden_network(5, 10, 2, activation, 1, scale)
        recovery = SmoothNetwork().run(Local(truth), rng=rng)
        assert recovery.verdict is Verdict.EXACT, (activation, recovery.sentence)
        assert function_error(truth, recovery.model, rng, radii=RADII / scale) <= 1e-9


def test_a_recovered_network_is_saved_with_its_activation(tmp_path):
    _, recovery = check(3, 5, 2, "silu", 0)
    save(recovery.model, tmp_path / "net.safetensors")
    again = load(tmp_path / "net.safetensors")
    assert again.activation == "silu"
    assert np.array_equal(again.W1, recovery.model.W1)


@pytest.mark.parametrize(("truth", "tried"), [("gelu", "silu"), ("silu", "gelu")])
def test_the_wrong_activation_is_not_verified_and_a_sequence_shows_why(truth, tried):
    net, rng = hidden_network(6, 8, 1, truth, 0)
    recovery = SmoothNetwork(tried).run(Local(net), rng=rng)
    assert recovery.verdict is Verdict.UNVERIFIED
    assert recovery.status is Status.NO_SMOOTH_NETWORK
    case = recovery.counterexample
    assert np.allclose(net(case.tokens[None])[0], case.answer, rtol=1e-12)
    assert case.gap > 1e-6


def softplus_units(rng):
    net = ReluNet.random(5, hidden=8, rng=rng)
    return lambda X: np.logaddexp(0.0, X[:, -1] @ net.W1.T + net.b1) @ net.W2.T


def mean_of_tokens(rng):
    net = ReluNet.random(5, hidden=8, activation="gelu", rng=rng)
    return lambda X: net.points(X.mean(axis=1))


def with_a_small_sine(rng):
    net = ReluNet.random(5, hidden=8, activation="silu", rng=rng)
    return lambda X: net(X) + 1e-4 * np.sin(X[:, -1, :1])


def mixed_units(rng):
    one, two = (ReluNet.random(5, hidden=4, activation=name, rng=rng) for name in ("gelu", "silu"))
    return lambda X: one(X) + two(X)


def two_layers(rng):
    first = ReluNet.random(5, hidden=6, outputs=6, activation="gelu", rng=rng)
    second = ReluNet.random(6, hidden=6, activation="gelu", rng=rng)
    return lambda X: second.points(first(X))


def parallel_units(rng):
    w = rng.normal(size=(1, 5))
    return ReluNet(
        np.concatenate([w, 2 * w]), np.array([0.0, 1.0]), np.ones((1, 2)), np.zeros(1), "gelu"
    )


def tanh_units(rng):
    return lambda X: np.tanh(X[:, -1] @ np.ones((5, 3))).sum(axis=1, keepdims=True)


def relu_units(rng):
    return ReluNet.random(5, hidden=8, rng=rng)


def square(rng):
    return lambda X: (X[:, -1] ** 2).sum(axis=1, keepdims=True)


OTHERS = [
    softplus_units,
    mean_of_tokens,
    with_a_small_sine,
    mixed_units,
    two_layers,
    parallel_units,
    tanh_units,
    relu_units,
    square,
]


# earlier tokens act, or answers bend everywhere however far away: no such network does that
REFUTED = [mean_of_tokens, square]


@pytest.mark.parametrize("make", OTHERS)
def test_other_targets_are_refused_and_never_called_exact(make):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        target = make(rng)
        recovery = SmoothNetwork(most=64).run(Local(target, 5), rng=rng)
        expected = Verdict.CLASS_REFUTED if make in REFUTED else Verdict.UNVERIFIED
        assert recovery.verdict is expected, recovery.sentence
        case = recovery.counterexample
        assert np.allclose(target(case.tokens[None])[0], case.answer, rtol=1e-12)
        assert case.gap > 0


def test_a_sequence_that_refutes_networks_is_answered_otherwise_than_its_last_token():
    rng = np.random.default_rng(0)
    target = mean_of_tokens(rng)
    case = SmoothNetwork(most=64).run(Local(target, 5), rng=rng).counterexample
    assert np.allclose(target(case.tokens[None, -1:])[0], case.predicted, rtol=1e-12)


def test_a_budget_is_kept_at_every_size():
    net, _ = hidden_network(4, 6, 1, "gelu", 0)
    whole = SmoothNetwork().run(Local(net), rng=np.random.default_rng(0)).ledger.total().sequences
    for budget in (1, 20, whole // 4, whole // 2, whole - 70, whole - 3):
        recovery = SmoothNetwork().run(Budgeted(Local(net), budget), rng=np.random.default_rng(0))
        assert not recovery.verdict.verified
        assert recovery.verdict in (Verdict.BUDGET_SPENT, Verdict.UNVERIFIED)
        assert recovery.ledger.total().sequences <= budget


def test_a_plan_foresees_what_is_asked():
    for d, k, m in ((10, 20, 1), (8, 16, 8)):
        net, rng = hidden_network(d, k, m, "gelu", 3)
        plan = SmoothNetwork(hidden=k).plan(d, outputs=m)
        asked = SmoothNetwork().run(Local(net), rng=rng).ledger.total().sequences
        assert 0.7 * asked <= plan.queries <= 1.4 * asked
        assert asked <= plan.at_most


def test_an_affine_map_has_no_units():
    rng = np.random.default_rng(0)
    model = AbsAffine.random(4, hidden=0, rng=rng)
    recovery = SmoothNetwork().run(Local(model), rng=rng)
    assert recovery.verdict is Verdict.EXACT
    assert function_error(model, recovery.model, rng) <= 1e-10


@pytest.mark.parametrize(
    ("activation", "first"),
    [("relu", "network"), ("gelu", "smooth-network"), ("silu", "smooth-network")],
)
@pytest.mark.parametrize(("d", "k", "m"), [(4, 6, 1), (32, 256, 1), (16, 64, 16)])
def test_a_few_queries_tell_smooth_units_from_those_that_bend(d, k, m, activation, first):
    for seed in range(5):
        net, rng = hidden_network(d, k, m, activation, seed)
        oracle = Counted(Local(net))
        assert suggest_learners(oracle, rng=rng)[0] == first
        assert oracle.ledger.total().sequences <= 100


@BOTH
def test_auto_finds_a_smooth_network_without_looking_for_kinks_first(activation):
    net, rng = hidden_network(6, 12, 1, activation, 2)
    recovery = learn(Local(net), rng=rng)
    assert recovery.verdict is Verdict.EXACT, recovery.sentence
    assert recovery.ledger.total().sequences <= 1500
    assert function_error(net, recovery.model, rng) <= 1e-10


def test_activations_that_are_not_smooth_are_refused():
    with pytest.raises(InvalidInput, match="gelu or silu; got 'relu'"):
        SmoothNetwork("relu")
    with pytest.raises(InvalidInput, match="at least 1"):
        SmoothNetwork(most=0)
