"""A bound on the time that a learner works by itself: the clock may stop a run, never steer it.

Questions are bounded by a budget; what is computed between them is not. `check_own_time` is called
before every question and in every long loop, and raises once the time is over. Nobody catches that
but whoever set the bound, so that no choice of a learner hangs by the clock, and a run that is
resumed with more time asks the same questions.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn, TypeVar

from keyhole._arrays import Answers, Sequences
from keyhole.errors import InvalidInput, OutOfTime
from keyhole.oracles.wrappers import Counted, name_phase

_Result = TypeVar("_Result")
_BETWEEN = 0.1  # seconds between two looks at the time while a step goes on apart


@dataclass(slots=True)
class Stopwatch:
    """Counts seconds, but for those in which it is paused.

    Args:
        limit: how many there may be.
        clock: seconds that only grow.
    """

    limit: float = math.inf
    clock: Callable[[], float] = time.perf_counter
    _before: float = field(default=0.0, init=False)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise InvalidInput(f"--max-seconds is a number of seconds > 0; got {self.limit}.")
        self._since = self.clock()

    @property
    def seconds(self) -> float:
        """Counted so far."""
        return self._before + self.clock() - self._since

    @property
    def over(self) -> bool:
        """Whether there were more than there may be."""
        return self.seconds > self.limit

    @contextmanager
    def paused(self) -> Generator[None]:
        """What happens inside is not counted."""
        self._before = self.seconds
        try:
            yield
        finally:
            self._since = self.clock()

    def check(self) -> None:
        """Raise once the time is over.

        Raises:
            OutOfTime: it is.
        """
        if self.over:
            raise OutOfTime(f"the {self.limit:g} s of own work (--max-seconds) are over.")


# A context variable: recoveries in different threads of a server do not stop each other.
_running: ContextVar[Stopwatch | None] = ContextVar("the time of the recovery here", default=None)


@contextmanager
def bound_own_work(watch: Stopwatch) -> Generator[None]:
    """While inside, `check_own_time` goes by this watch."""
    before = _running.set(watch)
    try:
        yield
    finally:
        _running.reset(before)


def check_own_time() -> None:
    """Raise once the time of the recovery that is under way here is over.

    Raises:
        OutOfTime: it is.
    """
    watch = _running.get()
    if watch is not None:
        watch.check()


def work_apart(step: Callable[[], _Result]) -> _Result:
    """What one long call of linear algebra returns, or raises; Ctrl-C and the time are heard.

    Signals wait until a call of LAPACK has ended, which takes minutes for matrices of thousands of
    columns. In a thread of its own it may be left behind: it ends by itself, or with the process.

    Raises:
        OutOfTime: the time is over before it has ended.
    """
    ended: list[Callable[[], _Result]] = []
    context = copy_context()

    def work() -> None:
        try:
            found = context.run(step)
        except Exception as error:
            ended.append(partial(_raise_again, error))
        else:
            ended.append(lambda: found)

    apart = threading.Thread(target=work, daemon=True)
    apart.start()
    while apart.is_alive():
        apart.join(_BETWEEN)
        check_own_time()
    return ended[0]()


def _raise_again(error: Exception) -> NoReturn:
    raise error


@dataclass(slots=True)
class Paced(Counted):
    """Checks the time before every question, and does not count the time of its answer.

    Its ledger is by the phases of whoever asks, so that a run that is stopped can say what it cost.
    """

    watch: Stopwatch = field(default_factory=Stopwatch)

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch, unless the time is over."""
        self.watch.check()
        with self.watch.paused(), self.phase(name_phase()):
            return Counted.ask(self, X)
