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
_MOVED = 1e-4  # of the distance of two kinks: a step from which on equations are new
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
    """The broken line with given kinks that is nearest to all samples.

    Args:
        region: how many kinks lie before each sample.
        A: answers of V, one row per sample.
        E: what moving each kink does to answers, for jumps of 1; the first and last are no kinks.
        V: first slope, values at the kinks, last slope.
        H: the factors L D L^T of A^T A: the diagonal D, and what is below that of L.
        left: what samples have beside it.
        read: what makes slopes of V, one row per region.
        slopes: of every region.
    """

    region: Indices
    A: Any
    E: Any
    V: Matrix
    H: tuple[Vector, Vector]
    left: Matrix
    read: Any
    slopes: Matrix


@dataclass(frozen=True, eq=False, slots=True)
class _KinkEquations:
    """The equations of a first-order shift of the kinks of a broken line, V made up for.

    Args:
        followed: how V changes where a kink is moved.
        beside: what V cannot make up for of moving each kink, for jumps of 1.
        factor: Cholesky factor of their normal matrix with a diagonal of ones.
        scale: what makes its diagonal one.
    """

    followed: Matrix
    beside: Matrix
    factor: Matrix
    scale: Vector

    def pull(self, fit: _BrokenLine) -> Vector:
        """What samples gain, to first order, by moving each kink."""
        jumps = np.diff(fit.slopes, axis=0)
        return np.einsum("km,km->k", self.beside.T @ fit.left, jumps)

    def solve(self, right: Vector) -> Vector:
        """The inverse of the normal matrix times a vector."""
        from scipy.linalg.lapack import dpotrs

        solved = dpotrs(self.factor, right * self.scale, lower=1)[0]
        return np.asarray(solved, dtype=np.float64) * self.scale

    def measure_spread(self, rows: Matrix) -> Vector:
        """Variance of rows times the shift of the kinks."""
        from scipy.linalg.lapack import dtrtrs

        half = dtrtrs(self.factor, (rows * self.scale).T, lower=1)[0]
        return np.square(half).sum(axis=0)


def _set_kink_equations(fit: _BrokenLine) -> _KinkEquations:
    from scipy.linalg.lapack import dpotrf

    D = np.diff(fit.slopes, axis=0)
    A, beside = fit.A, fit.E.toarray()
    followed = np.zeros((A.shape[1], beside.shape[1]))
    # In place, for large arrays cost more to find room for than to fill.
    for _ in range(2):
        more = _solve_tridiagonal(fit.H, A.T @ beside)
        followed += more
        beside -= A @ more
    followed, beside = followed[:, 1:-1], beside[:, 1:-1]
    normal = beside.T @ beside
    normal *= D @ D.T
    scale = 1.0 / np.sqrt(np.maximum(np.diag(normal), 1e-300))
    normal *= scale
    normal *= scale[:, None]
    normal[np.diag_indices(len(normal))] += _RIDGE
    factor, info = dpotrf(normal, lower=1)
    if info:
        raise np.linalg.LinAlgError("kinks that samples do not tell apart.")
    return _KinkEquations(followed, beside, factor, scale)


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
    """Slopes and values at given kinks."""
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
    E = _spread_rows(region, near * weight, far * weight, k + 2)
    left = F = values * weight[:, None]
    square = A.T @ A
    H = _factor_tridiagonal(square.diagonal(), square.diagonal(1))
    V = np.zeros((k + 2, values.shape[1]))
    for _ in range(2):
        V = V + _solve_tridiagonal(H, A.T @ left)
        left = F - A @ V
    read = _read_slopes(t)
    return _BrokenLine(region, A, E, V, H, left, read, read @ V)


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
    equations = _set_kink_equations(fit)
    for _ in range(_STEPS):
        check_own_time()
        pull = equations.pull(fit)
        step = equations.solve(pull)
        moved = _has_moved(t, step)
        t = np.sort(t + step)
        region = fit.region
        fit = _fit_values(t, places, values, weight)
        # The equations are new where kinks moved beside each other, or past a sample.
        if moved or (fit.region != region).any():
            equations = _set_kink_equations(fit)
        if float(pull @ step) <= _SETTLED * len(t) * noise.near(0.0) ** 2:
            break
    bars = noise.near(0.0) * _measure_slope_bars(fit, equations, t)
    return Bends(line, noise, t, fit.slopes, places, values, bars)


def _has_moved(t: Vector, step: Vector) -> bool:
    """Whether a kink moved by more than a small share of its distance from the next."""
    apart = np.diff(t)
    steps = np.maximum(np.abs(step[1:]), np.abs(step[:-1]))
    return bool((steps > _MOVED * apart).any())


def _fit_straight(line: Line, noise: Noise, places: Vector, values: Matrix) -> Bends:
    """No kink: the slope between the outermost samples."""
    width = places[-1] - places[0]
    bars = (noise.at(places[-1:]) + noise.at(places[:1])) / width
    slopes = (values[-1:] - values[:1]) / width
    return Bends(line, noise, np.zeros(0), slopes, places, values, bars)


def _measure_slope_bars(fit: _BrokenLine, equations: _KinkEquations, t: Vector) -> Vector:
    """Standard error of every slope where samples of weight 1 have one of 1."""
    read = fit.read
    inverse = read @ _solve_tridiagonal(fit.H, np.eye(len(t) + 2))
    own = (read @ inverse.T).diagonal()
    # Slopes follow the kinks: those between two by half a jump over their width, and by V.
    carried = -(read @ equations.followed)
    inner, half = np.arange(len(t) - 1), 0.5 / np.diff(t)
    carried[inner + 1, inner] += half
    carried[inner + 1, inner + 1] += half
    carried *= np.linalg.norm(np.diff(fit.slopes, axis=0), axis=1) / fit.V.shape[1] ** 0.5
    return np.sqrt(np.maximum(own + equations.measure_spread(carried), 0.0))
