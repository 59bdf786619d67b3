"""From numbers to places on an axis, linear or logarithmic, and the numbers that are named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from keyhole.drawing.describing import Axis

_MOST_TICKS = 8  # values up to which each is named on an axis


class Scale(NamedTuple):
    """From numbers to places on an axis; `base` is that of a logarithmic one, else 0."""

    low: float
    high: float
    start: float
    end: float
    base: int = 0

    def at(self, value: float) -> float:
        """Where a number stands; one beyond the axis stands at its end."""
        # Zero has no logarithm: it stands at the lower end.
        value = math.log10(max(value, 1e-320)) if self.base else value
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Numbers to be named: powers of the base, or round numbers."""
        return self._list_powers() if self.base else self._list_round_numbers()

    def _list_powers(self) -> list[float]:
        unit = math.log10(self.base)
        first, last = math.ceil(self.low / unit - 1e-9), math.floor(self.high / unit + 1e-9)
        # At most seven powers of ten or eleven of two are named; fewer than three say too little.
        most = 6 if self.base == 10 else 10
        step = max(1, -(-(last - first) // most))
        whole = [float(self.base) ** k for k in range(first, last + 1, step)]
        return whole if len(whole) >= 3 else self._list_between()

    def _list_between(self) -> list[float]:
        """Round numbers on a short logarithmic axis; its ends where there are none."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        for digits in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
            round_ones = [d * 10.0**k for k in powers for d in digits]
            inside = [v for v in round_ones if self.low <= math.log10(v) <= self.high]
            if len(inside) >= 2:
                return inside
        return [10**self.low, 10**self.high]

    def _list_round_numbers(self) -> list[float]:
        rough = (self.high - self.low) / 5 or 1.0
        unit = 10.0 ** math.floor(math.log10(rough))
        # About five steps, of 1, 2 or 5 times a power of ten.
        factors = (1, 2, 5, 10)
        step = next(unit * k for k in factors if unit * k >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [k * step for k in range(first, last + 1)]


def fit_scale(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    """The axis on which all values have room; ends that it names itself stay."""
    held = [v for v in (*values, axis.low, axis.high) if v is not None]
    base = axis.base if axis.log else 0
    if axis.log:
        held = [math.log10(v) for v in held if v > 0]
    low, high = min(held), max(held)
    # A little air at both ends; an axis of one value gets some width too.
    air = 0.05 if axis.log else 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    low -= air if axis.low is None else 0.0
    high += air if axis.high is None else 0.0
    return Scale(low, high, start, end, base)


def choose_ticks(scale: Scale, values: Sequence[float]) -> list[float]:
    """The values themselves where they are few, else round numbers."""
    # Names of many values would run into each other: the axis then gets round numbers.
    few = sorted(set(values))
    return few if 0 < len(few) <= _MOST_TICKS else scale.ticks()
