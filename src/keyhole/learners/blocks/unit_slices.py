r"""Second derivatives of a network on the sphere, and the space they span.

On the sphere of what a norm leaves a lone token is answered $\Phi(y) = c + A y + \sum_j D_j E(w_j
y + \beta_j)$, E the even part of the activation. Along $y(h) = R (p + h v)/|p + h v|$ with v
orthogonal to p the second derivative is $\sum_j D_j E''(z_j) (w_j v)^2 - \nabla\Phi\, p/R^2$. For
all v of a subspace L and p orthogonal to L the slices, one matrix for each output, lie in the span
of $w_j w_j^\top$ on L and the identity: its dimension is one more than the number of units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.far_tokens import SphereMap
from keyhole.learners.blocks.solving import linalg

_FILLED = 0.76  # of the matrices on L that units may span
SLICES = 1.2  # slices for a dimension
_GAP = 30.0  # between what is there and what differences leave


@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """A subspace L, one column each, and what is orthogonal to it."""

    inside: Matrix
    outside: Matrix

    @classmethod
    def draw(cls, dimension: int, m: int, rng: np.random.Generator) -> Split:
        """A random one."""
        Q = linalg.qr(rng.normal(size=(dimension, dimension)))[0]
        return cls(Q[:, :m], Q[:, m:])

    @property
    def m(self) -> int:
        """Dimension of L."""
        return self.inside.shape[1]


@dataclass(frozen=True, eq=False, slots=True)
class Bends:
    """A map at one point of the sphere.

    Args:
        value: the answer (outputs).
        first: slopes along L (outputs x m).
        second: second derivatives along L, flattened (outputs x entries).
    """

    value: Vector
    first: Matrix
    second: Matrix


@dataclass(frozen=True, eq=False, slots=True)
class Slices:
    """Second derivatives along L at some points.

    Args:
        split: L.
        parts: one matrix, flattened, for each point and output (points x outputs x entries).
        basis: orthonormal rows that span them (units + 1 x entries).
        gap: how much larger they are than what is left.
    """

    split: Split
    parts: Array
    basis: Matrix
    gap: float

    @property
    def units(self) -> int:
        """Number of units that bend on the sphere."""
        return len(self.basis) - 1


def limit_span(m: int) -> int:
    """How many matrices on a subspace of a dimension may be spanned."""
    entries = m * (m + 1) // 2
    # What is left over are the equations for one direction on L.
    return max(0, int(min(_FILLED * entries, entries - m - 1)))


def choose_dimension(dimension: int, hidden: int) -> int | None:
    """The least dimension of L in which so many units are told apart; None where none is."""
    return next((m for m in range(2, dimension - 1) if hidden + 1 <= limit_span(m)), None)


def count_slice_queries(dimension: int, outputs: int, hidden: int) -> int:
    """What the slices of a network of so many units cost."""
    m = choose_dimension(dimension, hidden) or max(2, dimension - 2)
    return -(-int(SLICES * (hidden + 1)) // outputs) * (m * (m + 1) + 1)


def limit_units(dimension: int) -> int:
    """How many units are told apart at most."""
    return max(0, limit_span(dimension - 2) - 1)


def bound_slice_queries(m: int, outputs: int) -> int:
    """The most that slices on a subspace of a dimension cost."""
    return _count_points(m, outputs) * (m * (m + 1) + 1)


def _count_points(m: int, outputs: int) -> int:
    return int(np.ceil(SLICES * m * (m + 1) / 2 / outputs)) + 1


def flatten_symmetric(matrices: Array) -> Array:
    """Symmetric matrices as vectors with the same products."""
    i, j = np.triu_indices(matrices.shape[-1])
    return matrices[..., i, j] * np.where(i == j, 1.0, np.sqrt(2.0))


def unflatten_symmetric(vectors: Array, m: int) -> Array:
    """The inverse."""
    i, j = np.triu_indices(m)
    matrices = np.zeros((*vectors.shape[:-1], m, m))
    held = vectors / np.where(i == j, 1.0, np.sqrt(2.0))
    matrices[..., i, j] = held
    matrices[..., j, i] = held
    return matrices


def follow_sphere(p: Array, v: Array, h: float, radius: float) -> Array:
    """Points of the sphere a step from p along each v."""
    y = p[..., None, :] + h * v
    return radius * y / linalg.norm(y, axis=-1, keepdims=True)


def find_slices(asking: SphereMap, m: int, *, rng: np.random.Generator) -> Slices | None:
    """Slices at as many points as it takes to see how many units there are.

    None where they fill more of the matrices on L than can be told apart.
    """
    split = Split.draw(asking.dimension, m, rng)
    parts: list[Matrix] = []
    points: list[Vector] = []
    for _ in range(_count_points(m, asking.outputs)):
        points.append(draw_apart(split, points, rng))
        parts.append(_measure_slices(asking, split, asking.radius * points[-1]))
        found = find_span(np.array(parts))
        if found is not None and len(parts) * asking.outputs >= SLICES * len(found[0]):
            return Slices(split, np.array(parts), *found)
    return None


def draw_apart(split: Split, points: list[Vector], rng: np.random.Generator) -> Vector:
    """A direction outside of L that is not near an earlier one."""
    drawn = rng.normal(size=(32, split.outside.shape[1])) @ split.outside.T
    drawn /= linalg.norm(drawn, axis=1, keepdims=True)
    if not points:
        return drawn[0]
    return drawn[np.argmin((drawn @ np.array(points).T).max(axis=1))]


def _measure_slices(asking: SphereMap, split: Split, p: Vector) -> Matrix:
    """All second derivatives along L at one point orthogonal to it (outputs x entries)."""
    return measure_bends(asking, split, p).second


def measure_bends(asking: SphereMap, split: Split, p: Vector) -> Bends:
    """Value, first and second derivatives along L at one point orthogonal to it."""
    m = split.m
    i, j = np.triu_indices(split.m)
    v = np.where((i == j)[:, None], np.eye(m)[i], (np.eye(m)[i] + np.eye(m)[j]) / np.sqrt(2.0))
    v = v @ split.inside.T
    value, first, second = (part[0] for part in measure_differences(asking, p[None], v[None]))
    H = np.zeros((len(value), m, m))
    diagonal = second[i == j].T
    H[:, i, j] = np.where(i == j, second.T, second.T - (diagonal[:, i] + diagonal[:, j]) / 2)
    flat = flatten_symmetric(H + np.triu(H, 1).swapaxes(1, 2))
    return Bends(value, first[i == j].T, flat)


def measure_differences(asking: SphereMap, p: Matrix, v: Array) -> tuple[Matrix, Array, Array]:
    """Values at points, and first and second derivatives along the directions of each."""
    stencil, R = asking.stencil, asking.radius
    h, reach = stencil.step * R, stencil.reach
    steps = [side * i * h for i in range(1, reach + 1) for side in (1, -1)]
    asked = [p[:, None], *(follow_sphere(p, v, step, R) for step in steps)]
    answers = asking.ask_lone(np.concatenate(asked, axis=1).reshape(-1, p.shape[1]))
    answers = answers.reshape(len(p), -1, answers.shape[1])
    middle, *sides = np.split(answers, 1 + v.shape[1] * np.arange(2 * reach), axis=1)
    odd, even = zip(
        *((a - b, a + b - 2 * middle) for a, b in zip(sides[::2], sides[1::2], strict=True)),
        strict=True,
    )
    if reach == 1:
        return middle[:, 0], odd[0] / (2 * h), even[0] / h**2
    first = (8 * odd[0] - odd[1]) / (12 * h)
    return middle[:, 0], first, (16 * even[0] - even[1]) / (12 * h**2)


def find_span(parts: Array) -> tuple[Matrix, float] | None:
    """Orthonormal rows that span the slices; None where no gap shows how many."""
    flat = parts.reshape(-1, parts.shape[-1])
    _, s, Vt = linalg.svd(flat, full_matrices=False)
    most = min(len(s) - 1, int(0.9 * parts.shape[-1]))
    if most < 1 or s[0] == 0:
        return None
    ratios: Vector = s[:most] / np.maximum(s[1 : most + 1], 1e-300)
    at = int(np.argmax(ratios))
    if ratios[at] < _GAP:
        return None
    return Vt[: at + 1], float(ratios[at])
