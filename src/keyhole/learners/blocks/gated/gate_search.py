r"""The gated network of a block from far lone tokens.

What is left once the units are known along L is linear: what the attention makes of a lone token
there, from first differences, and along q, from values; units along q from their offsets; both
along every other direction from first differences along it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix
from keyhole.learners.blocks.far_tokens import FarTokens
from keyhole.learners.blocks.gated.gate_curves import GateCurves, find_gate_curves
from keyhole.learners.blocks.gated.gate_fit import GateMap, GateValues
from keyhole.learners.blocks.gated.gate_pairs import GatePairs, find_gate_pairs
from keyhole.learners.blocks.gated.growing_slices import (
    GrowingSlices,
    bound_gated_slices,
    choose_span_dimension,
    count_gated_slices,
    limit_gates,
)
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_reads import (
    ANGLE,
    Reads,
    count_read_queries,
    measure_reads,
)
from keyhole.learners.blocks.unit_rest import ask_rates, count_rest_points, list_outside
from keyhole.learners.blocks.unit_slices import Slices, Split
from keyhole.models.last_token.even_parts import EVEN_PARTS
from keyhole.oracles.own_time import check_own_time

_POINTS = 16  # of reads: a curve of three unknowns each
_WRONG = 5  # spans that were none
_CURVED = 0.05  # of a unit's largest value that its curve may leave


@dataclass(frozen=True, slots=True)
class SoughtGates:
    """What one try found.

    Args:
        network: units and the sum of the value maps, None where they were not found.
        units: how many units bend, None where that did not show.
    """

    network: GateMap | None
    units: int | None


def count_gate_queries(width: int, hidden: int) -> dict[str, int]:
    """What the network of so many units costs, by phase."""
    m = choose_span_dimension(width, 2 * hidden + 1)
    points = min(_POINTS, count_rest_points(width, 2 * hidden))
    return {
        "slices": count_gated_slices(width, width, 2 * hidden + 1),
        "reads": count_read_queries(width, 2 * hidden, _POINTS) + points * max(0, width - m - 1),
    }


def bound_gate_queries(width: int) -> int:
    """The most that one try ever asks."""
    reads = count_read_queries(width, 2 * limit_gates(width), _POINTS)
    return bound_gated_slices(width, width) + reads + _POINTS * width


def search_gates(
    asking: FarTokens, kinds: tuple[str, ...], *, rng: np.random.Generator
) -> SoughtGates:
    """One try with a random subspace."""
    with asking.oracle.phase("slices"):
        seen = _see_gates(asking, rng)
    if seen.slices is None or seen.pairs is None:
        return SoughtGates(None, seen.units)
    slices, pairs, units = seen.slices, seen.pairs, seen.units
    with asking.oracle.phase("reads"):
        reads = measure_reads(asking, slices, points=_POINTS, rng=rng)
        curves = find_gate_curves(slices, pairs, reads, asking.radius, kinds)
        if curves.left > _CURVED:
            return SoughtGates(None, units)
        known = _KnownGates(slices.split, reads, curves, asking.radius)
        return SoughtGates(known.find_rest(asking), units)


@dataclass(frozen=True, eq=False, slots=True)
class _SeenGates:
    """Units along a subspace, None where they hide there; how many seem to be there."""

    slices: Slices | None
    pairs: GatePairs | None
    units: int | None


def _see_gates(asking: FarTokens, rng: np.random.Generator) -> _SeenGates:
    """The least subspace on which all units are found."""
    grown, units = GrowingSlices.draw(asking, rng), None
    for _ in range(_WRONG):
        slices = _grow_until_seen(grown, rng)
        if slices is None:
            break
        # Of few slices some are nearly dependent by chance: then no units explain them.
        units = slices.units // 2
        pairs = find_gate_pairs(slices.basis, slices.split.m, units, rng=rng)
        if pairs is not None:
            return _SeenGates(slices, pairs, units)
    return _SeenGates(None, None, units)


def _grow_until_seen(grown: GrowingSlices, rng: np.random.Generator) -> Slices | None:
    while grown.grow(rng):
        check_own_time()
        slices = grown.read_span()
        if slices is not None and slices.units:
            return slices
    return None


class _KnownGates:
    """Gated units along L at the points of the reads."""

    def __init__(self, split: Split, reads: Reads, curves: GateCurves, radius: float) -> None:
        self.split, self.reads, self.curves, self.R = split, reads, curves, radius
        reach = radius * np.sin(ANGLE)
        z = reach * reads.l @ curves.g.T + curves.beta
        E, slope = EVEN_PARTS[curves.activation].bend(z)
        others = reach * reads.l @ curves.u.T + curves.gamma
        self.values = GateValues(z / 2 + E, slope + 0.5, others)

    def find_rest(self, asking: FarTokens) -> GateMap:
        """Units and value maps in all directions."""
        curves, reads = self.curves, self.reads
        across = self.R * np.cos(ANGLE)
        inside = self._solve_inside()
        outside = list_outside(self.split, reads.q)
        g, u, M = self._solve_outside(asking, outside)
        basis = np.column_stack([self.split.inside, reads.q, outside.T])
        return GateMap(
            np.column_stack([curves.g, curves.beta / across, g]) @ basis.T,
            np.column_stack([curves.u, curves.gamma / across, u]) @ basis.T,
            curves.D,
            np.column_stack([inside, self._solve_across(inside), M]) @ basis.T,
            curves.activation,
        )

    def _solve_inside(self) -> Matrix:
        """What the attention makes of a lone token on L."""
        reads, curves, values = self.reads, self.curves, self.values
        first = np.einsum(
            "pk,pvk->pvk", values.slopes * values.others, reads.v @ curves.g.T
        ) + np.einsum("pk,pvk->pvk", values.gates, reads.v @ curves.u.T)
        v = reads.v.reshape(-1, self.split.m)
        left = (reads.first - first @ curves.D).reshape(len(v), -1)
        return linalg.lstsq(v, left, rcond=None)[0].T

    def _solve_across(self, inside: Matrix) -> Matrix:
        """The same along q, from values."""
        made = (self.values.gates * self.values.others) @ self.curves.D
        made = made + self.R * np.sin(ANGLE) * self.reads.l @ inside.T
        return np.mean(self.reads.values - made, axis=0)[:, None] / (self.R * np.cos(ANGLE))

    def _solve_outside(
        self, asking: FarTokens, directions: Matrix
    ) -> tuple[Matrix, Matrix, Matrix]:
        """Gates, others and value maps along directions outside of L, from rates along them."""
        D, values = self.curves.D, self.values
        hidden, outputs = D.shape
        count = min(len(self.reads.p), count_rest_points(outputs, 2 * hidden))
        along = np.repeat(directions[None], count, axis=0)
        rates = ask_rates(asking, self.reads.p[:count], along, self.reads.values[:count])
        parts = (values.slopes * values.others, values.gates)
        rows = [np.einsum("pk,ko->pok", part[:count], D) for part in parts]
        rows.append(np.tile(np.eye(outputs), (count, 1, 1)))
        whole = np.concatenate(rows, axis=2).reshape(count * outputs, -1)
        wanted = rates.swapaxes(1, 2).reshape(len(whole), -1)
        solved = linalg.lstsq(whole, wanted, rcond=None)[0]
        g, u, M = np.split(solved, [hidden, 2 * hidden])
        return g, u, M
