"""Error against queries of a recovery whose truth is known, by smaller budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from keyhole.drawing.charts import Axis, Band, Level, Line, Point, draw_chart
from keyhole.drawing.html import escape_text, format_number, format_section, format_table
from keyhole.lab.runs.rows import count_fewest_queries, count_phase_queries


def draw_error_curve(data: Mapping[str, Any]) -> str:
    """The curve with phases shaded and the limit across; nothing where the truth was not known."""
    curve: Sequence[Mapping[str, Any]] = data.get("curve") or ()
    if not curve:
        return ""
    points = [
        Point(
            c["queries"], c["error"], f"{c['queries']:,} queries: error {format_number(c['error'])}"
        )
        for c in curve
    ]
    least = count_fewest_queries(data)
    # Left of it no learner of the class can know every parameter.
    levels = [Level(f"limit {least:,}", least, upright=True)] if least else []
    x = Axis("queries asked")
    y = Axis("relative error of W", True)
    title = (
        f"The error of W falls to {format_number(curve[-1]['error'])} with the last query, not"
        " before"
    )
    svg = draw_chart(
        [Line("error", "ours", points)],
        x,
        y,
        about=title,
        levels=levels,
        bands=find_phase_bands(data),
    )
    note = (
        "The same learner, stopped by a budget at each mark. Until the last phase is complete W is"
        " partly unmeasured and counted as zero there; left of the dashed line no learner can know"
        " every parameter. Phases are shaded."
    )
    rows = [(format_number(c["queries"]), format_number(c["error"])) for c in curve]
    numbers = (
        "<details><summary>the"
        f" numbers</summary>{format_table(rows, ('queries', 'error of W'), (0, 1))}</details>"
    )
    return format_section(title, f"{svg}<p class='limit'>{escape_text(note)}</p>{numbers}")


def find_phase_bands(data: Mapping[str, Any]) -> list[Band]:
    """The phases of a run as ranges of queries, verification apart."""
    counts = {name: count for name, count in count_phase_queries(data).items() if name != "verify"}
    ends = [0, *accumulate(counts.values())]
    return [
        Band(f"{name} {counts[name]:,}", a, b)
        for name, (a, b) in zip(counts, pairwise(ends), strict=True)
    ]
