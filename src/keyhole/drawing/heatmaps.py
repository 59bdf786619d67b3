"""Matrices in colours: signed numbers, attention weights, differences on a log scale."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.drawing.colours import paint_shares
from keyhole.drawing.describing import SCORES, Axes, Heatmap
from keyhole.drawing.html import (
    Markup,
    caption_picture,
    element,
    format_number,
    frame_figure,
    join_markup,
)

_PIXELS = 64  # a larger matrix is shown in blocks
_TALLEST = 1.25  # times as high as wide


def draw_signed_heatmap(
    title: str,
    W: Matrix,
    *,
    name: str = "W",
    axes: Axes = SCORES,
    limit: float = 0.0,
    pixels: int = _PIXELS,
) -> Markup:
    """Blue below zero, the page's colour at zero, orange above; block means where W is large.

    Args:
        title: what is shown.
        W: the matrix.
        name: what its entries are called.
        axes: what its rows and its columns are.
        limit: the number that gets the full colour; the largest that is shown when zero.
        pixels: most cells to a side.
    """
    return draw_heatmap(
        describe_signed_matrix(title, W, name=name, axes=axes, limit=limit, pixels=pixels)
    )


def describe_signed_matrix(
    title: str,
    W: Matrix,
    *,
    name: str = "W",
    axes: Axes = SCORES,
    limit: float = 0.0,
    pixels: int = _PIXELS,
) -> Heatmap:
    """What `draw_signed_heatmap` draws."""
    step, x = average_blocks(W, pixels)
    # A matrix of zeros is drawn white, not divided by zero.
    limit = limit or float(np.abs(x).max()) or 1.0
    note = f"limits ±{format_number(limit)}"
    name = name if step == 1 else f"mean of {name}"
    # Means hide single large entries, so the largest is given in words.
    if step > 1:
        largest = format_number(float(np.abs(W).max()))
        note = f"means over {step} x {step} blocks, {note}; the largest entry is {largest}"
    ends = (f"−{format_number(limit)}", "0", format_number(limit))
    return Heatmap(title, note, x, x / limit, "signed", ends, axes, name, step, _shape_of(W))


def draw_attention_heatmap(title: str, A: Matrix, *, axes: Axes) -> Markup:
    """Attention weights, from 0 (dark) to 1 (bright); block means where there are many."""
    step, x = average_blocks(A)
    note = f"means over {step} x {step} blocks, from 0 to 1" if step > 1 else "from 0 to 1"
    ends = ("0", "0.5", "1")
    return draw_heatmap(
        Heatmap(title, note, x, x, "sequential", ends, axes, "weight", step, _shape_of(A))
    )


def draw_error_heatmap(E: Matrix, size: float, title: str = "difference") -> Markup:
    """Log magnitude from 1e-16 (pale) to 1 (dark) of the largest true entry."""
    return draw_heatmap(describe_errors(E, size, title))


def describe_errors(E: Matrix, size: float, title: str = "difference") -> Heatmap:
    """What `draw_error_heatmap` draws."""
    step, x = _reduce_blocks(np.maximum, np.abs(E), _PIXELS)
    # Sixteen decades: from the rounding of a double to the size of the matrix.
    share = np.clip((np.log10(np.maximum(x / (size or 1.0), 1e-16)) + 16) / 16, 0, 1)
    note = f"largest {format_number(float(x.max()))}; log scale, in units of the largest true entry"
    note += f"; the largest of each {step} x {step} block" if step > 1 else ""
    ends = ("1e-16", "1e-8", "1")
    name = "|difference|"
    return Heatmap(title, note, x, share, "errors", ends, SCORES, name, step, _shape_of(E))


def _shape_of(W: Matrix) -> tuple[int, int]:
    rows, columns = W.shape
    return rows, columns


def average_blocks(W: Matrix, pixels: int = _PIXELS) -> tuple[int, Matrix]:
    """How many rows and columns go into one cell of a picture, and the means over them."""
    step, sums = _reduce_blocks(np.add, W, pixels)
    return step, sums / _reduce_blocks(np.add, np.ones_like(W), pixels)[1]


def _reduce_blocks(ufunc: np.ufunc, W: Matrix, pixels: int) -> tuple[int, Matrix]:
    """Sums or maxima over square blocks, as few entries to a side as fit the picture."""
    # Blocks are square, so that the picture keeps the shape of the matrix.
    step = -(-max(len(W), len(W.T)) // pixels)
    rows, columns = np.arange(0, len(W), step), np.arange(0, len(W.T), step)
    return step, ufunc.reduceat(ufunc.reduceat(W, rows, axis=0), columns, axis=1)


def draw_heatmap(held: Heatmap) -> Markup:
    """A matrix with its axes named, its colours explained, its numbers within reach."""
    # Beside a thin strip, such as a bias, there is no room for the name of its rows.
    rows, columns = held.cells.shape
    down = f"← {held.axes.rows}" if 3 * rows > columns else ""
    inside = element(
        "div",
        element("span", f"{held.axes.columns} →", class_="axis query"),
        element("span", down, class_="axis key"),
        _draw_cells(held),
        _draw_scale(held),
        class_="map",
    )
    body = join_markup(inside, element("output"))
    return frame_figure(body, caption_picture(held.title, held.note))


def _draw_cells(held: Heatmap) -> Markup:
    """The picture of the cells, with what the page's script reads out."""
    sides = [side.split(",")[0] for side in (held.axes.rows, held.axes.columns)]
    rows, columns = held.cells.shape
    # Cells of a tall matrix are flattened: a column of eight squares would fill a screen.
    tall = min(float(rows), _TALLEST * columns)
    return element(
        "img",
        data_cells=_encode_numbers(held.cells),
        data_step=held.step,
        data_width=held.shape[1],
        data_height=held.shape[0],
        data_name=held.name,
        style=f"aspect-ratio: {columns} / {tall:g}",
        alt=f"{held.title}, rows {sides[0]}, columns {sides[1]}, {held.note}",
        src=encode_address(paint_shares(held.shares, held.colours)),
    )


def _draw_scale(held: Heatmap) -> Markup:
    low = -1.0 if held.colours == "signed" else 0.0
    shares = np.linspace(low, 1.0, 65)[None]
    picture = element("img", alt="", src=encode_address(paint_shares(shares, held.colours)))
    ends = element("div", *(element("span", end) for end in held.ends))
    return element("div", picture, ends, class_="scale")


def _encode_numbers(M: Matrix) -> str:
    """Numbers in all their digits: eight bytes each, in base64, as scripts read them."""
    return base64.b64encode(M.astype("<f8").tobytes()).decode()


def encode_address(colours: Stack) -> str:
    """Colours as a picture, in an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(encode_png(colours)).decode()


def encode_png(colours: Stack) -> bytes:
    """Red, green, blue and cover, from 0 to 255, as the bytes of a PNG."""
    pixels = colours.round().astype(np.uint8)
    rows, columns, _ = pixels.shape
    # A row of a PNG begins with its filter; 0 is none.
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)
    # 8 bits a channel, colour type 6: red, green, blue, cover.
    size = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    body = [
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)
