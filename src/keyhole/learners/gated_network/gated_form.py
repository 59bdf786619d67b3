r"""What values determine of a gated network.

$$g(x) = \sum_j C_j\, \psi_j(r_j)\, y_j + c, \quad r_j = n_j x - t_j, \quad y_j = b_j x - e_j,
  \quad \psi_j(r) = \tfrac12 (|r| + \sigma_j r) - \lambda(s_j |r|)/s_j$$

with unit vectors n_j and b_j. Not determined: order, the sign of each (n, t) together with its
side, and a scale between (b, e) and C, which is that of unit vectors here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.learners.smooth_network.unit_kinds import UNIT_KINDS
from keyhole.models.last_token.gated import Gated


@dataclass(frozen=True, eq=False, slots=True)
class GatedForm:
    """A gated network in the form above.

    Args:
        n: unit normals of the gates.
        t: offsets of the gates.
        s: one over the width of each gate.
        sigma: on which side of its gate a unit is active, +1 or -1.
        b: unit vectors of the other factors.
        e: offsets of these.
        C: output weights, one row per unit.
        c: constant.
        kind: of the gates; None where they are saturated.
    """

    n: Matrix
    t: Vector
    s: Vector
    sigma: Vector
    b: Matrix
    e: Vector
    C: Matrix
    c: Vector
    kind: str | None

    @property
    def hidden(self) -> int:
        """Number of units."""
        return len(self.t)

    def gates(self, r: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        """ψ at distances r, its derivative by r, and by log s."""
        lines = (np.abs(r) + self.sigma * r) / 2
        steps = (np.sign(r) + self.sigma) / 2
        if self.kind is None:
            return lines, steps, np.zeros_like(r)
        kind = UNIT_KINDS[self.kind]
        apart = np.abs(r)
        u = apart * self.s
        slope = kind.slope(u)
        lacking = kind.lacks(u) / self.s
        return lines - lacking, steps - slope * np.sign(r), lacking - slope * apart

    def factors(self, x: Matrix) -> tuple[Matrix, Matrix]:
        """R and y of all units at points."""
        return x @ self.n.T - self.t, x @ self.b.T - self.e

    def points(self, x: Matrix) -> Matrix:
        """Answers to points."""
        r, y = self.factors(x)
        return (self.gates(r)[0] * y) @ self.C + self.c

    def network(self) -> Gated:
        """The same function as a gated network."""
        side = self.sigma * self.s
        return Gated(
            side[:, None] * self.n,
            -side * self.t,
            self.b,
            -self.e,
            (self.C / self.s[:, None]).T,
            self.c,
            self.kind or "silu",
        )
