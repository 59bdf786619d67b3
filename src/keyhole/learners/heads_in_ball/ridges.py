r"""Sums of ridge functions $T(y) = \sum_h b_h \tanh(u_h \cdot y / 2)$, from Hessians and a fit.

Gradients of T span the $u_h$, so that their rank is the number H of ridges, where they are
independent. Inside that span every Hessian is $M(y) = U\,\mathrm{diag}(g_h(y))\,U^\top$: two
combinations of Hessians make a pencil, and $M_1 M_2^{-1} = U\,\mathrm{diag}(\cdot)\,U^{-1}$ has the
directions $\hat u_h$ as its eigenvectors. Along the dual vector $p_h$, $p_h \cdot \hat u_k = [h =
k]$, only ridge h moves: with $K(\tau) = T(\tau p_h) = b \tanh(\tau s / 2)$, $\tanh^2(\tau s / 2) =
2 K(\tau) / K(2\tau) - 1$ gives $|s|$ and b. The sign of $(b_h, u_h)$ is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector
from keyhole.learners.fitting import Damping, run_damped_steps
from keyhole.learners.several_heads.pairs import Unresolved

_SLOPE_STEP = 2.0**-16  # over the radius, for central differences of first
_CURVE_STEP = 2.0**-10  # and of second order
_RANK = 1e-6  # of the largest singular value of all gradients
_UNSEEN = 30.0  # times the noise of a gradient, within which it adds nothing
_SPARE = 2  # gradients more than their rank
_COMBINED = 4  # Hessians
_COMPLEX = 1e-3  # imaginary parts of eigenvectors that rounding explains
_STEPS = 60
_DAMPING = Damping(1e-3, lambda now: now * 0.1, lambda now: now * 8.0)
_LEAST = 1e-20  # damping, so that no step is singular
_UNDAMPED = 1e-14  # damping below which steps are Gauss-Newton's to rounding
_STIFFEST = 1e8  # damping at which a step is too short to help
_SETTLED = 1e-13  # misfit over answers that is rounding
_CEILING = 0.98  # of tanh^2: beyond it the steepness is a guess

Map = Callable[[Matrix], Matrix]


@dataclass(frozen=True, eq=False, slots=True)
class Ridges:
    """Coefficients b, ridges by outputs, and directions u, ridges by width."""

    b: Matrix
    u: Matrix

    def __call__(self, Y: Matrix) -> Matrix:
        """T at every row of Y."""
        return np.tanh(Y @ self.u.T / 2) @ self.b

    def slopes(self, Y: Matrix) -> Matrix:
        """Derivatives of T by all of b, then by all of u, one row per point and output."""
        t = np.tanh(Y @ self.u.T / 2)
        n = len(Y)
        heads, o = self.b.shape
        by_b = np.einsum("nh,op->nohp", t, np.eye(o)).reshape(n * o, heads * o)
        by_u = np.einsum("nh,ho,nd->nohd", (1 - t * t) / 2, self.b, Y).reshape(n * o, -1)
        return np.concatenate([by_b, by_u], axis=1)

    def move(self, step: Vector) -> Ridges:
        """The same with parameters changed, in the order of `slopes`."""
        return Ridges(
            self.b + step[: self.b.size].reshape(self.b.shape),
            self.u + step[self.b.size :].reshape(self.u.shape),
        )

    def match_order(self, other: Ridges) -> Ridges:
        """The same in the order and with the signs that bring every u nearest to another's."""
        # Slow to import, and needed here alone.
        from scipy.optimize import linear_sum_assignment

        overlap = self.u @ other.u.T
        mine, theirs = linear_sum_assignment(-np.abs(overlap))
        order = mine[np.argsort(theirs)]
        sign = np.sign(overlap[order, np.arange(len(order))])[:, None]
        return Ridges(sign * self.b[order], sign * self.u[order])


@dataclass(frozen=True, eq=False, slots=True)
class _FittedRidges:
    """Ridges, what they leave of T, and its norm."""

    ridges: Ridges
    misfit: Matrix
    size: float

    @classmethod
    def to(cls, ridges: Ridges, Y: Matrix, T: Matrix) -> _FittedRidges:
        """Ridges compared with the values T at the rows of Y."""
        misfit = T - ridges(Y)
        return cls(ridges, misfit, float(np.linalg.norm(misfit)))


def fit_ridges(start: Ridges, Y: Matrix, T: Matrix) -> tuple[Ridges, float]:
    """Levenberg-Marquardt steps; the best ridges, and their misfit over the size of T."""
    size = max(float(np.linalg.norm(T)), 1e-300)

    def linearise(here: _FittedRidges) -> Callable[[float], _FittedRidges]:
        J = here.ridges.slopes(Y)
        misfit = here.misfit.ravel()
        return lambda damping: _FittedRidges.to(
            here.ridges.move(_solve_damped_step(J, misfit, damping)), Y, T
        )

    def is_settled(before: float, after: float, damping: float) -> bool:
        rounding = after < _SETTLED * size or damping < _UNDAMPED
        return damping > _STIFFEST or (after > 0.5 * before and rounding)

    best = run_damped_steps(
        _FittedRidges.to(start, Y, T), linearise, _DAMPING, is_settled=is_settled, steps=_STEPS
    )
    return best.ridges, best.size / size


