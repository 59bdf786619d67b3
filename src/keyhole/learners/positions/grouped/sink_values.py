r"""The sum of all value maps, and the heads, where every head has a sink.

A sink $S_h = e^{s_h}$ takes weight from all tokens, so that lone tokens are not answered by M. But
tokens that are read as nearly zero score 0: N equal ones are answered

$$J_N n = \sum_h \frac{A_h n}{1 + S_h/N},$$

a smooth function of 1/N, whose value at 0 is M. The pencil $(J_1, M)$ then has the eigenvalues
$1/(1 + S_h)$, each as often as its head is large.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector
from keyhole.learners.positions.head_pencil import find_clusters, find_left_null_space
from keyhole.learners.positions.head_split import Unsplit
from keyhole.learners.positions.placed import Asking, LinearPart, solve_rows

# Scores of such tokens, their size squared, are rounding.
_TINY = 1e-8
_LONGEST = 8192
_SHORTEST = 256  # of the longest: shorter ones leave too much to extrapolate
NODES = 5


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


def split_by_sinks(asking: Asking, linear: LinearPart, *, rng: np.random.Generator) -> Stack:
    """Rows of every head with values of its own, from lone tokens that are nearly zero.

    Raises:
        Unsplit: no clusters of eigenvalues of one size.
    """
    J = _measure_mixture(asking, _draw_tiny_frame(asking, rng), 1)
    clusters = find_clusters(J, linear.M, lost=0)
    if clusters is None:
        raise Unsplit
    return np.stack(
        [find_left_null_space(J - w * linear.M, clusters.rank) for w in clusters.weights]
    )


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
