r"""What is left of a post-norm block's token map once its units are known along L.

First differences of directions are, across the answer, $\rho$ times those of h, and linear in what
is left of it. What is odd in the units and the skip past them add up to $A = \tfrac12 \sum_j
\sigma_j D_j w_j^\top + P \mathrm{diag}(g)$, g the gain of the first norm: sides $\sigma$ and gain
are linear in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.far_tokens import SphereMap
from keyhole.learners.blocks.post_norm.direction_reads import ScaledReads
from keyhole.learners.blocks.post_norm.direction_slices import list_across
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_reads import ANGLE, Curves
from keyhole.learners.blocks.unit_slices import Split, follow_sphere
from keyhole.models.last_token.even_parts import EVEN_PARTS

_EQUATIONS = 1.5
_SIDED = 0.5  # how far the side of a unit may be from 1; lone tokens settle its size


@dataclass(frozen=True, eq=False, slots=True)
class DirectionMap:
    r"""What a post-norm block makes of a point behind its first norm, but for the length.

    $$h(\nu) = T + P (g \circ \nu) + \sum_j D_j \phi(w_j \nu + \beta_j)$$

    Args:
        w: weights of the units (units x dimension).
        beta: biases.
        D: what they add (units x dimension).
        T: constant (dimension).
        gain: g, of the first norm, its mean 1 (dimension + 1).
        activation: of the units.
    """

    w: Matrix
    beta: Vector
    D: Matrix
    T: Vector
    gain: Vector
    activation: str


def count_rest_points(dimension: int, hidden: int) -> int:
    """Points at which differences outside of L are asked."""
    return int(np.ceil(_EQUATIONS * (hidden + dimension) / (dimension - 1))) + 1


class RestSearch:
    """Units along L at the points of the reads."""

    def __init__(
        self,
        sphere: SphereMap,
        split: Split,
        seen: ScaledReads,
        curves: Curves,
        w: Matrix,
        logs: Vector,
    ) -> None:
        self.sphere, self.split, self.seen, self.curves = sphere, split, seen, curves
        self.inside = w * curves.s[:, None]
        self.rho = np.exp(logs)
        z = sphere.radius * np.sin(ANGLE) * seen.reads.l @ self.inside.T + curves.beta
        self.E, self.slope = EVEN_PARTS[curves.activation].bend(z)

    def find(self, basis: Matrix) -> DirectionMap | None:
        """The map; None where the sides of units do not show.

        Args:
            basis: coordinates of vectors that sum to zero.
        """
        reads, D, R = self.seen.reads, self.curves.D, self.sphere.radius
        outside = self._list_outside()
        inside = self._solve_inside()
        w_out, A_out = self._solve_outside(inside, outside)
        frame = np.column_stack([self.split.inside, reads.q, outside])
        w = np.column_stack([self.inside, w_out.T]) @ frame.T
        A = np.column_stack([inside, A_out.T]) @ frame.T
        beta = self.curves.beta - R * np.cos(ANGLE) * w_out[0]
        h = reads.values / self.rho[:, None]
        T = np.mean(h - self.E @ D - reads.p @ A.T, axis=0)
        return _choose_sides(w, beta, D, A, T, basis, self.curves.activation)

    def _list_outside(self) -> Matrix:
        """Directions outside of L and orthogonal to q, one column each."""
        outside, q = self.split.outside, self.seen.reads.q
        across = outside - np.outer(q, q @ outside)
        return linalg.svd(across, full_matrices=False)[0][:, : outside.shape[1] - 1]

    def _solve_inside(self) -> Matrix:
        """A on L, from slopes along every v, their share along the answer put right."""
        reads = self.seen.reads
        slopes = reads.first - self.seen.rates[..., None] * reads.values[:, None]
        made = np.einsum(
            "pk,ko,pvk->pvo", self.slope, self.curves.D, reads.v @ self.inside.T, optimize=True
        )
        v = reads.v.reshape(-1, self.split.m)
        wanted = slopes / self.rho[:, None, None] - made
        return linalg.lstsq(v, wanted.reshape(len(v), -1), rcond=None)[0].T

    def _solve_outside(self, A: Matrix, directions: Matrix) -> tuple[Matrix, Matrix]:
        """Units' weights and A along q and along directions outside (directions x units, outputs).

        What is tangent to the circle through q and l shows q once the slope along l is known.
        """
        reads, D = self.seen.reads, self.curves.D
        count = min(len(reads.p), count_rest_points(self.sphere.dimension, len(D)))
        l = reads.l[:count]
        tau = -np.sin(ANGLE) * reads.q + np.cos(ANGLE) * l @ self.split.inside.T
        along = np.concatenate([tau[:, None], np.repeat(directions.T[None], count, axis=0)], axis=1)
        rates = self._ask_rates(along) / self.rho[:count, None, None]
        beside = (self.slope[:count] * (l @ self.inside.T)) @ D + l @ A.T
        rates[:, 0] = (np.cos(ANGLE) * beside - rates[:, 0]) / np.sin(ANGLE)
        rows: list[Matrix] = []
        sums: list[Matrix] = []
        for i in range(count):
            N = list_across(reads.values[i]).T
            rows.append(np.column_stack([N @ (self.slope[i][:, None] * D).T, N]))
            sums.append(N @ rates[i].T)
        solved = linalg.lstsq(np.concatenate(rows), np.concatenate(sums), rcond=None)[0].T
        return solved[:, : len(D)], solved[:, len(D) :]

    def _ask_rates(self, along: Array) -> Array:
        """Slopes of directions at the first points (points x directions x outputs)."""
        reads, R = self.seen.reads, self.sphere.radius
        h = self.sphere.stencil.rate * R
        moved = follow_sphere(reads.p[: len(along)], along, h, R)
        answers = self.sphere.ask_lone(moved.reshape(-1, moved.shape[-1]))
        return (answers.reshape(*along.shape[:2], -1) - reads.values[: len(along), None]) / h


def _choose_sides(
    w: Matrix,
    beta: Vector,
    D: Matrix,
    A: Matrix,
    T: Vector,
    basis: Matrix,
    activation: str,
) -> DirectionMap | None:
    """The map with every unit on the side on which it is active."""
    # Products of rank-one matrices are those of their vectors: none of them is formed.
    left, right = np.concatenate([D / 2, basis]), np.concatenate([w, basis])
    scale = linalg.norm(left, axis=1) * linalg.norm(right, axis=1)
    left = left / scale[:, None]
    products = (left @ left.T) * (right @ right.T)
    wanted = np.einsum("ko,od,kd->k", left, A, right, optimize=True)
    solved = linalg.lstsq(products, wanted, rcond=None)[0] / scale
    sides, gain = solved[: len(w)], solved[len(w) :]
    size = gain.mean()
    if np.abs(np.abs(sides) - 1).max() > _SIDED or size == 0:
        return None
    sides = np.sign(sides)
    # What is odd in a unit is half its own linear map; the length of h is free.
    return DirectionMap(
        w * sides[:, None],
        beta * sides,
        D / size,
        (T - (beta * sides) @ D / 2) / size,
        gain / size,
        activation,
    )
