"""keyhole/gated-units: SwiGLU and GEGLU networks, recovered exactly or refused."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from keyhole import (
    Budgeted,
    Gated,
    GatedNetwork,
    InvalidInput,
    Local,
    Outcome,
    ReluNet,
    Status,
    Verdict,
    load,
    save,
)
from keyhole.learners.gated_network.across import find_units
from keyhole.learners.gated_network.gate_kinks import Circle, resolve_circle
from keyhole.learners.gated_network.gated_form import GatedForm
from keyhole.learners.gated_network.single_kinks import resolve_singly
from keyhole.learners.gated_network.whole_fit import PARTS, differentiate, fit_form, move_form
from support import measures

pytestmark = pytest.mark.theorem("keyhole/gated-units")

RADII = np.array([0.3, 1.0, 3.0, 10.0, 1000.0])
function_error = partial(measures.function_error, radii=RADII, points=200)
BOTH = pytest.mark.parametrize("activation", ["silu", "gelu"])
FAR = 2.0**40


def hidden_network(d, k, m, activation, seed, scale=1.0):
    rng = np.random.default_rng([seed, d, k, m])
    net = Gated.random(d, hidden=k, outputs=m, activation=activation, scale=scale, rng=rng)
    return net, rng


def check(d, k, m, activation, seed):
    truth, rng = hidden_network(d, k, m, activation, seed)
    recovery = GatedNetwork().run(Local(truth), rng=rng)
    assert recovery.verdict is Verdict.EXACT, (seed, recovery.sentence)
    assert recovery.certificate.theorem == "keyhole/gated-units"
    # A circle that had to be drawn again leaves the course that the claim counts.
    assert recovery.certificate.outcome is not Outcome.REFUTED
    assert recovery.model.activation == activation
    assert recovery.degrees_of_freedom == k * (2 * d + 1 + m) + m
    assert function_error(truth, recovery.model, rng) <= 1e-10
    return truth, recovery


@BOTH
@pytest.mark.parametrize(("d", "k", "m", "seeds"), [(8, 16, 8, 2), (6, 10, 3, 2), (4, 3, 5, 4)])
def test_networks_come_back_exactly_on_every_seed_with_their_gates_found(
    d, k, m, seeds, activation
):
    outcomes = [
        check(d, k, m, activation, seed)[1].certificate.outcome for seed in range(100, 100 + seeds)
    ]
    assert outcomes.count(Outcome.HOLDS) >= seeds - 1


@pytest.mark.slow
@BOTH
def test_larger_networks_come_back_exactly_on_every_seed_for_four_times_the_limit(activation):
    ratios = []
    for seed in range(200, 206):
        truth, recovery = check(24, 64, 24, activation, seed)
        asked = recovery.ledger.total(without="verify").sequences
        ratios.append(asked / (truth.degrees_of_freedom / truth.outputs))
    assert np.median(ratios) <= 4.0


@BOTH
@pytest.mark.parametrize(("d", "k", "m", "seeds"), [(5, 6, 1, 3), (6, 6, 2, 2)])
def test_networks_of_one_output_or_two_come_back(d, k, m, seeds, activation):
    for seed in range(100, 100 + seeds):
        check(d, k, m, activation, seed)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(("d", "k", "m"), [(8, 12, 1), (12, 16, 2), (16, 32, 1)])
def test_larger_networks_of_one_output_or_two_come_back(d, k, m, activation):
    for seed in range(200, 206):
        check(d, k, m, activation, seed)


@BOTH
def test_the_very_units_come_back_up_to_order_and_a_factor(activation):
    truth, recovery = check(6, 8, 4, activation, 7)
    model = recovery.unwrap()
    nearest = np.abs(model.A[:, None] - truth.A).max(axis=2).argmin(axis=0)
    assert sorted(nearest) == list(range(truth.hidden))
    assert np.abs(model.A[nearest] - truth.A).max() <= 1e-8
    assert np.abs(model.a[nearest] - truth.a).max() <= 1e-8
    products = np.einsum("mk,kd->kmd", truth.C, truth.B)
    assert np.abs(np.einsum("mk,kd->kmd", model.C, model.B)[nearest] - products).max() <= 1e-8


@pytest.mark.parametrize("scale", [0.05, 0.1, 10.0, 20.0])
def test_gates_much_wider_or_narrower_than_one_come_back(scale):
    for seed in range(1, 3):
        truth, rng = hidden_network(5, 8, 4, "silu", seed, scale)
        recovery = GatedNetwork().run(Local(truth), rng=rng)
        assert recovery.verdict is Verdict.EXACT, recovery.sentence
        assert function_error(truth, recovery.model, rng, radii=RADII / scale) <= 1e-9


def test_half_a_circle_meets_every_gate_once():
    for seed in range(5):
        truth, rng = hidden_network(6, 12, 5, "silu", seed)
        x0, u = np.linalg.qr(rng.normal(size=(6, 2)))[0].T
        circle = Circle(lambda x, net=truth: net.points(FAR * x) / FAR**2, x0, u)
        kinks = resolve_circle(circle, most=64)
        by_hand = np.sort(np.arctan(-(truth.A @ x0) / (truth.A @ u)))
        assert np.allclose(kinks.theta, by_hand, atol=1e-9)
        found = find_units(kinks, rng=rng)
        unit = truth.A / np.linalg.norm(truth.A, axis=1, keepdims=True)
        assert np.allclose(np.abs(found.n @ unit.T).max(axis=1), 1.0, atol=1e-6)


def circle_of(truth, rng):
    x0, u = np.linalg.qr(rng.normal(size=(truth.width, 2)))[0].T
    by_hand = np.sort(np.arctan(-(truth.A @ x0) / (truth.A @ u)))
    return Circle(lambda x: truth.points(FAR * x) / FAR**2, x0, u), by_hand


def test_kinks_are_found_one_by_one_where_outputs_do_not_tell_them_apart():
    found = 0
    for seed in range(20):
        truth, rng = hidden_network(6, 9, 1 + seed % 2, "silu", seed)
        circle, by_hand = circle_of(truth, rng)
        theta = resolve_singly(circle, most=64).theta
        found += len(theta) == len(by_hand) and np.allclose(theta, by_hand, atol=1e-7)
    assert found >= 18


def test_far_away_answers_of_one_output_are_fitted_together():
    errors = []
    for seed in range(3):
        rng = np.random.default_rng([seed, 12, 24, 1])
        truth = Gated.random(12, hidden=24, outputs=1, rng=rng)
        circle, _ = circle_of(truth, rng)
        far = find_units(resolve_singly(circle, most=64), rng=rng)
        x = rng.normal(size=(200, 12))
        answers = truth.points(FAR * x) / FAR**2
        errors.append(np.abs(far.points(x) - answers).max() / np.abs(answers).max())
    # Forms that follow one another from place to place add up to an error of 3e-8.
    assert max(errors) <= 3e-9


def test_a_form_whose_matrix_is_too_large_stays_as_it_is_where_it_is_near(monkeypatch, rng):
    truth, _ = hidden_network(5, 6, 1, "silu", 0)
    circle, _ = circle_of(truth, rng)
    far = find_units(resolve_singly(circle, most=64), rng=rng)
    x = rng.normal(size=(300, 5))
    y = truth.points(FAR * x) / FAR**2
    off = replace(far, b=far.b + 1e-6 * rng.normal(size=far.b.shape))
    fitted = fit_form(off, x, y, parts=("n", "b", "C"), near=True)
    assert np.abs(fitted.points(x) - y).max() <= 1e-4 * np.abs(off.points(x) - y).max()
    monkeypatch.setattr("keyhole.learners.gated_network.whole_fit._FORMED", 10)
    assert fit_form(off, x, y, parts=("n", "b", "C"), near=True) is off


def test_a_kink_in_a_cluster_and_two_kinks_in_one_gap_are_told():
    # Of two kinks that cancel at a place outside them one alone would explain every sample.
    truth, rng = hidden_network(8, 12, 1, "silu", 4)
    circle, by_hand = circle_of(truth, rng)
    assert np.allclose(resolve_singly(circle, most=64).theta, by_hand, atol=1e-7)


def test_a_kink_found_twice_is_dropped_and_a_faint_one_is_kept():
    truth, rng = hidden_network(64, 128, 64, "silu", 500)
    circle, by_hand = circle_of(truth, rng.spawn(2)[0])
    with np.errstate(all="ignore"):
        assert np.allclose(resolve_circle(circle, most=256).theta, by_hand, atol=1e-8)
    truth, rng = hidden_network(6, 5, 4, "silu", 3)
    faint = Gated(truth.A, truth.a, truth.B, truth.b, truth.C * [1, 1, 1, 1, 1e-8], truth.c)
    circle, by_hand = circle_of(faint, rng)
    assert np.allclose(resolve_circle(circle, most=64).theta, by_hand, atol=1e-4)


def test_derivatives_of_a_form_are_what_small_changes_show(rng):
    k, d, m = 3, 4, 2
    n, b = (rng.normal(size=(k, d)) for _ in range(2))
    form = GatedForm(
        n / np.linalg.norm(n, axis=1, keepdims=True),
        *rng.normal(size=(1, k)),
        np.array([0.5, 1.0, 2.0]),
        np.array([1.0, -1.0, 1.0]),
        b / np.linalg.norm(b, axis=1, keepdims=True),
        rng.normal(size=k),
        rng.normal(size=(k, m)),
        rng.normal(size=m),
        "silu",
    )
    x = rng.normal(size=(5, d))
    slopes = differentiate(form, x, np.ones(5))
    shapes = slopes.lengths()
    for part in PARTS:
        step = {name: np.zeros_like(array) for name, array in shapes.items()}
        step[part] = 1e-6 * rng.normal(size=shapes[part].shape)
        back = {name: -array for name, array in step.items()}
        change = (move_form(form, step).points(x) - move_form(form, back).points(x)) / 2
        assert np.allclose(slopes.forward(step), change, atol=1e-12), part


def test_the_transpose_of_the_derivatives_is_their_transpose(rng):
    truth, rng = hidden_network(5, 4, 3, "gelu", 0)
    form = GatedForm(
        truth.A, truth.a, np.ones(4), np.ones(4), truth.B, truth.b, truth.C.T, truth.c, "gelu"
    )
    slopes = differentiate(form, rng.normal(size=(6, 5)), rng.uniform(0.5, 2.0, size=6))
    step = {name: rng.normal(size=array.shape) for name, array in slopes.lengths().items()}
    left = rng.normal(size=(6, 3))
    forth = float((slopes.forward(step) * left).sum())
    back = sum(float((slopes.backward(left)[name] * step[name]).sum()) for name in PARTS)
    assert np.isclose(forth, back)


def test_a_recovered_network_comes_back_from_its_file(tmp_path):
    _, recovery = check(4, 3, 3, "gelu", 0)
    save(recovery.model, tmp_path / "net.safetensors")
    again = load(tmp_path / "net.safetensors")
    assert again.activation == "gelu"
    for name in ("A", "a", "B", "b", "C", "c"):
        assert np.array_equal(getattr(again, name), getattr(recovery.model, name))


def mean_of_tokens(rng):
    net = Gated.random(5, hidden=4, outputs=3, rng=rng)
    return lambda X: net.points(X.mean(axis=1))


def with_a_small_sine(rng):
    net = Gated.random(5, hidden=4, outputs=3, rng=rng)
    return lambda X: net(X) + 1e-4 * np.sin(X[:, -1, :1])


def with_a_linear_skip(rng):
    net = Gated.random(5, hidden=4, outputs=3, rng=rng)
    return lambda X: net(X) + X[:, -1, :3]


def plain_units(rng):
    return ReluNet.random(5, hidden=8, outputs=3, activation="silu", rng=rng)


def cubic(rng):
    return lambda X: X[:, -1, :3] ** 3


def parallel_gates(rng):
    net = Gated.random(5, hidden=4, outputs=3, rng=rng)
    A = net.A.copy()
    A[1] = 2 * A[0]
    return Gated(A, net.a, net.B, net.b, net.C, net.c)


OTHERS = [
    mean_of_tokens,
    with_a_small_sine,
    with_a_linear_skip,
    plain_units,
    cubic,
    parallel_gates,
]


def first_output(make):
    def make_narrow(rng):
        target = make(rng)
        return lambda X: target(X)[:, :1]

    return make_narrow


@pytest.mark.parametrize("make", [*OTHERS, *map(first_output, OTHERS)])
def test_other_targets_are_refused_and_never_called_exact(make):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        target = make(rng)
        recovery = GatedNetwork(most=64).run(Local(target, 5), rng=rng)
        assert recovery.verdict is Verdict.UNVERIFIED, recovery.sentence
        case = recovery.counterexample
        assert np.allclose(target(case.tokens[None])[0], case.answer, rtol=1e-12)
        assert case.gap > 0


def test_a_budget_is_kept_at_every_size():
    net, _ = hidden_network(4, 3, 3, "silu", 0)
    whole = GatedNetwork().run(Local(net), rng=np.random.default_rng(0)).ledger.total().sequences
    for budget in (1, 20, whole // 4, whole // 2, whole - 70, whole - 3):
        recovery = GatedNetwork().run(Budgeted(Local(net), budget), rng=np.random.default_rng(0))
        assert not recovery.verdict.verified
        assert recovery.ledger.total().sequences <= budget


def test_a_plan_foresees_what_is_asked():
    for d, k, m in ((8, 16, 8), (8, 16, 3), (6, 8, 1)):
        net, rng = hidden_network(d, k, m, "gelu", 3)
        plan = GatedNetwork(hidden=k).plan(d, outputs=m)
        asked = GatedNetwork().run(Local(net), rng=rng).ledger.total().sequences
        assert 0.7 * asked <= plan.queries <= 1.4 * asked
        assert asked <= plan.at_most


def test_gates_that_are_not_known_are_refused():
    with pytest.raises(InvalidInput, match="gelu, gelu_tanh, silu, softplus; got 'relu'"):
        GatedNetwork("relu")
    with pytest.raises(InvalidInput, match="an activation is one of"):
        Gated.random(2, hidden=2, activation="tanh", rng=0)


def test_a_network_whose_parts_dwarf_its_answers_is_not_vouched_for(monkeypatch):
    truth, rng = hidden_network(4, 3, 5, "silu", 100)
    monkeypatch.setattr("keyhole.learners.verifying.swelling._SWOLLEN", 1e-9)
    recovery = GatedNetwork().run(Local(truth), rng=rng)
    assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.ROUGH)
