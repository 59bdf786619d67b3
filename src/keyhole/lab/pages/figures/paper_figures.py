"""The main plots of a run as SVG and PDF: the same descriptions that its page draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keyhole.lab.pages.figures.figure_painter import paint_sheet
from keyhole.lab.pages.figures.figure_style import write_figure
from keyhole.lab.pages.figures.run_sheets import Describe, list_sheets
from keyhole.lab.runs.reading import SavedRun, guard_drawing


def write_figures(run: SavedRun[Any], directory: Path, prefix: str) -> list[Path]:
    """Write every plot a run of this kind has.

    Args:
        run: the run.
        directory: where the files go.
        prefix: what the names of the files begin with.

    Raises:
        InvalidInput: matplotlib is not installed, or the record is damaged.
    """
    return [
        path
        for stem, describe in list_sheets(run.kind).items()
        for path in guard_drawing(
            run, list[Path], _write_sheet(run, describe, directory, f"{prefix}{stem}")
        )
    ]


def _write_sheet(
    run: SavedRun[Any], describe: Describe, directory: Path, stem: str
) -> Iterator[Path]:
    sheet = describe(run)
    figure = None if sheet is None else paint_sheet(sheet)
    if figure is not None:
        yield from write_figure(figure, directory, stem)
