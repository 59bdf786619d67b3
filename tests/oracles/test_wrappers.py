"""What an owner may do to answers: noise, rounding, casting, labels, a bound on tokens."""

from __future__ import annotations

import numpy as np
import pytest

from keyhole import (
    Bounded,
    Budgeted,
    BudgetSpent,
    Cast,
    Counted,
    Declared,
    Disturbed,
    Imperfection,
    InvalidInput,
    Local,
    Noisy,
    Rounded,
    Signs,
    TargetFailed,
)
from keyhole.oracles.base import FORMATS, read_imperfection
from support.targets import mean


def questions(count=1000, *, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 2, 3))


def test_casting_to_f32_and_f16_agrees_with_numpy_on_ordinary_and_on_subnormal_numbers():
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=20_000) * 10.0 ** rng.uniform(-9, 4.5, size=20_000)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            FORMATS["f16"].cast(numbers), numbers.astype(np.float16).astype(np.float64)
        )
    tiny = rng.normal(size=20_000) * 10.0 ** rng.uniform(-46, 38, size=20_000)
    np.testing.assert_array_equal(
        FORMATS["f32"].cast(tiny), tiny.astype(np.float32).astype(np.float64)
    )


def test_casting_to_bf16_keeps_eight_binary_digits_and_takes_ties_to_even():
    cast = FORMATS["bf16"].cast
    np.testing.assert_array_equal(
        cast(np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8])), [1.0, 1.0, 1 + 2.0**-6]
    )
    np.testing.assert_array_equal(cast(np.array([-1e-45, 0.0, 2.0**-133])), [0.0, 0.0, 2.0**-133])
    assert np.isinf(cast(np.array([3.4e38])))


def test_noise_is_new_for_every_answer_and_the_same_for_the_same_seed_and_position():
    X = questions()
    first, second = (Noisy(Local(mean, 3), 0.1, seed=4) for _ in range(2))
    a, again = first.ask(X.copy()), first.ask(X.copy())
    assert 0.09 < np.std(a[:, 0] - mean(X)) < 0.11
    assert np.abs(a - again).min() > 0
    np.testing.assert_array_equal(second.ask(X.copy()), a)
    resumed = Noisy(Local(mean, 3), 0.1, seed=4, position=len(X))
    np.testing.assert_array_equal(resumed.ask(X.copy()), again)


def test_a_disturbed_answer_is_off_by_exactly_the_tolerance():
    X = questions()
    off = Disturbed(Local(mean, 3), 0.25).ask(X.copy())[:, 0] - mean(X)
    np.testing.assert_allclose(np.abs(off), 0.25)
    assert 400 < (off > 0).sum() < 600


def test_rounding_keeps_the_decimals_asked_for():
    X = questions()
    np.testing.assert_array_equal(
        Rounded(Local(mean, 3), 2).ask(X.copy())[:, 0], np.round(mean(X), 2)
    )


def test_labels_are_one_where_the_answer_is_positive_and_minus_one_elsewhere():
    X = np.array([[[2.0]], [[-3.0]], [[0.0]]])
    np.testing.assert_array_equal(Signs(Local(mean, 1)).ask(X), [[1.0], [-1.0], [-1.0]])


def test_a_token_longer_than_the_bound_is_refused_with_both_norms():
    oracle = Bounded(Local(mean, 2), 5.0)
    assert oracle.ask(np.array([[[3.0, 4.0]]])) == 3.5
    with pytest.raises(TargetFailed, match=r"norm 6\.4.* up to norm 5"):
        oracle.ask(np.array([[[4.0, 5.0]]]))


def test_a_batch_cut_by_a_budget_is_still_changed():
    oracle = Signs(Budgeted(Local(mean, 3), 4))
    with pytest.raises(BudgetSpent) as spent:
        oracle.ask(questions(10))
    assert spent.value.answers is not None
    assert set(np.abs(spent.value.answers).ravel()) == {1.0}
    assert spent.value.answered == 4


def test_what_nested_oracles_declare_is_combined():
    inner = Declared(Local(mean, 3), Imperfection(tolerance=1e-3, noise=3e-3, token_bound=2.0))
    stated = read_imperfection(Counted(Cast(Noisy(Bounded(Rounded(inner, 2), 1.5), 4e-3), "bf16")))
    assert stated.tolerance == pytest.approx(6e-3)
    assert stated.noise == pytest.approx(5e-3)
    assert (stated.token_bound, stated.format, stated.roundoff) == (1.5, "bf16", 2.0**-8)
    assert not stated.perfect
    assert stated.absolute


def test_labels_are_declared_as_two_levels_and_a_plain_oracle_as_perfect():
    assert read_imperfection(Signs(Local(mean, 3))).levels == 2
    assert not read_imperfection(Signs(Local(mean, 3))).perfect
    assert read_imperfection(Local(mean, 3)).perfect


@pytest.mark.parametrize(
    "wrong", [{"tolerance": -1.0}, {"noise": np.inf}, {"token_bound": 0.0}, {"format": "int8"}]
)
def test_a_declaration_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidInput):
        Imperfection(**wrong)
