r"""Second derivatives of gated units on the sphere, on a subspace that grows until it holds them.

A gated unit $D_j \psi(g_j y)(u_j y)$ bends along v by $D_j [\psi''(z_j) (u_j y) (g_j v)^2 + 2
\psi'(z_j) (g_j v)(u_j v)]$, so that k units and the sphere span 2k + 1 matrices on a subspace L.
Neither their number nor the size of L that holds them is known: L begins small and grows by one
direction, or one more point is asked, whichever lacks. Whatever was asked before stays of use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Array, Indices, Matrix, Vector
from keyhole.learners.blocks.far_tokens import SphereMap
from keyhole.learners.blocks.unit_slices import (
    SLICES,
    Slices,
    Split,
    draw_apart,
    find_span,
    flatten_symmetric,
    follow_sphere,
    limit_span,
)

_FIRST = 3  # dimensions of L at first


def spare_directions(dimension: int) -> int:
    """Directions that points are drawn from, which L never takes."""
    return max(2, min(4, dimension // 5))


def count_gated_slices(dimension: int, outputs: int, span: int) -> int:
    """What it costs to see a span of so many matrices."""
    m = choose_span_dimension(dimension, span)
    return -(-int(SLICES * span) // outputs) * (m * (m + 1) + 1)


def bound_gated_slices(dimension: int, outputs: int) -> int:
    """The most that is ever asked."""
    m = dimension - spare_directions(dimension)
    points = int(SLICES * limit_span(m)) // outputs + 1
    return points * (m * (m + 1) + 1)


def choose_span_dimension(dimension: int, span: int) -> int:
    """The least dimension of L that tells a span; the largest where none does."""
    most = dimension - spare_directions(dimension)
    return next((m for m in range(_FIRST, most) if limit_span(m) >= span), most)


def limit_gates(dimension: int) -> int:
    """How many gated units are told apart at most."""
    return max(0, (limit_span(dimension - spare_directions(dimension)) - 1) // 2)


@dataclass(eq=False, slots=True)
class GrowingSlices:
    r"""Second derivatives at some points, along the first columns of a basis.

    Args:
        asking: the target.
        basis: one column each; L is spanned by the first m, points by the last few.
        m: dimension of L.
        most: the largest m.
        points: of unit length.
        values: answers at the points.
        along: second derivatives along $e_i$ or $(e_i + e_j)/\sqrt2$ at each point, in the order
            of `_list_pairs`.
    """

    asking: SphereMap
    basis: Matrix
    m: int
    most: int
    points: list[Vector] = field(default_factory=list[Vector])
    values: list[Vector] = field(default_factory=list[Vector])
    along: list[Matrix] = field(default_factory=list[Matrix])

    @classmethod
    def draw(cls, asking: SphereMap, rng: np.random.Generator) -> GrowingSlices:
        """A random basis, and no points yet."""
        D = asking.dimension
        basis = np.linalg.qr(rng.normal(size=(D, D)))[0]
        most = D - spare_directions(D)
        return cls(asking, basis, min(_FIRST, most), most)

    def grow(self, rng: np.random.Generator) -> bool:
        """One more point or direction; whether there was any to be had."""
        if len(self.points) * self.asking.outputs < SLICES * limit_span(self.m):
            self._add_point(rng)
        elif self.m < self.most:
            self._add_direction()
        else:
            return False
        return True

    def _add_point(self, rng: np.random.Generator) -> None:
        """One more point, with all derivatives along L."""
        apart = Split(self.basis[:, : self.most], self.basis[:, self.most :])
        p = draw_apart(apart, self.points, rng)
        self.points.append(p)
        self.values.append(self.asking.ask_lone(self.asking.radius * p[None])[0])
        self.along.append(self._ask(len(self.points) - 1, _list_pairs(0, self.m)))

    def _add_direction(self) -> None:
        """One more direction of L, at all points."""
        pairs = _list_pairs(self.m, self.m + 1)
        for k, along in enumerate(self.along):
            self.along[k] = np.concatenate([along, self._ask(k, pairs)])
        self.m += 1

    def _ask(self, point: int, pairs: Indices) -> Matrix:
        i, j = pairs.T
        v = self.basis[:, i] + np.where(i == j, 0.0, 1.0) * self.basis[:, j]
        v = (v / np.where(i == j, 1.0, np.sqrt(2.0))).T
        R = self.asking.radius
        p, h = R * self.points[point], self.asking.stencil.step * R
        answers = self.asking.ask_lone(
            np.concatenate([follow_sphere(p, v, h, R), follow_sphere(p, v, -h, R)])
        )
        up, down = np.split(answers, 2)
        return (up + down - 2 * self.values[point]) / h**2

    def read_span(self) -> Slices | None:
        """The slices, where they show how many matrices they span: an odd number."""
        parts = np.stack([self._flatten(along) for along in self.along])
        found = find_span(parts)
        if found is None or len(found[0]) > limit_span(self.m) or len(found[0]) % 2 == 0:
            return None
        if len(parts) * parts.shape[1] < SLICES * len(found[0]):
            return None
        split = Split(self.basis[:, : self.m], self.basis[:, self.m :])
        return Slices(split, parts, *found)

    def _flatten(self, along: Matrix) -> Matrix:
        """Second derivatives along pairs as flattened matrices (outputs x entries)."""
        i, j = _list_pairs(0, self.m).T
        H: Array = np.zeros((along.shape[1], self.m, self.m))
        alone = along[i == j].T
        H[:, i, j] = np.where(i == j, along.T, along.T - (alone[:, i] + alone[:, j]) / 2)
        H[:, j, i] = H[:, i, j]
        return flatten_symmetric(H)


def _list_pairs(first: int, last: int) -> Indices:
    """Pairs i <= j with first <= j < last, in the order in which L grows."""
    pairs = [(i, j) for j in range(first, last) for i in range(j + 1)]
    return np.array(pairs, dtype=np.intp).reshape(-1, 2)
