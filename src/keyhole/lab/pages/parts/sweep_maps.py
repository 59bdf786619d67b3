"""Maps of a sweep: cells coloured by a share or a median, a line of theory across."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keyhole.drawing.heatmaps import colour_of
from keyhole.drawing.html import (
    draw_svg,
    escape_text,
    format_number,
    format_table,
    frame_figure,
    make_scrollable,
)
from keyhole.drawing.palette import LIGHT
from keyhole.lab.runs.tables import Table

MAP_KEYS = {"value", "value_name", "value_equals", "value_at_most", "boundary", "boundary_name"}
_LEFT, _TOP, _RIGHT, _BOTTOM = 70.0, 16.0, 540.0, 294.0


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


def measure_cells(rows: Table, figure: Mapping[str, Any]) -> Cells | None:
    """What the rows say of each cell; nothing where none has all three columns."""
    found: dict[tuple[float, float], list[Any]] = {}
    for row in rows:
        x, y = (row.get(figure[axis]) for axis in "xy")
        if isinstance(x, int | float) and isinstance(y, int | float) and figure["value"] in row:
            found.setdefault((float(x), float(y)), []).append(row[figure["value"]])
    share = "value_equals" in figure or "value_at_most" in figure
    measured = {
        at: value
        for at, seen in found.items()
        if (value := _measure_cell(seen, figure)) is not None
    }
    if not measured:
        return None
    name = str(figure.get("value_name", f"{'share' if share else 'median'} of {figure['value']}"))
    xs, ys = (sorted({at[k] for at in measured}) for k in (0, 1))
    return Cells(xs, ys, measured, share, name)


def _measure_cell(seen: Sequence[Any], figure: Mapping[str, Any]) -> float | None:
    if "value_equals" in figure:
        return statistics.fmean(value == figure["value_equals"] for value in seen)
    numbers = [float(value) for value in seen if isinstance(value, int | float)]
    if "value_at_most" in figure:
        # Jobs without a number count as failures of the cell.
        return sum(value <= figure["value_at_most"] for value in numbers) / len(seen)
    return statistics.median(numbers) if numbers else None


def place_value(values: Sequence[float], at: float) -> float:
    """Where a number lies among the middles of cells, from 0 to 1; between two, in proportion."""
    middles = (np.arange(len(values)) + 0.5) / len(values)
    # Interpolation needs two points.
    if len(values) == 1:
        return 0.5
    return float(np.interp(at, values, middles))


def trace_theory(figure: Mapping[str, Any], held: Cells) -> list[tuple[float, float]]:
    """The line of theory, as shares of the width and of the height."""
    points = [(float(x), float(y)) for x, y in figure.get("boundary", ())]
    # Theory beyond the measured range would be drawn along the edge.
    inside = [
        (x, y) for x, y in points if held.x[0] <= x <= held.x[-1] and held.y[0] <= y <= held.y[-1]
    ]
    return [(place_value(held.x, x), place_value(held.y, y)) for x, y in inside]


def draw_sweep_map(rows: Table, figure: Mapping[str, Any]) -> str:
    """The map, with every cell's number on hover, and its caption."""
    held = measure_cells(rows, figure)
    if held is None:
        return "<p>No row has all three columns of the map.</p>"
    width, height = (_RIGHT - _LEFT) / len(held.x), (_BOTTOM - _TOP) / len(held.y)
    drawn = ""
    for (x, y), z in held.z.items():
        at = (
            f'x="{_LEFT + width * held.x.index(x):.1f}"'
            f' y="{_BOTTOM - height * (held.y.index(y) + 1):.1f}"'
        )
        said = f"{format_number(x)}, {format_number(y)}: {held.name} {format_number(z)}"
        colour = colour_of(held.scaled(z))
        drawn += f'<rect style="fill:{colour}" {at} width="{width:.1f}" height="{height:.1f}">'
        drawn += f"<title>{escape_text(said)}</title></rect>"
    drawn += (
        _draw_theory_line(trace_theory(figure, held), str(figure.get("boundary_name", "theory")))
        + _draw_map_axes(held, figure)
        + _draw_colour_scale(held)
    )
    caption = figure.get(
        "caption", f"Colour is the {held.name}, over all jobs of a cell; hover gives the number."
    )
    size = {
        "viewBox": "0 0 640 350",
        "width": "640",
        "style": "min-width:32rem",
        "shape-rendering": "crispEdges",
    }
    svg = make_scrollable(draw_svg(drawn, size=size, label=caption), "map")
    return frame_figure(svg, escape_text(caption), width="100%") + _tabulate_cells(held, figure)


