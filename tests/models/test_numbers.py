"""Number formats against numpy's own types, and layers evaluated in them."""

import math

import numpy as np
import pytest

from keyhole import (
    FixedPoint,
    InvalidInput,
    NumberFormat,
    SelfAttention,
    TensorAttention,
    evaluate,
    number_format,
)

NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.mark.parametrize("name", NUMPY)
def test_ieee_formats_are_numpys(name, rng):
    numbers = rng.normal(size=500) * 10.0 ** rng.integers(-8, 4, size=500)
    form, info = number_format(name), np.finfo(NUMPY[name])
    np.testing.assert_array_equal(
        form.round(numbers), numbers.astype(NUMPY[name]).astype(np.float64)
    )
    assert (form.bits, form.spacing, form.range) == (
        info.bits,
        float(info.eps),
        (float(info.min), float(info.max)),
    )


def test_bfloat16_keeps_the_upper_half_of_a_float32(rng):
    numbers = rng.normal(size=500).astype(np.float32)
    rounded = number_format("bf16").round(numbers.astype(np.float64))
    bits = numbers.view(np.uint32)
    to_even = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    np.testing.assert_array_equal(rounded, to_even.view(np.float32).astype(np.float64))
    assert number_format("bf16").bits == 16


def test_fixed_point_rounds_to_its_grid_and_saturates():
    form = number_format("fixed:2.3")
    np.testing.assert_array_equal(
        form.round(np.array([0.0625, 0.07, -1.3, 9.0, -9.0])), [0.0, 0.125, -1.25, 3.875, -4]
    )
    assert (form.bits, form.spacing, form.range, form.fixed) == (6, 0.125, (-4.0, 3.875), (2, 3))


@pytest.mark.parametrize("integer", [0, 1, 3])
@pytest.mark.parametrize("fraction", [0, 2, 4])
def test_fixed_point_has_as_many_numbers_as_its_bits_allow(integer, fraction):
    form = FixedPoint(integer, fraction)
    fine = np.linspace(-(2.0**integer) - 1, 2.0**integer + 1, 20001)
    assert len(np.unique(form.round(fine))) == 2**form.bits


def test_exact_rounds_nothing():
    numbers = np.array([math.pi, 1e-320, 1e300])
    np.testing.assert_array_equal(number_format("exact").round(numbers), numbers)
    assert number_format("exact").bits == math.inf


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "exact", "fixed:4.12"])
def test_a_format_is_read_back_from_its_name(name):
    form = number_format(name)
    assert isinstance(form, NumberFormat)
    assert form.name == name
    assert number_format(form) is form


@pytest.mark.parametrize("name", ["f8", "fixed", "fixed:4", "fixed:-1.3", "FIXED:1.1", ""])
def test_an_unknown_format_is_refused_with_the_known_ones(name):
    with pytest.raises(
        InvalidInput, match=r"number formats are f64, f32, f16, bf16, exact, and fixed:I\.F"
    ):
        number_format(name)


def test_fixed_point_too_wide_for_float64_is_refused():
    with pytest.raises(InvalidInput, match="at most 52 together"):
        number_format("fixed:30.30")


def test_overflow_of_a_floating_point_format_is_refused_with_its_range():
    with pytest.raises(InvalidInput, match="f16 holds numbers up to 65504; got 70000"):
        number_format("f16").round(np.array([1.0, 70000.0]))


@pytest.mark.parametrize(("name", "integer", "fraction"), [("f16", 16, 24), ("bf16", 128, 133)])
def test_the_fixed_point_format_around_a_floating_one(name, integer, fraction):
    assert number_format(name).fixed == (integer, fraction)


@pytest.mark.parametrize("name", ["f64", "exact"])
def test_float64_changes_nothing(name, rng):
    Q, K, V = rng.normal(size=(3, 2, 4, 4))
    layer, X = SelfAttention(Q, K, V), rng.normal(size=(3, 6, 4))
    np.testing.assert_allclose(evaluate(layer, X, name), layer(X), rtol=0, atol=1e-13)


def test_a_self_attention_layer_in_half_precision_is_rounded_where_it_says(rng):
    def half(numbers):
        return numbers.astype(np.float16).astype(np.float64)

    Q, K, V = rng.normal(size=(3, 2, 4, 3))
    X = rng.normal(size=(6, 4))
    heads = []
    for h in range(2):
        q, k, v = (half(half(X) @ half(P[h])) for P in (Q, K, V))
        scores = half(q @ k.T)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(half(half(weights / weights.sum(axis=1, keepdims=True)) @ v))
    np.testing.assert_array_equal(
        evaluate(SelfAttention(Q, K, V), X[None], "f16")[0], half(heads[0] + heads[1])
    )


def test_only_what_bit_counts_speak_of_is_rounded_on_demand(rng):
    form = number_format("fixed:3.6")
    Q, K, V = rng.normal(size=(3, 1, 4, 3))
    X = rng.normal(size=(6, 4))
    q, k, v = (form.round(X @ P[0]) for P in (Q, K, V))
    weights = np.exp(q @ k.T)
    expected = form.round(weights / weights.sum(axis=1, keepdims=True) @ v)
    np.testing.assert_array_equal(
        evaluate(SelfAttention(Q, K, V), X[None], form, inner=False)[0], expected
    )


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize(("name", "most"), [("f32", 1e-4), ("f16", 0.3), ("fixed:5.20", 1e-3)])
def test_rounding_moves_answers_by_about_its_size(order, name, most, rng):
    unit = TensorAttention.random(3, order=order, embed=4, outputs=2, rng=rng)
    X = np.clip(rng.normal(size=(3, 6, 3)), -1.5, 1.5)
    gap = np.abs(evaluate(unit, X, name) - unit(X)).max()
    assert 0 < gap < most


@pytest.mark.parametrize("room", [1, 50])
def test_the_size_of_the_blocks_does_not_change_a_rounded_evaluation(room, rng, monkeypatch):
    unit = TensorAttention.random(3, order=3, embed=4, rng=rng)
    X = rng.normal(size=(2, 5, 3))
    whole = evaluate(unit, X, "f32")
    monkeypatch.setattr("keyhole.models.tensor.ROOM", room)
    np.testing.assert_allclose(evaluate(unit, X, "f32"), whole, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["fixed:2.4", "fixed:0.1", "fixed:6.8"])
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e6])
def test_saturating_formats_never_make_a_nan(name, scale, rng):
    unit = TensorAttention.random(3, order=3, embed=4, scale=scale, rng=rng)
    assert np.isfinite(evaluate(unit, 5 * rng.normal(size=(2, 5, 3)), name)).all()
