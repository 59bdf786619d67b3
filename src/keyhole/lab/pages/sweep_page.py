"""The page of a sweep: its rows as one picture, its expectations, and how to run it again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from keyhole.drawing.describing import Axis, Chart, Level, Line, Point
from keyhole.drawing.html import (
    Markup,
    element,
    format_command,
    format_note,
    format_number,
    format_section,
    format_table,
    join_markup,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.parts.column_words import spell_column
from keyhole.lab.pages.parts.sweep_maps import describe_sweep_map, draw_sweep_map
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.other_records import Figure, SweepRecord
from keyhole.lab.runs.rows import describe_measured
from keyhole.lab.runs.store import read_rows
from keyhole.lab.runs.summaries import describe_versions, restore_command
from keyhole.lab.runs.tables import Row, Table, tabulate_rows

_CLASSES = ("ours", "built", "peer", "truth", "bad")
Grouped = dict[str, dict[float, list[float]]]


def draw_sweep_run(data: SweepRecord, directory: Path) -> str:
    """The page of a finished sweep, from its record and the store beside it."""
    rows = tabulate_rows(read_rows(directory / "store.sqlite"))
    return draw_sweep_page(data, rows, data.figure)


def draw_sweep_page(data: SweepRecord, rows: Table, figure: Figure | None) -> str:
    """The page, from the record of a sweep and its rows."""
    head = (
        element("p", data.name, class_="verdict"),
        element("h1", data.sentence),
        element("p", data.about) if data.about else "",
    )
    parts = [*head, _draw_figure(rows, figure), _list_expectations(data), _list_failures(data)]
    made = f"Seeds are fields of the jobs, in the file. {describe_versions(data)}".strip()
    command = format_command(restore_command(data), made)
    return wrap_page(data.name, join_markup(*parts, format_section("How to run it again", command)))


def _draw_figure(rows: Table, figure: Figure | None) -> Markup:
    if figure is None:
        return Markup()
    draw = draw_sweep_map if figure.kind == "map" else _draw_sweep_chart
    parts = [
        join_markup(element("h3", name) if name else "", draw(among, figure))
        for name, among in split_panels(rows, figure).items()
    ]
    return format_section(figure.title or "The jobs of this sweep", join_markup(*parts))


def split_panels(rows: Table, figure: Figure) -> dict[str, Table]:
    """Rows by the picture they belong to; all in one where a figure names no panels."""
    if figure.panels is None:
        return {"": rows}
    found: dict[str, Table] = {}
    for row in rows:
        found.setdefault(str(row.get(figure.panels)), []).append(row)
    return {figure.panel_names.get(name, name): found[name] for name in sorted(found)}


def _list_expectations(data: SweepRecord) -> Markup:
    rows = [
        ("met" if one.met else "missed", one.sentence, describe_measured(one.measured))
        for one in data.expectations
    ]
    table = format_table(rows, ("", "expected", "measured"), (2,))
    return format_section("Where it should land", table) if rows else Markup()


def _list_failures(data: SweepRecord) -> Markup:
    rows = [(one.key, one.reason or "") for one in data.failures]
    table = format_table(rows, ("job", "reason"))
    return format_section("What failed", table) if rows else Markup()


def describe_sweep(rows: Table, figure: Figure) -> Chart | None:
    """The picture a sweep asks for, lines or a map; None where no row has its columns."""
    if figure.kind == "map":
        return describe_sweep_map(rows, figure)
    series = group_values(rows, figure)
    # Known lines alone would make a picture too, but one without any result.
    if not series:
        return None
    levels: list[Level] = []
    if figure.limit is not None:
        levels.append(Level(figure.limit_name or "limit", figure.limit))
    if figure.upright is not None:
        levels.append(Level(figure.upright_name or "limit", figure.upright, upright=True))
    lines = [
        _trace_series(name, values, k, figure) for k, (name, values) in enumerate(series.items())
    ]
    caption = "Marks are medians; bars reach from the least to the largest value."
    return Chart(
        figure.caption or caption,
        Axis(figure.x_name or spell_column(figure.x), "x" in figure.log),
        Axis(figure.y_name or spell_column(figure.y), "y" in figure.log),
        [*trace_known_lines(rows, figure), *lines],
        levels,
    )


def _draw_sweep_chart(rows: Table, figure: Figure) -> Markup:
    chart = describe_sweep(rows, figure)
    svg = Markup() if chart is None else draw_chart(chart)
    if chart is None or not svg:
        return element("p", "No row has numbers in both columns of the figure.")
    table = _tabulate_series(group_values(rows, figure), figure)
    return join_markup(svg, format_note(chart.about), table)


def group_values(rows: Table, figure: Figure) -> Grouped:
    """Values of y by series and x."""
    found: Grouped = {}
    for row in rows:
        for x, y in pair_values(row.get(figure.x), row.get(figure.y)):
            found.setdefault(_name_series(row, figure), {}).setdefault(x, []).append(y)
    # Rows come in the order of keys, which is that of hashes.
    return {name: dict(sorted(values.items())) for name, values in sorted(found.items())}


def pair_values(x: Any, y: Any) -> list[tuple[float, float]]:
    """Points of a row, whose columns may be numbers, lists, or lists of lists."""
    if isinstance(x, list) and isinstance(y, list):
        xs, ys = cast(list[Any], x), cast(list[Any], y)
        # One row per seed: all over the same x.
        if ys and isinstance(ys[0], list):
            return [point for each in ys for point in pair_values(xs, each)]
        return [
            point for one, other in zip(xs, ys, strict=False) for point in pair_values(one, other)
        ]
    if isinstance(y, list):
        return [point for each in cast(list[Any], y) for point in pair_values(x, each)]
    # One number stands at every x, as what is known of a whole curve does.
    if isinstance(x, list):
        return [point for each in cast(list[Any], x) for point in pair_values(each, y)]
    if _is_finite_number(x) and _is_finite_number(y):
        return [(float(cast(float, x)), float(cast(float, y)))]
    return []


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def trace_known_lines(rows: Table, figure: Figure) -> list[Line]:
    """What is known beforehand, by name: medians of a column over x, over all series, dashed."""
    lines: list[Line] = []
    for name, column in figure.lines.items():
        # What is known beforehand does not depend on the series.
        found = group_values(rows, Figure(x=figure.x, y=column)).get("", {})
        points = [
            Point(x, statistics.median(ys), f"{name}: {format_number(statistics.median(ys))}")
            for x, ys in found.items()
        ]
        lines.append(Line(name, "limit", points, marked=False))
    return lines


def _name_series(row: Row, figure: Figure) -> str:
    """What a row's series is called."""
    if figure.series is None:
        return ""
    name = str(row.get(figure.series))
    # A bare number says nothing beside a line: it is told with what it counts.
    bare = name if not _is_finite_number(row.get(figure.series)) else None
    return figure.series_names.get(name, bare or f"{spell_column(figure.series)} {name}")


