"""The token map of a post-norm block from huge lone tokens, found by trying subspaces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole.learners.blocks.post_norm.direction_fit import TokenModel
from keyhole.learners.blocks.post_norm.direction_reads import (
    count_read_queries,
    find_scaled_curves,
    measure_circles,
    solve_scaled_reads,
)
from keyhole.learners.blocks.post_norm.direction_rest import (
    DirectionMap,
    RestSearch,
    count_rest_points,
)
from keyhole.learners.blocks.post_norm.direction_slices import (
    bound_direction_queries,
    count_direction_queries,
    find_direction_slices,
    find_outer_directions,
)
from keyhole.learners.blocks.post_norm.token_sphere import TokenSphere
from keyhole.learners.blocks.rank_ones import find_rank_ones
from keyhole.learners.blocks.unit_slices import choose_dimension, limit_units

_WIDEST = 0.62  # of the sphere's dimension, of the subspace tried first
_CURVED = 0.05  # of a unit's largest value that its curve may leave


@dataclass(frozen=True, slots=True)
class SoughtMap:
    """What one try found.

    Args:
        behind: the map behind the first norm, None where it was not found.
        units: how many units bend, None where that did not show.
        side: 1, or -1 where answers point against the map.
    """

    behind: DirectionMap | None
    units: int | None
    side: float = 1.0


def choose_first_dimension(dimension: int, hidden: int) -> int:
    """Of the subspace that is tried first: a wider one leaves few outputs that show units clean."""
    widest = max(2, int(_WIDEST * dimension))
    return min(choose_dimension(dimension, hidden) or widest, widest)


def count_search_queries(dimension: int, hidden: int) -> dict[str, int]:
    """What the token map of so many units costs, by phase."""
    m = choose_dimension(dimension, hidden) or dimension - 2
    return {
        "slices": count_direction_queries(dimension, hidden),
        "reads": count_read_queries(dimension, m, hidden) + _count_rest(dimension, m, hidden),
    }


def _count_rest(dimension: int, m: int, hidden: int) -> int:
    return count_rest_points(dimension, hidden) * (dimension - m)


def bound_search_queries(dimension: int) -> int:
    """The most that one try ever asks."""
    units = limit_units(dimension)
    reads = max(
        count_read_queries(dimension, m, units) + _count_rest(dimension, m, units)
        for m in range(2, max(3, dimension - 1))
    )
    return bound_direction_queries(dimension) + reads


def search_directions(
    sphere: TokenSphere, m: int, kinds: tuple[str, ...], *, rng: np.random.Generator
) -> SoughtMap:
    """One try with a random subspace of dimension m."""
    basis, R = sphere.norm.basis, sphere.radius
    with sphere.oracle.phase("slices"):
        slices = find_direction_slices(sphere, m, rng=rng)
    if slices is None or slices.units < 1:
        return SoughtMap(None, slices and slices.units)
    w = find_rank_ones(slices.basis, m, slices.units, rng=rng)
    if w is None:
        return SoughtMap(None, slices.units)
    with sphere.oracle.phase("reads"):
        outer = find_outer_directions(slices, w)
        reads = measure_circles(sphere, slices.split, slices.units, rng=rng)
        seen = solve_scaled_reads(reads, w, outer, R)
        curves, logs = find_scaled_curves(seen, w, outer, R, kinds)
        if curves.left > _CURVED:
            return SoughtMap(None, slices.units)
        behind = RestSearch(sphere, slices.split, seen, curves, w, logs).find(basis)
    if behind is None:
        return SoughtMap(None, slices.units)
    h = TokenModel(basis, 0.0).turn(behind, reads.p).h
    return SoughtMap(behind, slices.units, float(np.sign(np.sum(h * reads.values)) or 1.0))
