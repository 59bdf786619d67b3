"""The page of a run, whatever its kind: from its record and its directory."""

from __future__ import annotations

from collections.abc import Callable

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
from keyhole.lab.runs.reading import OTHER, SavedRun, guard_drawing

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
    OTHER: record_page.draw_record_page,
}
# Kinds whose page shows more than their record holds: it is kept where there is one.
KEPT = ("train", OTHER)


def draw_run_page(run: SavedRun) -> str:
    """The page of a run.

    Raises:
        InvalidInput: its record lacks something, or a file beside it is gone.
    """
    # Records are files of users: a damaged one ends in a sentence.
    return guard_drawing(run, _PAGES[run.kind], run.data, run.directory)
