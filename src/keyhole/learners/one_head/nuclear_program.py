r"""The matrix of least nuclear norm under rank-one measurements, with a bound on the minimum.

The program is split in two (Douglas and Rachford): shrink singular values by $\tau$, project onto
what was measured. The projection $Z - \mathcal{A}^*(G^{-1}(\mathcal{A}(Z) - t))$ uses one
factorisation of the Gram matrix $G_{kl} = (a_k \cdot a_l)(b_k \cdot b_l)$. Its multiplier w bounds
the minimum from below: where $|\mathcal{A}^* z|_2 \le 1$, $\langle t, z \rangle = \langle
\mathcal{A}^* z, W \rangle \le |W|_*$. So every minimum comes with its gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector, check_finite, check_shape, pin_one_thread
from keyhole.errors import InvalidInput

_STEP = 0.3  # first shrinkage, in units of the norm of the shortest matrix that fits
_RELAX = 1.6  # over-relaxation: the splitting converges for every value below 2
_LOOK = 10  # iterations between two looks at the gap
_SETTLE = 200.0  # iterations after which the step is left alone by and by, as convergence demands
# Relative singular values at which the minimum may turn out to be of low rank.
_CUTS = (1e-2, 1e-4, 1e-6)
_POLISH = 12  # Gauss-Newton steps
_WORTH = 1.5  # unknowns over measurements up to which polishing is worth its time
_ZERO = 1e-10  # relative singular value that counts as zero where W is determined entry by entry
FITS = 1e-11  # relative residual of a polished matrix that is taken
_EQUAL = 1e-6  # how much its nuclear norm may be above the minimum, relatively


@dataclass(frozen=True, eq=False, slots=True)
class Minimum:
    """A matrix of least nuclear norm under measurements.

    Args:
        W: the matrix.
        iterations: of the splitting.
        residual: |A(W) - t| / |t|.
        gap: relative distance of its nuclear norm from a lower bound on the minimum, before
            polishing.
        rank: number of its singular values that are not zero.
    """

    W: Matrix
    iterations: int
    residual: float
    gap: float
    rank: int


@dataclass(frozen=True, eq=False, slots=True)
class _RankOneForms:
    """The measurements a_k . W b_k = t_k, with vectors of unit length."""

    A: Matrix
    B: Matrix
    t: Vector

    @classmethod
    def unit(cls, A: Matrix, B: Matrix, t: Vector) -> _RankOneForms:
        """The same measurements with every vector divided by its length."""
        a, b = (np.linalg.norm(X, axis=1) for X in (A, B))
        if not (a.all() and b.all()):
            raise InvalidInput(
                "a measurement needs vectors a and b that are not zero; drop those that are."
            )
        return cls(A / a[:, None], B / b[:, None], t / a / b)

    @property
    def gram(self) -> Matrix:
        """Inner products of the matrices a_k b_k^T."""
        return (self.A @ self.A.T) * (self.B @ self.B.T)

    def of_matrix(self, W: Matrix) -> Vector:
        """All forms of W."""
        return np.einsum("kj,kj->k", self.A @ W, self.B)

    def adjoint(self, z: Vector) -> Matrix:
        """The sum of z_k a_k b_k^T."""
        return self.A.T @ (z[:, None] * self.B)

    def residual(self, W: Matrix) -> float:
        """|A(W) - t| / |t|."""
        return float(np.linalg.norm(self.of_matrix(W) - self.t) / np.linalg.norm(self.t))


def minimise_nuclear_norm(
    A: Matrix, B: Matrix, t: Vector, *, tolerance: float = 1e-8, iterations: int = 5000
) -> Minimum:
    r"""The matrix of least nuclear norm with the forms that were measured.

    $$\min |W|_* \text{ subject to } a_k^\top W b_k = t_k$$

    Args:
        A: vectors a_k as rows, in general position: up to d^2 of the matrices a_k b_k^T
            independent.
        B: vectors b_k as rows.
        t: measured forms.
        tolerance: relative gap to stop at; polishing then makes a minimum of low rank exact.
        iterations: the most to be made.

    Raises:
        InvalidInput: shapes do not fit, a number is not finite, or measurements are dependent.
    """
    check_shape("A", A, (None, None))
    check_shape("B", B, A.shape)
    check_shape("t", t, (len(A),))
    for name, array in (("A", A), ("B", B), ("t", t)):
        check_finite(name, array)
    d = A.shape[1]
    size = float(np.abs(t).max(initial=0.0))
    if size == 0.0:
        return Minimum(np.zeros((d, d)), 0, 0.0, 0.0, 0)
    with pin_one_thread():
        forms = _RankOneForms.unit(A, B, t / size)
        # From d^2 measurements on only one matrix fits, and nothing is left to minimise.
        if len(A) < d * d:
            found = _minimise_by_splitting(forms, tolerance, iterations)
        else:
            found = _fit_least_squares(forms)
    return replace(found, W=size * found.W)


def _prepare_solver(H: Matrix) -> Callable[[Vector], Vector]:
    """Solves H z = r, H factored once."""
    from scipy.linalg import cho_factor, cho_solve

    try:
        factor = cho_factor(H, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        raise InvalidInput(
            "the measurements depend on one another; draw the vectors a and b at random."
        ) from None
    return lambda r: cho_solve(factor, r, check_finite=False)


def _fit_least_squares(forms: _RankOneForms) -> Minimum:
    """Least squares, for as many measurements as entries or more."""
    d = forms.A.shape[1]
    rows = (forms.A[:, :, None] * forms.B[:, None, :]).reshape(-1, d * d)
    solve = _prepare_solver(rows.T @ rows)
    W = np.zeros((d, d))
    # Two corrections make up for the digits that normal equations lose.
    for _ in range(3):
        W = W + solve(forms.adjoint(forms.t - forms.of_matrix(W)).ravel()).reshape(d, d)
    S = np.linalg.svd(W, compute_uv=False)
    return Minimum(W, 0, forms.residual(W), 0.0, int((S[0] * _ZERO < S).sum()))


def _minimise_by_splitting(forms: _RankOneForms, tolerance: float, iterations: int) -> Minimum:
    solve = _prepare_solver(forms.gram)
    start = forms.adjoint(solve(forms.t))
    size = float(np.linalg.norm(start, 2))
    forms = replace(forms, t=forms.t / size)
    split = _Splitting(forms, solve, start / size)
    gap = np.inf
    done = 0
    for done in range(1, iterations + 1):
        split.advance()
        if done % _LOOK == 0:
            gap = split.gap()
            if gap <= tolerance:
                break
            split.balance(1.0 / (1.0 + done / _SETTLE))
    W, rank = _polish_minimum(forms, split.Z, split.rank)
    return Minimum(size * W, done, forms.residual(W), gap, rank)


class _Splitting:
    """The splitting: Z fits the measurements, U = A*(w) is the scaled multiplier, tau the step."""

    def __init__(
        self, forms: _RankOneForms, solve: Callable[[Vector], Vector], start: Matrix
    ) -> None:
        self.forms = forms
        self.solve = solve
        self.Z = start
        self.tau = _STEP
        self.U = np.zeros_like(start)
        self.w = np.zeros_like(forms.t)
        self.rank = 0
        self.apart = self.moved = 0.0

    def advance(self) -> None:
        """Shrink singular values, project, update the multiplier."""
        P, S, Q = np.linalg.svd(self.Z - self.U)
        self.rank = int((self.tau < S).sum())
        X = (P[:, : self.rank] * (S[: self.rank] - self.tau)) @ Q[: self.rank]
        T = _RELAX * X + (1.0 - _RELAX) * self.Z + self.U
        self.w = self.solve(self.forms.of_matrix(T) - self.forms.t)
        self.U = self.forms.adjoint(self.w)
        Z = self.Z
        self.Z = T - self.U
        self.apart, self.moved = (float(np.linalg.norm(other - self.Z)) for other in (X, Z))

    def gap(self) -> float:
        """Relative distance of |Z|_* from the lower bound of -w / tau, scaled to be admissible."""
        value = float(np.linalg.svd(self.Z, compute_uv=False).sum())
        bound = -float(self.forms.t @ self.w) / max(self.tau, float(np.linalg.norm(self.U, 2)))
        return (value - bound) / value

    def balance(self, weight: float) -> None:
        """Shorten the step where X and Z stay apart, lengthen it where Z moves, relatively."""
        apart = self.apart * float(np.linalg.norm(self.U))
        moved = self.moved * float(np.linalg.norm(self.Z))
        # A splitting that stands still or fits already has no balance to mend.
        if apart > 0 and moved > 0:
            factor = min(2.0, max(0.5, math.sqrt(moved / apart))) ** weight
            self.tau *= factor
            self.U *= factor
            self.w *= factor


def _polish_minimum(forms: _RankOneForms, W: Matrix, rank: int) -> tuple[Matrix, int]:
    """W and its rank, or a matrix of low rank that fits exactly and is as short, if one does."""
    P, S, Q = np.linalg.svd(W)
    d = len(W)
    value = float(S.sum())
    for r in sorted({int((cut * S[0] < S).sum()) for cut in _CUTS} | {rank}):
        # With more unknowns than measurements many matrices of that rank fit.
        if max(r * (2 * d - r), 2 * d * r / _WORTH) > len(forms.t):
            break
        L, R = _fit_factors(forms, P[:, :r] * np.sqrt(S[:r]), Q[:r].T * np.sqrt(S[:r]))
        M = L @ R.T
        fits = forms.residual(M) <= FITS
        if fits and np.linalg.svd(M, compute_uv=False).sum() <= (1.0 + _EQUAL) * value:
            return M, r
    return W, rank


def _fit_factors(forms: _RankOneForms, L: Matrix, R: Matrix) -> tuple[Matrix, Matrix]:
    """Factors after Gauss-Newton steps on a_k . L R^T b_k = t_k, as long as they help.

    Normal equations do: what rounding spoils in a step, the next one sees in the residual. The tiny
    ridge settles how the product is split, which the residual does not see.
    """
    m = len(forms.t)
    d, r = L.shape
    before = np.inf
    for _ in range(_POLISH):
        gap = forms.t - forms.of_matrix(L @ R.T)
        now = float(np.linalg.norm(gap))
        if now > 0.5 * before or now <= 4 * EPS * float(np.linalg.norm(forms.t)):
            break
        before = now
        left = forms.A[:, :, None] * (forms.B @ R)[:, None]
        right = forms.B[:, :, None] * (forms.A @ L)[:, None]
        J = np.concatenate([left.reshape(m, -1), right.reshape(m, -1)], axis=1)
        H = J.T @ J
        H[np.diag_indices_from(H)] += 1e-12 * np.trace(H) / len(H)
        dL, dR = np.linalg.solve(H, J.T @ gap).reshape(2, d, r)
        L, R = L + dL, R + dR
    return L, R
