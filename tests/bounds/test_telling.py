"""One layer that tells any of somebody's symbols: reductions, their bounds, and what is enough."""

from itertools import product
from math import log2

import numpy as np
import pytest

from keyhole.bounds.telling import telling
from keyhole.bounds.verdicts import BoundVerdict, bound, bound_network
from keyhole.constructions import survey_proofs
from keyhole.errors import InvalidInput
from keyhole.tasks import Composition, IndexLookup, InductionHeads, KHop, Match3
from support.seeds import some

pytestmark = pytest.mark.theorem("PNP24/composition", "SHT24/induction-heads")

HOPS = [
    (KHop(2 * n + 2 * k - 1 + spare, k + kinds, k), n, kinds)
    for k in range(1, 6)
    for n in range(1, 7)
    for kinds in (2, 3)
    for spare in (0, 1)
    if kinds**n < 100
]


def check_every_symbol(task, size, kinds):
    found = telling(task)
    assert (found.size, found.kinds) == (size, kinds)
    symbols = np.array(list(product(range(kinds), repeat=size)))
    for index in range(size):
        X = found.inputs(symbols, np.full(len(symbols), index))
        np.testing.assert_array_equal(found.read(task.target(X)), symbols[:, index])


@pytest.mark.parametrize(("task", "size", "kinds"), some(HOPS, step=4), ids=str)
def test_the_last_token_is_led_to_any_symbol(task, size, kinds):
    check_every_symbol(task, size, kinds)


@pytest.mark.parametrize("n", [2, 3, 4, pytest.param(5, marks=pytest.mark.slow)])
def test_composition_tells_any_value_of_a_function(n):
    check_every_symbol(Composition(n), n, n)


def test_alice_and_bob_own_different_tokens_and_the_row_is_public():
    for task in (Composition(5), InductionHeads(13, 5), KHop(16, 7, 4)):
        found = telling(task)
        rng = np.random.default_rng(3)
        a, other = rng.integers(found.kinds, size=(2, 1, found.size))
        i, j = np.array([0]), np.array([found.size - 1])
        changed = np.flatnonzero((found.inputs(a, i) != found.inputs(other, i)).any(axis=(0, 2)))
        assert set(changed) <= set(found.alice)
        moved = np.flatnonzero((found.inputs(a, i) != found.inputs(a, j)).any(axis=(0, 2)))
        assert set(moved) <= set(found.bob)
        assert found.row not in {*found.alice, *found.bob}
        assert not {*found.alice} & {*found.bob}


@pytest.mark.parametrize(
    "task", [KHop(3, 5, 2), KHop(20, 3, 2), InductionHeads(2, 9), Match3(9, 9)]
)
def test_where_nothing_fits_nothing_is_told(task):
    assert telling(task) is None


def test_symbols_of_another_number_are_refused():
    with pytest.raises(InvalidInput, match="rows of 4 symbols"):
        telling(Composition(4)).inputs(np.ones((1, 3), dtype=int), np.zeros(1, dtype=int))


# Fixed point of 4 integer and 11 fraction bits: 16 bits a number. A log-partition over n scores
# within 16 takes log2((32 + ln n) 2^14 + 2) bits, rounded up: 20 for these n.
@pytest.mark.parametrize(("n", "widest"), [(64, 22), (256, 126), (1024, 638)])
def test_one_layer_composes_only_with_wide_values(n, widest):
    task = Composition(n)
    assert widest * 16 + 20 < n * log2(n) <= (widest + 1) * 16 + 20
    told = [
        bound(task, embed=2, value_width=v, number_format="fixed:4.11").verdict
        for v in (widest, widest + 1)
    ]
    assert told == [BoundVerdict.TOO_SMALL, BoundVerdict.OPEN]


def test_one_layer_hops_only_with_wide_values_and_more_layers_with_few():
    task = KHop(128, 10, 8)
    one = bound(task, embed=3, bits=8.0, value_width=5)
    assert one.verdict is BoundVerdict.TOO_SMALL
    assert one.inequality.needed == (128 - 16 + 1) // 2
    deep = bound(task, embed=3, value_width=11, layers=5)
    assert (deep.verdict, deep.construction) == (BoundVerdict.ENOUGH, "hop-doubling")
    assert bound(task, embed=3, value_width=11, layers=4).verdict is BoundVerdict.OPEN
    wide = bound(task, embed=2, value_width=129, heads=2)
    assert (wide.verdict, wide.construction) == (BoundVerdict.ENOUGH, "gather-whole")


@pytest.mark.parametrize("task", [Composition(4), InductionHeads(9, 5), KHop(12, 6, 3)], ids=str)
def test_sizes_that_are_proved_enough_are_not_too_small(task):
    for form in ("f64", "f32", "fixed:12.20"):
        proved = survey_proofs(task, number_format=form)
        assert proved
        for one in proved:
            size = one.size
            told = bound(
                task,
                embed=size.embed,
                number_format=form,
                heads=size.heads,
                value_width=size.value_width,
                layers=size.layers,
                residual=size.layers > 1,
            )
            assert told.verdict is BoundVerdict.ENOUGH


def test_look_up_counts_indices_symbols_and_states():
    task = IndexLookup(1025, 4)
    few = bound(task, embed=1, bits=3.0, value_width=1)
    assert few.verdict is BoundVerdict.TOO_SMALL
    assert few.inequality.needed == log2(1024)
    assert bound(task, embed=1, bits=1.0, value_width=1, residual=True, token_width=9).verdict is (
        BoundVerdict.TOO_SMALL
    )
    enough = bound(IndexLookup(1024, 4), embed=2, value_width=1)
    assert (enough.verdict, enough.construction) == (BoundVerdict.ENOUGH, "look-up")
    forgetful = bound_network(task, state_bits=2047)
    assert forgetful.verdict is BoundVerdict.TOO_SMALL
    assert bound_network(task, state_bits=2048).verdict is BoundVerdict.OPEN
    with pytest.raises(InvalidInput, match="--state-bits alone"):
        bound_network(task, hidden=3)
