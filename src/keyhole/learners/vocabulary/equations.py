"""Equations for the scores under one query token, and their solution with its errors."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Vector, pin_one_thread

READABLE = 0.01  # a score known less well is not used
_UNKNOWN = 1e100  # standard error along directions nothing is known about


@dataclass(eq=False, slots=True)
class Column:
    """Equations D u = t for the column u = W z_b + h of one query token b.

    Args:
        b: the row of the query token.
        D: differences of coordinates.
        t: differences of scores.
        error: their standard errors.
        scores: by token, its score over that of b and its error; infinite where beyond reading.
        asked: pairs of a token and the one it was compared with.
        solved: the last solution, with what it was made of.
    """

    b: int
    D: list[Vector] = field(default_factory=list[Vector])
    t: list[float] = field(default_factory=list[float])
    error: list[float] = field(default_factory=list[float])
    scores: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    asked: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    solved: tuple[int, Matrix, Vector, Matrix] | None = None

    def take(self, difference: Vector, t: float, error: float) -> None:
        """Add one equation, if it was readable."""
        if error < READABLE:
            self.D.append(difference)
            self.t.append(t)
            self.error.append(error)

    def solve(self, Q: Matrix) -> tuple[Vector, Matrix]:
        """The column inside span(Q), and a root S of its covariance S^T S along Q."""
        # Asked for many times between two equations, and an SVD each time would dominate.
        if self.solved is None or self.solved[0] != len(self.t) or self.solved[1] is not Q:
            self.solved = len(self.t), Q, *self._solve(Q)
        return self.solved[2:]

    def _solve(self, Q: Matrix) -> tuple[Vector, Matrix]:
        weight = 1.0 / np.array(self.error)
        with pin_one_thread():
            A = weight[:, None] * (np.array(self.D).reshape(-1, len(Q)) @ Q)
            R, S, Z = np.linalg.svd(A, full_matrices=len(A) < A.shape[1])
            S = np.concatenate([S, np.zeros(len(Z) - len(S))])
            inverse = np.where(1e-13 * S[0] < S, 1.0 / np.maximum(S, 1e-300), 0.0)
            known = R.T @ (weight * np.array(self.t))
            u = Q @ (Z[: len(known)].T @ (inverse[: len(known)] * known))
            return u, np.where(inverse > 0, inverse, _UNKNOWN)[:, None] * Z
