"""A crash-safe log of every answer, so that an interrupted run resumes without asking again."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Answers, Matrix, Sequences, Stack
from keyhole.errors import BadAnswer, DifferentRun, InvalidInput
from keyhole.oracles.base import Oracle, meter_oracle

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (field TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS batch (
    number INTEGER PRIMARY KEY,
    sequences INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    charged INTEGER NOT NULL,
    outputs INTEGER,
    answers BLOB,
    failure TEXT
) STRICT;
"""


def take_checksum(X: Sequences) -> int:
    """A cheap fingerprint of a batch: CRC-32 of its shape and of the bit sums of its tokens."""
    # Sums of bits are exact, whatever order they are taken in; sums of numbers round.
    bits = np.ascontiguousarray(X).view(np.uint64).sum(axis=2)
    return zlib.crc32(bits.tobytes(), zlib.crc32(str(X.shape[1:]).encode()))


@dataclass(slots=True)
class Recorded:
    """Keeps every answer in SQLite; asked again in the same order, it replays instead of asking.

    The cost of a batch is committed before it is asked and its answers before anyone sees them, so
    a kill loses at most the batch in flight, and that batch stays charged.

    Args:
        inner: the oracle to record.
        path: the transcript file; made when absent.
        run: what identifies the run (target, learner, seed, ...); a transcript of another run is
            refused.
    """

    inner: Oracle
    path: Path
    run: Mapping[str, Any]
    _store: sqlite3.Connection = field(init=False)
    _next: int = field(default=0, init=False)
    _outputs: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Autocommit: every statement is on disk before the next question is asked.
        self._store = sqlite3.connect(self.path, isolation_level=None, timeout=0.2)
        try:
            self._open()
        except BaseException:
            self._store.close()
            raise

    def _open(self) -> None:
        try:
            # Two runs that wrote one transcript would interleave their batches.
            self._store.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._store.execute("PRAGMA journal_mode = WAL")
            self._store.execute("PRAGMA synchronous = FULL")
            self._store.executescript(_SCHEMA)
            self._identify()
        except sqlite3.OperationalError as error:
            raise InvalidInput(
                f"the transcript {self.path} cannot be used ({error}): another process may be"
                " writing it. Wait for that run, or choose another --out."
            ) from error
        except sqlite3.DatabaseError as error:
            raise InvalidInput(
                f"{self.path} is not a transcript ({error}). Choose another --out."
            ) from error

    def _identify(self) -> None:
        mine = {name: json.dumps(value, sort_keys=True) for name, value in self.run.items()}
        stored = dict(self._store.execute("SELECT field, value FROM run"))
        # A new transcript has no fields yet, and belongs to whoever opens it.
        for name in sorted(set(mine) | set(stored) if stored else ()):
            if mine.get(name) != stored.get(name):
                raise DifferentRun(
                    f"the transcript {self.path} belongs to another run: {name} was"
                    f" {stored.get(name)}, now {mine.get(name)}. Use the same settings, or choose"
                    " another --out."
                )
        # Begun by hand, so that a kill cannot leave half of what identifies the run
        with self._store:
            self._store.execute("BEGIN IMMEDIATE")
            self._store.executemany("INSERT OR IGNORE INTO run VALUES (?, ?)", mine.items())

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.inner.width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer."""
        return self.inner.outputs if self._outputs is None else self._outputs

    @property
    def charged(self) -> int:
        """Sequences committed to so far, lost ones included."""
        return int(self._store.execute("SELECT COALESCE(SUM(charged), 0) FROM batch").fetchone()[0])

    @property
    def lost(self) -> int:
        """Sequences charged whose answers, or refusals the run outlived, never arrived."""
        outlived = "failure IS NOT NULL AND number < (SELECT MAX(number) FROM batch)"
        arrived = f"(answers IS NOT NULL OR ({outlived}))"
        query = f"SELECT COALESCE(SUM(charged - {arrived} * sequences), 0) FROM batch"  # noqa: S608
        return int(self._store.execute(query).fetchone()[0])

    def discard_if_empty(self) -> None:
        """Remove a transcript without an answer: a second try could reuse nothing of it."""
        if self._store.execute("SELECT 1 FROM batch WHERE answers IS NOT NULL").fetchone() is None:
            self.close()
            # SQLite keeps a journal and its index beside the file.
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        """Finish writing and release the file."""
        self._store.close()

    def ask(self, X: Sequences) -> Answers:
        """Stored answers where there are any, fresh ones for the rest."""
        parts = [self._replay(X)]
        while (done := sum(map(len, parts))) < len(X):
            parts.append(self._replay(X[done:]))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _replay(self, X: Stack) -> Matrix:
        """Stored answers to a prefix of `X`, or fresh ones to all of it.

        A failure is replayed where the run went on after it; the last one is asked again, since the
        target may have been mended.
        """
        query = "SELECT sequences, checksum, outputs, answers, failure FROM batch WHERE number = ?"
        row = self._store.execute(query, (self._next,)).fetchone()
        later = "SELECT 1 FROM batch WHERE number > ?"
        survived = self._store.execute(later, (self._next,)).fetchone()
        if len(X) == 0 or row is None or (row[3] is None and not survived):
            return self._ask(X)
        sequences, expected, outputs, answers, failure = row
        if sequences > len(X) or take_checksum(X[:sequences]) != expected:
            raise DifferentRun(
                f"the transcript {self.path} holds other questions from batch {self._next} on,"
                " though its settings are the same: the library or the machine's arithmetic has"
                " changed. Choose another --out."
            )
        self._next += 1
        if answers is None:
            raise BadAnswer(failure)
        self._outputs = outputs
        # A copy: bytes are read-only, and whoever asks may change answers.
        return np.frombuffer(answers).reshape(sequences, outputs).copy()

    def _ask(self, X: Stack) -> Matrix:
        if len(X) == 0:
            return self.inner.ask(X)
        self._store.execute(
            "INSERT INTO batch (number, sequences, checksum, charged) VALUES (:n, :s, :c, :s) ON"
            " CONFLICT (number) DO UPDATE SET sequences = :s, checksum = :c, charged = charged"
            " + :s",
            {"n": self._next, "s": len(X), "c": take_checksum(X)},
        )
        try:
            with meter_oracle(self.inner, self._charge):
                answers = self.inner.ask(X)
        except BadAnswer as error:
            self._store.execute(
                "UPDATE batch SET failure = ? WHERE number = ?", (str(error), self._next)
            )
            self._next += 1
            raise
        self._store.execute(
            "UPDATE batch SET outputs = ?, answers = ? WHERE number = ?",
            (answers.shape[1], answers.tobytes(), self._next),
        )
        self._outputs = answers.shape[1]
        self._next += 1
        return answers

    def _charge(self, sequences: int) -> None:
        """Commit what is asked again of the batch in flight, before it is."""
        self._store.execute(
            "UPDATE batch SET charged = charged + ? WHERE number = ?", (sequences, self._next)
        )
