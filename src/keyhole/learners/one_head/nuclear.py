r"""Theorem 5.1 of [BSHK26] as its authors prove it: Gaussian rank-one measurements and the least
nuclear norm.

A query $[b + a; b]$ gives $t = a^\top W b$. From m of them, a and b Gaussian, W is the matrix of
least nuclear norm (the sum of its singular values) among all that fit, once m is a constant times
$r(2d - r)$. That constant is about 3; `LowRank` needs 1. The learner is here to be compared with,
and because it asks everything in one round.

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
from keyhole.claims import Certificate, Check
from keyhole.errors import InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Plan, Recovery, Status, bound_queries
from keyhole.learners.one_head.columns import Columns
from keyhole.learners.one_head.designs import Design
from keyhole.learners.one_head.learner import Measured, recover_head
from keyhole.learners.one_head.probes import REASK_ABOVE, TARGET, Prober, Saturated
from keyhole.learners.verifying.examination import EXACT
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import Head
from keyhole.oracles import Oracle

_STEP = 0.3  # first shrinkage, in units of the norm of the shortest matrix that fits
_RELAX = 1.6  # over-relaxation: the splitting converges for every value below 2
_LOOK = 10  # iterations between two looks at the gap
_SETTLE = 200.0  # iterations after which the step is left alone by and by, as convergence demands
# relative singular values at which the minimum may turn out to be of low rank
_CUTS = (1e-2, 1e-4, 1e-6)
_POLISH = 12  # Gauss-Newton steps
_WORTH = 1.5  # unknowns over measurements up to which polishing is worth its time
_ZERO = 1e-10  # relative singular value that counts as zero where W is determined entry by entry
_FITS = 1e-11  # relative residual of a polished matrix that is taken
_EQUAL = 1e-6  # how much its nuclear norm may be above the minimum, relatively

# of a standard deviation: how far the vectors a are kept from the blind directions of the read-out
_TILT = 0.5
_BATCH = 512
_ROUNDS = 40  # of asking again what was saturated
_MORE = 1.5  # times as many measurements when the minimum is not of the rank that was named
_TRIES = 3
_MOST = 12_000  # measurements whose Gram matrix still fits into memory comfortably


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
        tolerance: relative gap to stop at; where the minimum is of low rank, polishing then makes
            it exact.
        iterations: the most to be made.

    Raises:
        InvalidInput: shapes do not fit, a number is not finite, or the measurements depend on one
            another.
    """
    check_shape("A", A, (None, None))
    check_shape("B", B, A.shape)
    check_shape("t", t, (len(A),))
    for name, array in (("A", A), ("B", B), ("t", t)):
        check_finite(name, array)
    d, size = A.shape[1], float(np.abs(t).max(initial=0.0))
    if size == 0.0:
        return Minimum(np.zeros((d, d)), 0, 0.0, 0.0, 0)
    with pin_one_thread():
        forms = _RankOneForms.unit(A, B, t / size)
        found = (
            _minimise_by_splitting(forms, tolerance, iterations)
            if len(A) < d * d
            else _fit_least_squares(forms)
        )
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
    """As many measurements as entries or more: least squares, two corrections making up for the
    normal equations.
    """
    d = forms.A.shape[1]
    rows = (forms.A[:, :, None] * forms.B[:, None, :]).reshape(-1, d * d)
    solve, W = _prepare_solver(rows.T @ rows), np.zeros((d, d))
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
    gap, done = np.inf, 0
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
    """State of the splitting: Z fits the measurements, U = A*(w) is the scaled multiplier, tau the
    step.
    """

    def __init__(
        self, forms: _RankOneForms, solve: Callable[[Vector], Vector], start: Matrix
    ) -> None:
        self.forms, self.solve, self.Z, self.tau = forms, solve, start, _STEP
        self.U, self.w = np.zeros_like(start), np.zeros_like(forms.t)
        self.rank, self.apart, self.moved = 0, 0.0, 0.0

    def advance(self) -> None:
        """Shrink singular values, project, update the multiplier."""
        P, S, Q = np.linalg.svd(self.Z - self.U)
        self.rank = int((self.tau < S).sum())
        X = (P[:, : self.rank] * (S[: self.rank] - self.tau)) @ Q[: self.rank]
        T = _RELAX * X + (1.0 - _RELAX) * self.Z + self.U
        self.w = self.solve(self.forms.of_matrix(T) - self.forms.t)
        self.U = self.forms.adjoint(self.w)
        Z, self.Z = self.Z, T - self.U
        self.apart, self.moved = (
            float(np.linalg.norm(X - self.Z)),
            float(np.linalg.norm(Z - self.Z)),
        )

    def gap(self) -> float:
        """Relative distance of |Z|_* from the lower bound that -w / tau, scaled to be admissible,
        gives.
        """
        value = float(np.linalg.svd(self.Z, compute_uv=False).sum())
        bound = -float(self.forms.t @ self.w) / max(self.tau, float(np.linalg.norm(self.U, 2)))
        return (value - bound) / value

    def balance(self, weight: float) -> None:
        """Shorten the step where X and Z stay apart, lengthen it where Z moves, both taken
        relatively.
        """
        apart, moved = (
            self.apart * float(np.linalg.norm(self.U)),
            self.moved * float(np.linalg.norm(self.Z)),
        )
        if apart > 0 and moved > 0:
            factor = min(2.0, max(0.5, math.sqrt(moved / apart))) ** weight
            self.tau *= factor
            self.U *= factor
            self.w *= factor


