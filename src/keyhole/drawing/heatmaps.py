"""Pictures of score matrices: heatmaps, differences on a log scale, singular values."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector
from keyhole.drawing.html import Markup, escape_text, format_number, frame_figure
from keyhole.drawing.palette import SHARES, SIGNED, read_channels

_PIXELS = 64  # a larger matrix is shown in blocks

# Truth is a ring large enough that a recovered dot is seen inside it.
SHAPES = {
    "truth": "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0",
    "ours": "m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0",
    "bad": "m-3 -3l6 6m0 -6l-6 6",
}


class Axes(NamedTuple):
    """What the rows and the columns of a picture are."""

    rows: str
    columns: str


SCORES = Axes("key side, row i", "query side, column j")


def draw_signed_heatmap(
    title: str,
    W: Matrix,
    *,
    name: str = "W",
    axes: Axes = SCORES,
    limit: float = 0.0,
    pixels: int = _PIXELS,
) -> Markup:
    """Blue below zero, white at zero, orange above; block means where W is large.

    Args:
        title: what is shown.
        W: the matrix.
        name: what its entries are called.
        axes: what its rows and its columns are.
        limit: the number that gets the full colour; the largest that is shown when zero.
        pixels: most cells to a side.
    """
    step, x = average_blocks(W, pixels)
    # A matrix of zeros is drawn white, not divided by zero.
    limit = limit or float(np.abs(x).max()) or 1.0
    note = f"limits ±{format_number(limit)}"
    name = name if step == 1 else f"mean of {name}"
    # Means hide single large entries, so the largest is given in words.
    if step > 1:
        note = (
            f"means over {step} x {step} blocks, {note}; the largest entry is"
            f" {format_number(float(np.abs(W).max()))}"
        )
    ends = (f"−{format_number(limit)}", "0", format_number(limit))
    return _draw_heatmap(
        title,
        note,
        x / limit,
        np.linspace(-1, 1, 65),
        ends,
        x,
        _format_cell_attributes(W, step, name),
        axes,
    )


def draw_attention_heatmap(title: str, A: Matrix, *, axes: Axes) -> Markup:
    """Attention weights, from 0 (dark) to 1 (bright); block means where there are many."""
    step, x = average_blocks(A)
    note = f"means over {step} x {step} blocks, from 0 to 1" if step > 1 else "from 0 to 1"
    about = _format_cell_attributes(A, step, "weight")
    ends = ("0", "0.5", "1")
    return _draw_heatmap(
        title, note, x, np.linspace(0, 1, 65), ends, x, about, axes, paint_sequential
    )


def average_blocks(W: Matrix, pixels: int = _PIXELS) -> tuple[int, Matrix]:
    """How many rows and columns go into one cell of a picture, and the means over them."""
    step, sums = _reduce_blocks(np.add, W, pixels)
    return step, sums / _reduce_blocks(np.add, np.ones_like(W), pixels)[1]


def _format_cell_attributes(W: Matrix, step: int, name: str) -> str:
    """What the page's script is told of a picture."""
    rows, columns = W.shape
    return (
        f'data-step="{step}" data-width="{columns}" data-height="{rows}"'
        f' data-name="{escape_text(name)}"'
    )


def draw_error_heatmap(E: Matrix, size: float, title: str = "difference") -> Markup:
    """Log magnitude from 1e-16 (pale) to 1 (dark) of the largest true entry."""
    step, x = _reduce_blocks(np.maximum, np.abs(E), _PIXELS)
    # Sixteen decades: from the rounding of a double to the size of the matrix.
    share = np.clip((np.log10(np.maximum(x / (size or 1.0), 1e-16)) + 16) / 16, 0, 1)
    note = f"largest {format_number(float(x.max()))}; log scale, in units of the largest true entry"
    note += f"; the largest of each {step} x {step} block" if step > 1 else ""
    about = _format_cell_attributes(E, step, "|difference|")
    ends = ("1e-16", "1e-8", "1")
    return _draw_heatmap(title, note, share, np.linspace(0, 1, 65), ends, x, about, SCORES)


