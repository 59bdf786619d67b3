"""The page of a run, whatever its kind: from its record and its directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyhole.lab.pages import (
    audit_page,
    bound_page,
    build_page,
    record_page,
    recovery_page,
    sweep_page,
    training_page,
    twins_page,
)
from keyhole.lab.runs.reading import SavedRun, guard_drawing

# What draws a run of each kind, from its record and its directory.
_PAGES: dict[str, Callable[..., str]] = {
    "demo": recovery_page.draw_recovery_page,
    "learn": recovery_page.draw_recovery_page,
    "audit": audit_page.draw_audit_run,
    "twins": twins_page.draw_twins_page,
    "build": build_page.draw_build_page,
    "bound": bound_page.draw_bound_run,
    "sweep": sweep_page.draw_sweep_run,
    "train": training_page.draw_training_run,
}


def keeps_page(run: SavedRun[Any]) -> bool:
    """Whether the page of a run may show more than its record holds, and is kept where it is."""
    return run.kind == "train" or run.kind not in _PAGES


def draw_run_page(run: SavedRun[Any]) -> str:
    """The page of a run.

    Raises:
        InvalidInput: its record lacks something, or a file beside it is gone.
    """
    # Records are files of users: a damaged one ends in a sentence.
    draw = _PAGES.get(run.kind, record_page.draw_record_page)
    return guard_drawing(run, draw, run.data, run.directory)
