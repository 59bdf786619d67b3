"""Networks with one hidden layer: values by hand, the normal form and back, what counts as the
same.
"""

import math

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.identify import network_distance
from keyhole.models import AbsAffine, Model, ReluNet, load, save
from keyhole.models.relu import find_equal_normals, network_freedom


def net(d, k, m, rng, activation="relu"):
    return ReluNet.random(d, hidden=k, outputs=m, activation=activation, rng=rng)


def by_hand(network, x):
    """One point, unit by unit, in plain Python."""
    phi = {
        "relu": lambda z: max(z, 0.0),
        "gelu": lambda z: z * 0.5 * math.erfc(-z / math.sqrt(2)),
        "silu": lambda z: z / (1 + math.exp(-z)),
    }[network.activation]

    def affine(W, b, v):
        return [
            math.fsum([w * z for w, z in zip(row, v, strict=True)]) + c
            for row, c in zip(W, b, strict=True)
        ]

    return affine(network.W2, network.b2, [phi(z) for z in affine(network.W1, network.b1, x)])


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_a_network_answers_as_its_formula(activation, rng):
    network, x = net(3, 5, 2, rng, activation), rng.normal(size=(4, 3))
    np.testing.assert_allclose(network.points(x), [by_hand(network, p) for p in x], rtol=1e-13)


def test_a_sequence_is_answered_by_its_last_token(rng):
    network, X = net(3, 5, 2, rng), rng.normal(size=(4, 6, 3))
    np.testing.assert_array_equal(network(X), network.points(X[:, -1]))
    assert isinstance(network, Model)
    assert isinstance(network.normal_form(), Model)


@pytest.mark.parametrize(("d", "k", "m"), [(1, 1, 1), (4, 9, 1), (6, 3, 5), (5, 0, 2), (3, 40, 3)])
def test_the_normal_form_is_the_same_function(d, k, m, rng):
    network, x = net(d, k, m, rng), 3 * rng.normal(size=(50, d))
    np.testing.assert_allclose(network.normal_form().points(x), network.points(x), atol=1e-13)


def test_units_without_weights_are_a_constant(rng):
    network = ReluNet(
        np.zeros((2, 3)), np.array([2.0, -1.0]), np.array([[3.0, 5.0]]), np.array([1.0])
    )
    form = network.normal_form()
    assert form.hidden == 0
    np.testing.assert_array_equal(form.points(rng.normal(size=(4, 3))), np.full((4, 1), 7.0))


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_a_smooth_network_has_no_such_form(activation, rng):
    with pytest.raises(InvalidInput, match=f"this one has {activation}"):
        net(3, 4, 1, rng, activation).normal_form()


@pytest.mark.parametrize(("d", "k", "m"), [(4, 9, 3), (6, 6, 1), (8, 64, 8)])
def test_flips_come_back_where_the_linear_part_determines_them(d, k, m, rng):
    network, x = net(d, k, m, rng), 3 * rng.normal(size=(50, d))
    back = network.normal_form().unfold()
    assert back.flips
    assert back.net.hidden == k
    np.testing.assert_allclose(back.net.points(x), network.points(x), atol=1e-11)
    lengths = np.linalg.norm(network.W1, axis=1)
    np.testing.assert_allclose(back.net.W1, network.W1 / lengths[:, None], atol=1e-13)


@pytest.mark.parametrize(("d", "k", "m"), [(4, 9, 1), (4, 40, 3), (2, 30, 5)])
def test_where_they_are_not_determined_a_few_units_are_added(d, k, m, rng):
    network, x = net(d, k, m, rng), 3 * rng.normal(size=(50, d))
    back = network.normal_form().unfold()
    assert not back.flips
    assert back.net.hidden == k + back.added <= k + 2 * min(m, d)
    np.testing.assert_allclose(back.net.points(x), network.points(x), atol=1e-11)


def test_a_skip_connection_is_unfolded_into_pairs_of_units(rng):
    form, x = AbsAffine.random(6, hidden=3, outputs=2, rng=rng), rng.normal(size=(20, 6))
    back = form.unfold()
    assert (back.flips, back.added) == (False, 4)
    np.testing.assert_allclose(back.net.points(x), form.points(x), atol=1e-12)


@pytest.mark.parametrize(
    ("count", "d", "k", "m"), [(231, 10, 20, 1), (4257, 32, 128, 1), (9248, 32, 128, 32)]
)
def test_degrees_of_freedom_by_hand(count, d, k, m):
    # 20*11 + 11; 128*33 + 33; 128*64 + 32*33
    assert network_freedom(d, hidden=k, outputs=m) == count


def test_the_slopes_are_those_of_small_steps(rng):
    form, x, h = AbsAffine.random(4, hidden=6, outputs=3, rng=rng), rng.normal(size=4), 1e-6
    steps = [
        (form.points((x + h * e)[None]) - form.points((x - h * e)[None]))[0] / (2 * h)
        for e in np.eye(4)
    ]
    np.testing.assert_allclose(form.jacobian(x), np.array(steps).T, atol=1e-8)


