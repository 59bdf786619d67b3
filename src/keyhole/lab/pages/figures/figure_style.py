"""How figures for papers look: the colours and marks of every picture."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

from keyhole._files import write_atomically
from keyhole.drawing.palette import LIGHT
from keyhole.errors import InvalidInput, spell_controls

COLOURS = LIGHT | {"": LIGHT["ink"], "quiet": LIGHT["limit"]}  # papers are white
MARKS = {"circle": "o", "ring": "o", "square": "s", "triangle": "^", "cross": "x"}
# Dashes, in widths of the line; what is not named is solid.
DASHES = {"dashed": (0, (4, 3)), "line limit": (0, (4, 3)), "line peer": (0, (1.5, 2))}
PIXELS = 108.0  # of a drawing to the inch: its letters have 8 points
RULES: dict[str, str | int] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
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


def escape_dollars(text: str) -> str:
    """Words as they are: a dollar sign starts no formula, and controls are spelt out."""
    return spell_controls(text).replace("$", r"\$")


def write_figure(figure: Any, directory: Path, stem: str) -> list[Path]:
    """The figure as SVG and as PDF, complete or not there; equal figures are equal files."""
    # Fonts are put into a file as it is written.
    with import_matplotlib().rc_context(RULES):
        return [_save_figure(figure, directory / f"{stem}.{form}", form) for form in ("svg", "pdf")]


def _save_figure(figure: Any, path: Path, form: str) -> Path:
    held = io.BytesIO()
    # A date would make equal figures differ.
    undated = {"Date": None} if form == "svg" else {"CreationDate": None}
    figure.savefig(held, format=form, metadata=undated)
    write_atomically(path, held.getvalue())
    return path
