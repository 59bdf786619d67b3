"""Tokens chosen so that solves are well conditioned."""

import numpy as np
import pytest

from keyhole.learners.joint_heads.balanced_tokens import (
    balance_basis,
    balance_groups,
    cut_evenly,
    list_rows,
)


def draw_basis(width, rng):
    return np.linalg.qr(rng.normal(size=(width, width)))[0]


def worst_condition(X, block):
    return float(np.linalg.cond(list_rows(X, block)))


def test_all_groups_of_a_basis_come_out_well_conditioned_though_every_number_is_used():
    before, after = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        V, basis = rng.normal(size=(4, 16, 16)), draw_basis(16, rng)
        balanced = balance_basis(basis, 4, [V], 60)
        np.testing.assert_allclose(balanced @ balanced.T, np.eye(16), atol=1e-12)
        before.append(max(worst_condition(X, V) for X in cut_evenly(basis, 4)))
        after.append(max(worst_condition(X, V) for X in cut_evenly(balanced, 4)))
    assert np.median(before) > 60.0
    assert max(after) <= 30.0


def test_few_tokens_tell_coordinates_along_all_ranges_and_shares_at_once():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        V = [rng.normal(size=(1, 24, 4)) for _ in range(6)]
        ranges = [np.linalg.qr(rng.normal(size=(24, 4)))[0][None] for _ in range(6)]
        X = balance_groups(draw_basis(24, rng)[:4], 4, V, ranges, 100)
        np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1.0)
        assert max(worst_condition(X, block) for block in V + ranges) <= 15.0


@pytest.mark.parametrize(("sizes", "most"), [([4, 4, 4], 5), ([5, 5], 5), ([3], 9)])
def test_groups_are_even_and_none_too_large(sizes, most):
    cut = cut_evenly(np.zeros((sum(sizes), 2)), most)
    assert [len(part) for part in cut] == sizes


def test_tokens_that_read_nothing_are_left_as_they_are(rng):
    basis = draw_basis(6, rng)
    np.testing.assert_array_equal(balance_basis(basis, 3, [np.zeros((1, 6, 4))], 10), basis)
