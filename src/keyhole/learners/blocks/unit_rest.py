r"""What is left of a network on the sphere once its units are known along L.

First differences are linear in it: along v in L they show A on L, along the circle through q and l
they show $w_j q$ and A q, along every other direction outside of L the same of that one. Values
show the constant. The sides of the units follow from $A - M = \tfrac12 \sum_j \sigma_j D_j
w_j^\top$, M what the attention makes of a lone token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.far_tokens import FarTokens
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_reads import ANGLE, Curves, Reads
from keyhole.learners.blocks.unit_slices import Split, follow_sphere
from keyhole.models.last_token.even_parts import EVEN_PARTS

_STEP = 1e-4  # of the radius, of one-sided differences
_EQUATIONS = 1.5
_SIDED = 0.1  # how far the side of a unit may be from 1


@dataclass(frozen=True, eq=False, slots=True)
class SphereNetwork:
    r"""A network as far tokens meet it, $c + M y + \sum_j D_j \phi(w_j y + \beta_j)$.

    Args:
        w: weights of the units (units x dimension).
        beta: biases.
        D: what they add to answers (units x outputs).
        constant: c, the attention's constant included.
        activation: of the units.
    """

    w: Matrix
    beta: Vector
    D: Matrix
    constant: Vector
    activation: str


def count_rest_points(outputs: int, hidden: int) -> int:
    """Points at which differences outside of L are asked."""
    return int(np.ceil(_EQUATIONS * (hidden + outputs) / outputs)) + 1


def find_rest(
    asking: FarTokens,
    split: Split,
    directions: Matrix,
    curves: Curves,
    reads: Reads,
    M: Matrix,
) -> SphereNetwork | None:
    """The network; None where the sides of units do not show."""
    R = asking.radius
    known = _Known(split, reads, curves, directions * curves.s[:, None], R)
    inside = known.solve_inside()
    across = known.solve_across(asking, inside)
    outside = list_outside(split, reads.q)
    rest = known.solve_outside(asking, outside)
    parts = (inside, across, rest)
    basis = np.column_stack([split.inside, reads.q, outside.T])
    w, A = (np.column_stack([part[i] for part in parts]) @ basis.T for i in (0, 1))
    beta = curves.beta - R * np.cos(ANGLE) * across[0][:, 0]
    constant = np.mean(reads.values - known.E @ curves.D - reads.p @ A.T, axis=0)
    sides = choose_sides(w, curves.D, A - M)
    if sides is None:
        return None
    w, beta = w * sides[:, None], beta * sides
    # What is odd in a unit is half its own linear map.
    return SphereNetwork(w, beta, curves.D, constant - beta @ curves.D / 2, curves.activation)


class _Known:
    """Units along L at the points of the reads."""

    def __init__(
        self, split: Split, reads: Reads, curves: Curves, inside: Matrix, radius: float
    ) -> None:
        self.split, self.reads, self.D = split, reads, curves.D
        self.inside = inside
        z = radius * np.sin(ANGLE) * reads.l @ inside.T + curves.beta
        self.E, self.slope = EVEN_PARTS[curves.activation].bend(z)

    def solve_inside(self) -> tuple[Matrix, Matrix]:
        """Units' weights and A on L."""
        reads = self.reads
        seen = np.einsum(
            "pk,ko,pvk->pvo", self.slope, self.D, reads.v @ self.inside.T, optimize=True
        )
        v = reads.v.reshape(-1, self.split.m)
        A = linalg.lstsq(v, (reads.first - seen).reshape(len(v), -1), rcond=None)[0].T
        return self.inside, A

    def solve_across(
        self, asking: FarTokens, inside: tuple[Matrix, Matrix]
    ) -> tuple[Matrix, Matrix]:
        """The same along q, from rates along the circles through q and l."""
        reads, (w, A) = self.reads, inside
        tau = -np.sin(ANGLE) * reads.q + np.cos(ANGLE) * reads.l @ self.split.inside.T
        rates = ask_rates(asking, reads.p, tau[:, None], reads.values)
        along = np.cos(ANGLE) * reads.l
        seen = np.einsum("pk,ko,pk->po", self.slope, self.D, along @ w.T) + along @ A.T
        return _solve_directions(self.slope, self.D, (seen[:, None] - rates) / np.sin(ANGLE))

    def solve_outside(self, asking: FarTokens, directions: Matrix) -> tuple[Matrix, Matrix]:
        """The same along directions outside of L."""
        count = min(len(self.reads.p), count_rest_points(asking.outputs, len(self.D)))
        along = np.repeat(directions[None], count, axis=0)
        rates = ask_rates(asking, self.reads.p[:count], along, self.reads.values[:count])
        return _solve_directions(self.slope[:count], self.D, rates)


def list_outside(split: Split, q: Vector) -> Matrix:
    """Directions outside of L and orthogonal to q, which are tangent at all points of reads."""
    basis = split.outside - np.outer(q, q @ split.outside)
    return linalg.svd(basis, full_matrices=False)[0][:, : split.outside.shape[1] - 1].T


def ask_rates(asking: FarTokens, p: Matrix, v: Array, values: Matrix) -> Array:
    """One-sided first differences along every v (points x directions x outputs)."""
    h = _STEP * asking.radius
    moved = follow_sphere(p, v, h, asking.radius)
    answers = asking.ask_lone(moved.reshape(-1, p.shape[1])).reshape(*v.shape[:2], -1)
    return (answers - values[:, None]) / h


def _solve_directions(slope: Matrix, D: Matrix, rates: Array) -> tuple[Matrix, Matrix]:
    """Units' weights and A along some directions, from rates along them at several points."""
    points, hidden = slope.shape
    rows = np.einsum("pk,ko->pok", slope, D).reshape(-1, hidden)
    linear = np.tile(np.eye(D.shape[1]), (points, 1))
    wanted = rates.swapaxes(1, 2).reshape(len(rows), -1)
    solved = linalg.lstsq(np.column_stack([rows, linear]), wanted, rcond=None)[0]
    return solved[:hidden], solved[hidden:]


def choose_sides(w: Matrix, D: Matrix, rest: Matrix) -> Vector | None:
    """The side on which every unit is active; None where what is linear does not say."""
    normal = (D @ D.T) * (w @ w.T) / 4
    pull = np.einsum("ko,od,kd->k", D, rest, w) / 2
    sides = linalg.lstsq(normal, pull, rcond=1e-12)[0]
    return np.sign(sides) if np.abs(np.abs(sides) - 1).max() <= _SIDED else None
