"""Numbers against their index on a log scale, such as singular values."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from keyhole._arrays import Vector
from keyhole.drawing.describing import Axis, Chart, Line, Point
from keyhole.drawing.html import format_number


def describe_log_marks(
    about: str,
    name: str,
    said: str,
    series: Mapping[str, Vector],
    *,
    across: str = "index, largest first",
) -> Chart:
    """Numbers against their index on a log scale; zeros stand at the bottom.

    Args:
        about: what it shows, for those who do not see it.
        name: what one number is called.
        said: what the vertical axis is called.
        series: the numbers, not all zero, by the kind of their mark.
        across: what the horizontal axis is called.
    """
    every = np.concatenate(list(series.values()))
    count = max(map(len, series.values()))
    # Eighteen decades below the largest is rounding of rounding: the axis ends there.
    low = math.floor(math.log10(max(every.min(), 1e-18 * every.max(), 1e-320)))
    high = math.floor(math.log10(every.max())) + 1
    lines = [
        Line(
            "",
            kind,
            [_mark_number(name, k, v, 10.0**low) for k, v in enumerate(map(float, numbers), 1)],
            joined=False,
        )
        for kind, numbers in series.items()
    ]
    ends = ((1.0, "1"), (float(count), f"{count:,}")) if count > 1 else ((1.0, "1"),)
    return Chart(
        about,
        Axis(across, low=0.5, high=count + 0.5, ticks=ends),
        Axis(said, log=True, low=10.0**low, high=10.0**high),
        lines,
        width=220.0,
        height=206.0,
    )


def _mark_number(name: str, index: int, value: float, least: float) -> Point:
    return Point(index, max(value, least), f"{name} {index}: {format_number(value)}")