def count_failures(values: list[float], figure: Figure) -> int | None:
    """How many values are beyond what a figure calls a failure; none where it names no line."""
    if figure.failed_above is None and figure.failed_below is None:
        return None
    above = math.inf if figure.failed_above is None else figure.failed_above
    below = -math.inf if figure.failed_below is None else figure.failed_below
    return sum(y > above or y < below for y in values)


def _trace_series(name: str, values: Mapping[float, list[float]], k: int, figure: Figure) -> Line:
    """Medians of a series and their spread; a log scale leaves out what is not above zero."""
    points: list[Point] = []
    for x, every in values.items():
        # A zero, such as an exact recovery, has no place on a log scale.
        if shown := [y for y in every if y > 0 or "y" not in figure.log]:
            middle = statistics.median(shown)
            said = f"{name} {len(shown)} runs, median {middle:.3g}"
            failed = count_failures(every, figure)
            said += "" if failed is None else f", {failed} failures"
            points.append(Point(x, middle, said, (min(shown), max(shown))))
    return Line(name, _CLASSES[k % len(_CLASSES)], points)


def _tabulate_series(series: Grouped, figure: Figure) -> Markup:
    """The same numbers as a table, to read and to copy."""
    rows = [
        (
            name,
            format_number(x),
            str(len(ys)),
            *_list_failures_of(ys, figure),
            format_number(statistics.median(ys)),
            format_number(min(ys)),
            format_number(max(ys)),
        )
        for name, values in series.items()
        for x, ys in values.items()
    ]
    names = (
        spell_column(figure.series or ""),
        figure.x_name or spell_column(figure.x),
        "runs",
        *(("failures",) if count_failures([], figure) is not None else ()),
        "median",
        "least",
        "largest",
    )
    return format_table(rows, names, tuple(range(1, len(names))))


def _list_failures_of(values: list[float], figure: Figure) -> tuple[str, ...]:
    failed = count_failures(values, figure)
    return () if failed is None else (str(failed),)
