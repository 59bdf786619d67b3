"""Charts and matrices painted by matplotlib, with everything where a page has it too."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keyhole.drawing.arranging import arrange_chart
from keyhole.drawing.colours import paint_shares
from keyhole.drawing.describing import Chart, Heatmap, Sheet
from keyhole.drawing.labels import LINE, Box, wrap_words
from keyhole.drawing.saving import add_caption, arrange_heatmap
from keyhole.drawing.shapes import (
    SHAPE,
    Dot,
    Drawing,
    Patch,
    Shape,
    Stroke,
    Words,
)
from keyhole.lab.pages.figures.figure_style import (
    COLOURS,
    DASHES,
    MARKS,
    PIXELS,
    RULES,
    escape_dollars,
    import_matplotlib,
)

_GAP = 26.0  # between pictures in a row
_AIR = 6.0  # around everything
_POINTS = 72.0 / PIXELS


class _Panel(NamedTuple):
    """A picture with its caption; `rasters` are matrices, each in its box."""

    drawing: Drawing
    rasters: Sequence[tuple[Box, Any]] = ()


def paint_sheet(sheet: Sheet) -> Any | None:
    """A figure of matplotlib; None where there is nothing to draw.

    Raises:
        InvalidInput: matplotlib is not installed.
    """
    library = import_matplotlib()
    alone = len(sheet.panels) == 1
    panels = [one for panel in sheet.panels if (one := _arrange_panel(panel, alone)) is not None]
    if not panels:
        return None
    frames = [one.drawing.frame for one in panels]
    width = sum(box.right - box.left + _GAP for box in frames) - _GAP
    # The title is written a little larger than the letters that are measured.
    title = wrap_words(sheet.title, 0.88 * width)
    top = (LINE + 2.0) * len(title) + 8.0
    height = top + max(box.bottom - box.top for box in frames)
    with library.rc_context(RULES):
        figure, axis = _open_page(Box(-_AIR, -_AIR, width + _AIR, height + _AIR))
        for k, line in enumerate(title):
            place = (0.0, (LINE + 2.0) * k + 12.0)
            axis.text(*place, escape_dollars(line), fontsize=9, color=COLOURS["ink"])
        left = 0.0
        for panel, box in zip(panels, frames, strict=True):
            _paint_panel(axis, panel, left - box.left, top - box.top)
            left += box.right - box.left + _GAP
    return figure


def _open_page(box: Box) -> tuple[Any, Any]:
    """A figure whose one axis measures in pixels of a drawing, heights downwards."""
    # A Figure of its own, without pyplot: no window system, no state shared between runs.
    figures: Any = importlib.import_module("matplotlib.figure")
    width, height = box.right - box.left, box.bottom - box.top
    figure = figures.Figure(figsize=(width / PIXELS, height / PIXELS))
    axis = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axis.set_axis_off()
    axis.set(xlim=(box.left, box.right), ylim=(box.bottom, box.top), autoscale_on=False)
    return figure, axis


def _arrange_panel(panel: Chart | Heatmap, alone: bool) -> _Panel | None:
    if isinstance(panel, Heatmap):
        return _arrange_matrix(panel)
    drawing = arrange_chart(panel)
    if drawing is None:
        return None
    # What a picture among several shows is told below it; one alone has the title.
    return _Panel(drawing if alone else add_caption(drawing, panel.about))


def _arrange_matrix(held: Heatmap) -> _Panel:
    drawing, rasters = arrange_heatmap(held)
    painted = [(one.box, paint_shares(one.shares, one.colours) / 255.0) for one in rasters]
    return _Panel(drawing, painted)


def _paint_panel(axis: Any, panel: _Panel, across: float, down: float) -> None:
    """A picture, moved to its place on the sheet."""
    for box, colours in panel.rasters:
        # The extent names the bottom before the top.
        extent = (box.left + across, box.right + across, box.bottom + down, box.top + down)
        axis.imshow(colours, extent=extent, interpolation="nearest", aspect="auto")
    for order, shape in enumerate(panel.drawing.shapes, start=1):
        _paint_shape(axis, shape, across, down, order)


def _paint_shape(axis: Any, shape: Shape, across: float, down: float, order: int) -> None:
    if isinstance(shape, Words):
        _paint_words(axis, shape, across, down, order)
    elif isinstance(shape, Dot):
        _paint_dot(axis, shape, across, down, order)
    elif isinstance(shape, Stroke):
        _paint_stroke(axis, shape, across, down, order)
    else:
        _paint_patch(axis, shape, across, down, order)


def _paint_words(axis: Any, shape: Words, across: float, down: float, order: int) -> None:
    side = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
    # Letters stand on a line a little below their middle.
    drop, stand = (0.0, "center") if shape.upright else (4.0, "baseline")
    axis.text(
        shape.x + across,
        shape.y + down + drop,
        escape_dollars(shape.words),
        ha=side,
        va=stand,
        rotation=90 if shape.upright else 0,
        color=COLOURS[shape.kind],
        zorder=order,
    )


def _paint_dot(axis: Any, shape: Dot, across: float, down: float, order: int) -> None:
    form = SHAPE[shape.kind]
    axis.plot(
        [shape.x + across],
        [shape.y + down],
        MARKS[form],
        color=COLOURS[shape.kind],
        mfc="none" if form == "ring" else COLOURS[shape.kind],
        ms=2 * shape.size * _POINTS,
        # Filled marks have no edge, which would make them larger.
        mew=0.9 if form in ("ring", "cross") else 0.0,
        zorder=order,
    )


def _paint_stroke(axis: Any, shape: Stroke, across: float, down: float, order: int) -> None:
    xs, ys = zip(*shape.points, strict=True)
    kind = {"rule": "rule", "dashed": "limit"}.get(shape.kind, shape.kind.removeprefix("line "))
    width = shape.width or (0.8 if kind == "rule" else 1.5)
    axis.plot(
        np.add(xs, across),
        np.add(ys, down),
        color=shape.colour or COLOURS[kind],
        ls=DASHES.get(shape.kind, "-"),
        lw=width * _POINTS,
        zorder=order,
    )


def _paint_patch(axis: Any, shape: Patch, across: float, down: float, order: int) -> None:
    xs, ys = zip(*shape.points, strict=True)
    colour = _read_colour(shape.colour) if shape.colour else COLOURS[shape.kind]
    axis.fill(
        np.add(xs, across), np.add(ys, down), color=colour, alpha=shape.shade, lw=0, zorder=order
    )


def _read_colour(colour: str) -> tuple[float, ...]:
    """Shares of red, green and blue, from the words of a page."""
    return tuple(int(channel) / 255.0 for channel in re.findall(r"\d+", colour))
