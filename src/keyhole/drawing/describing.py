"""What a chart shows, as plain data: axes, lines, marks, bars, labels.

A chart is described once and painted twice: as SVG for pages and notebooks, and by matplotlib for
papers; its numbers, in all their digits, are rows of a table. Nothing here knows of pixels.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from keyhole._arrays import Matrix
from keyhole.errors import spell_controls


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis is called, and which numbers stand on it.

    Args:
        name: its name.
        log: whether it is logarithmic.
        base: the number whose powers are named on a logarithmic axis.
        low: where it begins; below all that is drawn when None.
        high: where it ends; above all that is drawn when None.
        ticks: places with their names; round numbers when None.
        rows: whether the ticks are names of rows.
        above: whether names of rows stand above them, not beside them.
    """

    name: str
    log: bool = False
    base: int = 10
    low: float | None = None
    high: float | None = None
    ticks: Sequence[tuple[float, str]] | None = None
    rows: bool = False
    above: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """One mark.

    Args:
        x: its place across.
        y: its place up.
        said: what hovering says.
        spread: how far values reach below and above it.
        label: words beside it.
    """

    x: float
    y: float
    said: str = ""
    spread: tuple[float, float] | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Marks of one meaning, joined in their order.

    Args:
        name: written at the end, or beside a single mark.
        kind: what it means: ours, built, peer, limit, bad or truth.
        points: the marks.
        joined: whether a line goes through them.
        marked: whether they are marked.
        said: what hovering over the line says.
    """

    name: str
    kind: str
    points: Sequence[Point]
    joined: bool = True
    marked: bool = True
    said: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """A dashed line of theory with its name, across at a height or upright at an x."""

    name: str
    value: float
    upright: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded range of x with its name."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Area:
    """A shaded part of the plane, by its corners, with its name inside where there is room."""

    points: Sequence[tuple[float, float]]
    kind: str
    shade: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a row from one number to another.

    Args:
        row: its height on the axis.
        low: where it begins.
        high: where it ends.
        kind: what it means.
        shade: how dark it is, from 0 to 1.
        said: what hovering says.
        label: words inside, where there is room.
    """

    row: float
    low: float
    high: float
    kind: str = "ours"
    shade: float = 0.4
    said: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A square of a map around a place, coloured by a share from 0 to 1."""

    x: float
    y: float
    share: float
    said: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture over two axes.

    Args:
        about: what it shows, for those who do not see it.
        x: the axis across.
        y: the axis up.
        lines: marks and lines.
        levels: dashed lines of theory.
        bands: ranges of x that are shaded in turn.
        areas: shaded parts of the plane.
        bars: parts of rows.
        cells: squares of a map.
        scale: names of the darkest and the brightest colour of cells.
        width: of the part inside the axes.
        height: of the part inside the axes.
    """

    about: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    levels: Sequence[Level] = ()
    bands: Sequence[Band] = ()
    areas: Sequence[Area] = ()
    bars: Sequence[Bar] = ()
    cells: Sequence[Cell] = ()
    scale: tuple[str, str] | None = None
    width: float = 470.0
    height: float = 280.0


@dataclass(frozen=True, slots=True)
class Axes:
    """What the rows and the columns of a matrix are."""

    rows: str
    columns: str


def name_rows(names: Sequence[str]) -> Axis:
    """An axis of rows, the first at 0 and lowest."""
    ticks = [(float(k), name) for k, name in enumerate(names)]
    return Axis("", low=-0.5, high=len(names) - 0.5, ticks=ticks, rows=True)


SCORES = Axes("key side, row i", "query side, column j")


@dataclass(frozen=True, slots=True, eq=False)
class Heatmap:
    """A matrix in colours.

    Args:
        title: what is shown.
        note: how it is to be read.
        cells: the numbers that are shown, of blocks where the matrix is large.
        shares: the same, as shares of the scale.
        colours: the scale: signed (from -1 to 1), sequential or errors (from 0 to 1).
        ends: the numbers at the ends and in the middle of the scale.
        axes: what its rows and its columns are.
        name: what one number is called.
        step: how many rows and columns of the matrix are one cell.
        shape: rows and columns of the matrix.
    """

    title: str
    note: str
    cells: Matrix
    shares: Matrix
    colours: str
    ends: tuple[str, str, str]
    axes: Axes
    name: str
    step: int
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A figure of a paper: its finding in a sentence, and pictures in a row."""

    title: str
    panels: Sequence[Chart | Heatmap]


Row = Sequence[str | float]
# A spreadsheet takes a text that begins so for a formula.
_FORMULAS = ("=", "+", "-", "@")


def write_csv(rows: Iterable[Row]) -> str:
    """Rows as CSV; numbers in all their digits, words that could be formulas quoted."""
    held = io.StringIO()
    csv.writer(held, lineterminator="\n").writerows([*map(_clean_cell, row)] for row in rows)
    return held.getvalue()


def _clean_cell(cell: str | float) -> str:
    if not isinstance(cell, str):
        return repr(float(cell)).removesuffix(".0")
    cell = spell_controls(cell)
    return f"'{cell}" if cell.startswith(_FORMULAS) else cell


def tabulate_chart(chart: Chart) -> Iterator[Row]:
    """Marks, levels, bars and cells of a chart, one to a row."""
    x, y = chart.x.name or "x", chart.y.name or "y"
    names = dict(chart.y.ticks or ())
    yield "what", "name", x, y, "low", "high", "words"
    for line in chart.lines:
        for point in line.points:
            low, high = point.spread or ("", "")
            row = names.get(point.y, point.y) if chart.y.rows else point.y
            yield "mark", line.name or point.label, point.x, row, low, high, point.said
    for level in chart.levels:
        place: Row = (level.value, "") if level.upright else ("", level.value)
        yield "level", level.name, *place, "", "", ""
    for bar in chart.bars:
        yield "bar", bar.label, "", names.get(bar.row, bar.row), bar.low, bar.high, bar.said
    for cell in chart.cells:
        yield "cell", cell.share, cell.x, cell.y, "", "", cell.said


def tabulate_heatmap(held: Heatmap) -> Iterator[Row]:
    """The cells of a matrix, one to a row; of a large one each stands for a block."""
    size = f" (first of {held.step})" if held.step > 1 else ""
    yield f"row{size}", f"column{size}", held.name
    for i, line in enumerate(held.cells):
        for j, value in enumerate(line):
            yield i * held.step, j * held.step, float(value)
