"""The page of a run of a kind that has none of its own: its record as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyhole.lab.exports import flat
from keyhole.lab.pages import escaped, number, section, shell, table

_MOST = 200  # fields that are shown
_LONGEST = 160  # characters of a value that are shown


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


def said(value: Any) -> str:
    """A value of a record for a person."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = "none" if value is None else str(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text):,} characters)"
    return number(value)
