"""The store: one row per job, written by one driver, durable at every commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

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


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One job and what became of it.

    Args:
        key: the job's hash.
        job: its kind and fields.
        state: "done", or "failed" where it raised or its process died.
        record: what it returned.
        reason: why it failed.
        about: when and where it ran, and for how long; the only part that differs from run to run.
    """

    key: str
    job: Mapping[str, Any]
    state: str
    record: Mapping[str, Any] | None
    reason: str | None
    about: Mapping[str, Any]


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
        record = None if row.record is None else _encode_json(row.record)
        values = (
            row.key,
            _encode_json(row.job),
            row.state,
            record,
            row.reason,
            _encode_json(row.about),
        )
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
                    _decode_json(job),
                    state,
                    None if record is None else _decode_json(record),
                    reason,
                    _decode_json(about),
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


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _decode_json(text: str) -> dict[str, Any]:
    return msgspec.json.decode(text, type=dict[str, Any])
