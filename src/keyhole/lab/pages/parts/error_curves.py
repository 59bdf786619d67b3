"""Error against queries of one recovery whose truth is known: the same learner stopped by budgets on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from keyhole.drawing.charts import Axis, Band, Level, Line, Point, chart
from keyhole.drawing.html import escaped, number, section, table
from keyhole.lab.runs.summaries import limit, phases


def error_curve(data: Mapping[str, Any]) -> str:
    """The curve with phases shaded and the limit across; nothing where the truth was not known."""
    curve: Sequence[Mapping[str, Any]] = data.get("curve") or ()
    if not curve:
        return ""
    points = [Point(c["queries"], c["error"], f"{c['queries']:,} queries: error {number(c['error'])}") for c in curve]
    least = limit(data)
    levels = [Level(f"limit {least:,}", least, upright=True)] if least else []
    x, y = Axis("queries asked"), Axis("relative error of W", True)
    title = f"The error of W falls to {number(curve[-1]['error'])} with the last query, not before"
    svg = chart([Line("error", "ours", points)], x, y, about=title, levels=levels, bands=bands_of(data))
    note = (
        "The same learner, stopped by a budget at each mark. Until the last phase is complete W is partly unmeasured "
        "and counted as zero there; left of the dashed line no learner can know every parameter. Phases are shaded."
    )
    rows = [(number(c["queries"]), number(c["error"])) for c in curve]
    numbers = f"<details><summary>the numbers</summary>{table(rows, ('queries', 'error of W'), (0, 1))}</details>"
    return section(title, f"{svg}<p class='limit'>{escaped(note)}</p>{numbers}")


def bands_of(data: Mapping[str, Any]) -> list[Band]:
    """The phases of a run as ranges of queries, verification apart."""
    counts = {name: count for name, count in phases(data).items() if name != "verify"}
    ends = [0, *accumulate(counts.values())]
    return [Band(f"{name} {counts[name]:,}", a, b) for name, (a, b) in zip(counts, pairwise(ends), strict=True)]
