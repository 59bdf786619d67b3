"""Freezing, softmax, sizes and border checks."""

import math

import numpy as np
import pytest

from keyhole._arrays import (
    check_finite,
    check_sequences,
    check_shape,
    find_power_of_two,
    freeze_array,
    rms,
    softmax,
)
from keyhole.errors import InvalidInput


def test_a_frozen_array_is_a_float64_copy_nobody_can_write():
    given = np.array([1.0, 2.0, 3.0])
    kept = freeze_array(given)
    given[0] = 9.0
    assert kept.tolist() == [1.0, 2.0, 3.0]
    assert freeze_array(given.astype(np.float32)).dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 5.0


def test_softmax_of_logarithms_gives_the_proportions():
    scores = np.log([[1.0, 2.0, 5.0], [3.0, 3.0, 2.0]])
    np.testing.assert_allclose(
        softmax(scores), [[0.125, 0.25, 0.625], [0.375, 0.375, 0.25]], rtol=1e-15
    )


def test_softmax_leaves_its_argument_alone():
    scores = np.array([0.0, 1.0])
    softmax(scores)
    assert scores.tolist() == [0.0, 1.0]


def test_softmax_does_not_overflow():
    np.testing.assert_array_equal(softmax(np.array([1e300, -1e300, 1e300])), [0.5, 0.0, 0.5])


def test_softmax_does_not_even_warn_at_the_largest_numbers():
    np.testing.assert_array_equal(softmax(np.array([1e308, -1e308, 1e308])), [0.5, 0.0, 0.5])


def test_softmax_runs_over_the_last_axis_only():
    scores = np.zeros((2, 3, 4))
    np.testing.assert_array_equal(softmax(scores), np.full((2, 3, 4), 0.25))


def test_rms_of_three_and_four_is_the_root_of_twelve_and_a_half():
    assert rms(np.array([3.0, -4.0])) == pytest.approx(math.sqrt(12.5), rel=1e-15)


def test_rms_of_nothing_and_of_zeros_is_zero():
    assert rms(np.zeros(0)) == 0.0
    assert rms(np.zeros((2, 3))) == 0.0


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_rms_neither_overflows_nor_underflows(size):
    assert rms(np.full(5, size)) == pytest.approx(size, rel=1e-15)


@pytest.mark.parametrize(
    ("value", "nearest"), [(1.0, 1.0), (3.1, 4.0), (2.5, 2.0), (0.3, 0.25), (0.0, 0.0)]
)
def test_the_nearest_power_of_two_is_found(value, nearest):
    assert find_power_of_two(value) == nearest


def test_a_batch_of_sequences_passes():
    check_sequences(np.zeros((2, 1, 3)), 3)
    check_sequences(np.zeros((0, 1, 3)), 3)


def test_a_single_sequence_is_refused_with_a_way_out():
    with pytest.raises(
        InvalidInput,
        match=r"shape \(batch, length >= 1, 3\); got \(4, 3\)\. Add a leading batch axis",
    ):
        check_sequences(np.zeros((4, 3)), 3)


@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 0, 3), (3,), (1, 2, 4, 3)])
def test_another_shape_is_refused_with_what_came(shape):
    with pytest.raises(InvalidInput) as refusal:
        check_sequences(np.zeros(shape), 3)
    assert "(batch, length >= 1, 3)" in str(refusal.value)
    assert str(shape) in str(refusal.value)


def test_a_free_axis_admits_any_size():
    check_shape("V", np.zeros((3, 7)), (3, None))


@pytest.mark.parametrize("shape", [(2, 7), (3,), (3, 7, 1)])
def test_a_wrong_shape_is_refused_by_name(shape):
    with pytest.raises(InvalidInput) as refusal:
        check_shape("V", np.zeros(shape), (3, None))
    assert str(refusal.value) == f"V must have shape (3, any); got {shape}."


def test_numbers_that_are_not_finite_are_counted():
    check_finite("h", np.zeros(3))
    with pytest.raises(InvalidInput, match="h must be finite; 2 of its numbers are not"):
        check_finite("h", np.array([np.nan, 1.0, -np.inf]))
