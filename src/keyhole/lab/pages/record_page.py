"""The page of a run of a kind that has none of its own: its record as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyhole.drawing.html import escape_text, format_section, format_table
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.tables import flatten_table, format_value

_MOST = 200  # fields that are shown


def draw_record_page(data: Mapping[str, Any], directory: Path) -> str:
    """A self-contained page, from the record alone."""
    del directory
    sentence = str(data.get("sentence") or "A run without a sentence.")
    return wrap_page(
        "run",
        f"<h1>{escape_text(sentence)}</h1>{format_section('What the record says', list_record_fields(data))}",
    )


def list_record_fields(data: Mapping[str, Any]) -> str:
    """Every field of a record with its value; long ones and many are cut, and that is said."""
    rows = [(name, format_value(value)) for name, value in flatten_table(data).items()]
    note = (
        f"<p>The first {_MOST} of {len(rows):,} fields; record.json holds all.</p>"
        if len(rows) > _MOST
        else ""
    )
    return format_table(rows[:_MOST], ("field", "value")) + note