def _tabulate_cells(held: Cells, figure: Mapping[str, Any]) -> str:
    """The same numbers as a table, one row per y, the largest first."""
    columns = (
        f"{figure.get('y_name', figure['y'])} \\ {figure.get('x_name', figure['x'])}",
        *map(format_number, held.x),
    )
    rows = [
        (
            format_number(y),
            *(format_number(held.z[x, y]) if (x, y) in held.z else "" for x in held.x),
        )
        for y in reversed(held.y)
    ]
    return format_table(rows, tuple(map(escape_text, columns)), tuple(range(1, len(held.x) + 1)))


def _draw_theory_line(points: Sequence[tuple[float, float]], name: str) -> str:
    """The dashed line of theory, on a light ground so that it is seen on every colour."""
    if not points:
        return ""
    places = [(_LEFT + (_RIGHT - _LEFT) * x, _BOTTOM - (_BOTTOM - _TOP) * y) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    look = 'fill="none" shape-rendering="auto"'
    # Cells have the same colours in the dark: so have the line on them and its ground.
    paper, grey = LIGHT["page"], LIGHT["limit"]
    ground = f'<polyline {look} style="stroke:{paper};stroke-width:5" points="{path}"/>'
    label = (
        f'<text class="quiet" x="{_RIGHT + 8}"'
        f' y="{places[-1][1] + 4:.1f}">{escape_text(name)}</text>'
    )
    return f'{ground}<polyline class="dashed" {look} style="stroke:{grey}" points="{path}"/>{label}'


def _draw_map_axes(held: Cells, figure: Mapping[str, Any]) -> str:
    drawn = ""
    step = max(1, -(-len(held.x) // 10))
    for value in held.x[::step]:
        at = _LEFT + (_RIGHT - _LEFT) * place_value(held.x, value)
        drawn += (
            f'<text class="quiet" x="{at:.1f}" y="{_BOTTOM + 16}"'
            f' text-anchor="middle">{value:.3g}</text>'
        )
    for value in held.y[:: max(1, -(-len(held.y) // 12))]:
        at = _BOTTOM - (_BOTTOM - _TOP) * place_value(held.y, value)
        drawn += (
            f'<text class="quiet" x="{_LEFT - 6}" y="{at + 4:.1f}"'
            f' text-anchor="end">{value:.3g}</text>'
        )
    x, y = (escape_text(figure.get(f"{axis}_name", figure[axis])) for axis in "xy")
    drawn += f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 36}" text-anchor="middle">{x}</text>'
    middle = (_TOP + _BOTTOM) / 2
    return (
        drawn
        + f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{y}</text>'
    )


def _draw_colour_scale(held: Cells) -> str:
    """What the colours mean, beside the map."""
    drawn = ""
    steps = 24
    size = 120.0
    ends = (0.0, 1.0) if held.share else (min(held.z.values()), max(held.z.values()))
    for k in range(steps):
        y = _BOTTOM - size * (k + 1) / steps
        drawn += (
            f'<rect style="fill:{colour_of((k + 0.5) / steps)}" x="{_RIGHT + 24}" y="{y:.1f}"'
            ' width="12" '
        )
        drawn += f'height="{size / steps + 0.5:.1f}"/>'
    for end, y in zip(ends, (_BOTTOM, _BOTTOM - size + 8), strict=True):
        drawn += f'<text class="quiet" x="{_RIGHT + 40}" y="{y:.1f}">{format_number(end)}</text>'
    return drawn
