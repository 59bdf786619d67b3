"""Maps of a sweep: cells coloured by a share or a median, a line of theory across."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keyhole.drawing.describing import Axis, Cell, Chart, Line, Point
from keyhole.drawing.html import (
    Markup,
    element,
    format_number,
    format_table,
    frame_figure,
    join_markup,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.parts.column_words import spell_column
from keyhole.lab.runs.other_records import Figure
from keyhole.lab.runs.tables import Table


class Cells(NamedTuple):
    """A map as numbers.

    Args:
        x: the values across.
        y: the values up.
        z: what was measured in each cell that has rows.
        share: whether z is a share, between 0 and 1.
        name: what z is called.
    """

    x: list[float]
    y: list[float]
    z: dict[tuple[float, float], float]
    share: bool
    name: str

    def scaled(self, value: float) -> float:
        """A value as a number between 0 and 1, for its colour."""
        low, high = (0.0, 1.0) if self.share else (min(self.z.values()), max(self.z.values()))
        return (value - low) / ((high - low) or 1.0)


def measure_cells(rows: Table, figure: Figure) -> Cells | None:
    """What the rows say of each cell; nothing where none has all three columns."""
    found: dict[tuple[float, float], list[Any]] = {}
    for row in rows:
        x, y = row.get(figure.x), row.get(figure.y)
        if isinstance(x, int | float) and isinstance(y, int | float) and figure.value in row:
            found.setdefault((float(x), float(y)), []).append(row[figure.value])
    share = figure.value_equals is not None or figure.value_at_most is not None
    measured = {
        at: value
        for at, seen in found.items()
        if (value := _measure_cell(seen, figure)) is not None
    }
    if not measured:
        return None
    name = figure.value_name or _name_cells(figure)
    xs, ys = (sorted({at[k] for at in measured}) for k in (0, 1))
    return Cells(xs, ys, measured, share, name)


def _name_cells(figure: Figure) -> str:
    """What a cell says, in words."""
    column = spell_column(figure.value or "")
    if figure.value_equals is not None:
        return f"share of jobs whose {column} is {figure.value_equals}"
    if figure.value_at_most is not None:
        return f"share of jobs whose {column} is at most {format_number(figure.value_at_most)}"
    return f"median {column}"


def _measure_cell(seen: Sequence[Any], figure: Figure) -> float | None:
    if figure.value_equals is not None:
        return statistics.fmean(value == figure.value_equals for value in seen)
    numbers = [float(value) for value in seen if isinstance(value, int | float)]
    if figure.value_at_most is not None:
        # Jobs without a number count as failures of the cell.
        return sum(value <= figure.value_at_most for value in numbers) / len(seen)
    return statistics.median(numbers) if numbers else None


def place_value(values: Sequence[float], at: float) -> float:
    """Where a number lies among the middles of cells, from 0 to 1; between two, in proportion."""
    middles = (np.arange(len(values)) + 0.5) / len(values)
    # Interpolation needs two points.
    if len(values) == 1:
        return 0.5
    return float(np.interp(at, values, middles))


def list_theory(figure: Figure) -> dict[str, Sequence[tuple[float, float]]]:
    """The lines of theory across a map, by name."""
    first = {figure.boundary_name or "theory": figure.boundary} if figure.boundary else {}
    return {**first, **figure.boundaries}


def trace_theory(points: Sequence[tuple[float, float]], held: Cells) -> list[tuple[float, float]]:
    """A line of theory, as shares of the width and of the height."""
    # Theory beyond the measured range would be drawn along the edge.
    inside = [
        (x, y) for x, y in points if held.x[0] <= x <= held.x[-1] and held.y[0] <= y <= held.y[-1]
    ]
    return [(place_value(held.x, x), place_value(held.y, y)) for x, y in inside]


def describe_sweep_map(rows: Table, figure: Figure) -> Chart | None:
    """The map, with every cell's number on hover; None where no row has all three columns."""
    held = measure_cells(rows, figure)
    if held is None:
        return None
    # Cells are counted from 0; the middle of the first is at 0.
    cells = [
        Cell(
            held.x.index(x),
            held.y.index(y),
            held.scaled(z),
            f"{format_number(x)}, {format_number(y)}: {held.name} {format_number(z)}",
        )
        for (x, y), z in held.z.items()
    ]
    ends = (0.0, 1.0) if held.share else (min(held.z.values()), max(held.z.values()))
    low, high = (format_number(end) for end in ends)
    return Chart(
        figure.caption or _caption_map(held),
        _count_cells(figure.x_name or spell_column(figure.x), held.x),
        _count_cells(figure.y_name or spell_column(figure.y), held.y),
        _draw_theory(figure, held),
        cells=cells,
        scale=(low, high),
    )


def _caption_map(held: Cells) -> str:
    return f"Colour is the {held.name}, over all jobs of a cell; hover gives the number."


def _count_cells(name: str, values: Sequence[float]) -> Axis:
    """An axis whose ticks are the values of the cells, in their middles."""
    ticks = [(float(k), f"{value:.3g}") for k, value in enumerate(values)]
    return Axis(name, low=-0.5, high=len(values) - 0.5, ticks=ticks)


def _draw_theory(figure: Figure, held: Cells) -> list[Line]:
    lines = {
        name: [
            Point(x * len(held.x) - 0.5, y * len(held.y) - 0.5) for x, y in trace_theory(line, held)
        ]
        for name, line in list_theory(figure).items()
    }
    return [Line(name, "limit", points, marked=False) for name, points in lines.items() if points]


def draw_sweep_map(rows: Table, figure: Figure) -> Markup:
    """The map with its caption, and its numbers as a table."""
    chart = describe_sweep_map(rows, figure)
    held = measure_cells(rows, figure)
    if chart is None or held is None:
        return element("p", "No row has all three columns of the map.")
    picture = frame_figure(draw_chart(chart), chart.about, width="100%")
    return join_markup(picture, _tabulate_cells(held, figure))


def _tabulate_cells(held: Cells, figure: Figure) -> Markup:
    """The same numbers as a table, one row per y, the largest first."""
    columns = (
        f"{figure.y_name or spell_column(figure.y)} \\ {figure.x_name or spell_column(figure.x)}",
        *map(format_number, held.x),
    )
    rows = [
        (
            format_number(y),
            *(format_number(held.z[x, y]) if (x, y) in held.z else "" for x in held.x),
        )
        for y in reversed(held.y)
    ]
    return format_table(rows, columns, tuple(range(1, len(held.x) + 1)))
