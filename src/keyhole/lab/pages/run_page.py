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
from keyhole.lab.runs.reading import OTHER, Run, drawn

# What draws a run of each kind, from its record and its directory.
_PAGES: dict[str, Callable[..., str]] = {
    "demo": recovery_page.page,
    "learn": recovery_page.page,
    "audit": audit_page.from_directory,
    "twins": twins_page.page,
    "build": build_page.page,
    "bound": bound_page.from_directory,
    "sweep": sweep_page.from_directory,
    "train": training_page.from_record,
    OTHER: record_page.page,
}
# Kinds whose page shows more than their record holds: it is kept where there is one.
KEPT = ("train", OTHER)


def page_of(run: Run) -> str:
    """The page of a run.

    Raises:
        InvalidInput: its record lacks something, or a file beside it is gone.
    """
    return drawn(run, _PAGES[run.kind], run.data, run.directory)
