"""The page of a run, whatever its kind: from its record and its directory."""

from __future__ import annotations

from typing import Any

from keyhole.lab.jobs import COMMANDS, Command
from keyhole.lab.pages.record_page import draw_record_page
from keyhole.lab.runs.reading import SavedRun, guard_drawing


def _find_drawn_command(run: SavedRun[Any]) -> Command | None:
    """The command of a run, where it has a page of its own."""
    command = COMMANDS.get(run.kind)
    return None if command is None or command.page is None else command


def keeps_page(run: SavedRun[Any]) -> bool:
    """Whether the page of a run may show more than its record holds, and is kept where it is."""
    command = _find_drawn_command(run)
    return command is None or command.keeps_page


def draw_run_page(run: SavedRun[Any]) -> str:
    """The page of a run.

    Raises:
        InvalidInput: its record lacks something, or a file beside it is gone.
    """
    command = _find_drawn_command(run)
    draw = draw_record_page if command is None else command.load("page")
    # Records are files of users: a damaged one ends in a sentence.
    return guard_drawing(run, draw, run.data, run.directory)
