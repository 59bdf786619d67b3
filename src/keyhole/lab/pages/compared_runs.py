"""Runs beside each other: a name for each, those of one kind, and marks from their records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keyhole.drawing.describing import Point
from keyhole.lab.runs.reading import SavedRun

RECOVERIES = ("learn", "demo")
Named = list[tuple[str, SavedRun[Any]]]


def name_runs(runs: Sequence[SavedRun[Any]]) -> list[str]:
    """A name for each run that no other has."""
    # Full paths only where names are alike: they are long.
    short = [run.name for run in runs]
    return [
        name if short.count(name) == 1 else str(run.directory)
        for name, run in zip(short, runs, strict=True)
    ]


def select_kinds(named: Named, *kinds: str) -> Named:
    """The runs of some kinds."""
    return [(name, run) for name, run in named if run.kind in kinds]


def shorten_name(name: str) -> str:
    """A name that leaves room for a picture; hovering says it in full."""
    return name if len(name) <= 32 else f"{name[:29]}..."


def make_point(x: Any, y: Any, said: str) -> Point:
    """A mark from two values of a record, which must be numbers."""
    return Point(float(x), float(y), said)
