"""SHT23/10 and SHT23/11: networks without attention that are too small for sparse averaging, with
inputs.
"""

from dataclasses import replace
from itertools import combinations, product
from types import MappingProxyType

import numpy as np
import pytest

from keyhole.bounds.attacks import Attacked, attack
from keyhole.bounds.formulas import bound_by_kernel, bound_by_prefixes
from keyhole.bounds.verdicts import BoundVerdict, bound_network
from keyhole.errors import InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.baselines import Cell, Mlp, Recurrent
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import Match2, SparseAverage

pytestmark = pytest.mark.theorem("SHT23/10", "SHT23/11")


def replayed(found, model, task):
    """An attack's claim, from the model and the task alone."""
    answers, targets = model(found.inputs)[:, found.row], task.target(found.inputs)[:, found.row]
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-9)
    return np.linalg.norm(targets[0] - targets[1])


@pytest.mark.parametrize("seed", range(100))
def test_every_first_layer_that_is_too_narrow_fails_on_an_input(seed):
    rng = np.random.default_rng(seed)
    length, q, dimension = (
        int(rng.integers(4, 12)),
        int(rng.integers(1, 4)),
        int(rng.integers(1, 4)),
    )
    task, enough = SparseAverage(length, q, dimension), (length - q + 1) * dimension
    for hidden in {1, int(rng.integers(1, enough)), enough - 1} - {0}:
        model = Mlp.random(length, q=q, dimension=dimension, hidden=hidden, rng=rng)
        found = attack(model, task, rng=rng)
        assert found.status is Attacked.FOUND
        assert found.hidden_gap <= 1e-12
        assert found.target_gap == pytest.approx(2 / q)
        assert replayed(found, model, task) == pytest.approx(2 / q)
        assert max(found.errors) >= 1 / q - 1e-9
        assert found.inequality.violated


@pytest.mark.parametrize("seed", range(20))
def test_a_first_layer_that_is_wide_enough_is_declined(seed):
    rng = np.random.default_rng(seed)
    task = SparseAverage(8, 3, 2)
    for hidden in (12, 13, 40):
        found = attack(Mlp.random(8, q=3, dimension=2, hidden=hidden, rng=rng), task, rng=rng)
        assert found.status is Attacked.NONE_FOLLOWS
        assert found.inputs is None
        assert not found.inequality.violated


def test_a_wide_first_layer_that_sees_too_little_fails_all_the_same(rng):
    W = np.repeat(rng.normal(size=(4, 6 * 4)), 3, axis=0)
    blind = Mlp((W, rng.normal(size=(6, 12))), (np.zeros(12), np.zeros(6)), 6)
    assert attack(blind, SparseAverage(6, 2), rng=rng).status is Attacked.FOUND


def test_models_that_read_codes_are_attacked_as_well(rng):
    codes = rng.normal(size=(7, 3))
    W = (rng.normal(size=(9, 7 * (2 + 2 * 3 + 3))), rng.normal(size=(14, 9)))
    model = Mlp(W, (np.zeros(9), np.zeros(14)), 7, (0, 1), codes)
    found = attack(model, SparseAverage(7, 2, 2), rng=rng)
    assert found.status is Attacked.FOUND
    assert found.hidden_gap <= 1e-12


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize(("numbers", "bits"), [(2, 4), (4, 5), (8, 4), (8, 5)])
@pytest.mark.parametrize("seed", range(5))
def test_every_coarse_state_below_the_bound_collides(cell, numbers, bits, seed):
    rng = np.random.default_rng(seed)
    units = numbers // (2 if cell == "lstm" else 1)
    model = Recurrent.random(cell, q=3, dimension=1, units=units, state_bits=bits, rng=rng)
    task = SparseAverage(model.bits + 2 + seed, 3)
    found = attack(model, task, rng=rng)
    assert found.status is Attacked.FOUND
    assert found.inequality.violated
    assert found.hidden_gap == 0.0
    assert replayed(found, model, task) >= 2 / 3 - 1e-12
    assert max(found.errors) >= 1 / 3 - 1e-12


def register(length, q=1):
    """A GRU that keeps the last tokens' signs in a shift register: as many bits as it has units."""
    units = length
    Wx, Wh = np.zeros((3 * units, q + 2)), np.zeros((3 * units, units))
    Wx[2 * units, 0] = 20.0
    Wh[2 * units + np.arange(1, units), np.arange(units - 1)] = 20.0
    b = np.zeros(3 * units)
    b[:units], b[units : 2 * units] = 40.0, -40.0
    return Recurrent(
        "gru",
        (Cell(Wx, Wh, b, np.zeros(3 * units)),),
        np.zeros((1, units)),
        np.zeros(1),
        (0,),
        None,
        2,
    )


def test_a_state_that_remembers_every_token_is_declined(rng):
    found = attack(register(9), SparseAverage(10, 1), rng=rng)
    assert found.status is Attacked.NONE_FOLLOWS
    assert "18 bits of state could hold the 9 bits" in found.sentence


