"""keyhole/smooth-units: networks of GELU, SiLU or softplus units, recovered exactly or refused."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import save_file

from keyhole import (
    AbsAffine,
    Budgeted,
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
from keyhole.learners.recognising.recognition import recognise
from keyhole.learners.smooth_network.offset_fit import place_points
from keyhole.learners.smooth_network.offsets import step_across
from keyhole.learners.smooth_network.unit_kinds import UNIT_KINDS, SmoothForm
from keyhole.learners.verifying.rules import replay_witness
from keyhole.models.last_token.activations import ACTIVATIONS
from keyhole.models.registry import name_kind
from support import measures

pytestmark = pytest.mark.theorem("keyhole/smooth-units")

RADII = np.array([0.3, 1.0, 3.0, 10.0, 1000.0])
function_error = partial(measures.function_error, radii=RADII, points=200)
BOTH = pytest.mark.parametrize("activation", ["gelu", "silu"])
EVERY = pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "softplus"])


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
    assert function_error(truth, recovery.model, rng) <= (1e-10 if k < 128 else 1e-9)
    return truth, recovery


@BOTH
@pytest.mark.parametrize(("d", "k", "m", "seeds"), [(10, 20, 1, 5), (8, 16, 8, 5), (3, 5, 2, 5)])
def test_networks_come_back_exactly_on_every_seed_with_their_activation_found(
    d, k, m, seeds, activation
):
    for seed in range(seeds):
        check(d, k, m, activation, seed)


def test_the_fit_of_offsets_asks_the_origin():
    truth, rng = hidden_network(40, 6, 3, "gelu", 0)
    lines = replace(truth, activation="relu").normal_form()
    x = place_points(SmoothForm(lines, np.ones(6), "gelu"), 12, rng=rng)
    assert np.linalg.norm(x, axis=1).min() == 0.0


@EVERY
def test_every_kind_of_unit_is_told_from_the_others(activation):
    for seed in range(10, 14):
        check(8, 16, 4, activation, seed)


@EVERY
def test_what_a_kind_lacks_beside_two_lines_is_what_its_activation_says(activation):
    kind = UNIT_KINDS[activation]
    z = np.array([-30.0, -2.0, -0.3, 0.4, 1.0, 7.0])
    lines = np.maximum(z, 0.0)
    assert np.allclose(lines - kind.lacks(np.abs(z)), ACTIVATIONS[activation](z), atol=1e-15)
    h = 1e-6
    u = np.abs(z)
    slope = (kind.lacks(u + h) - kind.lacks(u - h)) / (2 * h)
    assert np.allclose(kind.slope(u), slope, atol=1e-9)
    assert np.allclose(kind.invert_share(kind.share(u[1:5])), u[1:5])


@pytest.mark.parametrize(("d", "k", "m", "ratio"), [(16, 64, 16, 2.7), (16, 64, 1, 1.7)])
def test_few_queries_beyond_the_limit_are_asked(d, k, m, ratio):
    limit = (k * (d + 1 + m) + m * (d + 1)) / m
    for seed in range(20, 24):
        _, recovery = check(d, k, m, "gelu", seed)
        assert recovery.ledger.total(without="verify").sequences <= ratio * limit


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    ("d", "k", "m", "seeds"),
    [(16, 64, 1, 10), (16, 64, 16, 10), (32, 128, 32, 4), (16, 256, 1, 2), (64, 256, 64, 2)],
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
    assert name_kind(again) == "smooth"


def test_widths_of_a_file_are_taken_into_the_weights(tmp_path, rng):
    net = ReluNet.random(3, hidden=4, outputs=2, activation="gelu", rng=rng)
    s = np.array([0.5, 1.0, 2.0, 3.0])
    tensors = {"W1": net.W1, "b1": net.b1, "W2": net.W2, "b2": net.b2, "s": s}
    words = {"kind": "smooth", "format": "1", "activation": "gelu"}
    save_file(tensors, tmp_path / "net.safetensors", words)
    x = rng.normal(size=(5, 3))
    z = x @ net.W1.T + net.b1
    by_hand = ACTIVATIONS["gelu"](s * z) / s @ net.W2.T + net.b2
    assert np.allclose(load(tmp_path / "net.safetensors").points(x), by_hand, rtol=1e-14)


def test_a_file_of_smooth_units_without_a_smooth_activation_is_refused(tmp_path, rng):
    net = ReluNet.random(3, hidden=4, rng=rng)
    tensors = {"W1": net.W1, "b1": net.b1, "W2": net.W2, "b2": net.b2}
    for more, words, said in (
        ({}, {"activation": "relu"}, "kind relu"),
        ({"s": np.zeros(4)}, {}, "above 0"),
        ({"s": np.ones(3)}, {}, "s must have shape"),
    ):
        words |= {"kind": "smooth", "format": "1"}
        save_file(tensors | more, tmp_path / "net.safetensors", words)
        with pytest.raises(InvalidInput, match=said):
            load(tmp_path / "net.safetensors")


@pytest.mark.parametrize(("truth", "tried"), [("gelu", "silu"), ("silu", "gelu")])
def test_the_wrong_activation_is_not_verified_and_a_sequence_shows_why(truth, tried):
    net, rng = hidden_network(6, 8, 1, truth, 0)
    recovery = SmoothNetwork(tried).run(Local(net), rng=rng)
    assert recovery.verdict is Verdict.UNVERIFIED
    assert recovery.status is Status.NO_SMOOTH_NETWORK
    case = recovery.counterexample
    assert np.allclose(net(case.tokens[None])[0], case.answer, rtol=1e-12)
    assert case.gap > 1e-6


def mish_units(rng):
    net = ReluNet.random(5, hidden=8, rng=rng)

    def answer(X):
        z = X[:, -1] @ net.W1.T + net.b1
        return z * np.tanh(np.logaddexp(0.0, z)) @ net.W2.T

    return answer


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
    mish_units,
    mean_of_tokens,
    with_a_small_sine,
    mixed_units,
    two_layers,
    parallel_units,
    tanh_units,
    relu_units,
    square,
]


# earlier tokens act, or answers grow as a square: no such network does that
REFUTED = [mean_of_tokens, square]


@pytest.mark.parametrize("make", OTHERS)
def test_other_targets_are_refused_and_never_called_exact(make):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        target = make(rng)
        recovery = SmoothNetwork(most=64).run(Local(target, 5), rng=rng)
        assert recovery.verdict is Verdict.UNVERIFIED, recovery.sentence
        case = recovery.counterexample
        assert np.allclose(target(case.tokens[None])[0], case.answer, rtol=1e-12)
        assert case.gap > 0


@pytest.mark.parametrize("make", OTHERS)
def test_only_what_no_such_network_answers_is_refuted(make):
    rng = np.random.default_rng(0)
    target = Local(make(rng), 5)
    recovery = learn(target, rng=rng, learner=SmoothNetwork(most=64))
    expected = Verdict.CLASS_REFUTED if make in REFUTED else Verdict.UNVERIFIED
    assert recovery.verdict is expected, recovery.sentence
    if make in REFUTED:
        assert replay_witness(target, recovery.counterexample).holds


def test_a_sequence_that_refutes_networks_is_answered_otherwise_than_its_last_token():
    rng = np.random.default_rng(0)
    target = Local(mean_of_tokens(rng), 5)
    witness = learn(target, rng=rng, learner=SmoothNetwork(most=64)).counterexample
    assert witness.rule == "earlier tokens"
    whole, last = witness.questions
    np.testing.assert_array_equal(whole[-1:], last)


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
    hits = 0
    for seed in range(5):
        net, rng = hidden_network(d, k, m, activation, seed)
        seen = recognise(Local(net), rng=rng)
        assert first in seen.suggested
        assert seen.ledger.total().sequences <= 50
        hits += seen.suggested[0] == first
    # At a token where curvature happens to vanish smooth units look straight.
    assert hits >= 4


@BOTH
def test_auto_finds_a_smooth_network_without_looking_for_kinks_first(activation):
    net, rng = hidden_network(6, 12, 1, activation, 2)
    recovery = learn(Local(net), rng=rng)
    assert recovery.verdict is Verdict.EXACT, recovery.sentence
    assert recovery.ledger.total().sequences <= 1500
    assert function_error(net, recovery.model, rng) <= 1e-10


def test_activations_that_are_not_smooth_are_refused():
    with pytest.raises(InvalidInput, match="gelu, gelu_tanh, silu, softplus; got 'relu'"):
        SmoothNetwork("relu")
    with pytest.raises(InvalidInput, match="at least 1"):
        SmoothNetwork(most=0)


def test_two_directions_across_one_hyperplane_are_on_one_side_of_all_others(rng):
    n = rng.normal(size=(30, 6))
    n /= np.linalg.norm(n, axis=1, keepdims=True)
    ahead, back = step_across(n, 7, rng=rng)
    assert np.flatnonzero(np.sign(n @ ahead) != np.sign(n @ back)).tolist() == [7]


def test_units_that_random_directions_confuse_come_back(rng):
    """Normals in a flat cone: directions far from all of them hardly part any two."""
    drawn = ReluNet.random(8, hidden=32, activation="gelu", rng=rng)
    flat = replace(drawn, W1=drawn.W1 * np.geomspace(1.0, 0.05, 8))
    recovery = SmoothNetwork().run(Local(flat), rng=rng)
    assert recovery.verdict is Verdict.EXACT, recovery.sentence
