"""W and h from the columns of several query tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Vector, pin_one_thread
from keyhole.identify import matrix_rank
from keyhole.learners.vocabulary.comparisons import GOAL, Comparer
from keyhole.learners.vocabulary.equations import Column
from keyhole.learners.vocabulary.hull import Vocabulary, append_one, least_squares

_BLOCK = 6  # columns measured at once are at most this part of those known
_KNOWN = 1e3 * GOAL  # share of the tolerance to which a column must be known to count as known
_JOINT = 700  # unknowns up to which columns that are not known one by one are solved together


@dataclass(eq=False, slots=True)
class Scores:
    """The scores as far as they are known.

    Args:
        vocabulary: the tokens that may be asked.
        roundoff: relative rounding of the answers.
        tolerance: what fresh answers may differ by, relative to the token values.
        columns: what was measured.
        rank: of W, where all columns are known.
        error: standard error of the least certain score.
        uncertain: how many query tokens have scores that are not known well enough.
        W: scores on coordinates.
        h: score bias on coordinates.
    """

    vocabulary: Vocabulary
    roundoff: float
    tolerance: float
    columns: list[Column] = field(default_factory=list[Column], init=False)
    rank: int | None = field(default=None, init=False)
    error: float = field(default=0.0, init=False)
    uncertain: int = field(default=0, init=False)
    W: Matrix = field(init=False)
    h: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nothing acts."""
        m = self.vocabulary.size
        self.W = np.zeros((m, m))
        self.h = np.zeros(m)

    def measure(self, comparer: Comparer, *, rng: np.random.Generator) -> None:
        """Columns in growing blocks; once they span nothing new, the others along that span."""
        basis = self.vocabulary.basis
        Q = np.eye(self.vocabulary.size)
        order = rng.permutation(basis)
        rank = 0
        while len(self.columns) < len(order) and len(Q) == Q.shape[1]:
            at = len(self.columns)
            self.columns += comparer.measure(order[at : at + max(1, at // _BLOCK)], Q)
            self._assemble(comparer, Q)
            found = _find_span_basis(*self._solve(comparer, Q), cut=5e4 * self.roundoff)
            # A span is trusted when a whole block added nothing to it and scores are known well.
            if found.shape[1] == rank < at and self.error <= _KNOWN * self.tolerance:
                Q = found
            rank = found.shape[1]
        if Q.shape[1] == 0:
            self.clear()
            self.rank = 0
            return
        if len(self.columns) < len(order):
            self.columns += comparer.measure(order[len(self.columns) :], Q)
            self._assemble(comparer, Q)
        # Query tokens beyond the basis see the same W with other scores in reach.
        if self.uncertain:
            others = rng.permutation(np.setdiff1d(np.arange(len(self.vocabulary.Z)), basis))
            self.columns += comparer.measure(others[: min(2 * self.uncertain, len(basis))], Q)
            self._assemble(comparer, Q)

    def _solve(self, comparer: Comparer, Q: Matrix) -> tuple[Matrix, Vector]:
        errors = [comparer.uncertainty(column, Q) for column in self.columns]
        return np.array([column.solve(Q)[0] for column in self.columns]), np.array(errors)

    def _assemble(self, comparer: Comparer, Q: Matrix) -> None:
        """W and h from the columns: one by one where these are known well, together elsewhere."""
        U, error = self._solve(comparer, Q)
        m = self.vocabulary.size
        Y = append_one(self.vocabulary.Z[[column.b for column in self.columns]])
        weight = 1.0 / np.maximum(error, self.roundoff)[:, None]
        scaled = weight / weight.max()
        with pin_one_thread():
            inverse = np.asarray(np.linalg.pinv(scaled * Y, rcond=1e-14), dtype=np.float64)
            at_basis = append_one(self.vocabulary.Z[self.vocabulary.basis]) @ inverse
            doubt = np.linalg.norm(at_basis, axis=1) / weight.max()
            # Before the columns determine W, the error of a column is all there is to tell.
            if len(self.columns) <= m or np.linalg.matrix_rank(scaled * Y, tol=1e-14) <= m:
                doubt = error
            self.error = float(doubt.max())
            self.uncertain = int((doubt > _KNOWN * self.tolerance).sum())
            # Together they cost the cube of all unknowns, but a column may be short of equations.
            if self.uncertain and m * (m + 1) <= _JOINT:
                M = self._solve_together(Y)
            else:
                M = inverse @ (scaled * U)
            self.W, self.h = M[:-1].T, M[-1]
            self.rank = matrix_rank(self.W, 1e-9) if len(self.columns) > m else None

    def _solve_together(self, Y: Matrix) -> Matrix:
        """Least squares over all (z_a - z_p) . (W z_b + h) = t, each by its standard error."""
        size = self.vocabulary.size
        counts = [len(c.t) for c in self.columns]
        D = np.concatenate([np.array(c.D).reshape(-1, size) for c in self.columns])
        weight = 1.0 / np.concatenate([np.array(c.error) for c in self.columns])
        t = weight * np.concatenate([np.array(c.t) for c in self.columns])
        rows = np.einsum("q,qy,qd->qyd", weight, np.repeat(Y, counts, axis=0), D)
        if len(t) == 0:
            return np.zeros((size + 1, size))
        return least_squares(rows.reshape(len(t), -1), t[:, None], 1e-14).reshape(size + 1, size)


def _find_span_basis(U: Matrix, error: Vector, *, cut: float) -> Matrix:
    """Orthonormal basis, as columns, of what columns (rows of U) span beyond their errors."""
    with pin_one_thread():
        _, S, Z = np.linalg.svd(U, full_matrices=False)
    floor = max(cut * S.max(initial=0.0), float(error.max()) * len(U) ** 0.5)
    return Z[: int((floor < S).sum())].T