def _polish_minimum(forms: _RankOneForms, W: Matrix, rank: int) -> tuple[Matrix, int]:
    """W, replaced by a matrix of low rank that fits exactly and is as short, where there is one;
    and the rank.
    """
    P, S, Q = np.linalg.svd(W)
    d, value = len(W), float(S.sum())
    for r in sorted({int((cut * S[0] < S).sum()) for cut in _CUTS} | {rank}):
        if max(r * (2 * d - r), 2 * d * r / _WORTH) > len(forms.t):
            break
        L, R = _fit_factors(forms, P[:, :r] * np.sqrt(S[:r]), Q[:r].T * np.sqrt(S[:r]))
        M = L @ R.T
        if (
            forms.residual(M) <= _FITS
            and np.linalg.svd(M, compute_uv=False).sum() <= (1.0 + _EQUAL) * value
        ):
            return M, r
    return W, rank


def _fit_factors(forms: _RankOneForms, L: Matrix, R: Matrix) -> tuple[Matrix, Matrix]:
    """Factors after Gauss-Newton steps on a_k . L R^T b_k = t_k, as long as they help.

    Normal equations do: what rounding spoils in a step, the next one sees in the residual. The tiny
    ridge settles how the product is split, which the residual does not see.
    """
    m, (d, r) = len(forms.t), L.shape
    before = np.inf
    for _ in range(_POLISH):
        gap = forms.t - forms.of_matrix(L @ R.T)
        now = float(np.linalg.norm(gap))
        if now > 0.5 * before or now <= 4 * EPS * float(np.linalg.norm(forms.t)):
            break
        before = now
        left, right = (
            forms.A[:, :, None] * (forms.B @ R)[:, None],
            forms.B[:, :, None] * (forms.A @ L)[:, None],
        )
        J = np.concatenate([left.reshape(m, -1), right.reshape(m, -1)], axis=1)
        H = J.T @ J
        H[np.diag_indices_from(H)] += 1e-12 * np.trace(H) / len(H)
        dL, dR = np.linalg.solve(H, J.T @ gap).reshape(2, d, r)
        L, R = L + dL, R + dR
    return L, R


