"""Hidden units of a recovered network, one by one: what kind, how large, how well known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Indices, Vector

# An examination passes gaps of so much of what the parts of a model contribute.
_SEEN = 1e-9
_NAMED = 6  # units that a sentence names


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class FoundUnits:
    """The units of a network, in the order of its model.

    Args:
        activation: of all of them.
        sizes: what each adds to slopes, beside the largest.
        bars: standard error of each normal, as an angle.
        unread: numbers of units whose width was not read, and is the fit's alone.
        parallel: groups of units of one direction.
    """

    activation: str
    sizes: Vector
    bars: Vector
    unread: tuple[int, ...] = ()
    parallel: tuple[tuple[int, ...], ...] = ()

    @property
    def faint(self) -> float:
        """Units smaller than this beside the largest would not have shown in the examination."""
        return _SEEN * float(self.sizes.sum())

    @property
    def sentence(self) -> str:
        """How many units there are, the faintest and the least known, and what would not show."""
        count = len(self.sizes)
        if not count:
            return ""
        weak, rough = int(np.argmin(self.sizes)), int(np.argmax(self.bars))
        parts = [
            f"{count:,} {self.activation} unit{'s' * (count != 1)}, the faintest (unit {weak})"
            f" {self.sizes[weak]:.1g} of the largest; normals are known to"
            f" {np.median(self.bars):.0e}, that of unit {rough} to {self.bars[rough]:.0e}."
        ]
        if self.unread:
            parts.append(f"The width of {_name_units(self.unread)} was not read alone.")
        if self.parallel:
            groups = ", ".join(_name_units(group) for group in self.parallel[:_NAMED])
            rest = len(self.parallel) - _NAMED
            more = f" and {rest} groups more" if rest > 0 else ""
            parts.append(f"Of one direction: {groups}{more}.")
        parts.append(
            "Units with one hyperplane are one here. Units whose jump is below rounding are not"
            f" seen, and one below {self.faint:.0e} of the largest would not have shown."
        )
        return " ".join(parts)


def _name_units(units: Sequence[int]) -> str:
    """Some numbers of units, the first of many."""
    named = ", ".join(str(j) for j in units[:_NAMED])
    more = f" and {len(units) - _NAMED} more" if len(units) > _NAMED else ""
    return f"unit{'s' * (len(units) != 1)} {named}{more}"


def list_found_units(
    activation: str,
    sizes: Vector,
    bars: Vector,
    *,
    unread: Sequence[int] = (),
    parallel: Sequence[Indices] = (),
) -> FoundUnits | None:
    """Units of these sizes; None where there are none, or their errors are not known."""
    if not len(sizes) or len(bars) != len(sizes):
        return None
    if not (np.isfinite(bars).all() and np.isfinite(sizes).all()):
        return None
    return FoundUnits(
        activation=activation,
        sizes=sizes / max(float(sizes.max()), 1e-300),
        bars=bars,
        unread=tuple(int(j) for j in unread),
        parallel=tuple(tuple(int(j) for j in group) for group in parallel),
    )
