r"""Measuring W (and h) column by column: every column, or no more than the rank asks for.

Without a score bias the unknown is $M = s_y W$ and the directions are an orthonormal basis. With
one, the directions are the d + 1 corners of a regular simplex: $\sqrt{n}\,o_j = (\sqrt{d}\,u_j, 1)$
with $n = d + 1$ and orthonormal $o_j$, so that $s_y W u_j + h = \sqrt{n}\,M o_j$ with $M = [s_y
W/\sqrt{d} \mid h]$. Both read $M = \sum_j (M o_j) o_j^\top$.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Array, Float, Matrix, Vector, pin_one_thread
from keyhole.learners.one_head.designs import Design
from keyhole.learners.one_head.probes import TARGET, Cut, Indices, Prober


@dataclass(frozen=True, eq=False, slots=True)
class Directions:
    """Orthonormal rows of the unknown's domain, in random order, and the tokens that ask for them.

    Args:
        O: one row per direction.
        Y: the tokens, of length one.
        weight: what a measured column is divided by to become M o_j.
    """

    O: Float[Array, "count inputs"]
    Y: Float[Array, "count width"]
    weight: float

    @classmethod
    def random(cls, width: int, *, biased: bool, rng: np.random.Generator) -> Directions:
        """A random orthonormal basis, or a randomly turned simplex when a score bias acts."""
        with pin_one_thread():
            drawn = rng.normal(size=(width, _count_random_directions(width)))
            turn = np.linalg.qr(drawn, mode="complete")[0].T
            if not biased:
                return cls(turn, turn, 1.0)
            n = width + 1
            u = np.full(n, 1.0 / np.sqrt(n))
            u[-1] -= 1.0
            O = np.eye(n) - np.outer(u, u) * (2.0 / (u @ u))  # last column constant, 1 / sqrt(n)
            O[:, :-1] = O[:, :-1] @ turn
            return cls(O, O[:, :-1] * np.sqrt(n / width), float(np.sqrt(n)))


def _count_random_directions(width: int) -> int:
    """How many directions are drawn; the others, needed beyond that rank, complete the basis."""
    # Completing a basis is cheaper than making as many random vectors orthogonal.
    return width if width <= 512 else max(256, width // 8)


@dataclass(slots=True)
class Columns:
    """Columns of M measured so far: `C` holds M o_j, as rows, for the first directions j."""

    prober: Prober
    design: Design
    directions: Directions
    C: list[Matrix] = field(default_factory=list[Matrix])

    @property
    def known(self) -> int:
        """How many columns have been measured."""
        return sum(map(len, self.C))

    @property
    def left(self) -> int:
        """How many directions have not been asked."""
        return len(self.directions.Y) - self.known

    @property
    def readable(self) -> float:
        """Norm of a column whose logits are of the size aimed at."""
        size = TARGET * float(np.sqrt(self.design.X.shape[2]))
        return size / (self.prober.sx * self.directions.weight)

    def noise(self) -> float:
        """Norm of the error of one column, from two lengths of x that round differently."""
        with self.prober.oracle.phase("measure"):
            first, second = (self._measure_first(share) for share in (1.0, 0.7))
        return float(np.linalg.norm(first - second)) / float(np.sqrt(2.0))

    def _measure_first(self, share: float) -> Matrix:
        length = self.prober.sx
        self.prober.sx = share * length
        T = self.prober.forms(self.design, self.directions.Y[:1])
        # Measuring may have steered it; other columns are steered by themselves.
        self.prober.sx = length
        return self.design.solve(T) / self.directions.weight

    def measure(self, count: int) -> Matrix:
        """Measure the next `count` columns, as far as there are any, and return them as rows."""
        Y = self.directions.Y[self.known : self.known + count]
        if len(Y) == 0:
            return Y
        try:
            with self.prober.oracle.phase("measure"):
                T = self.prober.forms(self.design, Y)
        except Cut as cut:
            self.keep(cut.forms)
            raise
        return self.keep(T)

    def measure_pairs(self, groups: Indices, at: Indices) -> Matrix:
        """Forms of single groups of the design on directions by number, in one call."""
        with self.prober.oracle.phase("measure"):
            return self.prober.pairs(self.design, groups, self.directions.Y[at])

    def measure_along(self, design: Design, Q: Matrix, solved: Matrix | None = None) -> Matrix:
        """Q^T M: known from the measured columns, and asked along Q on the directions left.

        Args:
            design: of forms along Q.
            Q: an orthonormal basis, one vector a column.
            solved: what is known already of the next directions, a row each.
        """
        solved = np.zeros((0, Q.shape[1])) if solved is None else solved
        with self.prober.oracle.phase("measure"):
            T = self.prober.forms(design, self.directions.Y[self.known + len(solved) :])
        with pin_one_thread():
            last = design.solve(T) / self.directions.weight
            return np.concatenate([np.concatenate(self.C) @ Q, solved, last]).T @ self.directions.O

    def keep(self, T: Matrix) -> Matrix:
        """Take the next columns from all their forms, and return them as rows."""
        with pin_one_thread():
            self.C.append(self.design.solve(T) / self.directions.weight)
        return self.C[-1]

    def matrix(self) -> Matrix:
        """M as far as the measured columns tell: zero on directions not measured."""
        with pin_one_thread():
            C = np.concatenate([*self.C, np.zeros((0, self.directions.Y.shape[1]))])
            return C.T @ self.directions.O[: len(C)]

    def split(self, M: Matrix) -> tuple[Matrix, Vector | None]:
        """(W, h) from M, or from the rows of a factor of it."""
        d = self.directions.Y.shape[1]
        if M.shape[1] == d:
            return M / self.prober.sy, None
        return M[:, :-1] * (np.sqrt(d) / self.prober.sy), M[:, -1]
