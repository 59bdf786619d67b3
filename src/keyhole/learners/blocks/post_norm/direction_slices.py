r"""How many units a post-norm block has, seen through directions alone.

Answers are directions $\varphi = \rho h$, $\rho = 1/|h|$. With $\lambda = \nabla \log \rho$ second
derivatives are $\varphi_{vv} = 2 \lambda_v \varphi_v + \rho h_{vv}$ modulo $\varphi$: in the
outputs orthogonal to $\varphi$ and to all its slopes along L they are those of h, and lie in the
span of $w_j w_j^\top$ and the identity. Once that is known $\lambda$ is linear in the other
outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.learners.blocks.far_tokens import SphereMap
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_slices import (
    Bends,
    Split,
    choose_dimension,
    draw_apart,
    find_span,
    flatten_symmetric,
    measure_bends,
    unflatten_symmetric,
)

_SLICES = 1.2  # clean slices for a dimension


@dataclass(frozen=True, eq=False, slots=True)
class DirectionSlices:
    """Slopes and second derivatives along L at some points, and what clean slices span.

    Args:
        split: L.
        bends: what was seen at each point.
        basis: orthonormal rows that span the clean slices (units + 1 x entries).
    """

    split: Split
    bends: tuple[Bends, ...]
    basis: Matrix

    @property
    def units(self) -> int:
        """Number of units that bend on the sphere."""
        return len(self.basis) - 1


def count_slice_points(dimension: int, m: int, rank: int) -> int:
    """Points whose clean slices span so many dimensions."""
    return -(-int(np.ceil(_SLICES * rank)) // max(1, dimension - 1 - m))


def count_direction_queries(dimension: int, hidden: int) -> int:
    """What the slices of a network of so many units cost."""
    m = choose_dimension(dimension, hidden) or max(2, dimension - 2)
    return count_slice_points(dimension, m, hidden + 1) * (m * (m + 1) + 1)


def bound_direction_queries(dimension: int) -> int:
    """The most that slices cost, whatever the subspace."""
    most = max(1, dimension - 2)
    return max(
        (count_slice_points(dimension, m, m * (m + 1) // 2) + 1) * (m * (m + 1) + 1)
        for m in range(1, most + 1)
    )


def find_direction_slices(
    sphere: SphereMap, m: int, *, rng: np.random.Generator
) -> DirectionSlices | None:
    """Slices at as many points as it takes; None where units fill the matrices on L."""
    split = Split.draw(sphere.dimension, m, rng)
    bends: list[Bends] = []
    points: list[Vector] = []
    clean = np.zeros((0, m * (m + 1) // 2))
    for _ in range(count_slice_points(sphere.dimension, m, m * (m + 1) // 2) + 1):
        points.append(draw_apart(split, points, rng))
        bends.append(measure_bends(sphere, split, sphere.radius * points[-1]))
        clean = np.concatenate([clean, _clean_slices(bends[-1])])
        found = find_span(clean)
        if found is not None and len(clean) >= _SLICES * len(found[0]):
            return DirectionSlices(split, tuple(bends), found[0])
    return None


def list_across(value: Vector) -> Matrix:
    """Coordinates of what is orthogonal to an answer, one column each."""
    return linalg.qr(value[:, None], mode="complete")[0][:, 1:]


def _clean_slices(seen: Bends) -> Matrix:
    """Second derivatives in outputs that neither the answer nor its slopes along L reach."""
    known = np.column_stack([seen.value, seen.first])
    return linalg.qr(known, mode="complete")[0][:, known.shape[1] :].T @ seen.second


def find_outer_directions(slices: DirectionSlices, w: Matrix) -> Matrix:
    r"""The direction in which every unit moves h (units x outputs).

    At a point it shows, n, but for its share along the answer $\varphi$: the direction lies in all
    planes of both, each by how much it shows. It is the first one of all n and $|n| \varphi$.
    """
    m = slices.split.m
    identity = flatten_symmetric(np.eye(m))[None]
    known = np.concatenate([flatten_symmetric(np.einsum("ki,kj->kij", w, w)), identity])
    inverse = linalg.pinv(known)
    planes = np.empty((len(w), 2 * len(slices.bends), len(slices.bends[0].value)))
    for at, seen in enumerate(slices.bends):
        N = list_across(seen.value)
        clean = _take_scale_off(seen, N, slices.basis)
        shown = (N @ (clean @ inverse)[:, :-1]).T
        planes[:, 2 * at] = shown
        planes[:, 2 * at + 1] = linalg.norm(shown, axis=1)[:, None] * seen.value
    return linalg.svd(planes, full_matrices=False)[2][:, 0]


def _take_scale_off(seen: Bends, N: Matrix, basis: Matrix) -> Matrix:
    """Second derivatives of h across an answer: what its length does to them taken off."""
    second, first = N.T @ seen.second, N.T @ seen.first
    m = first.shape[1]
    # Slopes along each direction of L add symmetric matrices: what of them is in the span.
    inside = np.tensordot(unflatten_symmetric(basis, m), first, (2, 1)).transpose(1, 2, 0)
    inside = 2 * inside.reshape(m, -1)
    products = 2 * (np.sum(first**2) * np.eye(m) + first.T @ first) - inside @ inside.T
    wanted = 2 * np.einsum("oij,oj->i", unflatten_symmetric(second, m), first)
    wanted -= inside @ (second @ basis.T).ravel()
    rates = linalg.lstsq(products, wanted, rcond=None)[0]
    along = first[:, :, None] * rates
    return second - flatten_symmetric(along + along.swapaxes(1, 2))
