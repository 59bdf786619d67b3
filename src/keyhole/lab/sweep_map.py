"""The map of a sweep: cells coloured by a value over two columns, with a line that theory draws."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from keyhole.lab.exports import Table
from keyhole.lab.pages import escaped, number, table
from keyhole.lab.pictures import sequential

KEYS = {"value", "value_name", "boundary", "boundary_name"}
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 380, 70, 520, 14, 320
Cells = dict[tuple[float, float], float]


def picture(rows: Table, figure: Mapping[str, Any]) -> str:
    """Cells over x and y, the larger the value the brighter, and the same numbers as a table."""
    cells = _cells(rows, figure)
    if not cells:
        return "<p>No row has numbers in the three columns of the map.</p>"
    xs, ys = (sorted({place[k] for place in cells}) for k in (0, 1))
    drawn = "".join(_cell(x, y, value, xs, ys, cells) for (x, y), value in cells.items())
    drawn += _axes(xs, ys, figure) + _boundary(xs, ys, figure)
    caption = figure.get("caption", "Cells are medians over the runs with those values.")
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
    svg = f'<svg {size} role="img" aria-label="{escaped(caption)}">{drawn}</svg>'
    return f"{svg}<p class='limit'>{escaped(caption)}</p>{_numbers(xs, ys, cells, figure)}"


def _cells(rows: Table, figure: Mapping[str, Any]) -> Cells:
    """The median of the value by x and y."""
    found: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        x, y, value = (row.get(figure[name]) for name in ("x", "y", "value"))
        if all(isinstance(one, int | float) and math.isfinite(one) for one in (x, y, value)):
            found.setdefault((float(x), float(y)), []).append(float(value))  # pyright: ignore[reportArgumentType]
    return {place: statistics.median(values) for place, values in sorted(found.items())}


def _place(value: float, values: Sequence[float], start: float, end: float) -> float:
    """The middle of a cell, and between two cells in proportion."""
    each = (end - start) / len(values)
    if value <= values[0] or len(values) == 1:
        return start + each * 0.5
    for k, (low, high) in enumerate(pairwise(values)):
        if value <= high:
            return start + each * (k + 0.5 + (value - low) / (high - low))
    return end - each * 0.5


def _cell(x: float, y: float, value: float, xs: Sequence[float], ys: Sequence[float], cells: Cells) -> str:
    wide, high = (_RIGHT - _LEFT) / len(xs), (_BOTTOM - _TOP) / len(ys)
    left, top = _place(x, xs, _LEFT, _RIGHT) - wide / 2, _place(y, ys, _BOTTOM, _TOP) - high / 2
    largest = max(cells.values()) or 1.0
    share = min(1.0, max(0.0, value / largest))
    colour = sequential(np.array([[share]]))[0, 0]
    red, green, blue = (round(float(part)) for part in colour)
    ink = "#ffffff" if share < 0.55 else "#1b1f24"
    said = f"x = {number(x)}, y = {number(y)}: {number(value)}"
    return (
        f'<g><title>{escaped(said)}</title><rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}" '
        f'fill="rgb({red},{green},{blue})"/><text x="{left + wide / 2:.1f}" y="{top + high / 2 + 4:.1f}" '
        f'text-anchor="middle" style="fill: {ink}">{value:.2g}</text></g>'
    )


def _axes(xs: Sequence[float], ys: Sequence[float], figure: Mapping[str, Any]) -> str:
    drawn = ""
    for x in xs:
        at = _place(x, xs, _LEFT, _RIGHT)
        drawn += f'<text class="quiet" x="{at:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{number(x)}</text>'
    for y in ys:
        at = _place(y, ys, _BOTTOM, _TOP) + 4
        drawn += f'<text class="quiet" x="{_LEFT - 6}" y="{at:.1f}" text-anchor="end">{number(y)}</text>'
    name, other = escaped(figure.get("x_name", figure["x"])), escaped(figure.get("y_name", figure["y"]))
    drawn += f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 38}" text-anchor="middle">{name}</text>'
    middle = (_TOP + _BOTTOM) / 2
    return drawn + f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{other}</text>'


def _boundary(xs: Sequence[float], ys: Sequence[float], figure: Mapping[str, Any]) -> str:
    """Points that theory puts on the map, joined."""
    points = [
        (float(x), float(y)) for x, y in figure.get("boundary", ()) if xs[0] <= x <= xs[-1] and ys[0] <= y <= ys[-1]
    ]
    if not points:
        return ""
    places = [(_place(x, xs, _LEFT, _RIGHT), _place(y, ys, _BOTTOM, _TOP)) for x, y in points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    name = escaped(figure.get("boundary_name", "boundary"))
    label = f'<text class="quiet" x="{_RIGHT + 6}" y="{places[-1][1] + 4:.1f}">{name}</text>'
    return f'<path class="boundary" d="M{path}"/>{label}'


def _numbers(xs: Sequence[float], ys: Sequence[float], cells: Cells, figure: Mapping[str, Any]) -> str:
    """The same numbers as a table, one row per y."""
    columns = (f"{figure.get('y_name', figure['y'])} \\ {figure.get('x_name', figure['x'])}", *map(number, xs))
    rows = [(number(y), *(_shown(cells.get((x, y))) for x in xs)) for y in reversed(ys)]
    return table(rows, tuple(escaped(name) for name in columns), tuple(range(1, len(xs) + 1)))


def _shown(value: float | None) -> str:
    return "" if value is None else number(value)
