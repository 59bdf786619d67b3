"""Drawings as SVG that carries its style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keyhole.drawing.arranging import arrange_chart
from keyhole.drawing.describing import Chart, tabulate_chart, write_csv
from keyhole.drawing.html import Markup, draw_svg, element, join_markup, make_scrollable
from keyhole.drawing.shapes import SHAPE, Dot, Drawing, Patch, Shape, Stroke, Words

_NARROW = 340.0  # a wider drawing is scrolled where the page is narrow
_SLIM = 250.0  # width of a plane that a screen of 360 pixels shows whole, names of marks included
_TALL = 1.7  # height of a row with its name above, in rows
_MARKS = {
    "square": "m-4 -4h8v8h-8z",
    "triangle": "m0 -5l5 9h-10z",
    "cross": "m-4 -4l8 8m0 -8l-8 8",
}


def draw_chart(chart: Chart) -> Markup:
    """The picture, or nothing where nothing can stand on its axes."""
    drawing = arrange_chart(chart)
    if drawing is None:
        return Markup()
    return paint_drawing(drawing, write_csv(tabulate_chart(chart)))


def draw_rows(chart: Chart) -> Markup:
    """The picture of rows twice: a narrow page shows the one whose names stand above them."""
    slim = replace(chart, y=replace(chart.y, above=True), width=_SLIM, height=_TALL * chart.height)
    return join_markup(
        element("div", draw_chart(chart), class_="on-wide"),
        element("div", draw_chart(slim), class_="on-narrow"),
    )


def paint_drawing(drawing: Drawing, numbers: str | None = None) -> Markup:
    """A drawing as SVG; a wide one is scrolled where the page is narrow.

    Args:
        drawing: what is painted.
        numbers: what it shows, as CSV, for the script that saves it.
    """
    box = drawing.frame
    width, height = box.right - box.left, box.bottom - box.top
    size = {
        "viewBox": f"{box.left:.1f} {box.top:.1f} {width:.1f} {height:.1f}",
        "width": f"{width:.0f}",
    }
    size |= {} if numbers is None else {"data-csv": numbers}
    marks = paint_shapes(drawing.shapes)
    if width <= _NARROW:
        return draw_svg(marks, size=size, label=drawing.about)
    # Letters stay large enough to be read.
    size["style"] = f"min-width:{0.8 * width:.0f}px"
    return make_scrollable(draw_svg(marks, size=size, label=drawing.about), drawing.about)


def paint_shapes(shapes: Sequence[Shape]) -> Markup:
    """Shapes as elements of a drawing, in their order."""
    return join_markup(*map(_paint_shape, shapes))


def _paint_shape(shape: Shape) -> Markup:
    painted = _paint_silently(shape)
    # Hovering over a mark says what it is.
    return element("g", element("title", shape.said), painted) if shape.said else painted


def _paint_silently(shape: Shape) -> Markup:
    if isinstance(shape, Words):
        return _paint_words(shape)
    if isinstance(shape, Dot):
        return _paint_dot(shape)
    return _paint_stroke(shape) if isinstance(shape, Stroke) else _paint_patch(shape)


def _paint_words(shape: Words) -> Markup:
    anchor = None if shape.anchor == "start" else shape.anchor
    # Words about the truth are ink, as all words; its marks are outlines.
    kind = None if shape.kind == "truth" else shape.kind or None
    look = {"class": kind, "text-anchor": anchor}
    if shape.upright:
        turn = f"translate({shape.x + 4:.1f} {shape.y:.1f}) rotate(-90)"
        return element("text", shape.words, transform=turn, **look)
    # Letters stand on a line a little below their middle.
    return element("text", shape.words, x=f"{shape.x:.1f}", y=f"{shape.y + 4:.1f}", **look)


def _paint_dot(shape: Dot) -> Markup:
    form = SHAPE[shape.kind]
    if form in _MARKS:
        return element("path", class_=shape.kind, d=f"M{shape.x:.1f} {shape.y:.1f}{_MARKS[form]}")
    at = {"cx": f"{shape.x:.1f}", "cy": f"{shape.y:.1f}", "r": f"{shape.size:g}"}
    return element("circle", class_=shape.kind, **at)


def _paint_stroke(shape: Stroke) -> Markup:
    look = {"stroke": shape.colour, "stroke-width": shape.width}
    told = [f"{name}:{value}" for name, value in look.items() if value is not None]
    style = ";".join(told) or None
    path = _trace_path(shape.points)
    return element("path", class_=shape.kind, fill="none", style=style, d=path)


def _paint_patch(shape: Patch) -> Markup:
    kinds = ("cell",) if shape.colour else ("patch", "edged" if shape.edge else "", shape.kind)
    look = {
        "class": " ".join(filter(None, kinds)),
        "style": f"fill:{shape.colour}" if shape.colour else None,
        "fill-opacity": None if shape.shade == 1.0 else f"{shape.shade:g}",
        "stroke-width": f"{shape.edge:g}" if shape.edge else None,
    }
    if (box := _find_box(shape.points)) is not None:
        x, y, width, height = (f"{side:.1f}" for side in box)
        return element("rect", **look, x=x, y=y, width=width, height=height)
    return element("path", **look, d=f"{_trace_path(shape.points)}z")


def _trace_path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _find_box(points: Sequence[tuple[float, float]]) -> tuple[float, float, float, float] | None:
    """Left, top, width and height of an upright rectangle; None of another polygon."""
    xs, ys = sorted({x for x, _ in points}), sorted({y for _, y in points})
    if len(points) != 4 or len(xs) > 2 or len(ys) > 2:
        return None
    # Sides as they are written: a width rounded by itself leaves a seam beside its neighbour.
    left, top, right, bottom = (round(side, 1) for side in (xs[0], ys[0], xs[-1], ys[-1]))
    return left, top, right - left, bottom - top
