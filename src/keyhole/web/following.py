"""A run followed while it asks: queries by phase, and what its own answers tell of a head."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Answers, Array, Matrix, Sequences
from keyhole.oracles import hear_answers, watch_batches
from keyhole.oracles.wrappers import name_phase
from keyhole.web.messages import CoursePoint, Event
from keyhole.web.reading import HeadReader

BETWEEN = 0.05  # seconds between two counts
_MORE = 1.1  # readings are worth their time when there are so many times the queries
_FREE = 1.0  # seconds of reading that no run is too short for
_SHARE = 0.2  # of a run's time that reading may take after that

Tell = Callable[[Event], None]


@dataclass(slots=True)
class Follower:
    """Tells the page of a run.

    Args:
        tell: who is told.
        truth: the matrix W of the head that is hidden, where it is known and there is one.
    """

    tell: Tell
    truth: Matrix | None
    points: list[CoursePoint] = field(default_factory=list[CoursePoint], init=False)
    _asked: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _last: float = field(default=0.0, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)
    _reading: float = field(default=0.0, init=False)
    _read_at: int = field(default=0, init=False)
    _reader: HeadReader | None = field(default=None, init=False)

    @contextmanager
    def following(self) -> Generator[None]:
        """Follow what is asked inside; the last count is told when it ends."""
        try:
            with watch_batches(self._count), hear_answers(self._hear):
                yield
        finally:
            self.tell(Event(asked=dict(self._asked)))

    def _count(self, phase: str, queries: int) -> None:
        """Queries by phase, added up and told now and then."""
        self._asked[phase] = self._asked.get(phase, 0) + queries
        # Batches may come by the thousand a second; a page needs twenty.
        if time.monotonic() - self._last >= BETWEEN:
            self._last = time.monotonic()
            self.tell(Event(asked=dict(self._asked)))

    def _hear(self, X: Sequences, answers: Answers) -> None:
        """Read the answers, now and then; those that verify tell nothing new."""
        if name_phase() == "verify":
            return
        if self._reader is None:
            self._reader = HeadReader(X.shape[2])
        self._reader.hear(X, answers)
        total = sum(self._asked.values()) + len(X)
        if self._is_due(total):
            start = time.monotonic()
            self._read(self._reader, total)
            self._reading += time.monotonic() - start
            self._read_at = total

    def _is_due(self, total: int) -> bool:
        spare = _FREE + _SHARE * (time.monotonic() - self._began)
        return total >= _MORE * self._read_at and self._reading <= spare

    def _read(self, reader: HeadReader, total: int) -> None:
        seen = reader.read()
        if seen is None or not seen.equations:
            return
        point = pack_course_point(total, self.truth, seen.W)
        self.points.append(point)
        self.tell(Event(reading=point))


def pack_course_point(queries: int, truth: Matrix | None, W: Matrix) -> CoursePoint:
    """A matrix that so many queries tell, with its relative error where the truth is known."""
    if truth is None or truth.shape != W.shape:
        return CoursePoint(queries=queries, found=pack_numbers(W))
    size = float(np.linalg.norm(truth)) or 1.0
    error = float(np.linalg.norm(W - truth)) / size
    gap = pack_numbers(W - truth)
    return CoursePoint(queries=queries, error=error, found=pack_numbers(W), difference=gap)


def pack_numbers(W: Array) -> str:
    """Numbers as little-endian float32, in base 64."""
    # A third of the bytes of JSON numbers, and no digits lost that a picture shows.
    return base64.b64encode(np.ascontiguousarray(W, dtype="<f4").tobytes()).decode()
