r"""Lone tokens of ordinary size: gated units and the sum of the value maps to the last digit.

$$f(x) - x = M n + \sum_j D_j\, \psi(g_j \nu)\,(u_j \nu), \qquad \nu = \mathrm{norm}(x + M n), \quad
n = \mathrm{norm}(x)$$

D is eliminated, as for plain units (lone_fit).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Matrix
from keyhole.learners.blocks.lone_fit import (
    LoneAnswers,
    SecondNorm,
    descend,
)
from keyhole.learners.blocks.solving import (
    FrontSlopes,
    StructuredSlopes,
    UnitSlopes,
    linalg,
)
from keyhole.models.last_token.even_parts import EVEN_PARTS
from keyhole.models.layers.norms import normalise

# What heads are read by takes an error of the value maps some hundred times.
_ROUNDING = 2e-15


@dataclass(frozen=True, eq=False, slots=True)
class GateMap:
    """What a lone token becomes behind norms without a shift.

    Args:
        g: gates (units x width).
        u: what they are multiplied by (units x width).
        D: what units add to answers (units x outputs).
        M: what the attention makes of a lone token (outputs x width).
        activation: of the gates.
    """

    g: Matrix
    u: Matrix
    D: Matrix
    M: Matrix
    activation: str

    def bend(self, nu: Matrix) -> GateValues:
        """What the units make of vectors behind the second norm."""
        z = nu @ self.g.T
        E, slope = EVEN_PARTS[self.activation].bend(z)
        return GateValues(z / 2 + E, slope + 0.5, nu @ self.u.T)

    def answer(self, nu: Matrix) -> Matrix:
        """What the network adds to vectors."""
        bent = self.bend(nu)
        return (bent.gates * bent.others) @ self.D


@dataclass(frozen=True, eq=False, slots=True)
class GateValues:
    """Gates, their slopes, and what they are multiplied by (points x units)."""

    gates: Matrix
    slopes: Matrix
    others: Matrix


class GateFit:
    """Damped Gauss-Newton on lone answers."""

    def __init__(self, eps: float, lone: LoneAnswers) -> None:
        self.eps = eps
        self.x = lone.x
        self.n = normalise(lone.x, "rms", eps)
        self.answers = lone.answers

    def fit(self, held: GateMap) -> tuple[GateMap, float]:
        """The map, and what it leaves beside the answers."""
        return descend(
            *self._project(held),
            lambda at, damping: self._project(self._step(at, damping)),
            small=_ROUNDING,
        )

    def _bend(self, held: GateMap) -> tuple[SecondNorm, GateValues]:
        norm = SecondNorm.at(self.x + self.n @ held.M.T, self.x.shape[1], self.eps)
        return norm, held.bend(norm.nu)

    def _project(self, held: GateMap) -> tuple[GateMap, float]:
        """The D that leaves least, and what it leaves."""
        bent = self._bend(held)[1]
        made, wanted = bent.gates * bent.others, self.answers - self.n @ held.M.T
        D = linalg.lstsq(made, wanted, rcond=None)[0]
        left = linalg.norm(wanted - made @ D) / linalg.norm(self.answers)
        return replace(held, D=D), float(left)

    def _step(self, held: GateMap, damping: float) -> GateMap:
        norm, bent = self._bend(held)
        Q = linalg.qr(bent.gates * bent.others)[0]
        wanted = self.answers - self.n @ held.M.T
        left = wanted - Q @ (Q.T @ wanted)
        # One row of weights for each gate, then one for each of the others.
        units = UnitSlopes(
            np.concatenate([bent.slopes * bent.others, bent.gates], axis=1),
            norm.nu,
            np.concatenate([held.D, held.D]),
        )
        slopes = StructuredSlopes(Q, units, [self._slope_front(held, norm, bent)])
        step, M = slopes.solve(left, damping)
        g, u = np.split(step, 2)
        return replace(held, g=held.g + g, u=held.u + u, M=held.M + M)

    def _slope_front(self, held: GateMap, norm: SecondNorm, bent: GateValues) -> FrontSlopes:
        """Derivatives by M."""
        width = self.x.shape[1]
        by_gate = np.einsum(
            "pk,ko,ka->poa", bent.slopes * bent.others, held.D, held.g, optimize=True
        )
        by_other = np.einsum("pk,ko,ka->poa", bent.gates, held.D, held.u, optimize=True)
        G = norm.turn_back(by_gate + by_other, width) + np.eye(width)
        return FrontSlopes(G, self.n)
