"""The pieces of null balance, each against a formula written out here."""

import numpy as np
import pytest

from keyhole import Cast, Counted, Head, Local
from keyhole.learners.casts.cast_examination import find_crossings, measure_spacing
from keyhole.learners.casts.cast_readout import CastReading, Unsuited, bound_cast_error
from keyhole.learners.casts.null_balance import balance_lengths, evaluate_balance, invert_balance
from keyhole.oracles.base import FORMATS


def test_an_answer_is_that_of_three_tokens_under_a_softmax(rng):
    t, up, down = 0.3, 2.0, 1.5
    head = Head(np.array([[t]]), np.ones((1, 1)))
    tokens = np.array([[[1 + up], [1 - down], [1.0]]])
    assert 1 + evaluate_balance(*(np.array([n]) for n in (t, up, down)))[0][0] == pytest.approx(
        head(tokens)[0, 0], rel=1e-14
    )


def test_the_slope_is_the_derivative(rng):
    t, up, down = rng.uniform(0.2, 1.0, size=(3, 9))
    step = 1e-6
    change = evaluate_balance(t + step, up, down)[0] - evaluate_balance(t - step, up, down)[0]
    np.testing.assert_allclose(evaluate_balance(t, up, down)[1], change / (2 * step), rtol=1e-7)


def test_an_answer_gives_back_its_form(rng):
    t, (up, down) = rng.normal(size=50), np.exp(rng.normal(size=(2, 50)))
    np.testing.assert_allclose(
        invert_balance(evaluate_balance(t, up, down)[0], up, down), t, rtol=1e-11
    )


def test_balanced_lengths_are_answered_with_nothing(rng):
    t, rho = rng.uniform(-0.4, 0.4, size=50), rng.uniform(-0.02, 0.02, size=50)
    up, down = balance_lengths(t, rho, np.ones(50))
    np.testing.assert_allclose(rho + evaluate_balance(t, up, down)[0], 0.0, atol=1e-14)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_casting_errs_no_more_than_its_bound(name, rng):
    numbers = rng.normal(size=1000) * 10.0 ** rng.uniform(-9, 4, size=1000)
    assert (
        np.abs(FORMATS[name].cast(numbers) - numbers) <= bound_cast_error(numbers, FORMATS[name])
    ).all()


def test_the_unit_in_the_last_place_is_the_spacing_of_floats(rng):
    numbers = rng.normal(size=100).astype(np.float32)
    np.testing.assert_array_equal(
        measure_spacing(numbers.astype(np.float64), FORMATS["f32"]), np.spacing(np.abs(numbers))
    )


@pytest.mark.parametrize(
    "v", [[3.0, 1e-9, -0.7], [1.0, 1.0, 1.0], [0.0, 0.0, 2.0], [1e20, 1e20 / 3, 1e5]]
)
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_a_read_out_comes_back_to_fourteen_digits(name, v, rng):
    truth = Head(
        rng.normal(size=(3, 3)) * (np.abs(v).max() ** -2 if np.abs(v).max() > 1e9 else 1.0),
        np.array(v)[:, None],
    )
    V = CastReading(Counted(Cast(Local(truth), name)), FORMATS[name], rng).run()
    np.testing.assert_allclose(V[:, 0], v, rtol=2e-14)


def test_a_constant_is_noticed_before_anything_else(rng):
    head = Head(np.eye(2), np.ones((2, 1)), c=np.array([1e-6]))
    with pytest.raises(Unsuited, match="constant"):
        CastReading(Counted(Cast(Local(head), "bf16")), FORMATS["bf16"], rng).run()


def test_sequences_for_checking_lie_at_nulls_of_the_model(rng):
    head = Head.random(4, rng=rng)
    for X in find_crossings(head, FORMATS["bf16"], [2, 5, 9], null=True, aside=0.0, rng=rng):
        assert np.abs(head(X)[0, 0]) <= 1e-13 * head.magnitude(X)[0]


def test_sequences_for_checking_lie_beside_rounding_boundaries(rng):
    head, form = Head.random(4, rng=rng), FORMATS["bf16"]
    for X in find_crossings(head, form, [1, 4, 8], null=False, aside=1e-9, rng=rng):
        f, slack = head(X)[0, 0], 1e-7 * head.magnitude(X)[0]
        assert form.cast(np.array(f - slack)) != form.cast(np.array(f + slack))
