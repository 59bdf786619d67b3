r"""Telling heads apart whose scores are no products: what slopes at one point show alone.

Equal tokens have weights that sum to 1 whatever scores are made of, so that moving one of them
changes the answer by $J\delta$ with $J = \sum_h \alpha_h A_h$ to first order. Of a pair (x, y)
without positions the slope at x is $\sum_h \sigma_h A_h$ but for one direction of each head: two
such pairs show all rows.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.learners.positions.head_pencil import find_clusters, find_left_null_space
from keyhole.learners.positions.head_split import Unsplit
from keyhole.learners.positions.placed import Asking, LinearPart, solve_rows

TRIES = 5
_LENGTH = 8
_EQUAL = 0.95  # of the radius: large scores part the weights of heads
_PAIR = 0.8
_STEP = 1e-4  # of the radius, both ways
_APART = 1e-4  # least singular value of all rows together
_ALIKE = 0.9  # overlap of the rows of one head in two pairs, which share all but two


def split_normed_heads(
    asking: Asking,
    linear: LinearPart,
    positions: str | None,
    *,
    longest: int | None,
    rng: np.random.Generator,
) -> Stack:
    """Rows of every head (heads x rank x outputs).

    Raises:
        Unsplit: heads could not be told apart, or lone tokens have a constant answer: keys of zero
            tokens may be biases then.
    """
    if linear.biased:
        raise Unsplit
    if positions == "none":
        return _split_by_two_pairs(asking, linear, rng)
    length = _LENGTH if longest is None else max(2, min(_LENGTH, longest))
    return _split_by_slopes(asking, linear, length, rng)


def _split_by_slopes(
    asking: Asking, linear: LinearPart, length: int, rng: np.random.Generator
) -> Stack:
    """Moves of one of several equal tokens at different places."""
    for _ in range(TRIES):
        y = asking.ball.draw(size=_EQUAL, rng=rng)
        J = _measure_slope(asking, np.tile(y, (length, 1)), rng)
        clusters = find_clusters(J, linear.M, lost=0)
        if clusters is None:
            continue
        V = [find_left_null_space(J - w * linear.M, clusters.rank) for w in clusters.weights]
        if _are_apart(np.stack(V)):
            return np.stack(V)
    raise Unsplit


def _split_by_two_pairs(asking: Asking, linear: LinearPart, rng: np.random.Generator) -> Stack:
    """Moves of the earlier token of pairs, of which two show the same heads."""
    known: list[Stack] = []
    for _ in range(TRIES):
        pair = asking.ball.draw(2, size=_PAIR, rng=rng)
        J = _measure_slope(asking, pair, rng)
        clusters = find_clusters(J, linear.M, lost=1)
        # One row of a head is no plane, and two pairs of them would not match.
        if clusters is None or clusters.rank < 3:
            continue
        rows = [find_left_null_space(J - w * linear.M, clusters.rank - 1) for w in clusters.weights]
        V = np.stack(rows)
        for other in known:
            joined = _join_rows(other, V) if other.shape == V.shape else None
            if joined is not None and _are_apart(joined):
                return joined
        known.append(V)
    raise Unsplit


def _measure_slope(asking: Asking, n: Matrix, rng: np.random.Generator) -> Matrix:
    """Derivative of the answer by the first token, from differences both ways."""
    D = n.shape[1]
    frame = np.linalg.qr(rng.normal(size=(D, D)))[0]
    step = _STEP * np.sqrt(D)
    moved = np.tile(n, (2 * D, 1, 1))
    moved[:, 0] += step * np.concatenate([frame, -frame])
    answers = asking.ask(moved)
    return solve_rows(frame, (answers[:D] - answers[D:]) / (2.0 * step)).T


def _join_rows(first: Stack, second: Stack) -> Stack | None:
    """All rows of every head from two sets that lack one each, heads matched by their overlap."""
    from scipy.optimize import linear_sum_assignment

    overlap = np.linalg.norm(np.einsum("hro,kso->hkrs", first, second), axis=(2, 3)) ** 2
    rank = first.shape[1] + 1
    chosen = linear_sum_assignment(-overlap)
    if overlap[chosen].min() < _ALIKE * (rank - 2):
        return None
    joined = [np.concatenate([first[h], second[k]]) for h, k in zip(*chosen, strict=True)]
    return np.stack([np.linalg.svd(rows)[2][:rank] for rows in joined])


def _are_apart(V: Stack) -> bool:
    rows = V.reshape(-1, V.shape[2])
    return float(np.linalg.svd(rows, compute_uv=False)[-1]) > _APART
