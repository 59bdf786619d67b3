"""Runs beside each other: a name for each, and those of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from keyhole.lab.runs.reading import SavedRun
from keyhole.lab.runs.records import Envelope

Named = list[tuple[str, SavedRun[Envelope]]]
R = TypeVar("R", bound=Envelope)


def name_runs(runs: Sequence[SavedRun[Envelope]]) -> list[str]:
    """A name for each run that no other has."""
    # Full paths only where names are alike: they are long.
    short = [run.name for run in runs]
    return [
        name if short.count(name) == 1 else str(run.directory)
        for name, run in zip(short, runs, strict=True)
    ]


def select_records(named: Named, kind: type[R]) -> list[tuple[str, SavedRun[R]]]:
    """The runs whose record is of one kind."""
    return [
        (name, SavedRun(run.directory, run.data))
        for name, run in named
        if isinstance(run.data, kind)
    ]


def shorten_name(name: str) -> str:
    """A name that leaves room for a picture; hovering says it in full."""
    return name if len(name) <= 32 else f"{name[:29]}..."
