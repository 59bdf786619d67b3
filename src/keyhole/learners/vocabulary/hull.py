r"""The affine hull of the tokens that may be asked, rows of a matrix E, and heads on it.

With $\mu$ the mean row and B an orthonormal basis of the differences of rows, every token is $e =
\mu + B^\top z$, and on such tokens a head (W, V, h, c, U) acts as the head $(B W B^\top,\ B V,\
B(W\mu + h),\ c + (V + U)^\top\mu,\ B U)$ on the coordinates z: no more of it is determined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Int, Matrix, Vector, pin_one_thread, rms
from keyhole.errors import InvalidInput
from keyhole.models import Head

Rows = Int[np.ndarray, "_"]
Table = Int[np.ndarray, "_ _"]

OF_ROWS = "Fresh questions were sequences of rows of the vocabulary, and of nothing else."
_RANK = 1e-12  # share of the largest spread below which rows count as not spread
# Distance of the hull from 0, relative to its tokens, from which W and V can absorb h and c.
_OFF = 1e-6


def check_width(tokens: Matrix, width: int) -> None:
    """Raise `InvalidInput` where a vocabulary's tokens are no tokens of the target."""
    if tokens.shape[1] != width:
        raise InvalidInput(
            f"the vocabulary's tokens have width {tokens.shape[1]}, the target's {width}."
        )


@dataclass(frozen=True, eq=False, slots=True)
class Vocabulary:
    """The rows of E, and their coordinates on their affine hull.

    Args:
        E: the tokens, one per row.
        mean: a point of the hull.
        B: orthonormal rows spanning the differences of tokens.
        Z: coordinates of the tokens.
        basis: rows that are an affine basis of the hull, well conditioned.
    """

    E: Matrix
    mean: Vector
    B: Matrix
    Z: Matrix
    basis: Rows

    @classmethod
    def of(cls, E: Matrix) -> Vocabulary:
        """Coordinates by singular values, the basis by pivoted QR."""
        mean = E.mean(axis=0)
        with pin_one_thread():
            _, S, B = np.linalg.svd(E - mean, full_matrices=False)
            # Equal tokens differ by the rounding of their mean.
            floor = max(_RANK * S[0], 1e-15 * len(E) ** 0.5 * float(np.abs(E).max()))
            B = B[: int((floor < S).sum())]
            Z = (E - mean) @ B.T
        return cls(E, mean, B, Z, find_affine_basis(Z))

    @property
    def size(self) -> int:
        """Dimension of the affine hull."""
        return len(self.B)

    @property
    def aside(self) -> Vector:
        """The point of the hull nearest to 0; zero where the hull contains 0 but for rounding."""
        off = self.mean - self.B.T @ (self.B @ self.mean)
        return off if np.linalg.norm(off) > _OFF * np.abs(self.E).max() else np.zeros_like(off)

    @property
    def span(self) -> int:
        """Dimension of the linear span of the tokens."""
        return self.size + bool(self.aside.any())

    def outside(self, rows: Rows) -> Rows:
        """Rows that differ, as tokens, from all of the given ones."""
        _, which = np.unique(self.E, axis=0, return_inverse=True)
        which = which.reshape(-1)
        return np.flatnonzero(~np.isin(which, which[rows]))

    def lift(self, W: Matrix, h: Vector, V: Matrix, c: Vector, U: Matrix | None) -> Head:
        r"""The head on tokens that acts as this one does on coordinates.

        Where the hull misses 0, with n its nearest point, $x \mapsto x \cdot n/|n|^2$ is 1 on every
        token, so that W and V absorb h and c; elsewhere h and c are moved from the mean to 0.
        """
        at = self.B @ self.mean
        n = self.aside
        h = self.B.T @ (h - W @ at)
        c = c - at @ (V if U is None else V + U)
        W = self.B.T @ W @ self.B
        V = self.B.T @ V
        U = None if U is None else self.B.T @ U
        if not n.any():
            return Head(W, V, h, c, U)
        one = n / (n @ n)
        if U is None:
            return Head(W + np.outer(h, one), V + np.outer(one, c))
        return Head(W + np.outer(h, one), V, None, None, U + np.outer(one, c))


def find_affine_basis(Z: Matrix) -> Rows:
    """Rows of Z that span its affine hull, by pivoted QR of rows with a constant appended."""
    with pin_one_thread():
        lifted = np.column_stack([Z, np.full(len(Z), rms(Z) or 1.0)])
        # Slow to import, and needed here alone.
        import scipy.linalg

        order = scipy.linalg.qr(lifted.T, mode="r", pivoting=True)[1]
    return np.asarray(order[: Z.shape[1] + 1], dtype=np.int64)


def append_one(Z: Array) -> Matrix:
    """Coordinates with a 1 appended, on which affine maps are linear."""
    return np.column_stack([Z, np.ones(len(Z))])


def least_squares(A: Matrix, B: Matrix, cut: float) -> Matrix:
    """The smallest X with A X nearest to B; singular values below a share `cut` count as zero."""
    return np.asarray(np.linalg.lstsq(A, B, rcond=cut)[0], dtype=np.float64)
