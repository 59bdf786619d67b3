"""A batch asked in pieces of a service that may fail, with back-off and exact accounts.

A batch is paid for before it is asked. A piece whose attempt failed in a way that leaves open
whether it was answered (a broken read, a time-out, a bad gateway) is paid for again before it is
asked again. A piece that was certainly not answered (no connection, a refusal for its size or rate)
is asked again for nothing, and handed back where the service is given up on. All accounts are kept
in the thread that asked.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from keyhole._arrays import Matrix, Sequences, Stack
from keyhole.errors import BadAnswer, BudgetSpent, TargetFailed
from keyhole.oracles.base import Meters


class Missed(Exception):
    """An attempt that brought no answers.

    Args:
        sentence: what happened.
        answered: whether the service may have answered all the same.
        again: whether another attempt may help.
        after: how many seconds the service wants to be left alone.
        too_large: whether a smaller piece may pass.
    """

    def __init__(
        self,
        sentence: str,
        *,
        answered: bool,
        again: bool,
        after: float | None = None,
        too_large: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.answered = answered
        self.again = again
        self.after = after
        self.too_large = too_large


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to go on: waits of `first`, then twice as long each time, up to `longest` seconds.

    Args:
        attempts: how often a piece is tried in all.
        first: seconds before the second attempt.
        longest: no wait of our own is longer.
        obeyed: longest wait a service may ask for; beyond it the service is given up on.
        in_all: no attempt begins later than so many seconds after the first.
    """

    attempts: int = 8
    first: float = 0.1
    longest: float = 5.0
    obeyed: float = 60.0
    in_all: float = math.inf

    def wait(self, tries: int, missed: Missed, since: float) -> float | None:
        """Seconds to wait after so many attempts, the first of them at a time; None to give up."""
        if not missed.again or tries >= self.attempts or (missed.after or 0.0) > self.obeyed:
            return None
        wait = max(missed.after or 0.0, min(self.first * 2.0 ** (tries - 1), self.longest))
        return wait if time.monotonic() - since + wait <= self.in_all else None


class Pace:
    """Lets at most `rate` sequences a second pass, where there is a rate."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._next = 0.0

    def take(self, sequences: int) -> None:
        """Wait until they may pass."""
        if self.rate is not None:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + sequences / self.rate
            time.sleep(start - now)


@dataclass(slots=True)
class _Piece:
    """A run of sequences of the batch."""

    start: int
    stop: int
    tries: int = 0
    since: float = 0.0

    def __len__(self) -> int:
        return self.stop - self.start

    def halves(self) -> tuple[_Piece, _Piece]:
        middle = (self.start + self.stop) // 2
        return _Piece(self.start, middle), _Piece(middle, self.stop)


@dataclass(slots=True, kw_only=True)
class Asking:
    """One batch on its way.

    Args:
        send: one attempt, called from any thread: answers, or `Missed` is raised.
        size: sequences a piece may have at most.
        connections: how many pieces may be under way at once.
        patience: when to try again.
        pace: how fast.
        meters: who is told of what is asked again.
        shrink: told when a piece was refused for its size.
    """

    send: Callable[[Stack], Matrix]
    size: int
    connections: int
    patience: Patience
    pace: Pace
    meters: Meters
    shrink: Callable[[], None]

    def run(self, X: Sequences) -> list[Matrix]:
        """Answers to all pieces, in order.

        Raises:
            TargetFailed: a piece could not be asked; what was certainly not answered is handed back
                first.
            BudgetSpent: there is no budget to ask a piece again.
        """
        flight = _Flight(self, X)
        try:
            return flight.fly()
        except BaseException as error:
            flight.give_up(error)
            raise


class _Flight:
    """The state of one batch: pieces that wait, pieces in the air, answers that landed."""

    def __init__(self, asking: Asking, X: Stack) -> None:
        self.asking = asking
        self.X = X
        starts = range(0, len(X), asking.size)
        self.waiting = deque(_Piece(i, min(i + asking.size, len(X))) for i in starts)
        self.flying = 0
        self.landed: SimpleQueue[tuple[_Piece, Matrix | BaseException]] = SimpleQueue()
        self.answers: dict[int, Matrix] = {}
        # Sequences paid for whose last attempt was certainly not answered.
        self.unpaid = 0

    def fly(self) -> list[Matrix]:
        while self.waiting or self.flying:
            while self.waiting and self.flying < self.asking.connections:
                self._launch(self.waiting.popleft())
            self._land(*self.landed.get())
        return [self.answers[start] for start in sorted(self.answers)]

    def _launch(self, piece: _Piece) -> None:
        alone = not self.flying and not self.waiting
        # Still ours to hand back if the wait is interrupted.
        self.waiting.appendleft(piece)
        self.asking.pace.take(len(piece))
        self.waiting.popleft()
        piece.since = piece.since or time.monotonic()
        piece.tries += 1
        self.flying += 1
        # One piece needs no thread, and can be stopped by a person at once.
        if alone:
            self._attempt(piece)
        else:
            threading.Thread(target=self._attempt, args=(piece,), daemon=True).start()

    def _attempt(self, piece: _Piece) -> None:
        try:
            outcome: Matrix | BaseException = self.asking.send(self.X[piece.start : piece.stop])
        except Exception as error:
            outcome = error
        self.landed.put((piece, outcome))

    def _land(self, piece: _Piece, outcome: Matrix | BaseException) -> None:
        self.flying -= 1
        # A miss may be tried again; every other error is the caller's to see.
        if isinstance(outcome, Missed):
            self._retry(piece, outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            self.answers[piece.start] = outcome

    def _retry(self, piece: _Piece, missed: Missed) -> None:
        # Halves in the order of the batch, before everything that waits.
        if missed.too_large and len(piece) > 1:
            self.asking.shrink()
            self.waiting.extendleft(reversed(piece.halves()))
            return
        wait = self.asking.patience.wait(piece.tries, missed, piece.since)
        if wait is None:
            self.unpaid += 0 if missed.answered else len(piece)
            raise TargetFailed(_describe_miss(piece, missed)) from missed
        if missed.answered:
            self.asking.meters.charge(len(piece))
        self.waiting.appendleft(piece)
        time.sleep(wait)

    def give_up(self, error: BaseException) -> None:
        """Hand back what was certainly not answered."""
        # Where a person stopped it, what is in the air is not waited for.
        if isinstance(error, Exception):
            for piece, outcome in (self.landed.get() for _ in range(self.flying)):
                certain = isinstance(outcome, Missed) and not outcome.answered
                self.unpaid += len(piece) if certain else 0
        # A bad answer is an answer: the whole batch counts as answered.
        if isinstance(error, BadAnswer):
            return
        self.unpaid += sum(map(len, self.waiting))
        if self.unpaid:
            self.asking.meters.charge(-self.unpaid)
        # Nobody else counts a batch that ended so.
        if isinstance(error, BudgetSpent):
            self.asking.meters.total += len(self.X)


def _describe_miss(piece: _Piece, missed: Missed) -> str:
    if missed.too_large:
        return (
            f"{missed} One sequence is as little as can be asked: bound the length, or raise the"
            " service's limit."
        )
    if missed.again and missed.after is not None:
        return (
            f"{missed} It asks to be left alone for {missed.after:.0f} s: try later, with a smaller"
            " --rate."
        )
    return f"{missed} It was tried {piece.tries} times." if piece.tries > 1 else str(missed)
