r"""Queries that single out a set of keys: their scores are equal on it, and less off it.

Where such a w exists the set is exactly the keys of a face of their convex hull. Its margin is the
least score on the set minus the largest off it; softmax attention at sharpness alpha then puts all
but a share of about $\frac{N-q}{q} e^{-\alpha\,\mathrm{margin}}$ of its weight on the set, evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keyhole._arrays import Array, Mask, Matrix, Vector

# Rounds of the repair by Candes and Tao.
REPAIRS = 50
# Terms of the series of a Gram matrix.
TERMS = 64
# A margin relative to the scores below this is rounding.
LEAST = 1e-9


class Direction(NamedTuple):
    """A query before it is scaled.

    Args:
        w: the vector.
        margin: least score on the set minus the largest off it; not positive where the set is not
            singled out.
    """

    w: Vector
    margin: float


Solver = Callable[[Matrix, Mask], Direction]


def _measure_margin(keys: Matrix, on: Mask, w: Vector) -> Direction:
    """The margin as the scores have it, none where it drowns in their rounding."""
    scores = keys @ w
    gap = float(scores[on].min() - scores[~on].max())
    return Direction(w, gap if gap > LEAST * float(np.abs(scores).max()) else 0.0)


def _solve_shortest(A: Matrix, b: Vector) -> Vector:
    """The shortest solution of A w = b, or the nearest to one."""
    return np.asarray(np.linalg.lstsq(A, b, rcond=None)[0], dtype=np.float64)


def _level_scores(keys: Matrix, on: Mask, w: Vector) -> Vector:
    """The nearest vector with equal scores on the set; a linear program leaves 1e-7 or so."""
    for _ in range(2):
        scores = keys[on] @ w
        w = w - _solve_shortest(keys[on], scores - scores.mean())
    return w


def expose_by_least_squares(keys: Matrix, on: Mask) -> Direction:
    r"""The shortest w with scores 1 on the set (Theorem 2 of [SHT23]).

    $$w = U_y^\top (U_y U_y^\top)^{-1} 1$$
    """
    w = _solve_shortest(keys[on], np.ones(int(on.sum())))
    return _measure_margin(keys, on, _level_scores(keys, on, w))


# The Gram matrix of keys of m signs is m (I - E), its entries whole numbers that float64 holds.
# Where the rows of |E| add up to at most 1/2, each step halves what is left, and 64 of them leave
# less than rounding does.
def expose_by_series(keys: Matrix, on: Mask) -> Direction:
    """The same for keys that are little alike, by the Neumann series of their Gram matrix."""
    inside = keys[on]
    gram = inside @ inside.T
    size = float(np.diagonal(gram).max()) or 1.0
    coefficients = np.full(len(inside), 1.0 / size)
    for _ in range(TERMS):
        # Keys that are alike have no such series: it grows, and is none.
        with np.errstate(over="ignore", invalid="ignore"):
            coefficients = coefficients + (1.0 - gram @ coefficients) / size
    w = coefficients @ inside
    return _measure_margin(keys, on, w) if np.isfinite(w).all() else Direction(0.0 * keys[0], 0.0)


# Candes and Tao (2005): scores that are too large off the set are brought to 0 by the shortest
# correction that keeps those on the set. The correction disturbs others, by less each time while
# keys are nearly orthogonal.
def expose_by_iteration(keys: Matrix, on: Mask) -> Direction:
    """Least squares, repaired until scores off the set are at most 1/2, or as often as allowed."""
    w = _solve_shortest(keys[on], np.ones(int(on.sum())))
    held = on.copy()
    for _ in range(REPAIRS):
        scores = keys @ w
        large = ~on & (np.abs(scores) > 0.5)
        held |= large
        if not large.any() or held.sum() > keys.shape[1]:
            break
        w = w + _solve_shortest(keys[held], np.where(on, 1.0, 0.0)[held] - scores[held])
    return _measure_margin(keys, on, _level_scores(keys, on, w))


def expose_by_max_margin(keys: Matrix, on: Mask) -> Direction:
    r"""The w of entries at most 1 with the largest margin, by a linear program.

    $$\max g \quad \text{s.t.} \quad U_y w = b 1, \quad U_{\bar y} w \le (b - g) 1,
    \quad |w|_\infty \le 1$$

    with b free, since a common offset of scores does not change attention: g > 0 if and only if
    some w singles out the set.
    """
    from scipy.optimize import linprog

    width = keys.shape[1]
    inside = int(on.sum())
    outside = int((~on).sum())
    cost = np.concatenate([np.zeros(width + 1), [-1.0]])
    equal = np.column_stack([keys[on], -np.ones(inside), np.zeros(inside)])
    below = np.column_stack([keys[~on], -np.ones(outside), np.ones(outside)])
    bounds = [(-1.0, 1.0)] * width + [(None, None)] * 2
    found: Any = linprog(
        cost, below, np.zeros(outside), equal, np.zeros(inside), bounds, method="highs"
    )
    if found.x is None or not np.isfinite(found.x).all():
        return Direction(np.zeros(width), 0.0)
    w = np.asarray(found.x[:width], dtype=np.float64)
    return _measure_margin(keys, on, _level_scores(keys, on, w))


# P(t) = prod (t - t_i)^2 over the set is 0 on it and positive off it, and a linear function of (t,
# .., t^2q) up to its constant: minus its other coefficients is a query whose score falls short of
# the common one by P(t_j).
def expose_by_monomials(keys: Matrix, on: Mask) -> Direction:
    """The query of the polynomial with double zeros at the set; keys are powers of t."""
    t = keys[:, 0]
    rising = np.polynomial.polynomial.polyfromroots(np.repeat(t[on], 2))[1:]
    w = np.zeros(keys.shape[1])
    w[: len(rising)] = -rising
    return _scale_query(w, np.prod((t[:, None] - t[on]) ** 2, axis=1)[~on])


# prod (1 - cos(theta - theta_i)) over the set likewise, a trigonometric polynomial of degree q:
# each factor is [-e^{i theta_i}/2, 1, -e^{-i theta_i}/2] in powers of e^{i theta}, and products are
# convolutions.
def expose_by_trigonometry(keys: Matrix, on: Mask) -> Direction:
    """The query of the product of 1 - cos over the set; keys are cosines and sines."""
    degree = keys.shape[1] // 2
    points = keys[:, 0] + 1j * keys[:, degree]
    inside = int(on.sum())
    series = np.ones(1, dtype=np.complex128)
    for point in points[on]:
        series = np.convolve(series, [-point / 2, 1.0, -np.conj(point) / 2])
    rising = series[inside + 1 :]
    w = np.zeros(keys.shape[1])
    w[:inside] = -2.0 * rising.real
    w[degree : degree + inside] = 2.0 * rising.imag
    # 1 - cos without cancellation.
    gaps = 0.5 * np.abs(points[:, None] - points[on]) ** 2
    return _scale_query(w, np.prod(gaps, axis=1)[~on])


def _scale_query(w: Vector, gaps: Array) -> Direction:
    """A query with largest entry 1 whose margin is known without cancellation."""
    size = float(np.abs(w).max()) or 1.0
    return Direction(w / size, float(gaps.min()) / size)


def expose_by_indicator(keys: Matrix, on: Mask) -> Direction:
    """The query that is 1 on the set, for keys that are one-hot."""
    return _measure_margin(keys, on, on.astype(np.float64))


SOLVERS: dict[str, Solver] = {
    "least-squares": expose_by_least_squares,
    "series": expose_by_series,
    "iterated": expose_by_iteration,
    "max-margin": expose_by_max_margin,
    "monomial": expose_by_monomials,
    "trigonometric": expose_by_trigonometry,
    "indicator": expose_by_indicator,
}
