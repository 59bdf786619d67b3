"""Error against queries of a recovery whose truth is known, by smaller budgets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from keyhole.drawing.describing import Axis, Band, Chart, Level, Line, Point
from keyhole.drawing.html import (
    Markup,
    element,
    format_note,
    format_number,
    format_section,
    format_table,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.runs.recovery_records import CurvePoint, DemoRecord, RecoveryRecord
from keyhole.lab.runs.rows import count_fewest_queries

_NOTE = (
    "The same learner, stopped by a budget at each mark. Until the last phase is complete W is"
    " partly unmeasured and counted as zero there; left of the dashed line no learner can know"
    " every parameter. Phases are shaded."
)


def describe_error_curve(data: RecoveryRecord) -> Chart | None:
    """The curve with phases shaded and the limit across; None where the truth was not known."""
    curve = list_curve(data)
    if not curve:
        return None
    points = [
        Point(c.queries, c.error, f"{c.queries:,} queries: error {format_number(c.error)}")
        for c in curve
        if c.error is not None
    ]
    least = count_fewest_queries(data)
    # Left of it no learner of the class can know every parameter.
    levels = [Level(f"limit {least:,}", least, upright=True)] if least else []
    return Chart(
        f"The error of W falls to {format_number(curve[-1].error)} with the last query, not before",
        Axis("queries asked"),
        Axis("relative error of W", log=True),
        [Line("", "ours", points)],
        levels,
        find_phase_bands(data),
        # The drop at the end is the point of it: it must be seen without scrolling.
        width=240.0,
        height=230.0,
    )


def list_curve(data: RecoveryRecord) -> Sequence[CurvePoint]:
    """Errors on the way; only a tour knows the truth, and so them."""
    return data.curve if isinstance(data, DemoRecord) else ()


def draw_error_curve(data: RecoveryRecord) -> Markup:
    """The curve, what to look at, and its numbers."""
    chart = describe_error_curve(data)
    if chart is None:
        return Markup()
    rows = [(format_number(c.queries), format_number(c.error)) for c in list_curve(data)]
    table = format_table(rows, ("queries", "error of W"), (0, 1))
    numbers = element("details", element("summary", "the numbers"), table)
    return format_section(chart.about, draw_chart(chart), format_note(_NOTE), numbers)


def find_phase_bands(data: RecoveryRecord) -> list[Band]:
    """The phases of a run as ranges of queries, verification apart."""
    counts = {name: count for name, count in data.queries.by_phase.items() if name != "verify"}
    ends = [0, *accumulate(counts.values())]
    return [
        Band(f"{name} {counts[name]:,}", a, b)
        for name, (a, b) in zip(counts, pairwise(ends), strict=True)
    ]
