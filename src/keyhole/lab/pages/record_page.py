"""The page of a run of a kind that has none of its own: its record as a table."""

from __future__ import annotations

from pathlib import Path

from keyhole.drawing.html import Markup, element, format_section, format_table, join_markup
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.other_records import OtherRecord
from keyhole.lab.runs.records import Envelope
from keyhole.lab.runs.tables import Row, flatten_record, format_value

# A record of an unknown kind may hold whole matrices, entry by entry: a page shows so many fields.
_MOST = 200


def draw_record_page(data: Envelope, directory: Path) -> str:
    """A self-contained page, from the record alone."""
    del directory
    sentence = data.sentence or "A run without a sentence."
    fields = format_section("What the record says", list_record_fields(data))
    return wrap_page("run", join_markup(element("h1", sentence), fields))


def list_record_fields(data: Envelope) -> Markup:
    """Every field of a record with its value; long ones and many are cut, and that is said."""
    rows = [(name, format_value(value)) for name, value in _list_fields(data).items()]
    drawn = format_table(rows[:_MOST], ("field", "value"))
    if len(rows) <= _MOST:
        return drawn
    note = f"The first {_MOST} of {len(rows):,} fields; record.json holds all."
    return join_markup(drawn, element("p", note))


def _list_fields(data: Envelope) -> Row:
    return data.fields if isinstance(data, OtherRecord) else flatten_record(data)
