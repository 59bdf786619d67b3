"""How figures for papers look: the colours and marks of every picture."""

from __future__ import annotations

import importlib
import io
import textwrap
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keyhole.drawing.palette import LIGHT, SIGNED
from keyhole.errors import InvalidInput
from keyhole.models.files import write_atomically

Paths = Iterator[Path]
COLOURS = LIGHT  # papers are white
MARKS = {"truth": "o", "ours": "o", "limit": "o", "built": "s", "peer": "^", "bad": "x"}
LINES = {"truth": "-", "ours": "-", "limit": "--", "built": "-", "peer": ":", "bad": "-"}
_RULES: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLOURS["limit"],
    "axes.linewidth": 0.6,
    "text.color": COLOURS["truth"],
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.facecolor": "white",
    "pdf.fonttype": 42,  # TrueType, embedded
    "svg.fonttype": "path",  # letters as shapes: no font is needed
    "svg.hashsalt": "keyhole",  # equal figures are equal files
}


def import_matplotlib() -> Any:
    """The library.

    Raises:
        InvalidInput: it is not installed.
    """
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise InvalidInput("--figures needs matplotlib: pip install 'keyhole[figures]'.") from error


@contextmanager
def open_sheet(
    finding: str, columns: int = 1, *, size: tuple[float, float] = (4.6, 3.0)
) -> Generator[tuple[Any, list[Any]]]:
    """A figure titled by its finding, axes in one row; `size` is of one, in inches."""
    library = import_matplotlib()
    # A Figure of its own, without pyplot: no window system, no state shared between runs.
    figures: Any = importlib.import_module("matplotlib.figure")
    with library.rc_context(_RULES):
        figure = figures.Figure(figsize=(size[0] * columns, size[1]), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)
        # About fourteen letters to the inch at this size of font.
        width = int(14.0 * size[0] * columns)
        figure.suptitle(
            escape_dollars("\n".join(textwrap.wrap(finding, width))), x=0.01, ha="left", fontsize=9
        )
        yield figure, list(axes[0])


def escape_dollars(text: Any) -> str:
    """Words as they are: a dollar sign starts no formula."""
    return str(text).replace("$", r"\$")


def write_figure(figure: Any, directory: Path, stem: str) -> list[Path]:
    """The figure as SVG and as PDF, complete or not there; equal figures are equal files."""
    return [_save_figure(figure, directory / f"{stem}.{form}", form) for form in ("svg", "pdf")]


def _save_figure(figure: Any, path: Path, form: str) -> Path:
    held = io.BytesIO()
    # A date would make equal figures differ.
    undated = {"Date": None} if form == "svg" else {"CreationDate": None}
    figure.savefig(held, format=form, metadata=undated)
    write_atomically(path, held.getvalue())
    return path


def make_diverging_colours() -> Any:
    """Blue, white, orange."""
    colors: Any = importlib.import_module("matplotlib.colors")
    return colors.LinearSegmentedColormap.from_list("signed", SIGNED)


def set_doubling_axes(axis: Any) -> None:
    """Both axes logarithmic, with powers of two written out."""
    tickers: Any = importlib.import_module("matplotlib.ticker")
    for side, scale in ((axis.xaxis, axis.set_xscale), (axis.yaxis, axis.set_yscale)):
        scale("log", base=2)
        side.set_major_formatter(tickers.StrMethodFormatter("{x:,.4g}"))
        side.set_minor_formatter(tickers.NullFormatter())
