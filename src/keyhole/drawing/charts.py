"""Lines and marks against two named axes, linear or logarithmic, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from keyhole.drawing.html import draw_svg, escape_text, format_number, make_scrollable

# Right of RIGHT names of lines have room; the page may scroll if they need more.
WIDTH, HEIGHT, LEFT, BOTTOM, RIGHT = 640, 340, 70, 46, 540
# Shape as well as colour says what a mark means, for those who do not see colours.
SHAPE = {
    "ours": "circle",
    "built": "square",
    "peer": "triangle",
    "limit": "circle",
    "bad": "cross",
    "truth": "ring",
}
_MOST_TICKS = 8  # values of x up to which each is named on the axis
_LINE = 14  # height of a label
_LETTER = 7  # width of a letter of a label, at most
_DRAWN = {
    "square": "m-4 -4h8v8h-8z",
    "triangle": "m0 -5l5 9h-10z",
    "cross": "m-4 -4l8 8m0 -8l-8 8",
}


class Scale(NamedTuple):
    """From numbers to places on an axis, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Where a number stands; one beyond the axis stands at its end."""
        # Zero has no logarithm: it stands at the lower end.
        value = math.log10(max(value, 1e-320)) if self.log else value
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Numbers to be named: powers of ten, or round numbers."""
        if self.log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            # At most seven powers of ten are named; fewer than three say too little of an axis.
            whole = [10.0**k for k in range(first, last + 1, max(1, -(-(last - first) // 6)))]
            return whole if len(whole) >= 3 else self._between()
        rough = (self.high - self.low) / 5 or 1.0
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(
            # About five steps, of 1, 2 or 5 times a power of ten.
            unit * factor
            for factor in (1, 2, 5, 10)
            if unit * factor >= rough * (1 - 1e-9)
        )
        return [
            k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        ]

    def _between(self) -> list[float]:
        """Round numbers on a short logarithmic axis; its ends where there are none."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        for digits in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
            round_ones = [d * 10.0**k for k in powers for d in digits]
            inside = [v for v in round_ones if self.low <= math.log10(v) <= self.high]
            if len(inside) >= 2:
                return inside
        return [10**self.low, 10**self.high]


class Point(NamedTuple):
    """One mark: its place, what hovering says, and how far values spread above and below it."""

    x: float
    y: float
    said: str = ""
    spread: tuple[float, float] | None = None


class Line(NamedTuple):
    """Marks of one meaning, joined in their order.

    Args:
        name: written at the end.
        kind: what it means: ours, built, peer, limit, bad or truth.
        points: the marks.
        joined: whether a line goes through them.
        marked: whether they are marked.
    """

    name: str
    kind: str
    points: Sequence[Point]
    joined: bool = True
    marked: bool = True


class Axis(NamedTuple):
    """What an axis is called, and whether it is logarithmic."""

    name: str
    log: bool = False


class Band(NamedTuple):
    """A shaded range of x with its name."""

    name: str
    low: float
    high: float


class Level(NamedTuple):
    """A dashed line with its name, across at a height or upright at an x."""

    name: str
    value: float
    upright: bool = False


def fit_scale(values: Sequence[float], start: float, end: float, log: bool) -> Scale:
    """The axis on which all values have room."""
    low, high = min(values), max(values)
    if log:
        return Scale(math.log10(low) - 0.05, math.log10(high) + 0.05, start, end, True)
    # A little air at both ends; an axis of one value gets some width too.
    room = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return Scale(low - room, high + room, start, end, False)


def draw_chart(
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    about: str,
    levels: Sequence[Level] = (),
    bands: Sequence[Band] = (),
) -> str:
    """The picture, or nothing where no point can stand on its axes.

    Args:
        lines: what is drawn.
        x: the axis across.
        y: the axis up.
        about: what it shows, for those who do not see it.
        levels: dashed lines of theory.
        bands: ranges of x that are shaded in turn.
    """
    lines = [
        one._replace(points=[p for p in one.points if _is_placeable(p, x, y)]) for one in lines
    ]
    points = [p for one in lines for p in one.points]
    if not points:
        return ""
    # Bands and spreads widen the axes, so that nothing drawn is cut off.
    edges = [edge for band in bands for edge in (band.low, band.high) if edge > 0 or not x.log]
    spreads = [end for p in points if p.spread for end in p.spread if end > 0 or not y.log]
    across = fit_scale(
        [*(p.x for p in points), *edges, *(one.value for one in levels if one.upright)],
        LEFT,
        RIGHT,
        x.log,
    )
    up = fit_scale(
        [*(p.y for p in points), *spreads, *(one.value for one in levels if not one.upright)],
        HEIGHT - BOTTOM,
        14,
        y.log,
    )
    named = sorted({p.x for p in points})
    # Names of many values would run into each other: the axis then gets round numbers.
    if len(named) > _MOST_TICKS:
        named = across.ticks()
    drawn = _draw_bands(bands, across) + _draw_chart_axes(across, up, x, y, named)
    drawn += _draw_levels(levels, across, up)
    drawn += "".join(_draw_line(one, across, up) for one in lines)
    ends = [_label_line_end(one, across, up) for one in lines if one.points and one.name]
    ends += [
        _Label(up.at(one.value), RIGHT + 8, "quiet", one.name) for one in levels if not one.upright
    ]
    marks = [_Label(up.at(p.y), across.at(p.x) - 4, "", "o") for p in points]
    # Names may be long: the picture grows with them, and the page scrolls.
    wanted = max([WIDTH, *(math.ceil(one.x + _LETTER * len(one.name)) for one in ends)])
    size = {
        "viewBox": f"0 0 {wanted} {HEIGHT}",
        "width": f"{wanted}",
        "style": f"min-width:{32 * wanted / WIDTH:.1f}rem",
    }
    return make_scrollable(
        draw_svg(drawn + _draw_labels(ends, marks), size=size, label=about), about
    )


def _is_placeable(point: Point, x: Axis, y: Axis) -> bool:
    finite = math.isfinite(point.x) and math.isfinite(point.y)
    return finite and (point.x > 0 or not x.log) and (point.y > 0 or not y.log)


def _draw_chart_axes(across: Scale, up: Scale, x: Axis, y: Axis, named: Sequence[float]) -> str:
    floor = HEIGHT - BOTTOM
    drawn = f'<path class="rule" fill="none" d="M{LEFT} 10V{floor}H{RIGHT}"/>'
    last = -math.inf
    for value in named:
        at = across.at(value)
        said = format_number(value)
        # A name that would touch the one before it is left out.
        if at - last > 6 * len(said) + 6:
            drawn += (
                f'<text class="quiet" x="{at:.1f}" y="{floor + 16}"'
                f' text-anchor="middle">{said}</text>'
            )
            last = at
    for value in up.ticks():
        drawn += (
            f'<text class="quiet" x="{LEFT - 6}" y="{up.at(value) + 4:.1f}"'
            f' text-anchor="end">{format_number(value)}</text>'
        )
    drawn += (
        f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 8}"'
        f' text-anchor="middle">{escape_text(x.name)}</text>'
    )
    middle = floor / 2
    return (
        drawn + f'<text transform="translate(14 {middle}) rotate(-90)"'
        f' text-anchor="middle">{escape_text(y.name)}</text>'
    )


def _draw_bands(bands: Sequence[Band], across: Scale) -> str:
    """Ranges of x, every other one a shade darker, named where there is room."""
    drawn = ""
    for k, band in enumerate(bands):
        a, b = across.at(band.low), across.at(band.high)
        # Neighbouring bands differ, and names of narrow ones are on hover only.
        shade = (0.16, 0.07)[k % 2]
        name = escape_text(band.name)
        drawn += (
            f'<g><title>{name}</title><rect class="phase" style="stroke:none"'
            f' fill-opacity="{shade}" '
        )
        drawn += f'x="{a:.1f}" y="14" width="{b - a:.1f}" height="{HEIGHT - BOTTOM - 14}"/>'
        if b - a > 6.5 * len(band.name):
            at = f'x="{(a + b) / 2:.1f}" y="{HEIGHT - BOTTOM - 26}"'
            drawn += f'<text class="quiet" {at} text-anchor="middle">{name}</text>'
        drawn += "</g>"
    return drawn


def _draw_levels(levels: Sequence[Level], across: Scale, up: Scale) -> str:
    drawn = ""
    for one in levels:
        if not one.upright:
            drawn += f'<path class="dashed" d="M{LEFT} {up.at(one.value):.1f}H{RIGHT}"/>'
            continue
        at = across.at(one.value)
        floor = HEIGHT - BOTTOM
        # The name stands on the side of the line where there is more room.
        anchor = "end" if at > (LEFT + RIGHT) / 2 else "start"
        side = -6 if anchor == "end" else 6
        drawn += f'<path class="dashed" d="M{at:.1f} 14V{floor}"/>'
        drawn += f'<text class="quiet" x="{at + side:.1f}" y="{floor - 8}" text-anchor="{anchor}">'
        drawn += f"{escape_text(one.name)}</text>"
    return drawn


def _draw_line(line: Line, across: Scale, up: Scale) -> str:
    places = [(across.at(p.x), up.at(p.y), p) for p in line.points]
    drawn = ""
    if line.joined and len(places) > 1:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
        drawn = f'<path class="line {line.kind}" fill="none" d="{path}"/>'
    for x, y, point in places:
        if point.spread is not None:
            low, high = (up.at(end) for end in point.spread)
            drawn += f'<path class="line {line.kind}" d="M{x:.1f} {low:.1f}V{high:.1f}"/>'
        drawn += draw_mark(x, y, line.kind, point.said or line.name) if line.marked else ""
    return drawn


def draw_mark(x: float, y: float, kind: str, said: str) -> str:
    """One mark, its shape by its meaning, with words on hover."""
    shape = SHAPE[kind]
    if shape in ("circle", "ring"):
        drawn = (
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}"'
            f' r="{4 if shape == "circle" else 4.5}"/>'
        )
    else:
        drawn = f'<path class="{kind}" d="M{x:.1f} {y:.1f}{_DRAWN[shape]}"/>'
    return f"<g><title>{escape_text(said)}</title>{drawn}</g>"


class _Label(NamedTuple):
    """A name and where it should stand."""

    y: float
    x: float
    kind: str
    name: str


def _label_line_end(line: Line, across: Scale, up: Scale) -> _Label:
    """The name of a line stands right of the picture, that of a single mark beside it."""
    last = line.points[-1]
    x = across.at(last.x) + 8 if len(line.points) == 1 else RIGHT + 8
    return _Label(up.at(last.y), x, line.kind, line.name)


def _draw_labels(labels: list[_Label], marks: list[_Label]) -> str:
    """Names at the nearest height where they touch no mark and no other name."""
    drawn = ""
    put = list(marks)
    # From the bottom up: each name goes where those before it have left room.
    for one in sorted(labels, reverse=True):
        heights = (one.y + side * away for away in count(0, 2) for side in (-1, 1))
        places = (one._replace(y=y) for y in heights if y <= max(one.y, HEIGHT - BOTTOM - 6))
        one = next(
            place for place in places if not any(_is_touching(place, other) for other in put)
        )
        put.append(one)
        drawn += (
            f'<text class="{one.kind}" x="{one.x:.1f}"'
            f' y="{one.y + 4:.1f}">{escape_text(one.name)}</text>'
        )
    return drawn


def _is_touching(one: _Label, other: _Label) -> bool:
    apart = one.x > other.x + _LETTER * len(other.name) or other.x > one.x + _LETTER * len(one.name)
    return not apart and abs(one.y - other.y) < _LINE