@dataclass(frozen=True, slots=True)
class NuclearNorm:
    """Recovers W of a named rank by minimising the nuclear norm, the way Theorem 5.1 is proved.

    Args:
        rank: the rank of W, or more.
        oversampling: measurements over r(2d - r). Where the minimum turns out not to be of that
            rank, half as many again are asked, twice at most.
    """

    rank: int
    oversampling: float = 3.0

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise InvalidInput(f"a rank is a whole number >= 0; got {self.rank}.")
        if not 1.0 <= self.oversampling < np.inf:
            raise InvalidInput(
                "there must be at least r(2d - r) measurements: oversampling >= 1, not"
                f" {self.oversampling}."
            )

    def measurements(self, width: int, more: float = 1.0) -> int:
        """How many forms are asked: never more than d^2 + d, which determine W whatever its rank,
        and well.
        """
        r = min(self.rank, width)
        return min(width * width + width, math.ceil(more * self.oversampling * r * (2 * width - r)))

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """D + 5 queries to read out, one for each measurement whatever the outputs, then
        verification.
        """
        by_phase = {
            "read": width + 5,
            "scale": 6,
            "measure": self.measurements(width),
            "verify": QUERIES,
        }
        most = by_phase | {"measure": self.measurements(width, _MORE ** (_TRIES - 1))}
        freedom = head_freedom(width, outputs=outputs, rank=min(self.rank, width))
        return Plan(
            by_phase=by_phase,
            at_most=bound_queries(most),
            degrees_of_freedom=freedom,
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head without score bias; certificate BSHK26/5.1.

        Raises:
            InvalidInput: the rank is above the width, the program too large, or a score bias acts.
        """
        if self.rank > oracle.width:
            raise InvalidInput(f"the rank is at most the width {oracle.width}; got {self.rank}.")
        if (m := self.measurements(oracle.width)) > _MOST:
            raise InvalidInput(
                f"{m} measurements make a program too large to solve; at most {_MOST}. Use LowRank."
            )
        recovery = recover_head(oracle, self._measure, rng=rng)
        return replace(recovery, certificate=_certify_nuclear_norm(recovery, self, oracle.width))

    def _measure(self, columns: Columns, rng: np.random.Generator) -> Measured:
        if columns.prober.readout.biased:
            raise InvalidInput(
                "nuclear norm minimisation is for heads without a score bias; use LowRank for this"
                " one."
            )
        d = columns.prober.oracle.width
        A, B, t = np.empty((0, d)), np.empty((0, d)), np.empty(0)
        found = minimise_nuclear_norm(A, B, t)
        for attempt in range(_TRIES):
            count = min(_MOST, self.measurements(d, _MORE**attempt)) - len(t)
            if count <= 0:
                break
            more = _measure_gaussian_forms(columns.prober, count, rng)
            A, B, t = (np.concatenate(both) for both in zip((A, B, t), more, strict=True))
            found = minimise_nuclear_norm(A, B, t)
            if found.rank <= self.rank and found.residual <= 10 * _FITS:
                break
        return Measured(columns.split(found.W)[0], None, found.rank)


def _measure_gaussian_forms(
    prober: Prober, count: int, rng: np.random.Generator
) -> tuple[Matrix, Matrix, Vector]:
    """Gaussian vectors a and b, and what was measured of them: a . W (sy b).

    The part of a along the direction u that the read-out sees best is |c| for a Gaussian c; it is
    raised to sqrt(c^2 + tilt^2), so that no measurement is blind. The sign of a changes nothing but
    that of t.
    """
    V = prober.readout.V
    with pin_one_thread():
        R, S, Z = np.linalg.svd(V, full_matrices=False)
        A, B = rng.normal(size=(2, count, len(V))) / np.sqrt(len(V))
        c = A @ R[:, 0]
        seen = np.hypot(c, _TILT / np.sqrt(len(V)))
        A = np.where(c < 0, -1.0, 1.0)[:, None] * A + np.outer(seen - np.abs(c), R[:, 0])
    design = Design((A / seen[:, None])[:, None], Z[:1] / S[0], lambda T: T)
    with prober.oracle.phase("measure"):
        return A, B, seen * _read_forms(prober, design, prober.sy * B, prober.sx * seen)


def _read_forms(prober: Prober, design: Design, y: Matrix, scales: Vector) -> Vector:
    """x_k . W y_k for every group k of the design; what is saturated is asked again with a shorter
    x.
    """
    t, scales, bad = np.full(len(y), np.inf), scales.copy(), np.arange(len(y), dtype=np.intp)
    for _ in range(_ROUNDS):
        for start in range(0, len(bad), _BATCH):
            now = bad[start : start + _BATCH]
            t[now] = prober.single(design, now, y[now], scales[now])[:, 0]
        bad = np.flatnonzero(np.logical_not(np.abs(t) <= REASK_ABOVE))
        if len(bad) == 0:
            return t / scales
        size = np.abs(t[bad])
        scales[bad] *= np.where(size < 5 * REASK_ABOVE, TARGET / size, 2.0**-10)
    raise Saturated


def _certify_nuclear_norm(
    recovery: Recovery[Head], learner: NuclearNorm, width: int
) -> Certificate | None:
    """Theorem 5.1, with the constant of the learner, confronted with one run."""
    if recovery.model is None or recovery.rank is None or recovery.fresh is None:
        return None
    is_head = recovery.status in (Status.RECOVERED, Status.NO_READOUT)
    limit = learner.measurements(width, _MORE ** (_TRIES - 1))
    return Certificate(
        "BSHK26/5.1",
        assumptions=(
            Check("answers that no single head of that rank gives", float(not is_head), 0.0),
            Check("rank of W", recovery.rank, learner.rank),
        ),
        conclusion=(
            Check(
                "forms asked, O(rd), and what re-asking adds",
                recovery.ledger["measure"].sequences,
                1.1 * limit + 30,
            ),
            Check("worst relative disagreement on fresh queries", recovery.fresh.relative, EXACT),
        ),
    )
