"""Weights of heads as multiple eigenvalues of a pencil, with eigenvalues of no head among them."""

import numpy as np

from keyhole.learners.positions.head_pencil import find_clusters


def test_pairs_of_clusters_are_not_taken_for_heads_of_twice_the_size():
    """Behind a LayerNorm there is an eigenvalue of no head between any two weights."""
    weights = np.array([0.0098, 0.0186, 0.088, 0.1535])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        parts = rng.normal(size=(4, 32, 8)) @ rng.normal(size=(4, 8, 31))
        noise = 1e-8 * rng.normal(size=(32, 31))
        found = find_clusters(np.einsum("h,hod->od", weights, parts) + noise, parts.sum(0), lost=0)
        assert found.rank == 8
        np.testing.assert_allclose(found.weights, weights, rtol=1e-4)


def test_inputs_that_are_hardly_read_hide_no_weights():
    """Gains near zero, as trained norms have them, leave M nearly singular."""
    weights = np.array([0.05, 0.09, 0.2, 0.4])
    gains = np.concatenate([np.ones(28), 1e-8 * np.ones(3)])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        parts = rng.normal(size=(4, 32, 8)) @ rng.normal(size=(4, 8, 31)) * gains
        noise = 1e-7 * rng.normal(size=(32, 31))
        found = find_clusters(np.einsum("h,hod->od", weights, parts) + noise, parts.sum(0), lost=0)
        assert found.rank == 8
        np.testing.assert_allclose(found.weights, weights, rtol=1e-3)
