"""The end of a recovery's run: its record and its page, written beside its model."""

from __future__ import annotations

from pathlib import Path

from keyhole.lab.pages import recovery_page
from keyhole.lab.runs.records import Record
from keyhole.models.files import write_atomically


def finish_recovery_run(record: Record, directory: Path) -> Record:
    """Write a record and its page."""
    # The record first: a page can be drawn again from it.
    write_atomically(directory / "record.json", record.json() + b"\n")
    write_atomically(
        directory / "report.html", recovery_page.draw_recovery_page(record.data, directory).encode()
    )
    return record
