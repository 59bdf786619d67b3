"""Where everything of a chart stands: scales, marks, and names that touch nothing.

The part inside the axes begins at (0, 0); the sheet around it is as large as its words need.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from keyhole.drawing.colours import colour_of
from keyhole.drawing.describing import Axis, Bar, Chart, Line, Point
from keyhole.drawing.html import format_number
from keyhole.drawing.labels import Box, box_path, shorten_words
from keyhole.drawing.naming import Namer
from keyhole.drawing.palette import LIGHT
from keyhole.drawing.scales import Scale, choose_ticks, fit_scale
from keyhole.drawing.shapes import (
    Dot,
    Drawing,
    Patch,
    Shape,
    Stroke,
    Words,
    frame_shapes,
    make_rectangle,
)

_ROW_NAME = 400.0  # width of the name of a row, at most
_ABOVE = 0.34  # of a row, from its middle to a name above it
_SCALE = 120.0  # height of a scale of colours
_SHADES = (0.16, 0.07)  # neighbouring bands differ


class _Plane(NamedTuple):
    """Both scales of a chart."""

    across: Scale
    up: Scale

    def put(self, x: float, y: float) -> tuple[float, float]:
        return self.across.at(x), self.up.at(y)


def arrange_chart(chart: Chart) -> Drawing | None:
    """The drawing of a chart; None where nothing can stand on its axes."""
    chart = _keep_placeable(chart)
    if not (chart.bars or chart.cells or any(line.points for line in chart.lines)):
        return None
    plane = _fit_plane(chart)
    ground = [*_shade_bands(chart, plane), *_shade_areas(chart, plane), *_fill_cells(chart, plane)]
    drawn = [*_draw_levels(chart, plane), *_draw_strokes(chart, plane), *_draw_dots(chart, plane)]
    ticks = [*_name_ticks(chart, plane)]
    namer = Namer(chart.width, chart.height)
    namer.keep_off([one.box for one in ticks if isinstance(one, Words)])
    for one in drawn:
        _keep_off_shape(namer, one)
    scale = _draw_colour_scale(chart)
    namer.keep_off([one.box for one in scale if isinstance(one, Words)])
    if scale:
        namer.keep_off([_box_colours(chart)])
    names = _name_everything(chart, plane, namer)
    bars = [*_draw_bars(chart, plane)]
    shapes = [*ground, *ticks, *bars, *drawn, *scale, *names]
    air = max(_reach_of_ticks(ticks), 8.0)
    least = Box(-air, -10.0, chart.width + 12.0, chart.height + 8.0)
    return frame_shapes([*shapes, *_name_axes(chart, ticks)], chart.about, least)


def _keep_placeable(chart: Chart) -> Chart:
    """What has a place: finite numbers, and positive ones on a logarithmic axis."""

    def fits(value: float, axis: Axis) -> bool:
        return math.isfinite(value) and (value > 0 or not axis.log)

    def placed(point: Point) -> bool:
        return fits(point.x, chart.x) and fits(point.y, chart.y)

    lines = [replace(one, points=[p for p in one.points if placed(p)]) for one in chart.lines]
    levels = [one for one in chart.levels if fits(one.value, chart.x if one.upright else chart.y)]
    return replace(chart, lines=lines, levels=levels)


def _list_points(chart: Chart) -> list[Point]:
    return [point for line in chart.lines for point in line.points]


def _fit_plane(chart: Chart) -> _Plane:
    """Axes on which everything has room: bands, bars and spreads are not cut off."""
    points = _list_points(chart)
    xs = [p.x for p in points] + [one.value for one in chart.levels if one.upright]
    ys = [p.y for p in points] + [one.value for one in chart.levels if not one.upright]
    for low, high in [(b.low, b.high) for b in chart.bands] + [(b.low, b.high) for b in chart.bars]:
        xs += [low, high]
    for area in chart.areas:
        xs += [x for x, _ in area.points]
        ys += [y for _, y in area.points]
    ys += [end for p in points if p.spread for end in p.spread]
    ys += [bar.row + side for bar in chart.bars for side in (-0.5, 0.5)]
    xs += [cell.x + side for cell in chart.cells for side in (-0.5, 0.5)]
    ys += [cell.y + side for cell in chart.cells for side in (-0.5, 0.5)]
    return _Plane(
        fit_scale(chart.x, xs, 0.0, chart.width), fit_scale(chart.y, ys, chart.height, 0.0)
    )


def _shade_bands(chart: Chart, plane: _Plane) -> Iterator[Shape]:
    for k, band in enumerate(chart.bands):
        a, b = plane.across.at(band.low), plane.across.at(band.high)
        corners = make_rectangle(Box(a, 0.0, b, chart.height))
        yield Patch(corners, "ours", _SHADES[k % 2], band.name)


def _shade_areas(chart: Chart, plane: _Plane) -> Iterator[Shape]:
    for area in chart.areas:
        yield Patch([plane.put(*point) for point in area.points], area.kind, area.shade, area.name)


def _fill_cells(chart: Chart, plane: _Plane) -> Iterator[Shape]:
    for cell in chart.cells:
        left, bottom = plane.put(cell.x - 0.5, cell.y - 0.5)
        right, top = plane.put(cell.x + 0.5, cell.y + 0.5)
        corners = make_rectangle(Box(left, top, right, bottom))
        yield Patch(corners, said=cell.said, colour=colour_of(cell.share))


def _box_bar(bar: Bar, plane: _Plane) -> Box:
    left, bottom = plane.put(bar.low, bar.row - 0.36)
    right, top = plane.put(bar.high, bar.row + 0.36)
    return Box(left, top, right, bottom)


def _draw_bars(chart: Chart, plane: _Plane) -> Iterator[Shape]:
    for bar in chart.bars:
        box = _box_bar(bar, plane)
        yield Patch(make_rectangle(box), bar.kind, bar.shade, bar.said)


def _draw_levels(chart: Chart, plane: _Plane) -> Iterator[Shape]:
    for one in chart.levels:
        at = plane.across.at(one.value) if one.upright else plane.up.at(one.value)
        ends = [(at, 0.0), (at, chart.height)] if one.upright else [(0.0, at), (chart.width, at)]
        yield Stroke(ends, "dashed", one.name)


def _draw_strokes(chart: Chart, plane: _Plane) -> Iterator[Shape]:
    for line in chart.lines:
        places = [plane.put(p.x, p.y) for p in line.points]
        if line.joined and len(places) > 1:
            # On cells, which keep their colours in the dark, a line stands on a light ground.
            if chart.cells:
                yield Stroke(places, "ground", colour=LIGHT["page"], width=5.0)
            colour = LIGHT["limit"] if chart.cells else None
            yield Stroke(places, f"line {line.kind}", line.said, colour)
        for point, (x, _) in zip(line.points, places, strict=True):
            if point.spread is not None:
                ends = [(x, plane.up.at(end)) for end in point.spread]
                yield Stroke(ends, f"line {line.kind}")


def _draw_dots(chart: Chart, plane: _Plane) -> Iterator[Shape]:
    # Truth is a ring large enough that a recovered dot is seen inside it.
    inside = any(line.kind == "truth" and line.marked and line.points for line in chart.lines)
    sizes = {"truth": 4.5, "ours": 2.6 if inside else 4.0}
    for line in chart.lines:
        for point in line.points if line.marked else ():
            x, y = plane.put(point.x, point.y)
            yield Dot(x, y, line.kind, point.said or line.name, sizes.get(line.kind, 4.0))


def _keep_off_shape(namer: Namer, shape: Shape) -> None:
    if isinstance(shape, Dot):
        reach = shape.size + 1
        box = Box(shape.x - reach, shape.y - reach, shape.x + reach, shape.y + reach)
        namer.keep_off([box])
    elif isinstance(shape, Stroke):
        namer.avoid(box_path(shape.points))


def _name_ticks(chart: Chart, plane: _Plane) -> Iterator[Shape]:
    """The frame, and names of numbers, of which those that would touch are left out."""
    width, height = chart.width, chart.height
    rows = chart.y.rows
    taken: list[Box] = []
    for value, name in _list_up_ticks(chart, plane):
        at = plane.up.at(value)
        cut = shorten_words(name, _ROW_NAME)
        told = name if cut != name else ""
        words = Words(-8.0, at, cut, "" if rows else "quiet", "end", said=told)
        if chart.y.above:
            words = Words(4.0, plane.up.at(value + _ABOVE), cut, "", "start", said=told)
        if not any(words.box.touches(box, 1.0) for box in taken):
            taken.append(words.box)
            yield from [] if rows or chart.cells else [Stroke([(0.0, at), (width, at)], "rule")]
            yield words
    for value, name in _list_across_ticks(chart, plane):
        at = plane.across.at(value)
        cut = shorten_words(name, _ROW_NAME)
        words = Words(at, height + 14.0, cut, "quiet", "middle")
        if not any(words.box.touches(box, 4.0) for box in taken):
            taken.append(words.box)
            # Rows are read against upright rules.
            yield from [Stroke([(at, 0.0), (at, height)], "rule")] if rows and name else []
            yield words
    yield Stroke([(0.0, 0.0), (0.0, height), (width, height)], "rule")


def _list_up_ticks(chart: Chart, plane: _Plane) -> list[tuple[float, str]]:
    if chart.y.ticks is not None:
        return list(chart.y.ticks)
    return [(value, format_number(value)) for value in plane.up.ticks()]


def _list_across_ticks(chart: Chart, plane: _Plane) -> list[tuple[float, str]]:
    if chart.x.ticks is not None:
        return list(chart.x.ticks)
    # Marks of rows stand anywhere, and other bases are named by their powers.
    free = chart.y.rows or chart.x.base != 10
    values = [] if free else [point.x for point in _list_points(chart)]
    return [(value, format_number(value)) for value in choose_ticks(plane.across, values)]


def _reach_of_ticks(ticks: Sequence[Shape]) -> float:
    """How far names of ticks reach to the left of the picture."""
    return max((-one.box.left for one in ticks if isinstance(one, Words)), default=0.0)


def _name_axes(chart: Chart, ticks: Sequence[Shape]) -> Iterator[Shape]:
    """Names of both axes, cut where the picture ends; hovering tells them in full."""
    for axis, upright, room in (
        (chart.x, False, chart.width + 80.0),
        (chart.y, True, chart.height + 70.0),
    ):
        cut = shorten_words(axis.name, room)
        said = axis.name if cut != axis.name else ""
        if upright and cut:
            place = (-_reach_of_ticks(ticks) - 16.0, chart.height / 2)
            yield Words(*place, cut, "", "middle", upright=True, said=said)
        elif cut:
            yield Words(chart.width / 2, chart.height + 34.0, cut, "", "middle", said=said)


def _draw_colour_scale(chart: Chart) -> list[Shape]:
    """What the colours of cells mean, beside the map."""
    if chart.scale is None:
        return []
    steps = 24
    whole = _box_colours(chart)
    shapes: list[Shape] = []
    for k in range(steps):
        bottom = whole.bottom - _SCALE * k / steps
        box = Box(whole.left, bottom - _SCALE / steps, whole.right, bottom)
        shapes.append(Patch(make_rectangle(box), colour=colour_of((k + 0.5) / steps)))
    for end, y in zip(chart.scale, (chart.height - 7.0, chart.height - _SCALE + 7.0), strict=True):
        shapes.append(Words(whole.right + 4.0, y, end, "quiet"))
    return shapes


def _box_colours(chart: Chart) -> Box:
    """Where the colours stand that the scale names."""
    left = chart.width + 24.0
    return Box(left, chart.height - _SCALE, left + 12.0, chart.height)


def _name_everything(chart: Chart, plane: _Plane, namer: Namer) -> list[Shape]:
    """Names of lines and levels, then labels of marks, bars, areas and bands."""
    for bar in chart.bars:
        namer.name_inside(_box_bar(bar, plane), bar.label)
    namer.avoid([_box_bar(bar, plane) for bar in chart.bars])
    for one in chart.levels:
        if one.upright:
            namer.name_upright(plane.across.at(one.value), one.name)
    ends = [
        (line.kind, *_end_of_line(line, plane), line.name) for line in chart.lines if _is_long(line)
    ]
    ends += [
        ("quiet", chart.width, plane.up.at(one.value), one.name)
        for one in chart.levels
        if not one.upright
    ]
    # From the bottom up: each name goes where those before it have left room.
    for kind, _, y, name in sorted(ends, key=lambda end: -end[2]):
        namer.name_end(y, name, kind)
    labels = [
        (point.label or ("" if _is_long(line) else line.name), point, line.kind)
        for line in chart.lines
        for point in line.points
    ]
    # Long ones first: short ones find a place between them.
    for label, point, kind in sorted(labels, key=lambda held: -len(held[0])):
        namer.name_mark(*plane.put(point.x, point.y), label, kind)
    for area in chart.areas:
        namer.name_area([plane.put(*point) for point in area.points], area.name)
    for band in chart.bands:
        a, b = plane.across.at(band.low), plane.across.at(band.high)
        namer.name_band(a, b, band.name)
    return namer.shapes


def _is_long(line: Line) -> bool:
    """Whether the name of a line stands at its end, not beside its one mark."""
    return len(line.points) > 1


def _end_of_line(line: Line, plane: _Plane) -> tuple[float, float]:
    return plane.put(line.points[-1].x, line.points[-1].y)