def _solve_damped_step(J: Matrix, misfit: Vector, damping: float) -> Vector:
    size = np.sqrt((J * J).sum(axis=0))
    size = np.where(size > 0, size, 1.0)
    damped = np.concatenate([J / size, np.sqrt(max(damping, _LEAST)) * np.eye(J.shape[1])])
    Q, R = np.linalg.qr(damped)
    step = np.linalg.solve(R, misfit @ Q[: len(misfit)])
    return np.asarray(step / size, dtype=np.float64)


def find_longest_step(noise: float) -> float:
    """How far from a point differences are taken beside such noise, over the radius."""
    return 0.0 if noise == 0.0 else max(noise ** (1 / 3), noise ** (1 / 4))


def start_ridges(
    ask: Map,
    points: Callable[[int], Matrix],
    radius: float,
    room: float,
    rng: np.random.Generator,
    *,
    noise: float = 0.0,
) -> Ridges:
    """Ridges to a few digits, their number found as the rank of gradients.

    Args:
        ask: T at the rows of a matrix.
        points: that many random points, from each of which a short step may be taken.
        radius: size of the domain, in which steps are measured.
        room: how far from 0 may be asked in any direction.
        rng: weights of outputs and Hessians.
        noise: standard error of T, over its size.

    Raises:
        Unresolved: there is no ridge, or the pencil has no real eigenvectors.
    """
    # Differences of noisy values take steps at which their noise is about what they bend by.
    slope = max(_SLOPE_STEP, noise ** (1 / 3))
    span = _span_gradients(ask, points, radius * slope, max(_RANK, _UNSEEN * noise / slope))
    if not span.shape[1]:
        raise Unresolved
    step = radius * max(_CURVE_STEP, noise ** (1 / 4))
    every = np.stack([_measure_hessian(ask, y, span, step) for y in points(_COMBINED)])
    M = np.asarray(every @ rng.normal(size=every.shape[-1:]), dtype=np.float64)
    sizes = np.abs(M).max(axis=(1, 2))
    if not sizes.all():
        raise Unresolved
    weights = rng.normal(size=(2, _COMBINED)) / sizes
    first, second = np.tensordot(weights, M, axes=1)
    directions = span @ _find_pencil_eigenvectors(first, second)
    duals = np.asarray(np.linalg.pinv(directions), dtype=np.float64)
    return _measure_ridge_steepness(ask, directions.T, duals, room)


def _find_pencil_eigenvectors(first: Matrix, second: Matrix) -> Matrix:
    """Eigenvectors of first second^-1, for symmetric matrices."""
    try:
        _, vectors = np.linalg.eig(np.linalg.solve(second, first).T)
        np.linalg.inv(vectors)
    except np.linalg.LinAlgError as singular:
        raise Unresolved from singular
    if np.abs(np.imag(vectors)).max() > _COMPLEX:
        raise Unresolved
    return np.asarray(np.real(vectors), dtype=np.float64)


def _span_gradients(ask: Map, points: Callable[[int], Matrix], step: float, cut: float) -> Matrix:
    """An orthonormal basis of the space of gradients, one column per direction."""
    d = points(1).shape[1]
    gradients = np.zeros((0, d))
    span = np.zeros((d, 0))
    moves = step * np.eye(d)
    for _ in range(d + _SPARE):
        y = points(1)
        slopes = (ask(y + moves) - ask(y - moves)).T
        gradients = np.concatenate([gradients, slopes / max(float(np.abs(slopes).max()), 1e-300)])
        _, sizes, basis = np.linalg.svd(gradients, full_matrices=False)
        span = np.asarray(basis[sizes > cut * sizes[0]], dtype=np.float64).T
        # Complete once a few gradients have added nothing.
        if span.shape[1] in (0, d) or span.shape[1] + _SPARE * len(slopes) <= len(gradients):
            break
    return span


def _measure_hessian(ask: Map, y: Vector, span: Matrix, step: float) -> Stack:
    """Second derivatives along the columns of span, (rank, rank, outputs), by differences."""
    rank = span.shape[1]
    i, j = np.triu_indices(rank)
    plus = step * (span.T[i] + span.T[j]) / 2
    minus = step * (span.T[i] - span.T[j]) / 2
    mixed = i != j
    there = ask(y + np.concatenate([plus, -plus]))
    # On the diagonal the difference is taken to y itself, which is asked once for all.
    across = np.repeat(2 * ask(y[None]), len(i), axis=0)
    if mixed.any():
        asked = ask(y + np.concatenate([minus[mixed], -minus[mixed]]))
        across[mixed] = np.add(*np.split(asked, 2))
    M = np.zeros((rank, rank, there.shape[1]))
    M[i, j] = M[j, i] = (there[: len(i)] + there[len(i) :] - across) / step**2
    return M


def _measure_ridge_steepness(ask: Map, directions: Matrix, duals: Matrix, room: float) -> Ridges:
    """Steepness and coefficient of each ridge from two points along its dual vector."""
    tau = room / 2 / np.sqrt((duals * duals).sum(axis=1))
    moves = duals * tau[:, None]
    near, far = np.split(ask(np.concatenate([moves, 2 * moves])), 2)
    ratio = (near * far).sum(axis=1) / np.maximum((far * far).sum(axis=1), 1e-300)
    t = np.sqrt(np.clip(2 * ratio - 1, 1e-6, _CEILING))
    s = 2 * np.arctanh(t) / tau
    return Ridges(near / t[:, None], directions * s[:, None])
