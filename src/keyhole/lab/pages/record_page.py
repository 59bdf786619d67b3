"""The page of a run of a kind that has none of its own: its record as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyhole.drawing.html import Markup, element, format_section, format_table, join_markup
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.tables import flatten_table, format_value

# A record of an unknown kind may hold whole matrices, entry by entry: a page shows so many fields.
_MOST = 200


def draw_record_page(data: Mapping[str, Any], directory: Path) -> str:
    """A self-contained page, from the record alone."""
    del directory
    sentence = str(data.get("sentence") or "A run without a sentence.")
    fields = format_section("What the record says", list_record_fields(data))
    return wrap_page("run", join_markup(element("h1", sentence), fields))


def list_record_fields(data: Mapping[str, Any]) -> Markup:
    """Every field of a record with its value; long ones and many are cut, and that is said."""
    rows = [(name, format_value(value)) for name, value in flatten_table(data).items()]
    drawn = format_table(rows[:_MOST], ("field", "value"))
    if len(rows) <= _MOST:
        return drawn
    note = f"The first {_MOST} of {len(rows):,} fields; record.json holds all."
    return join_markup(drawn, element("p", note))
