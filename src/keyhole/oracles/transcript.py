"""A crash-safe log of every answer, so that an interrupted run resumes without asking again."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keyhole._arrays import Answers, Matrix, Sequences, Stack
from keyhole._files import check_pages, check_place, guard_database, make_folders
from keyhole.errors import BadAnswer, DifferentRun, InvalidInput, TargetFailed
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
    failure TEXT,
    seal INTEGER NOT NULL
) STRICT;
"""
_WHAT = "transcript"
_ROWS = "SELECT number, sequences, checksum, charged, outputs, answers, failure, seal FROM batch"


class _Batch(NamedTuple):
    """A row of the transcript.

    Args:
        number: the how-manieth batch of the run it is.
        sequences: how many it has.
        checksum: of its questions.
        charged: sequences that were paid for, those asked again included.
        outputs: numbers per answer.
        answers: all of them, as bytes; nothing before they arrive.
        failure: why there are none and never will be.
    """

    number: int
    sequences: int
    checksum: int
    charged: int
    outputs: int | None = None
    answers: bytes | None = None
    failure: str | None = None

    @property
    def seal(self) -> int:
        """CRC-32 of all fields: SQLite notices damage of its pages, not of what is in them."""
        return zlib.crc32(repr(tuple(self)).encode())

    @property
    def whole(self) -> bool:
        """Whether there are as many answers as the row says."""
        return self.answers is None or len(self.answers) == 8 * self.sequences * (self.outputs or 0)

    def decode(self) -> Matrix:
        """The answers, to keep or change."""
        return np.frombuffer(self.answers or b"").reshape(self.sequences, -1).copy()


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
    _flying: _Batch = field(default=_Batch(0, 0, 0, 0), init=False)
    _outputs: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_place(self.path, _WHAT)
        with guard_database(self.path, _WHAT):
            make_folders(self.path.parent)
            # Autocommit: every statement is on disk before the next question is asked.
            self._store = sqlite3.connect(self.path, isolation_level=None, timeout=0.2)
        try:
            with guard_database(self.path, _WHAT):
                self._open()
        except BaseException:
            self._store.close()
            raise

    def _open(self) -> None:
        # Two runs that wrote one transcript would interleave their batches.
        self._store.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._store.execute("PRAGMA journal_mode = WAL")
        self._store.execute("PRAGMA synchronous = FULL")
        check_pages(self._store, self.path, _WHAT)
        self._store.executescript(_SCHEMA)
        self._identify()
        self._check_seals()

    def _check_seals(self) -> None:
        """Read every row once.

        Raises:
            InvalidInput: one is not as it was written.
        """
        for *fields, seal in self._store.execute(f"{_ROWS} ORDER BY number"):
            batch = _Batch(*fields)
            if batch.seal != seal or not batch.whole:
                raise InvalidInput(
                    f"the transcript {self.path} is damaged in batch {batch.number!r:.20}: what is"
                    " there is not what was written. Choose another --out."
                )

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
        return self._sum("charged")

    @property
    def lost(self) -> int:
        """Sequences charged whose answers, or refusals the run outlived, never arrived."""
        outlived = "failure IS NOT NULL AND number < (SELECT MAX(number) FROM batch)"
        arrived = f"(answers IS NOT NULL OR ({outlived}))"
        return self._sum(f"charged - {arrived} * sequences")

    @property
    def lost_when_finished(self) -> int:
        """The same once a run has come to its end, so that it outlived its last refusal too."""
        return self._sum("charged - (answers IS NOT NULL OR failure IS NOT NULL) * sequences")

    def _sum(self, number: str) -> int:
        row = self._find_row(f"SELECT COALESCE(SUM({number}), 0) FROM batch")  # noqa: S608
        return 0 if row is None else int(row[0])

    def discard_if_empty(self) -> None:
        """Remove a transcript without an answer: a second try could reuse nothing of it."""
        if self._find_row("SELECT 1 FROM batch WHERE answers IS NOT NULL") is None:
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
        held = self._find_batch()
        final = held is not None and (held.answers is not None or self._outlived())
        if len(X) == 0 or held is None or not final:
            return self._ask(X, 0 if held is None else held.charged)
        if held.sequences > len(X) or take_checksum(X[: held.sequences]) != held.checksum:
            raise DifferentRun(
                f"the transcript {self.path} holds other questions from batch {self._next} on,"
                " though its settings are the same: the library or the machine's arithmetic has"
                " changed. Choose another --out."
            )
        self._next += 1
        if held.answers is None:
            raise _read_failure(held.failure or "")
        self._outputs = held.outputs
        return held.decode()

    def _find_batch(self) -> _Batch | None:
        row = self._find_row(f"{_ROWS} WHERE number = ?", self._next)
        return None if row is None else _Batch(*row[:-1])

    def _outlived(self) -> bool:
        """Whether the run went on beyond this batch."""
        return self._find_row("SELECT 1 FROM batch WHERE number > ?", self._next) is not None

    def _find_row(self, query: str, *values: int) -> tuple[Any, ...] | None:
        with guard_database(self.path, _WHAT):
            return self._store.execute(query, values).fetchone()

    def _ask(self, X: Stack, charged: int) -> Matrix:
        """Ask a batch of which so many sequences were paid for before, in vain."""
        if len(X) == 0:
            return self.inner.ask(X)
        self._flying = _Batch(self._next, len(X), take_checksum(X), charged)
        self._charge(len(X))
        try:
            with meter_oracle(self.inner, self._charge):
                answers = self.inner.ask(X)
        except (BadAnswer, TargetFailed) as error:
            # A run may outlive a refusal: questions after it are other ones than without it.
            self._write(self._flying._replace(failure=_write_failure(error)))
            self._next += 1
            raise
        self._write(self._flying._replace(outputs=answers.shape[1], answers=answers.tobytes()))
        self._outputs = answers.shape[1]
        self._next += 1
        return answers

    def _charge(self, sequences: int) -> None:
        """Commit what is asked of the batch in flight, once or again, before it is."""
        self._flying = self._flying._replace(charged=self._flying.charged + sequences)
        self._write(self._flying)

    def _write(self, batch: _Batch) -> None:
        with guard_database(self.path, _WHAT):
            row = "INSERT OR REPLACE INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            self._store.execute(row, (*batch, batch.seal))


def _write_failure(error: BadAnswer | TargetFailed) -> str:
    return f"{type(error).__name__}\n{error}"


def _read_failure(text: str) -> BadAnswer | TargetFailed:
    """The failure again; of transcripts that did not name its kind, an answer that was none."""
    name, _, said = text.partition("\n")
    if name == TargetFailed.__name__:
        return TargetFailed(said)
    return BadAnswer(said if name == BadAnswer.__name__ else text)