def _reduce_blocks(ufunc: np.ufunc, W: Matrix, pixels: int) -> tuple[int, Matrix]:
    """Sums or maxima over square blocks, as few entries to a side as fit the picture."""
    # Blocks are square, so that the picture keeps the shape of the matrix.
    step = -(-max(len(W), len(W.T)) // pixels)
    rows, columns = np.arange(0, len(W), step), np.arange(0, len(W.T), step)
    return step, ufunc.reduceat(ufunc.reduceat(W, rows, axis=0), columns, axis=1)


def _draw_heatmap(
    title: str,
    note: str,
    shares: Matrix,
    scale: Vector,
    ends: tuple[str, ...],
    x: Matrix,
    about: str,
    axes: Axes,
    paint: Callable[[Matrix], Stack] | None = None,
) -> Markup:
    """A matrix with its axes named, its colours explained, its numbers within reach."""
    alt = escape_text(
        f"{title}, rows {axes.rows.split(',')[0]}, columns {axes.columns.split(',')[0]}, {note}"
    )
    # Beside a thin strip, such as a bias, there is no room for the name of its rows.
    down = f"← {axes.rows}" if 3 * len(x) > x.shape[1] else ""
    shape = f"aspect-ratio: {x.shape[1]} / {len(x)}"
    drawn, colours = (
        _encode_png((paint or _paint_diverging)(part)) for part in (shares, scale[None])
    )
    marks = "".join(f"<span>{end}</span>" for end in ends)
    cells = " ".join(f"{v:.2g}" for v in x.ravel())
    drawing = (
        f'<div class="map"><span class="axis query">{escape_text(axes.columns)} →</span><span'
        f' class="axis key">{escape_text(down)}</span><img data-cells="{cells}" {about}'
        f' style="{shape}" alt="{alt}" src="{drawn}"><div class="scale"><img alt=""'
        f' src="{colours}"><div>{marks}</div></div></div><output></output>'
    )
    return frame_figure(drawing, f"<b>{escape_text(title)}</b>: {escape_text(note)}")


def _paint_diverging(shares: Matrix) -> Stack:
    """Colours of numbers from -1 (blue) over 0 (white) to 1 (orange)."""
    cold, white, warm = (np.array(read_channels(c), dtype=np.float64) for c in SIGNED)
    x = shares[..., None]
    return white + np.abs(x) * (np.where(x < 0, cold, warm) - white)


def paint_sequential(shares: Matrix) -> Stack:
    """Colours from 0 to 1 that grow brighter all the way: violet, blue, green, yellow."""
    stops = np.array([read_channels(c) for c in SHARES], dtype=np.float64)
    places = np.linspace(0, 1, len(stops))
    channels: list[Matrix] = [np.interp(shares, places, channel) for channel in stops.T]
    return np.stack(channels, axis=-1)


def colour_of(share: float) -> str:
    """The colour of one number from 0 to 1, as a page writes it."""
    r, g, b = (int(channel) for channel in paint_sequential(np.array([[share]]))[0, 0].round())
    return f"rgb({r},{g},{b})"


def _encode_png(colours: Stack) -> str:
    """Colours as a picture, in an address that holds it."""
    pixels = colours.round().astype(np.uint8)
    rows, columns, _ = pixels.shape
    # A row of a PNG begins with its filter; 0 is none.
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)
    # 8 bits a channel, colour type 2: red, green, blue.
    size = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    body = [
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks
    ]
    return (
        "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(body)).decode()
    )


def draw_log_marks(name: str, said: str, series: Mapping[str, Vector]) -> str:
    """Numbers against their index on a log scale; zeros stand at the bottom.

    Args:
        name: what one number is called.
        said: what the vertical axis is called.
        series: the numbers, not all zero, by the kind of their mark.
    """
    every = np.concatenate(list(series.values()))
    count = max(map(len, series.values()))
    # Eighteen decades below the largest is rounding of rounding: the axis ends there.
    low = math.floor(math.log10(max(every.min(), 1e-18 * every.max(), 1e-320)))
    high = math.floor(math.log10(every.max())) + 1
    marks = _draw_log_axes(said, low, high, count)
    for kind, numbers in series.items():
        for k, value in enumerate(map(float, numbers)):
            y = 24 + 206 * min(1.0, (high - math.log10(max(value, 1e-320))) / (high - low))
            path = (
                f'<path class="{kind}" d="M{44 + 244 * (k + 0.5) / count:.1f}'
                f' {y:.1f}{SHAPES[kind]}"/>'
            )
            marks += f"<g><title>{name} {k + 1}: {format_number(value)}</title>{path}</g>"
    return marks


def _draw_log_axes(said: str, low: int, high: int, count: int) -> str:
    """Rules at powers of ten, at most seven, and the ends of the index."""
    parts = f'<text class="quiet" x="44" y="10">{said}</text>'
    for power in range(high, low - 1, -max(1, -(-(high - low) // 6))):
        y = 24 + 206 * (high - power) / (high - low)
        tick = f"1e{power}" if abs(power) > 3 else format_number(10.0**power)
        parts += f'<line class="rule" x1="44" x2="288" y1="{y:.1f}" y2="{y:.1f}"/>'
        parts += f'<text class="quiet" x="38" y="{y + 4:.1f}" text-anchor="end">{tick}</text>'
    for x, anchor, tick in (
        (48, "start", "1"),
        (166, "middle", "index"),
        (288, "end", f"{count:,}"),
    ):
        parts += f'<text class="quiet" x="{x}" y="246" text-anchor="{anchor}">{tick}</text>'
    return parts
