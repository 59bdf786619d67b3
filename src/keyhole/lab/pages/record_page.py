"""The page of a run of a kind that has none of its own: its record as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyhole.drawing.html import escaped, section, table
from keyhole.lab.pages.shell import shell
from keyhole.lab.runs.tables import flat, said

_MOST = 200  # fields that are shown


def page(data: Mapping[str, Any], directory: Path) -> str:
    """A self-contained page, from the record alone."""
    del directory
    sentence = str(data.get("sentence") or "A run without a sentence.")
    return shell("run", f"<h1>{escaped(sentence)}</h1>{section('What the record says', fields(data))}")


def fields(data: Mapping[str, Any]) -> str:
    """Every field of a record with its value; long ones and many are cut, and that is said."""
    rows = [(name, said(value)) for name, value in flat(data).items()]
    note = f"<p>The first {_MOST} of {len(rows):,} fields; record.json holds all.</p>" if len(rows) > _MOST else ""
    return table(rows[:_MOST], ("field", "value")) + note
