"""Engines: where jobs run, outliving the death of a worker."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import msgspec

from keyhole._arrays import pin_one_thread
from keyhole.errors import KeyholeError
from keyhole.lab.jobs import Job
from keyhole.lab.runs.records import Envelope, Record
from keyhole.lab.runs.store import About

MOMENT = 0.5  # seconds an engine waits for something to finish before it lets its driver look up
DEATHS = 3  # of a process a job was in, before the job is suspected and runs alone
ALONE = 2  # further deaths, alone, before the job is to blame
STARTS = 50  # deaths in a row of processes in which no job had begun, before it is given up


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job, as it travels between processes.

    Args:
        record: what it returned, as JSON.
        reason: why it returned nothing.
        about: when and where it ran.
    """

    record: bytes | None = None
    reason: str | None = None
    about: About = About()


@runtime_checkable
class Engine(Protocol):
    """Where jobs run."""

    @property
    def room(self) -> int:
        """How many jobs it likes to hold at a time."""
        ...

    def submit(self, key: str, job: Job) -> None:
        """Take a job."""
        ...

    def completed(self) -> Iterator[tuple[str, Outcome]]:
        """Jobs that have ended since the last call, after a moment's wait where none has."""
        ...

    def close(self) -> None:
        """Drop what is unfinished and let go of every process."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """How a job is done: handed to the engines, which do not know the commands.

    Args:
        load: imports what jobs of a kind need.
        run: does a job.
    """

    load: Callable[[type[Job]], object]
    run: Callable[[Job], Record[Envelope]]


def perform_job(work: Work, job: Job) -> Outcome:
    """Run one job; what it returns is plain data, and so is what it raises."""
    start = time.perf_counter()
    record = reason = None
    try:
        # Jobs share the machine, and threads of BLAS would change the last digits.
        with pin_one_thread():
            record = work.run(job).json()
    except KeyholeError as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    spent = time.perf_counter() - start
    about = About(seconds=spent, host=platform.node(), process=os.getpid())
    return Outcome(record=record, reason=reason, about=about)


def _perform_marked_job(work: Work, job: Job, mark: str) -> Outcome:
    """Run one job, with a file that stands as long as the job is under way, imports apart."""
    with suppress(KeyholeError):  # `perform` meets it again, and says so
        work.load(type(job))
    # After the imports: a process that dies while it loads is no job's fault.
    Path(mark).touch()
    try:
        return perform_job(work, job)
    finally:
        Path(mark).unlink(missing_ok=True)


def _report_deaths(times: int) -> Outcome:
    if not times:
        return Outcome(reason=f"processes died {STARTS} times before the job began.")
    said = f"the process it ran in died {times} times, the last time with nothing beside it."
    return Outcome(reason=said)


@dataclass(slots=True)
class Serial:
    """Jobs one after another, in this process."""

    work: Work
    room: int = 1
    _taken: list[tuple[str, Job]] = field(default_factory=list[tuple[str, Job]])

    def submit(self, key: str, job: Job) -> None:
        """Take a job."""
        self._taken.append((key, job))

    def completed(self) -> Iterator[tuple[str, Outcome]]:
        """The next job, run now."""
        if self._taken:
            key, job = self._taken.pop(0)
            yield key, perform_job(self.work, job)

    def close(self) -> None:
        """Forget what was not run."""
        self._taken.clear()


def _prepare_worker() -> None:
    """A worker leaves Ctrl-C to its driver, and ends when that does."""
    # Ctrl-C goes to the whole group; the driver decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_driver, args=(parent.sentinel,), daemon=True).start()


def _exit_with_driver(sentinel: int) -> None:
    connection.wait([sentinel])
    # A worker in the middle of a job has no other way to notice that nobody waits.
    os._exit(1)


@dataclass(slots=True)
class Pool:
    """Processes on this machine; when one dies all are made anew, and go on.

    A pool cannot say which job killed a process. Each job that was under way at DEATHS deaths
    therefore runs alone, and fails when its process dies then too, ALONE times. A process that dies
    while it starts is no job's fault.

    Args:
        work: how a job is done.
        workers: how many processes.
    """

    work: Work
    workers: int
    _pool: ProcessPoolExecutor | None = None
    _held: dict[Future[Outcome], str] = field(default_factory=dict[Future[Outcome], str])
    _jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    _deaths: Counter[str] = field(default_factory=Counter[str])
    _processes: dict[int, Any] = field(default_factory=dict[int, Any])
    _marks: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="keyhole-"))
    _idle: int = 0

    @property
    def room(self) -> int:
        """Enough that no process waits, few enough that a death concerns few jobs."""
        return 2 * self.workers

    def submit(self, key: str, job: Job) -> None:
        """Take a job."""
        self._jobs[key] = job
        # Suspects are handed over alone, when the pool is made anew.
        if self._deaths[key] < DEATHS:
            self._hand(key)

    def _hand(self, key: str) -> None:
        if self._pool is None:
            # A fork would copy locks that threads of the driver hold.
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self.workers, mp_context=spawn, initializer=_prepare_worker
            )
        try:
            self._held[
                self._pool.submit(
                    _perform_marked_job, self.work, self._jobs[key], str(self._mark(key))
                )
            ] = key
            # The executor forgets processes when it breaks; these must be ended all the same.
            self._processes |= cast(Any, self._pool)._processes or {}
        except BrokenProcessPool:
            # The pool broke in between: the job waits, as failed, for the new one.
            future: Future[Outcome] = Future()
            future.set_exception(BrokenProcessPool())
            self._held[future] = key

    def _mark(self, key: str) -> Path:
        return Path(self._marks, key)

    def completed(self) -> Iterator[tuple[str, Outcome]]:
        """Jobs that have ended; after a death, the others are handed to new processes."""
        done, _ = wait(self._held, timeout=MOMENT, return_when=FIRST_COMPLETED)
        for future in [future for future in done if future.exception() is None]:
            self._idle = 0
            yield self._ended(self._held.pop(future), future.result())
        if any(future.exception() is not None for future in done):
            yield from self._rebuilt()

    def _ended(self, key: str, outcome: Outcome) -> tuple[str, Outcome]:
        del self._jobs[key]
        return key, outcome

    def _rebuilt(self) -> Iterator[tuple[str, Outcome]]:
        """New processes; suspects are run alone first."""
        wait(self._held)  # those that were finished keep their outcome, the others fail at once
        finished = {
            key: future.result() for future, key in self._held.items() if future.exception() is None
        }
        self._shut()
        for key, outcome in finished.items():
            yield self._ended(key, outcome)
        self._suspect()
        waiting = list(self._jobs)
        for key in [key for key in waiting if self._deaths[key] >= DEATHS]:
            yield self._ended(key, self._alone(key))
        for key in [key for key in waiting if self._deaths[key] < DEATHS]:
            # Processes that never begin a job would be made anew for ever.
            if self._idle < STARTS:
                self._hand(key)
            else:
                yield self._ended(key, _report_deaths(0))

    def _suspect(self) -> None:
        """Count a death for every job that was under way."""
        inside = [key for key in self._jobs if self._mark(key).exists()]
        self._deaths.update(inside)
        # No mark: the process died while it started, and no job is to blame.
        self._idle = 0 if inside else self._idle + 1
        for key in inside:
            self._mark(key).unlink()

    def _alone(self, key: str) -> Outcome:
        for _ in range(STARTS):
            self._hand(key)
            (future,) = self._held
            error = future.exception()
            self._shut()
            if error is None:
                return future.result()
            self._suspect()
            if self._deaths[key] >= DEATHS + ALONE:
                break
        return _report_deaths(self._deaths[key])

    def _shut(self) -> None:
        """End every process, and wait for it: what it held, such as a transcript, is free."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()
        self._pool = None
        self._processes.clear()
        self._held.clear()

    def close(self) -> None:
        """Drop what is unfinished and end every process."""
        self._shut()
        shutil.rmtree(self._marks, ignore_errors=True)
