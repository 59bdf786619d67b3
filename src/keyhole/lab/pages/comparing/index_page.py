"""The page of a directory of runs: one line each, with the way to its own page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from keyhole.drawing.html import Markup, element, format_note, format_section, join_markup
from keyhole.lab.pages.recovery_page import split_sentence
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.reading import SavedRun, guard_drawing
from keyhole.lab.runs.recovery_records import RecoveryRecord

Runs = Sequence[SavedRun[Any]]


def draw_index_page(runs: Runs, damaged: Sequence[str], root: Path, beside: Path) -> str:
    """A self-contained page that links to others.

    Args:
        runs: what is listed.
        damaged: sentences on runs that cannot be read.
        root: the directory they lie in.
        beside: where the page is put; links lead from there.
    """
    parts = [element("h1", f"{len(runs)} runs in the directory {root.resolve().name or root}")]
    kinds = dict.fromkeys(run.kind for run in runs)
    parts += [_list_kind(kind, runs, root, beside) for kind in kinds]
    if damaged:
        rows = (element("li", said) for said in damaged)
        parts.append(format_section("Runs that cannot be read", element("ul", *rows)))
    if not runs:
        parts.append(format_note("keyhole demo, learn, build and others write runs."))
    return wrap_page("runs", join_markup(*parts))


def _list_kind(kind: str, runs: Runs, root: Path, beside: Path) -> Markup:
    held = [run for run in runs if run.kind == kind]
    rows = (element("li", *_tell_run(run, root, beside)) for run in held)
    return format_section(f"{kind}: {len(held)}", element("ul", *rows))


def _tell_run(run: SavedRun[Any], root: Path, beside: Path) -> Iterator[str]:
    """The name of a run, a link where it has a page, then its sentence."""
    name = str(run.directory.relative_to(root))
    page = run.directory / "report.html"
    if page.is_file():
        way = os.path.relpath(page.resolve(), beside.resolve())
        yield element("a", name, href=quote(Path(way).as_posix()))
    else:
        yield element("b", name)
    verdict = getattr(run.data, "verdict", None)
    yield f" {verdict}. " if verdict else ". "
    yield guard_drawing(run, _find_headline, run) or "A run without a sentence."


def _find_headline(run: SavedRun[Any]) -> str:
    """What stands above the page of a run; sentences of recoveries are too long for a list."""
    recovered = isinstance(run.data, RecoveryRecord) and run.kind == "learn"
    return split_sentence(run.data)[0] if recovered else run.data.sentence
