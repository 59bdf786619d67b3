"""Rank-one matrices in a space of symmetric ones, where some draw climbs far more than others."""

import numpy as np
import pytest

from keyhole.learners.blocks.rank_ones import find_rank_ones
from keyhole.learners.blocks.unit_slices import flatten_symmetric


def span_squares(w, error, rng):
    """Orthonormal rows that span squares of vectors and the identity, but for errors."""
    m = w.shape[1]
    rows = np.concatenate([np.einsum("ki,kj->kij", w, w), np.eye(m)[None]])
    flat = flatten_symmetric(rows)
    return np.linalg.qr((flat + error * rng.normal(size=flat.shape)).T)[0].T


@pytest.mark.parametrize("common", [0.0, 2.0])
def test_all_squares_are_found_however_unevenly_they_lie(common):
    """Also where vectors share a direction, as units of trained networks do."""
    m, count = 20, 155
    found = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        w = rng.normal(size=(count, m)) + common * rng.normal(size=m) / np.sqrt(m)
        w /= np.linalg.norm(w, axis=1, keepdims=True)
        each = find_rank_ones(span_squares(w, 1e-8, rng), m, count, rng=rng)
        found += each is not None and np.abs(w @ each.T).max(axis=1).min() > 1 - 1e-6
    assert found >= 2


def test_a_space_without_squares_has_none(rng):
    space = np.linalg.qr(rng.normal(size=(55, 6)))[0].T
    assert find_rank_ones(space, 10, 5, rng=rng) is None
