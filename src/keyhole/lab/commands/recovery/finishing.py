"""The end of a recovery's run: its record and its page, written beside its model."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from keyhole._files import write_atomically
from keyhole.lab.pages import recovery_page
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.recovery_records import RecoveryRecord

R = TypeVar("R", bound=RecoveryRecord)


def finish_recovery_run(record: Record[R], directory: Path) -> Record[R]:
    """Write a record and its page."""
    # The record first: a page can be drawn again from it.
    write_atomically(directory / "record.json", record.json() + b"\n")
    write_atomically(
        directory / "report.html", recovery_page.draw_recovery_page(record.data, directory).encode()
    )
    return record
