r"""Slopes and places of the kinks of a line that fit all its samples.

With V the first slope, the values at the kinks and the last slope, answers are $F = A V$ with two
numbers in each row of A (between two kinks values are interpolated), so that $A^\top A$ has three
diagonals. Moving kink j along the mean of its slopes adds $e_j D_j$, with e_j half its share in an
answer before it and minus half of it behind. What V cannot make up for of that is

$$(E^\top E - G^\top (A^\top A)^{-1} G) \circ D D^\top, \qquad G = A^\top E.$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Indices, Matrix, Vector, rms
from keyhole.learners.networks.kinks import Bends, Line, Noise
from keyhole.oracles.own_time import check_own_time

_CLOSER = 3  # rounds of samples in regions whose slope is poorly known
DOUBT = 5e4  # how poorly: error beside the typical jump, in units of the rounding
_SURER = 3e3  # the same with two outputs, whose jumps are not measured again
_PARALLEL = 1e-3  # distance of unit jumps, up to a sign, that are parallel
_STEPS = 6  # of moving the kinks
_SETTLED = 1e-2  # of the roundings that a step could explain, when it is the last
_RIDGE = 1e-14  # keeps the equations of kinks definite


def ask_closer(bends: Bends, doubt: float) -> Bends:
    """The same bends, from a few more samples where slopes are known less well than `doubt`."""
    for _ in range(_CLOSER):
        more = _find_doubtful_places(bends, doubt)
        if not len(more):
            break
        places = np.concatenate([bends.places, more])
        order = np.argsort(places)
        values = np.concatenate([bends.values, bends.line(more)])
        bends = refine_bends(bends.line, bends.noise, bends.t, places[order], values[order])
    return bends


def has_parallel_jumps(jumps: Matrix) -> bool:
    """Whether two jumps are parallel, as those of units of one direction often are."""
    unit = jumps / np.linalg.norm(jumps, axis=1, keepdims=True)
    alike = np.abs(np.triu(unit @ unit.T, 1)).max(initial=0.0)
    return bool(alike > 1 - _PARALLEL**2 / 2)


def _find_doubtful_places(bends: Bends, doubt: float) -> Vector:
    """One more place, away from its samples, in each region whose slope is poorly known."""
    t = bends.t
    if len(t) < 2:
        return np.zeros(0)
    a, b = t[:-1], t[1:]
    spread = np.hypot(1.0, (a + b) / 2)
    jumps = np.linalg.norm(bends.jumps, axis=1) * np.hypot(1.0, t)
    error = bends.bars[1:-1] * spread / rms(jumps)
    two = bends.values.shape[1] < 3
    worst = np.argsort(-error)[: max(2, len(t) // (2 if two else 8))]
    allowed = (_SURER if two else doubt) * bends.noise.share
    chosen = np.sort(worst[error[worst] > allowed])
    places = [_find_emptiest_place(bends.places, float(a[i]), float(b[i])) for i in chosen]
    return np.array(places)


def _find_emptiest_place(places: Vector, a: float, b: float) -> float:
    """The place of (a, b), not too near its ends, that is farthest from every sample."""
    ahead = np.linspace(a, b, 42)[2:-2]
    inside = places[(places > a) & (places < b)]
    far = np.abs(ahead[:, None] - inside).min(axis=1, initial=b - a)
    return float(ahead[int(np.argmax(far))])


@dataclass(frozen=True, eq=False, slots=True)
class _BrokenLine:
    """A broken line, and what samples say of a shift of its kinks.

    Args:
        V: first slope, values at the kinks, last slope.
        H: the factors L D L^T of A^T A: the diagonal D, and what is below that of L.
        followed: how V changes where a kink is moved.
        read: what makes slopes of V, one row per region.
        normal: normal matrix of the kinks, with V made up for.
        pull: its right-hand side.
    """

    V: Matrix
    H: tuple[Vector, Vector]
    followed: Matrix
    read: Any
    normal: Matrix
    pull: Vector

    def solve_values(self, right: Matrix) -> Matrix:
        """The inverse of A^T A times a matrix."""
        return _solve_tridiagonal(self.H, right)

    def solve_kinks(self, right: Matrix) -> Matrix:
        """The inverse of the normal matrix of the kinks times a matrix."""
        from scipy.linalg import cho_factor, cho_solve

        scale = 1.0 / np.sqrt(np.maximum(np.diag(self.normal), 1e-300))
        scaled = self.normal * scale * scale[:, None]
        factor = cho_factor(scaled + _RIDGE * np.eye(len(scale)), check_finite=False)
        solved = cho_solve(factor, right * scale[:, None], check_finite=False)
        return np.asarray(solved, dtype=np.float64) * scale[:, None]


def _factor_tridiagonal(diagonal: Vector, beside: Vector) -> tuple[Vector, Vector]:
    from scipy.linalg.lapack import dpttrf

    D, L, info = dpttrf(diagonal, beside)
    if info:
        raise np.linalg.LinAlgError("samples that say nothing of a slope or a value.")
    return D, L


def _solve_tridiagonal(H: tuple[Vector, Vector], right: Matrix) -> Matrix:
    from scipy.linalg.lapack import dpttrs

    return np.asarray(dpttrs(*H, right)[0], dtype=np.float64)


def _fit_values(t: Vector, places: Vector, values: Matrix, weight: Vector) -> _BrokenLine:
    """Slopes and values at given kinks, and the equations of a first-order shift of these."""
    k = len(t)
    region = np.searchsorted(t, places)
    before, behind = t[np.maximum(region - 1, 0)], t[np.minimum(region, k - 1)]
    first, last = region == 0, region == k
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (places - before) / (behind - before)
    near = np.where(first, places - behind, np.where(last, 1.0, 1.0 - share))
    far = np.where(first, 1.0, np.where(last, places - before, share))
    A = _spread_rows(region, near * weight, far * weight, k + 2)
    near, far = np.where(first, 0.0, -near / 2), np.where(last, 0.0, far / 2)
    E = _spread_rows(region, near * weight, far * weight, k + 2)[:, 1:-1]
    F = values * weight[:, None]
    square = A.T @ A
    H = _factor_tridiagonal(square.diagonal(), square.diagonal(1))
    V = np.zeros((k + 2, values.shape[1]))
    for _ in range(2):
        V = V + _solve_tridiagonal(H, A.T @ (F - A @ V))
    E = E.toarray()
    followed = _solve_tridiagonal(H, A.T @ E)
    followed = followed + _solve_tridiagonal(H, A.T @ (E - A @ followed))
    beside = E - A @ followed
    read = _read_slopes(t)
    D = np.diff(read @ V, axis=0)
    pull = np.einsum("nk,nm,km->k", beside, F - A @ V, D, optimize=True)
    return _BrokenLine(V, H, followed, read, (beside.T @ beside) * (D @ D.T), pull)


def _read_slopes(t: Vector) -> Any:
    """What makes slopes of the first slope, the values at kinks and the last slope."""
    over = np.concatenate([[0.0], 1.0 / np.diff(t), [1.0]])
    under = np.concatenate([[1.0], -1.0 / np.diff(t), [0.0]])
    return _spread_rows(np.arange(len(t) + 1), under, over, len(t) + 2)


def _spread_rows(region: Indices, before: Vector, behind: Vector, count: int) -> Any:
    """Rows with one number for the knot before a sample and one for that behind it."""
    from scipy.sparse import csr_array

    columns = np.column_stack([region, region + 1]).ravel()
    numbers = np.column_stack([before, behind]).ravel()
    rows = np.arange(0, len(numbers) + 1, 2)
    return csr_array((numbers, columns, rows), shape=(len(region), count))


def refine_bends(line: Line, noise: Noise, t: Vector, places: Vector, values: Matrix) -> Bends:
    """Kinks and slopes that fit every sample best, by Gauss-Newton steps.

    Rows are weighted by the rounding of their answers.

    Args:
        line: the line.
        noise: rounding of answers along it.
        t: kinks, roughly.
        places: samples, ascending.
        values: answers there.
    """
    weight = noise.near(0.0) / noise.at(places)
    if not len(t):
        return _fit_straight(line, noise, places, values)
    fit = _fit_values(t, places, values, weight)
    for _ in range(_STEPS):
        check_own_time()
        step = fit.solve_kinks(fit.pull[:, None])[:, 0]
        gain = float(fit.pull @ step)
        t = np.sort(t + step)
        fit = _fit_values(t, places, values, weight)
        if gain <= _SETTLED * len(t) * noise.near(0.0) ** 2:
            break
    bars = noise.near(0.0) * _measure_slope_bars(fit, t)
    return Bends(line, noise, t, fit.read @ fit.V, places, values, bars)


def _fit_straight(line: Line, noise: Noise, places: Vector, values: Matrix) -> Bends:
    """No kink: the slope between the outermost samples."""
    width = places[-1] - places[0]
    bars = (noise.at(places[-1:]) + noise.at(places[:1])) / width
    slopes = (values[-1:] - values[:1]) / width
    return Bends(line, noise, np.zeros(0), slopes, places, values, bars)


def _measure_slope_bars(fit: _BrokenLine, t: Vector) -> Vector:
    """Standard error of every slope where samples of weight 1 have one of 1."""
    inverse = fit.read @ fit.solve_values(np.eye(len(t) + 2))
    own = (fit.read @ inverse.T).diagonal()
    # Slopes follow the kinks: those between two by half a jump over their width, and by V.
    carried = -(fit.read @ fit.followed)
    inner, half = np.arange(len(t) - 1), 0.5 / np.diff(t)
    carried[inner + 1, inner] += half
    carried[inner + 1, inner + 1] += half
    carried *= np.linalg.norm(np.diff(fit.read @ fit.V, axis=0), axis=1) / fit.V.shape[1] ** 0.5
    spread = np.einsum("rk,kr->r", carried, fit.solve_kinks(carried.T))
    return np.sqrt(np.maximum(own + spread, 0.0))
