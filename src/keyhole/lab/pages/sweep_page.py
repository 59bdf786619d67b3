"""The page of a sweep: its rows as one picture, its expectations, and how to run it again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from keyhole.drawing.charts import Axis, Level, Line, Point, draw_chart
from keyhole.drawing.html import (
    escape_text,
    format_command,
    format_number,
    format_section,
    format_table,
)
from keyhole.errors import InvalidInput
from keyhole.lab.pages.parts.sweep_maps import MAP_KEYS, draw_sweep_map
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.rows import describe_measured
from keyhole.lab.runs.store import read_rows
from keyhole.lab.runs.summaries import describe_versions, restore_command
from keyhole.lab.runs.tables import Table, tabulate_rows

_CLASSES = ("ours", "built", "peer")
_KEYS = {"kind", "lines", "x", "y", "x_name", "y_name", "series", "series_names"}
_KEYS |= {"log", "limit", "limit_name", "title", "caption"}
Grouped = dict[str, dict[float, list[float]]]


def check_figure(figure: Mapping[str, Any]) -> None:
    """Raise unless a figure says which columns it draws."""
    if unknown := sorted(set(figure) - _KEYS - MAP_KEYS):
        raise InvalidInput(
            f"a figure has {', '.join(sorted(_KEYS | MAP_KEYS))}; unknown {', '.join(unknown)}."
        )
    if not {"x", "y"} <= set(figure):
        raise InvalidInput(
            "a figure names its columns x and y, such as job.model.width and record.ratio."
        )
    # A map without a value, or lines with one, is a mistake that would show an empty picture.
    if figure.get("kind", "lines") not in ("lines", "map") or (figure.get("kind") == "map") != (
        "value" in figure
    ):
        raise InvalidInput(
            "a figure's kind is lines or map, and a map names the column of its cells as value."
        )


def draw_sweep_run(data: Mapping[str, Any], directory: Path) -> str:
    """The page of a finished sweep, from its record and the store beside it."""
    rows = tabulate_rows(read_rows(directory / "store.sqlite"))
    return draw_sweep_page(data, rows, data.get("figure"))


def draw_sweep_page(data: Mapping[str, Any], rows: Table, figure: Mapping[str, Any] | None) -> str:
    """The page, from the record of a sweep and its rows."""
    body = f'<p class="verdict">{escape_text(data["name"])}</p>'
    body += f"<h1>{escape_text(data['sentence'])}</h1>"
    body += f"<p>{escape_text(data['about'])}</p>" if data["about"] else ""
    if figure is not None:
        draw = draw_sweep_map if figure.get("kind") == "map" else _draw_sweep_chart
        body += format_section(figure.get("title", "What came"), draw(rows, figure))
    if data["expectations"]:
        body += format_section("Where it should land", _list_expectations(data))
    if data["failures"]:
        body += format_section(
            "What failed",
            format_table(
                [(one["key"], one["reason"]) for one in data["failures"]], ("job", "reason")
            ),
        )
    made = f"Seeds are fields of the jobs, in the file. {describe_versions(data)}".strip()
    return wrap_page(
        data["name"],
        body
        + format_section(
            "How to run it again", format_command(restore_command("sweep", data), made)
        ),
    )


def _list_expectations(data: Mapping[str, Any]) -> str:
    rows = [
        ("met" if one["met"] else "missed", one["sentence"], describe_measured(one["measured"]))
        for one in data["expectations"]
    ]
    return format_table(rows, ("", "expected", "measured"), (2,))


def _draw_sweep_chart(rows: Table, figure: Mapping[str, Any]) -> str:
    series = group_values(rows, figure)
    log = figure.get("log", "")
    x = Axis(figure.get("x_name", figure["x"]), "x" in log)
    y = Axis(figure.get("y_name", figure["y"]), "y" in log)
    levels: list[Level] = []
    if "limit" in figure:
        levels.append(Level(figure.get("limit_name", "limit"), float(figure["limit"])))
    lines = [
        _trace_series(name, values, k, y.log) for k, (name, values) in enumerate(series.items())
    ]
    caption = figure.get(
        "caption", "Marks are medians; bars reach from the least to the largest value."
    )
    # Known lines alone would make a picture too, but one without any result.
    if series:
        lines = [*trace_known_lines(rows, figure), *lines]
    svg = draw_chart(lines, x, y, about=caption, levels=levels)
    if not svg:
        return "<p>No row has numbers in both columns of the figure.</p>"
    return f"{svg}<p class='limit'>{escape_text(caption)}</p>{_tabulate_series(series, figure)}"


def group_values(rows: Table, figure: Mapping[str, Any]) -> Grouped:
    """Values of y by series and x."""
    found: Grouped = {}
    for row in rows:
        for x, y in pair_values(row.get(figure["x"]), row.get(figure["y"])):
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
    if _is_finite_number(x) and _is_finite_number(y):
        return [(float(cast(float, x)), float(cast(float, y)))]
    return []


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def trace_known_lines(rows: Table, figure: Mapping[str, Any]) -> list[Line]:
    """What is known beforehand, by name: medians of a column over x, over all series, dashed."""
    columns: Mapping[str, str] = figure.get("lines", {})
    lines: list[Line] = []
    for name, column in columns.items():
        # What is known beforehand does not depend on the series.
        found = group_values(rows, {"x": figure["x"], "y": column}).get("", {})
        points = [
            Point(x, statistics.median(ys), f"{name}: {format_number(statistics.median(ys))}")
            for x, ys in found.items()
        ]
        lines.append(Line(name, "limit", points, marked=False))
    return lines


def _name_series(row: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    """What a row's series is called."""
    name = str(row.get(figure["series"])) if "series" in figure else ""
    return str(figure.get("series_names", {}).get(name, name))


def _trace_series(name: str, values: Mapping[float, list[float]], k: int, log: bool) -> Line:
    """Medians of a series and their spread; a log scale leaves out what is not above zero."""
    points: list[Point] = []
    for x, every in values.items():
        # A zero, such as an exact recovery, has no place on a log scale.
        if shown := [y for y in every if y > 0 or not log]:
            middle = statistics.median(shown)
            said = f"{name} {len(shown)} runs, median {middle:.3g}"
            points.append(Point(x, middle, said, (min(shown), max(shown))))
    return Line(name, _CLASSES[k % len(_CLASSES)], points)


def _tabulate_series(series: Grouped, figure: Mapping[str, Any]) -> str:
    """The same numbers as a table, to read and to copy."""
    rows = [
        (
            name,
            format_number(x),
            str(len(ys)),
            format_number(statistics.median(ys)),
            format_number(min(ys)),
            format_number(max(ys)),
        )
        for name, values in series.items()
        for x, ys in values.items()
    ]
    names = (
        figure.get("series", ""),
        figure.get("x_name", figure["x"]),
        "runs",
        "median",
        "least",
        "largest",
    )
    return format_table(rows, names, (1, 2, 3, 4, 5))
