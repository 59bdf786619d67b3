"""Pictures as files of their own: SVG, PNG and CSV; where everything of a matrix stands on one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole._files import write_atomically
from keyhole.drawing.arranging import arrange_chart
from keyhole.drawing.colours import paint_shares
from keyhole.drawing.describing import Chart, Heatmap, tabulate_chart, tabulate_heatmap, write_csv
from keyhole.drawing.heatmaps import encode_address, encode_png
from keyhole.drawing.html import Markup, element, join_markup
from keyhole.drawing.labels import LINE, Box, join_boxes, wrap_words
from keyhole.drawing.palette import ALONE_STYLE, LIGHT, read_channels
from keyhole.drawing.shapes import Drawing, Words, frame_shapes
from keyhole.drawing.svg import paint_shapes
from keyhole.errors import InvalidInput

_PRINTED = 190.0  # width of the picture of a matrix in a figure
_SIDE = 320.0  # and in a file of its own
_PIXELS = 512  # of a matrix in a PNG, at least
_GAP = 24.0
FORMS = (".svg", ".png", ".csv")
_ANCHORS = ("start", "middle", "end")


def save_heatmaps(helds: Sequence[Heatmap], path: str | Path) -> None:
    """Write matrices side by side; the ending of the name says how.

    SVG has names, scale and caption; PNG the cells alone, on a light ground; CSV every number.

    Raises:
        InvalidInput: the name ends in none of .svg, .png and .csv.
    """
    place = Path(path)
    if place.suffix not in FORMS:
        raise InvalidInput(f"a picture is saved as {', '.join(FORMS)}; got {place.name!r}.")
    write_atomically(place, _FILES[place.suffix](helds))


def save_chart(chart: Chart, path: str | Path) -> None:
    """Write a chart as SVG or its numbers as CSV; the ending of the name says which.

    Raises:
        InvalidInput: the name ends in neither, or nothing can stand on the axes of the chart.
    """
    place = Path(path)
    drawing = arrange_chart(chart)
    if drawing is None:
        raise InvalidInput("nothing of this chart can stand on its axes: there is no picture.")
    if place.suffix not in (".svg", ".csv"):
        raise InvalidInput(f"a chart is saved as .svg or .csv; got {place.name!r}.")
    painted = place.suffix == ".svg"
    content = write_alone([(drawing, ())]) if painted else write_csv(tabulate_chart(chart)).encode()
    write_atomically(place, content)


def _write_svg(helds: Sequence[Heatmap]) -> bytes:
    return write_alone([arrange_heatmap(held, _SIDE) for held in helds])


def write_alone(sheets: Sequence[Arranged], style: str = ALONE_STYLE) -> bytes:
    """Drawings side by side as the bytes of an SVG that needs nothing beside it."""
    parts: list[Markup] = []
    left = bottom = 0.0
    for drawing, rasters in sheets:
        box = drawing.frame
        place = f"translate({left - box.left:.1f} {-box.top:.1f})"
        parts.append(element("g", _paint_sheet(drawing, rasters), transform=place))
        left += box.right - box.left + _GAP
        bottom = max(bottom, box.bottom - box.top)
    width, height = left - _GAP + 8.0, bottom + 8.0
    ground = element("rect", x="-4", y="-4", width=f"{width:.1f}", height=f"{height:.1f}")
    look = {"xmlns": "http://www.w3.org/2000/svg", "class": "keyhole"}
    size = {"viewBox": f"-4 -4 {width:.1f} {height:.1f}", "width": f"{width:.0f}"}
    styled = element("style", Markup(style))
    svg = element("svg", styled, element("g", ground, class_="ground"), *parts, **look, **size)
    return svg.encode()


def _paint_sheet(drawing: Drawing, rasters: Sequence[Raster]) -> Markup:
    return join_markup(*map(_paint_raster, rasters), paint_shapes(drawing.shapes))


def _paint_raster(raster: Raster) -> Markup:
    box = raster.box
    size = {"width": f"{box.right - box.left:.1f}", "height": f"{box.bottom - box.top:.1f}"}
    look = {"preserveAspectRatio": "none", "style": "image-rendering:pixelated"}
    address = encode_address(paint_shares(raster.shares, raster.colours))
    return element("image", x=f"{box.left:.1f}", y=f"{box.top:.1f}", href=address, **size, **look)


def _write_png(helds: Sequence[Heatmap]) -> bytes:
    pictures = [_enlarge_cells(held) for held in helds]
    height = max(len(picture) for picture in pictures)
    gap = np.full((height, int(_GAP), 4), 0.0)
    side_by_side: list[Stack] = []
    for picture in pictures:
        below = np.zeros((height - len(picture), picture.shape[1], 4))
        side_by_side += [np.concatenate([picture, below]), gap]
    return encode_png(_lay_on_ground(np.concatenate(side_by_side[:-1], axis=1)))


def _enlarge_cells(held: Heatmap) -> Stack:
    times = -(-_PIXELS // max(held.cells.shape))
    painted = paint_shares(held.shares, held.colours)
    return painted.repeat(times, axis=0).repeat(times, axis=1)


def _lay_on_ground(colours: Stack) -> Stack:
    """Colours that cover a light ground: a file has no page behind it."""
    cover = colours[..., 3:] / 255.0
    ground = np.array(read_channels(LIGHT["page"]), dtype=np.float64)
    flat = cover * colours[..., :3] + (1.0 - cover) * ground
    return np.concatenate([flat, np.full_like(cover, 255.0)], axis=-1)


def _write_table(helds: Sequence[Heatmap]) -> bytes:
    return "\n".join(write_csv(tabulate_heatmap(held)) for held in helds).encode()


_FILES = {".svg": _write_svg, ".png": _write_png, ".csv": _write_table}


class Raster(NamedTuple):
    """Shares of a scale of colours in a box of the sheet."""

    box: Box
    shares: Matrix
    colours: str


Arranged = tuple[Drawing, Sequence[Raster]]


def arrange_heatmap(held: Heatmap, side: float = _PRINTED) -> Arranged:
    """A matrix, the names of its sides, its scale and its caption."""
    rows, columns = held.cells.shape
    # A thin strip, such as a bias, stays high enough to be seen.
    height = max(side * rows / columns, 12.0)
    cells = Box(0.0, 0.0, side, height)
    scale = Box(0.0, height + 12.0, side, height + 20.0)
    shares = np.linspace(-1.0 if held.colours == "signed" else 0.0, 1.0, 65)[None]
    words = [Words(side / 2, -10.0, f"{held.axes.columns} →", "quiet", "middle")]
    # Beside a thin strip there is no room for the name of its rows.
    if 3 * rows > columns:
        down = f"← {held.axes.rows}"
        words.append(Words(-10.0, height / 2, down, "quiet", "middle", upright=True))
    for end, share, anchor in zip(held.ends, (0.0, 0.5, 1.0), _ANCHORS, strict=True):
        words.append(Words(side * share, scale.bottom + 10.0, end, "quiet", anchor))
    drawing = frame_shapes(words, held.title, join_boxes([cells, scale]))
    painted = [Raster(cells, held.shares, held.colours), Raster(scale, shares, held.colours)]
    return add_caption(drawing, f"{held.title}: {held.note}"), painted


def add_caption(drawing: Drawing, caption: str) -> Drawing:
    """A drawing with words below it, in as many lines as they need."""
    box = drawing.frame
    lines = wrap_words(caption, box.right - box.left - 8.0)
    words = [
        Words(box.left, box.bottom + 10.0 + LINE * k, line, "quiet") for k, line in enumerate(lines)
    ]
    return frame_shapes([*drawing.shapes, *words], drawing.about, box, air=0.0)
