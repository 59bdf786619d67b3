"""The page of a sweep: its rows as one picture, its expectations, and how to run it again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from keyhole.errors import InvalidInput
from keyhole.lab import sweep_map
from keyhole.lab.exports import Table
from keyhole.lab.pages import escaped, number, section, shell, table

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 340, 70, 46
_MARKS = ("circle", "square", "triangle")
_CLASSES = ("ours", "built", "peer")
_MOST_TICKS = 8  # values of x that are each named on the axis
_LINE = 14  # height of a label
_KEYS = {"x", "y", "series", "series_names", "log", "limit", "title", "caption", "x_name", "y_name", "limit_name"}
_KEYS |= {"kind", "lines", *sweep_map.KEYS}


class _Scale(NamedTuple):
    """From numbers to places on an axis, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            whole = [10.0**k for k in range(first, last + 1, max(1, (last - first) // 6))]
            return whole if len(whole) >= 2 else [10**self.low, 10**self.high]
        rough = (self.high - self.low) / 5 or 1.0
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
        return [k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def check_figure(figure: Mapping[str, Any]) -> None:
    """Raise unless a figure says which columns it draws."""
    if unknown := sorted(set(figure) - _KEYS):
        raise InvalidInput(f"a figure has {', '.join(sorted(_KEYS))}; unknown {', '.join(unknown)}.")
    if not {"x", "y"} <= set(figure):
        raise InvalidInput("a figure names its columns x and y, such as job.model.width and record.ratio.")
    if figure.get("kind", "lines") not in ("lines", "map") or (figure.get("kind") == "map") != ("value" in figure):
        raise InvalidInput("a figure's kind is lines or map, and a map names the column of its cells as value.")


def page(data: Mapping[str, Any], rows: Table, figure: Mapping[str, Any] | None) -> str:
    """The page, from the record of a sweep and its rows."""
    body = f'<p class="verdict">{escaped(data["name"])}</p><h1>{escaped(data["sentence"])}</h1>'
    body += f"<p>{escaped(data['about'])}</p>" if data["about"] else ""
    if figure is not None:
        drawn = sweep_map.picture(rows, figure) if figure.get("kind") == "map" else _picture(rows, figure)
        body += section(figure.get("title", "What came"), drawn)
    if data["expectations"]:
        body += section("Where it should land", _expectations(data))
    if data["failures"]:
        body += section(
            "What failed", table([(one["key"], one["reason"]) for one in data["failures"]], ("job", "reason"))
        )
    again = f"<pre>keyhole sweep {escaped(data['file'])} --out {escaped(data['run'])}</pre>"
    return shell(data["name"], body + section("How to run it again", again))


def _expectations(data: Mapping[str, Any]) -> str:
    rows = [
        ("met" if one["met"] else "missed", one["sentence"], number(one["measured"])) for one in data["expectations"]
    ]
    return table(rows, ("", "expected", "measured"), (2,))


def _picture(rows: Table, figure: Mapping[str, Any]) -> str:
    series = _series(rows, figure)
    log = figure.get("log", "")
    points = [(x, y) for values in series.values() for x, ys in values.items() for y in ys]
    points = [(x, y) for x, y in points if (x > 0 or "x" not in log) and (y > 0 or "y" not in log)]
    if not points:
        return "<p>No row has numbers in both columns of the figure.</p>"
    limit = [float(figure["limit"])] if "limit" in figure else []
    known = _known_lines(rows, figure, "y" in log)
    across = _scale([x for x, _ in points], _LEFT, _WIDTH - 110, "x" in log)
    levels = [y for line in known.values() for y in line.values()]
    up = _scale([*(y for _, y in points), *limit, *levels], _HEIGHT - _BOTTOM, 14, "y" in log)
    named = sorted({x for x, _ in points})
    drawn = _axes(across, up, figure, named if len(named) <= _MOST_TICKS else across.ticks())
    labels = [(up.at(level), "quiet", figure.get("limit_name", "limit")) for level in limit]
    drawn += "".join(f'<path class="dashed" d="M{_LEFT} {y:.1f}H{_WIDTH - 100}"/>' for y, _, _ in labels)
    for name, line in known.items():
        places = "L".join(f"{across.at(x):.1f} {up.at(y):.1f}" for x, y in line.items())
        drawn += f'<path class="dashed" fill="none" d="M{places}"/>'
        labels.append((up.at(list(line.values())[-1]), "quiet", name))
    for k, (name, values) in enumerate(series.items()):
        line, end = _line(name, values, across, up, k)
        drawn += line
        labels += [(end, _CLASSES[k % len(_CLASSES)], name)] if line else []
    drawn += _labels(labels)
    caption = figure.get("caption", "Marks are medians; bars reach from the least to the largest value.")
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
    svg = f'<svg {size} role="img" aria-label="{escaped(caption)}">{drawn}</svg>'
    return f"{svg}<p class='limit'>{escaped(caption)}</p>{_numbers(series, figure)}"


def _series(rows: Table, figure: Mapping[str, Any]) -> dict[str, dict[float, list[float]]]:
    """Values of y by series and x."""
    grouped: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        for x, y in pairs(row.get(figure["x"]), row.get(figure["y"])):
            grouped.setdefault(_name(row, figure), {}).setdefault(x, []).append(y)
    return {name: dict(sorted(values.items())) for name, values in sorted(grouped.items())}


def pairs(x: Any, y: Any) -> list[tuple[float, float]]:
    """Points of a row: a number or several for one x, or one or several rows of them for a list of x."""
    if isinstance(x, list) and isinstance(y, list):
        xs, ys = cast(list[Any], x), cast(list[Any], y)
        if ys and isinstance(ys[0], list):
            return [point for each in ys for point in pairs(xs, each)]
        return [point for one, other in zip(xs, ys, strict=False) for point in pairs(one, other)]
    if isinstance(y, list):
        return [point for each in cast(list[Any], y) for point in pairs(x, each)]
    if isinstance(x, int | float) and isinstance(y, int | float) and math.isfinite(x) and math.isfinite(y):
        return [(float(x), float(y))]
    return []


def _known_lines(rows: Table, figure: Mapping[str, Any], log: bool) -> dict[str, dict[float, float]]:
    """What is known beforehand, by name: medians of a column over x, over all series."""
    lines: dict[str, dict[float, float]] = {}
    for name, column in figure.get("lines", {}).items():
        found: dict[float, list[float]] = {}
        for row in rows:
            for x, y in pairs(row.get(figure["x"]), row.get(column)):
                found.setdefault(x, []).append(y)
        line = {x: statistics.median(ys) for x, ys in sorted(found.items())}
        lines[name] = {x: y for x, y in line.items() if y > 0 or not log}
    return {name: line for name, line in lines.items() if line}


def _name(row: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    """What a row's series is called."""
    name = str(row.get(figure["series"])) if "series" in figure else ""
    return str(figure.get("series_names", {}).get(name, name))


def _scale(values: Sequence[float], start: float, end: float, log: bool) -> _Scale:
    low, high = min(values), max(values)
    if log:
        return _Scale(math.log10(low) - 0.05, math.log10(high) + 0.05, start, end, True)
    room = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return _Scale(low - room, high + room, start, end, False)


def _axes(across: _Scale, up: _Scale, figure: Mapping[str, Any], named: Sequence[float]) -> str:
    floor = _HEIGHT - _BOTTOM
    drawn = f'<path class="rule" fill="none" d="M{_LEFT} 10V{floor}H{_WIDTH - 100}"/>'
    for value in named:
        x = across.at(value)
        drawn += f'<text class="quiet" x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{number(value)}</text>'
    for value in up.ticks():
        drawn += (
            f'<text class="quiet" x="{_LEFT - 6}" y="{up.at(value) + 4:.1f}" text-anchor="end">{number(value)}</text>'
        )
    name = escaped(figure.get("x_name", figure["x"]))
    drawn += f'<text x="{(_LEFT + _WIDTH - 100) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{name}</text>'
    middle, name = floor / 2, escaped(figure.get("y_name", figure["y"]))
    return drawn + f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{name}</text>'


def _labels(labels: list[tuple[float, str, str]]) -> str:
    """Names at the right end of their lines, moved apart where they would touch."""
    drawn, last = "", -math.inf
    for y, kind, name in sorted(labels):
        last = max(y, last + _LINE)
        drawn += f'<text class="{kind}" x="{_WIDTH - 96}" y="{last + 4:.1f}">{escaped(name)}</text>'
    return drawn


def _line(name: str, values: Mapping[float, list[float]], across: _Scale, up: _Scale, k: int) -> tuple[str, float]:
    shown = {x: [y for y in ys if y > 0 or not up.log] for x, ys in values.items() if x > 0 or not across.log}
    places = [(across.at(x), ys) for x, ys in shown.items() if ys]
    if not places:
        return "", 0.0
    kind = _CLASSES[k % len(_CLASSES)]
    middles = [(x, up.at(statistics.median(ys))) for x, ys in places]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in middles)
    drawn = f'<path class="line {kind}" fill="none" d="{path}"/>'
    for (x, ys), (_, y) in zip(places, middles, strict=True):
        drawn += f'<path class="line {kind}" d="M{x:.1f} {up.at(min(ys)):.1f}V{up.at(max(ys)):.1f}"/>'
        drawn += _mark(
            x,
            y,
            kind,
            _MARKS[(k + k // len(_CLASSES)) % len(_MARKS)],
            f"{name} {len(ys)} runs, median {statistics.median(ys):.3g}",
        )
    return drawn, middles[-1][1]


def _mark(x: float, y: float, kind: str, shape: str, said: str) -> str:
    shapes = {
        "circle": f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4">',
        "square": f'<rect class="{kind}" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8">',
        "triangle": f'<path class="{kind}" d="M{x:.1f} {y - 5:.1f}l5 9h-10z">',
    }
    tag = shapes[shape]
    return f"{tag}<title>{escaped(said)}</title></{tag[1 : tag.index(' ')]}>"


def _numbers(series: Mapping[str, Mapping[float, list[float]]], figure: Mapping[str, Any]) -> str:
    """The same numbers as a table, to read and to copy."""
    rows = [
        (name, number(x), str(len(ys)), number(statistics.median(ys)), number(min(ys)), number(max(ys)))
        for name, values in series.items()
        for x, ys in values.items()
    ]
    names = (figure.get("series", ""), figure.get("x_name", figure["x"]), "runs", "median", "least", "largest")
    return table(rows, names, (1, 2, 3, 4, 5))
