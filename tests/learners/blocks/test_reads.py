"""What is read of units and of scores, beside the same by other means."""

import numpy as np

from keyhole.learners.blocks.head_scores import Weighed, solve_score_maps
from keyhole.learners.blocks.post_norm.direction_reads import begin_anew
from keyhole.models.last_token.even_parts import EVEN_PARTS


def test_a_unit_that_ended_in_a_wrong_place_begins_anew(rng):
    even = EVEN_PARTS["gelu"]
    truth = np.column_stack([rng.uniform(0.3, 1.0, 12), rng.uniform(-1, 1, 12), np.ones(12)])
    t, logs = rng.uniform(-2, 2, size=(12, 20)), rng.normal(size=20)
    a = truth[:, 2:] * even.curve(truth[:, :1] * t + truth[:, 1:2])[0] * np.exp(logs)
    held = truth * (1 + 1e-7)
    held[5] = 0.2, -2.0, 3.0
    found = begin_anew(t, a, held, logs, even)
    # Which side of a unit is its own does not show: its curve is even.
    np.testing.assert_allclose(np.abs(found), np.abs(truth), rtol=1e-5)
    np.testing.assert_array_equal(np.delete(found, 5, 0), np.delete(held, 5, 0))


def draw_weighed(rng, Wq, bq, Wk, places, count):
    """Scores of one head at random tokens."""
    y, apart = rng.normal(size=(places, Wk.shape[1])), rng.normal(size=(places, count, Wk.shape[1]))
    scores = np.einsum("pk,kd,ped->pe", y @ Wq.T + bq, Wk, apart)
    trust = rng.uniform(0.2, 1.0, size=scores.shape)
    return Weighed(y, apart, scores[:, None], trust[:, None])


def test_scores_show_queries_and_keys(rng):
    """Their product, which no basis of keys changes."""
    Wq, Wk, bq = rng.normal(size=(3, 10)), rng.normal(size=(3, 10)), rng.normal(size=3)
    keys, queries = draw_weighed(rng, Wq, bq, Wk, 5, 14), draw_weighed(rng, Wq, bq, Wk, 20, 4)
    found = solve_score_maps(keys, queries, 3)
    np.testing.assert_allclose(found.Wq[0].T @ found.Wk[0], Wq.T @ Wk, atol=1e-6)
    np.testing.assert_allclose(found.bq[0] @ found.Wk[0], bq @ Wk, atol=1e-6)
