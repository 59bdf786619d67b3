"""The store: one row per job, written by one driver, durable at every commit."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import msgspec

from keyhole._files import (
    check_pages,
    check_place,
    find_file,
    guard_database,
    make_folders,
    refuse_damage,
)
from keyhole.errors import InvalidInput
from keyhole.lab.runs.locks import release_lock, take_lock

DONE, FAILED = "done", "failed"
_WHAT = "store of a sweep"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
    key TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    state TEXT NOT NULL,
    record TEXT,
    reason TEXT,
    about TEXT NOT NULL
) STRICT;
"""


class About(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """When and where a job ran, and for how long: all that differs from run to run.

    `seal` is a checksum of the row beside it; rows of earlier versions have none.
    """

    seconds: float | None = None
    host: str | None = None
    process: int | None = None
    finished: str | None = None
    seal: int | None = None


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One job and what became of it.

    Args:
        key: the job's hash.
        job: its kind and fields, as JSON.
        state: "done", or "failed" where it raised or its process died.
        record: what it returned, as JSON.
        reason: why it failed.
        about: when and where it ran.
    """

    key: str
    job: bytes
    state: str
    record: bytes | None
    reason: str | None
    about: About

    @property
    def seal(self) -> int:
        """CRC-32 of the row: SQLite notices damage of its pages, not of what is in them."""
        about = msgspec.json.encode(msgspec.structs.replace(self.about, seal=None))
        held = (self.key, self.job, self.state, self.record, self.reason, about)
        return zlib.crc32(repr(held).encode())


@dataclass(slots=True)
class Store:
    """Rows in SQLite (write-ahead log, synced at every commit), for one driver at a time.

    Args:
        path: the file; made when absent.
    """

    path: Path
    _base: sqlite3.Connection = field(init=False)
    _lock: TextIO = field(init=False)

    def __post_init__(self) -> None:
        check_place(self.path, _WHAT)
        self._lock = _lock_store(self.path)
        try:
            with guard_database(self.path, _WHAT):
                self._base = sqlite3.connect(self.path, isolation_level=None)
                # With a write-ahead log a page can read while the driver writes.
                self._base.execute("PRAGMA journal_mode = WAL")
                # A row that was reported must outlive a loss of power.
                self._base.execute("PRAGMA synchronous = FULL")
                check_pages(self._base, self.path, _WHAT)
                self._base.executescript(_SCHEMA)
        except BaseException:
            release_lock(self._lock)
            raise

    def states(self) -> dict[str, str]:
        """What became of each job that is here, by key."""
        with guard_database(self.path, _WHAT):
            return dict(self._base.execute("SELECT key, state FROM job"))

    def put(self, row: StoredRow) -> None:
        """Keep a row; it is on disk when this returns. A later row of the same job replaces it."""
        record = None if row.record is None else row.record.decode()
        about = msgspec.json.encode(msgspec.structs.replace(row.about, seal=row.seal)).decode()
        values = (row.key, row.job.decode(), row.state, record, row.reason, about)
        with guard_database(self.path, _WHAT):
            self._base.execute("INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?, ?, ?)", values)

    def close(self) -> None:
        """Close the file and let another driver in."""
        self._base.close()
        release_lock(self._lock)


def read_rows(path: Path) -> Iterator[StoredRow]:
    """Every row of a store, in the order of keys; a driver may be writing it meanwhile.

    Raises:
        InvalidInput: there is no store, or its rows are damaged.
    """
    find_file(path, f"no store at {path}. Run `keyhole sweep FILE` first.")
    # Read only: looking at a sweep must never change it.
    with refuse_damage(path, _WHAT):
        address = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as base:
            check_pages(base, path, _WHAT)
            rows = [_read_row(*held) for held in base.execute("SELECT * FROM job ORDER BY key")]
    yield from rows


def _read_row(
    key: str, job: str, state: str, record: str | None, reason: str | None, about: str
) -> StoredRow:
    """A row as it was written.

    Raises:
        InvalidInput: it is not.
    """
    told = msgspec.json.decode(about, type=About)
    seal = told.seal
    told = msgspec.structs.replace(told, seal=None)
    read = None if record is None else _check_object(record)
    row = StoredRow(key, _check_object(job), state, read, reason, told)
    if seal not in (None, row.seal):
        raise InvalidInput(
            f"the row {key} is not what was written. Move the file away, and run the sweep again."
        )
    return row


def _lock_store(path: Path) -> TextIO:
    """A lock that ends with the process, however that ends."""
    try:
        make_folders(path.parent)
        # Two drivers would run the same jobs twice.
        lock = take_lock(path.with_suffix(".lock"))
    except OSError as error:
        raise InvalidInput(
            f"cannot write {path}: {error.strerror}. Choose another --out."
        ) from error
    if lock is None:
        raise InvalidInput(
            f"another sweep is writing {path}. Wait for it, or choose another --out."
        )
    return lock


def _check_object(text: str) -> bytes:
    """JSON as it is, once it is seen to be an object."""
    msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return text.encode()
