r"""The sum of all value maps, and the heads, where every head has a sink.

A sink $S_h = e^{s_h}$ takes weight from all tokens, so that lone tokens are not answered by M. But
tokens that are read as nearly zero score 0: N equal ones are answered

$$J_N n = \sum_h \frac{A_h n}{1 + S_h/N},$$

a smooth function of 1/N, whose value at 0 is M. The pencil $(J_1, M)$ then has the eigenvalues
$1/(1 + S_h)$, each as often as its head is large.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from keyhole._arrays import Indices, Matrix, Stack, Vector
from keyhole.learners.positions.head_pencil import (
    Clusters,
    find_clusters,
    find_left_null_space,
)
from keyhole.learners.positions.head_split import Unsplit
from keyhole.learners.positions.placed import Asking, LinearPart, solve_rows

# Scores of such tokens, their size squared, are rounding.
_TINY = 1e-8
_LONGEST = 8192
_SHORTEST = 256  # of the longest: shorter ones leave too much to extrapolate
NODES = 5
# Equal tokens beside which equal sinks take a share that clusters of eigenvalues bear.
_MANY = 8192
_WIDE = 0.9  # of the radius: large scores part the weights of heads
_MOVE = 1e-3
_TRIES = 6
_CLEAR = 300.0  # gaps between clusters, over their width, with which a fit is sure to begin well


class TooShort(Exception):
    """Sequences as long as sinks take may not be asked."""


def measure_sink_part(
    asking: Asking, *, longest: int | None, rng: np.random.Generator
) -> LinearPart:
    """M from long sequences of equal tokens, extrapolated.

    Raises:
        TooShort: sequences of 256 tokens may not be asked.
    """
    most = _LONGEST if longest is None else min(longest, _LONGEST)
    if most < _SHORTEST:
        raise TooShort
    lengths = [most >> k for k in range(NODES)]
    zero = asking.ask(np.zeros((1, 1, asking.ball.dimension)))[0]
    frame = _draw_tiny_frame(asking, rng)
    measured = [_measure_mixture(asking, frame, length) for length in lengths]
    weights = list_extrapolation_weights(1.0 / np.array(lengths))
    M = sum((w * J for w, J in zip(weights, measured, strict=True)), np.zeros_like(measured[0]))
    return LinearPart(zero, M)


def limit_sink_questions(width: int) -> int:
    """The most that heads are told apart with."""
    return (1 + 2 * _TRIES) * width


def split_by_sinks(
    asking: Asking, linear: LinearPart, *, longest: int | None, rng: np.random.Generator
) -> Stack:
    """Rows of every head with values of its own, from lone tokens that are nearly zero.

    Raises:
        Unsplit: no clusters of eigenvalues of one size.
    """
    J = _measure_mixture(asking, _draw_tiny_frame(asking, rng), 1)
    clusters = find_clusters(J, linear.M, lost=0)
    # All heads answer these alike where their sinks are equal.
    if clusters is None:
        return _split_by_displacement(asking, linear.M, min(_MANY, longest or _MANY), rng)
    return _find_rows(J, linear.M, clusters, lost=0)


def _find_rows(J: Matrix, M: Matrix, clusters: Clusters, *, lost: int) -> Stack:
    rank = clusters.rank - lost
    return np.stack([find_left_null_space(J - w * M, rank) for w in clusters.weights])


# One of N equal tokens y is moved by delta. With w the share of the sink, about S/N, head h answers
# alpha A_h (delta + y w a.delta) to first order: the pencil is off by w, but for the rows that do
# not see A_h y. Those of two y are all rows of the head.
def _split_by_displacement(
    asking: Asking, M: Matrix, length: int, rng: np.random.Generator
) -> Stack:
    seen: list[tuple[Matrix, Clusters]] = []
    for _ in range(_TRIES):
        J = _measure_moved_token(asking, length, rng)
        if (clusters := find_clusters(J, M, lost=0)) is not None:
            seen.append((J, clusters))
        if sum(clusters.ratio >= _CLEAR for _, clusters in seen) == 2:
            break
    seen = sorted(seen, key=lambda one: -one[1].ratio)[:2]
    if len({clusters.rank for _, clusters in seen}) != 1 or len(seen) < 2:
        raise Unsplit
    order = _match_rows(*(_find_rows(J, M, clusters, lost=0) for J, clusters in seen))
    one, two = (_find_rows(J, M, clusters, lost=1) for J, clusters in seen)
    rank = seen[0][1].rank
    both = np.concatenate([one, two[order]], axis=1)
    return np.stack([np.linalg.svd(rows, full_matrices=False)[2][:rank] for rows in both])


def _match_rows(one: Stack, two: Stack) -> Indices:
    """For every head of the first the head of the second whose rows span the same."""
    shared = np.linalg.norm(np.einsum("hro,gso->hgrs", one, two), axis=(2, 3))
    return linear_sum_assignment(-shared)[1]


def _measure_moved_token(asking: Asking, length: int, rng: np.random.Generator) -> Matrix:
    """How answers to many equal tokens move with the first of them, to first order."""
    D = asking.ball.dimension
    y = asking.ball.draw(size=_WIDE, rng=rng)
    frame = np.linalg.qr(rng.normal(size=(D, D)))[0]
    n = np.tile(y, (2 * D, length, 1))
    n[:, 0] += _MOVE * np.concatenate([frame, -frame])
    answers = asking.ask(n)
    return solve_rows(frame, (answers[:D] - answers[D:]) / (2.0 * _MOVE)).T


def list_extrapolation_weights(nodes: Vector) -> Vector:
    """Weights of values at some nodes that give the value at 0 of their polynomial."""
    apart = nodes[:, None] - nodes
    np.fill_diagonal(apart, 1.0)
    others = np.where(np.eye(len(nodes), dtype=bool), 1.0, -nodes)
    return (others / apart).prod(axis=1)


def _draw_tiny_frame(asking: Asking, rng: np.random.Generator) -> Matrix:
    D = asking.ball.dimension
    return _TINY * np.linalg.qr(rng.normal(size=(D, D)))[0]


def _measure_mixture(asking: Asking, frame: Matrix, length: int) -> Matrix:
    answers = asking.ask(np.repeat(frame[:, None], length, axis=1))
    return solve_rows(frame, answers).T