def test_normals_become_unit_vectors_without_changing_the_function():
    form = AbsAffine(
        np.array([[3.0, 4.0]]), np.array([10.0]), np.array([[1.0]]), np.zeros((1, 2)), np.zeros(1)
    )
    np.testing.assert_allclose(form.n, [[0.6, 0.8]])
    np.testing.assert_allclose(form.points(np.array([[0.0, 0.0]])), [[5.0]])  # |0 - 10| / 2


def test_equal_hyperplanes_are_merged_and_idle_ones_dropped(rng):
    n, t = rng.normal(size=(3, 4)), rng.normal(size=3)
    form = AbsAffine(
        np.concatenate([n, -n[:1], n[1:2]]),
        np.concatenate([t, -t[:1], t[1:2]]),
        np.array([[1.0], [2.0], [0.0], [3.0], [-2.0]]),
        rng.normal(size=(1, 4)),
        rng.normal(size=1),
    )
    found, x = form.canonical(), rng.normal(size=(20, 4))
    assert found.hidden == 1
    np.testing.assert_allclose(found.D, [[4.0 * np.linalg.norm(n[0])]])
    np.testing.assert_allclose(found.points(x), form.points(x), atol=1e-13)


def test_order_and_signs_do_not_count_and_other_hyperplanes_do(rng):
    form = AbsAffine.random(5, hidden=7, outputs=2, rng=rng)
    order, sign = rng.permutation(7), rng.choice([-1.0, 1.0], size=7)
    other = AbsAffine(
        (form.n * sign[:, None])[order], (form.t * sign)[order], form.D[order], form.P, form.q
    )
    assert network_distance(form, other).largest < 1e-15
    moved = AbsAffine(form.n, form.t + 1e-3 * np.eye(7)[2], form.D, form.P, form.q)
    assert network_distance(form, moved).largest == pytest.approx(
        1e-3 / max(1.0, abs(form.t[2]) + 1e-3), rel=0.3
    )
    fewer = AbsAffine(form.n[1:], form.t[1:], form.D[1:], form.P, form.q)
    assert network_distance(form, fewer).largest == float("inf")


def test_networks_of_other_sizes_are_not_compared(rng):
    with pytest.raises(InvalidInput, match="one width"):
        network_distance(net(3, 4, 1, rng), net(4, 4, 1, rng))


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_a_network_comes_back_from_its_file_bit_for_bit(activation, tmp_path, rng):
    network = net(3, 4, 2, rng, activation)
    save(network, tmp_path / "n.safetensors")
    again = load(tmp_path / "n.safetensors")
    assert again.activation == activation
    for name in ("W1", "b1", "W2", "b2"):
        np.testing.assert_array_equal(getattr(again, name), getattr(network, name))


def test_a_normal_form_comes_back_from_its_file_bit_for_bit(tmp_path, rng):
    form = AbsAffine.random(3, hidden=4, outputs=2, rng=rng)
    save(form, tmp_path / "n.safetensors")
    again = load(tmp_path / "n.safetensors")
    for name in ("n", "t", "D", "P", "q"):
        np.testing.assert_array_equal(getattr(again, name), getattr(form, name))


def test_misfits_are_refused(rng, untyped):
    with pytest.raises(InvalidInput, match="relu, gelu, gelu_tanh, silu, softplus"):
        net(2, 2, 1, rng, "tanh")
    with pytest.raises(InvalidInput, match="b1 must have shape"):
        ReluNet(np.ones((2, 3)), np.ones(3), np.ones((1, 2)), np.ones(1))
    with pytest.raises(InvalidInput, match="normals must not be zero"):
        AbsAffine(np.zeros((1, 2)), np.zeros(1), np.ones((1, 1)), np.ones((1, 2)), np.ones(1))
    with pytest.raises(InvalidInput, match="must be finite"):
        ReluNet(np.full((1, 1), np.nan), np.zeros(1), np.zeros((1, 1)), np.zeros(1))


@pytest.mark.parametrize("width", [1, 3, 16])
def test_equal_normals_are_those_of_which_every_pair_is_compared(width, rng):
    n = rng.normal(size=(30, width))
    n[:5] = n[20:25]
    n[5:8] = -n[10:13]
    n[8] = n[10] + 1e-9
    n /= np.linalg.norm(n, axis=1)[:, None]
    found = {frozenset(group.tolist()) for group, _ in find_equal_normals(n)}
    apart = np.minimum(np.abs(n[:, None] - n), np.abs(n[:, None] + n)).max(axis=2)
    alike = apart < 1e-11
    assert found == {frozenset(np.flatnonzero(row).tolist()) for row in alike if row.sum() > 1}
    for group, signs in find_equal_normals(n):
        assert np.abs(n[group] - signs[:, None] * n[group[0]]).max() < 1e-15
