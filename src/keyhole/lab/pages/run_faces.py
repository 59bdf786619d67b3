"""Runs in a notebook: what an audit, a sweep or any other command has left in its directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from keyhole._files import write_atomically
from keyhole.drawing.describing import Chart, Heatmap, Sheet
from keyhole.drawing.faces import Picture, lay_side_by_side
from keyhole.drawing.heatmaps import draw_heatmap
from keyhole.drawing.html import (
    Markup,
    element,
    format_table,
    frame_figure,
    join_markup,
)
from keyhole.drawing.plain_values import Values, flatten_values, make_frame
from keyhole.drawing.svg import draw_chart
from keyhole.errors import InvalidInput
from keyhole.lab.pages.figures.run_sheets import list_sheets
from keyhole.lab.pages.run_page import draw_run_page
from keyhole.lab.runs.reading import SavedRun, guard_drawing, read_run
from keyhole.lab.runs.records import encode_record
from keyhole.lab.runs.recovery_records import AuditRecord
from keyhole.lab.runs.store import read_rows
from keyhole.lab.runs.summaries import summarise_record
from keyhole.lab.runs.tables import tabulate_rows

if TYPE_CHECKING:
    from pandas import DataFrame


class OpenedRun:
    """A run that a command has left, shown by its sentence, its plots and its numbers.

    Args:
        saved: its record and its directory.
    """

    def __init__(self, saved: SavedRun[Any]) -> None:
        """Keep what was read."""
        self.saved = saved

    @property
    def record(self) -> Any:
        """The record, field by field, as docs/command-line.md names them."""
        return self.saved.data

    def __repr__(self) -> str:
        """One line: the command, the directory, the sentence."""
        return f"<Run: {self.saved.kind} in {self.saved.name}. {self.record.sentence}>"

    def __eq__(self, other: object) -> bool:
        """Whether the other is the same run, with the same record."""
        return self.saved == other.saved if isinstance(other, OpenedRun) else NotImplemented

    def __hash__(self) -> int:
        """Of the directory alone: a record can be written anew."""
        return hash(self.saved.directory)

    def _repr_html_(self) -> str:
        rows = format_table(summarise_record(self.record))
        drawn = [draw_sheet(sheet) for _, sheet in self._describe_plots()]
        sentence = element("p", element("b", self.record.sentence))
        return str(join_markup(sentence, *drawn, rows))

    def plot(self, name: str | None = None) -> DrawnSheet:
        """One plot of the run: the first, or the one of that name.

        Raises:
            InvalidInput: the run has no such plot.
        """
        held = dict(self._describe_plots())
        name = next(iter(held), None) if name is None else name
        if name is None or name not in held:
            known = ", ".join(held) or "there is none"
            raise InvalidInput(
                f"plot needs the name of a plot of this run ({known}); got {name!r}."
            )
        return DrawnSheet(held[name])

    def page(self, path: str | Path | None = None) -> str:
        """The report of the run, a page that needs nothing beside it; written where path says."""
        text = draw_run_page(self.saved)
        if path is not None:
            write_atomically(Path(path), text.encode())
        return text

    def to_dict(self) -> Values:
        """The record as record.json holds it."""
        return msgspec.json.decode(encode_record(self.record))

    def to_frame(self) -> DataFrame:
        """A table of pandas: a row for every job of a sweep and every attempt of an audit.

        A run of another kind is one row, its fields with dotted names.

        Raises:
            InvalidInput: pandas is not installed.
        """
        if self.saved.kind == "sweep":
            return make_frame(tabulate_rows(read_rows(self.saved.directory / "store.sqlite")))
        if isinstance(self.record, AuditRecord):
            return make_frame(list(_list_attempts(self.to_dict())))
        return make_frame([flatten_values(self.to_dict())])

    def _describe_plots(self) -> Iterator[tuple[str, Sheet]]:
        for name, describe in list_sheets(self.saved.kind).items():
            sheet = guard_drawing(self.saved, describe, self.saved)
            if sheet is not None:
                yield name, sheet


def open_run(path: str | Path) -> OpenedRun:
    """The run in a directory, such as runs/TIME-NAME, ready to be shown in a notebook.

    Raises:
        InvalidInput: there is no record, or it cannot be read.
    """
    return OpenedRun(read_run(str(path)))


def _list_attempts(told: Values) -> Iterator[Values]:
    """Attempts of an audit, each with the policy it was made against."""
    for policy in told["policies"]:
        shared = {name: policy[name] for name in ("policy", "protects")}
        for attempt in policy["attempts"]:
            yield shared | flatten_values(attempt)


class DrawnSheet:
    """A plot that notebooks show as it is."""

    def __init__(self, sheet: Sheet) -> None:
        """Keep what is shown."""
        self.sheet = sheet

    def _repr_html_(self) -> str:
        return str(draw_sheet(self.sheet))

    def save(self, path: str | Path) -> None:
        """Write the matrices of the plot as a file, or its chart as SVG.

        Raises:
            InvalidInput: the name ends in something else, or cannot be written.
        """
        helds = [panel for panel in self.sheet.panels if isinstance(panel, Heatmap)]
        if helds:
            Picture(helds).save(path)
            return
        from keyhole.drawing.saving import save_chart

        charts = [panel for panel in self.sheet.panels if isinstance(panel, Chart)]
        save_chart(charts[0], path)


def draw_sheet(sheet: Sheet) -> Markup:
    """The pictures of a plot side by side, under its finding."""
    return join_markup(
        element("p", sheet.title), lay_side_by_side([*map(_draw_panel, sheet.panels)])
    )


def _draw_panel(panel: Chart | Heatmap) -> Markup:
    if isinstance(panel, Heatmap):
        return draw_heatmap(panel)
    return frame_figure(draw_chart(panel), width="100%")
