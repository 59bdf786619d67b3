"""The store: one row per job, written by one driver, durable at every commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import msgspec

from keyhole.errors import InvalidInput
from keyhole.lab.runs.locks import release_lock, take_lock

DONE, FAILED = "done", "failed"
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


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When and where a job ran, and for how long: all that differs from run to run."""

    seconds: float | None = None
    host: str | None = None
    process: int | None = None
    finished: str | None = None


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
        self._lock = _lock_store(self.path)
        try:
            self._base = sqlite3.connect(self.path, isolation_level=None)
            # With a write-ahead log a page can read while the driver writes.
            self._base.execute("PRAGMA journal_mode = WAL")
            # A row that was reported must outlive a loss of power.
            self._base.execute("PRAGMA synchronous = FULL")
            self._base.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            release_lock(self._lock)
            raise InvalidInput(
                f"{self.path} cannot be used as a store ({error}). Choose another --out."
            ) from error

    def states(self) -> dict[str, str]:
        """What became of each job that is here, by key."""
        return dict(self._base.execute("SELECT key, state FROM job"))

    def put(self, row: StoredRow) -> None:
        """Keep a row; it is on disk when this returns. A later row of the same job replaces it."""
        record = None if row.record is None else row.record.decode()
        about = msgspec.json.encode(row.about).decode()
        values = (row.key, row.job.decode(), row.state, record, row.reason, about)
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
    if not path.is_file():
        raise InvalidInput(f"no store at {path}. Run `keyhole sweep FILE` first.")
    try:
        # Read only: looking at a sweep must never change it.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base:
            for key, job, state, record, reason, about in base.execute(
                "SELECT * FROM job ORDER BY key"
            ):
                yield StoredRow(
                    key,
                    _check_object(job),
                    state,
                    None if record is None else _check_object(record),
                    reason,
                    msgspec.json.decode(about, type=About),
                )
    except (sqlite3.DatabaseError, msgspec.DecodeError, ValueError, TypeError) as error:
        raise InvalidInput(f"{path} is not a store, or a damaged one ({error}).") from error


def _lock_store(path: Path) -> TextIO:
    """A lock that ends with the process, however that ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
