"""The network of a block from far lone tokens, found by trying subspaces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix
from keyhole.learners.blocks.far_tokens import FarTokens
from keyhole.learners.blocks.rank_ones import find_rank_ones
from keyhole.learners.blocks.unit_reads import (
    READ_POINTS,
    count_read_queries,
    find_curves,
    find_output_directions,
    measure_reads,
)
from keyhole.learners.blocks.unit_rest import SphereNetwork, count_rest_points, find_rest
from keyhole.learners.blocks.unit_slices import (
    bound_slice_queries,
    choose_dimension,
    count_slice_queries,
    find_slices,
    limit_units,
)

_CURVED = 0.05  # of a unit's largest value that its curve may leave


@dataclass(frozen=True, slots=True)
class Sought:
    """What one try found.

    Args:
        network: the network, None where it was not found.
        units: how many units bend, None where that did not show.
        m: dimension of the subspace that was tried.
    """

    network: SphereNetwork | None
    units: int | None
    m: int


def count_network_queries(dimension: int, outputs: int, hidden: int) -> dict[str, int]:
    """What the network of so many units costs, by phase."""
    m = choose_dimension(dimension, hidden) or dimension - 2
    points = min(READ_POINTS, count_rest_points(outputs, hidden))
    rest = READ_POINTS + points * max(0, dimension - m - 1)
    return {
        "slices": count_slice_queries(dimension, outputs, hidden),
        "reads": count_read_queries(outputs, hidden) + rest,
    }


def bound_network_queries(dimension: int, outputs: int) -> int:
    """The most that one try ever asks."""
    m = dimension - 2
    reads = count_read_queries(outputs, limit_units(dimension))
    return bound_slice_queries(m, outputs) + reads + READ_POINTS * (dimension + 1)


def search_network(
    asking: FarTokens, M: Matrix, m: int, kinds: tuple[str, ...], *, rng: np.random.Generator
) -> Sought:
    """One try with a random subspace of dimension m."""
    with asking.oracle.phase("slices"):
        slices = find_slices(asking, m, rng=rng)
    if slices is None or slices.units < 1:
        return Sought(None, slices and slices.units, m)
    directions = find_rank_ones(slices.basis, m, slices.units, rng=rng)
    if directions is None:
        return Sought(None, slices.units, m)
    with asking.oracle.phase("reads"):
        reads = measure_reads(asking, slices, rng=rng)
        outer = find_output_directions(slices, directions)
        curves = find_curves(reads, directions, outer, asking.radius, kinds)
        if curves.left > _CURVED:
            return Sought(None, slices.units, m)
        network = find_rest(asking, slices.split, directions, curves, reads, M)
    return Sought(network, slices.units, m)