def test_beyond_the_search_the_pigeonhole_is_stated(rng, monkeypatch):
    monkeypatch.setattr("keyhole.bounds.attacks.find_two_prefixes", lambda *given, **named: None)
    model = Recurrent.random("gru", q=2, dimension=1, units=8, state_bits=6, rng=rng)
    found = attack(model, SparseAverage(60, 2), rng=rng)
    assert found.status is Attacked.PIGEONHOLE
    assert "59 bits of prefix meet 48 bits of state" in found.sentence


def test_a_set_of_nearly_all_positions_is_outside(rng):
    model = Recurrent.random("gru", q=5, dimension=1, units=1, state_bits=2, rng=rng)
    assert attack(model, SparseAverage(6, 5), rng=rng).status is Attacked.NONE_FOLLOWS


class Folded:
    """Sets hashed into few codes: a token map whose queries collide once they are rounded."""

    name = "folded"
    settings, tensors = MappingProxyType({}), MappingProxyType({})

    def __init__(self, codes):
        self.codes = codes

    def __call__(self, X):
        named = SparseAverage(8, 2).members(X) @ self.codes
        keys = np.broadcast_to(self.codes, (len(X), *self.codes.shape))
        return np.concatenate([X[..., :1], keys, named], axis=-1)


def unit(rng):
    Q, K, V = np.zeros((7, 3)), np.zeros((7, 3)), np.zeros((7, 1))
    Q[4:], K[1:4], V[0] = np.eye(3), np.eye(3), 1.0
    return Transformer(
        (Block(Folded(rng.normal(size=(8, 3))), SelfAttention(Q[None], K[None], V[None])),)
    )


def test_queries_that_agree_once_rounded_give_the_same_answers(rng):
    model, task = unit(rng), SparseAverage(8, 2)
    found = attack(model, task, rng=rng, number_format="fixed:3.0")
    assert found.status is Attacked.FOUND
    assert found.hidden_gap == 0.0
    assert found.target_gap >= 2 / 2 - 1e-12
    np.testing.assert_allclose(found.answers[0], found.answers[1], atol=1e-12)
    assert (found.inputs[0, :-1] == found.inputs[1, :-1]).all()


def test_queries_that_all_differ_are_declined(rng):
    found = attack(unit(rng), SparseAverage(8, 2), rng=rng)
    assert found.status is Attacked.NONE_FOLLOWS
    assert "21 sets" in found.sentence


def test_the_bounds_are_the_numbers_of_the_theorems():
    task = SparseAverage(20, 5, 4)
    assert bound_by_kernel(task, 63, 0.1).needed == 64
    assert bound_by_kernel(task, 63, 0.1).violated
    assert not bound_by_kernel(task, 64, 0.1).violated
    assert not bound_by_kernel(task, 1, 0.2).applies
    assert bound_by_prefixes(task, 18, 0.1).violated
    assert not bound_by_prefixes(task, 19, 0.1).violated
    assert bound_by_prefixes(SparseAverage(20, 19), 18, 0.01).violated
    assert not bound_by_prefixes(SparseAverage(20, 20), 1, 0.01).applies
    assert bound_network(task, hidden=63).verdict is BoundVerdict.TOO_SMALL
    assert bound_network(task, state_bits=19).verdict is BoundVerdict.OPEN


def test_misuse_is_refused(rng):
    model = Mlp.random(6, q=2, dimension=1, hidden=3, rng=rng)
    with pytest.raises(InvalidInput, match="known for models of sparse-average"):
        attack(model, Match2(6, 5), rng=rng)
    with pytest.raises(InvalidInput, match="Check --length"):
        attack(model, SparseAverage(7, 2), rng=rng)
    with pytest.raises(InvalidInput, match="Check --q and --width"):
        attack(model, SparseAverage(6, 3), rng=rng)
    with pytest.raises(InvalidInput, match="token map in front"):
        attack(SelfAttention(*rng.normal(size=(3, 1, 4, 2))), SparseAverage(6, 2), rng=rng)
    with pytest.raises(InvalidInput, match="--hidden or --state-bits"):
        bound_network(SparseAverage(6, 2))


def test_a_state_cut_to_fewer_bits_is_the_same_network(rng):
    model = Recurrent.random("lstm", q=2, dimension=2, units=3, layers=2, rng=rng)
    X = SparseAverage(6, 2, 2).sample(4, rng=rng)
    assert np.abs(replace(model, state_bits=30, state_range=8.0)(X) - model(X)).max() < 1e-6


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_some_set_of_all_but_one_position_tells_any_two_prefixes_apart(length):
    """What the bound on recurrent networks rests on at q = N - 1: sets may hold the last token."""
    prefixes = np.array(list(product((-1.0, 1.0), repeat=length - 1)))
    whole = np.column_stack([prefixes, np.zeros(len(prefixes))])
    for first, second in combinations(whole, 2):
        sums = [(first - second)[list(y)].sum() for y in combinations(range(length), length - 1)]
        assert max(map(abs, sums)) >= 2
