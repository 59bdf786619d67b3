"""The desk: jobs of the page under way, each in a process that can be ended."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import msgspec

import keyhole
from keyhole.errors import InvalidInput
from keyhole.lab.runs.directories import make_directory, make_new_directory
from keyhole.web.messages import NOTHING, Order, Said, Seen, Target
from keyhole.web.requests import (
    Watch,
    read_bound_wish,
    read_recover_wish,
    read_watch_wish,
)
from keyhole.web.runs import find_stopped_run, read_watched_result

AT_ONCE = 2  # jobs under way
KEPT = 32  # jobs remembered

RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"
STOPPED = "stopped"  # what was answered is kept, and the run can go on
_STOPPED_SENTENCE = "Stopped. What was answered is kept: Go on asks nothing again."
_CHECKS = {"recover": read_recover_wish, "watch": read_watch_wish, "bound": read_bound_wish}


class TooMany(Exception):
    """As many jobs are under way as may be."""


class Hand:
    """A process that does jobs, one after another."""

    def __init__(self) -> None:
        here = str(Path(keyhole.__file__).parents[1])
        path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            # -P: a file in the current directory must not stand in for a module.
            [sys.executable, "-P", "-m", "keyhole.web.worker"],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal is for the server, which then ends its jobs in order.
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether it can still be given something to do."""
        return self.process.poll() is None

    def give(self, order: Order) -> None:
        """Hand over a job."""
        into = cast(IO[bytes], self.process.stdin)
        into.write(msgspec.json.encode(order) + b"\n")
        into.flush()

    def said(self) -> Said | None:
        """The next line; None where the process has ended."""
        line = cast(IO[bytes], self.process.stdout).readline()
        # A process that was killed may leave half a line.
        return msgspec.json.decode(line, type=Said) if line.endswith(b"\n") else None

    def end(self) -> None:
        """End the process now, whatever it does."""
        self.process.kill()
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                cast(IO[bytes], end).close()


@dataclass(slots=True)
class Task:
    """One job of the page.

    Args:
        name: by which the page asks for it.
        kind: what kind of job.
        place: the directory it writes to, if it does.
        hand: the process that does it.
    """

    name: str
    kind: str
    place: Path | None
    hand: Hand
    state: str = RUNNING
    events: list[msgspec.Raw] = field(default_factory=list[msgspec.Raw])
    result: msgspec.Raw = field(default_factory=lambda: NOTHING)
    sentence: str | None = None
    listener: threading.Thread | None = None

    def seen(self, after: int) -> Seen:
        """What there is to know, with the events from number `after` on."""
        return Seen(
            id=self.name,
            kind=self.kind,
            state=self.state,
            sentence=self.sentence,
            next=len(self.events),
            events=self.events[after:],
            result=self.result,
        )


@dataclass(slots=True)
class Desk:
    """Starts jobs, listens to them, ends them; one process is kept warm.

    Args:
        runs: the directory under which recoveries are kept.
        target: what the explorer was started with.
    """

    runs: Path
    target: Target | None = None
    _tasks: dict[str, Task] = field(default_factory=dict[str, Task], init=False)
    _spare: Hand | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)

    def warm(self) -> None:
        """Have a process ready."""
        with self._lock:
            if self._spare is None and not self._closed:
                self._spare = Hand()

    def start(self, kind: str, fields: msgspec.Raw) -> Task:
        """Begin a job.

        Raises:
            InvalidInput: there is no such job, or what it is given makes no sense.
            TooMany: it has to wait for others.
        """
        if kind not in _CHECKS:
            raise InvalidInput(
                f"a job of the page is one of {', '.join(_CHECKS)}; got {kind!r:.80}."
            )
        # Refused here, before a process or a directory is spent on it.
        wish = _CHECKS[kind](fields)
        if kind == "watch" and self.target is None:
            raise InvalidInput(
                "there is no target: start the explorer with one, keyhole ui TARGET."
            )
        if isinstance(wish, Watch):
            self._await_end(wish.run)
        with self._lock:
            if sum(task.state == RUNNING for task in self._tasks.values()) >= AT_ONCE:
                raise TooMany(f"{AT_ONCE} jobs are under way. Wait for one of them, or cancel it.")
            place = self._place(kind, wish)
            # A run is found again by its directory, even by an explorer that was started since.
            name = secrets.token_hex(6) if place is None else place.name
            task = Task(name, kind, place, self._hand())
            self._keep(task)
        told = None if task.place is None else str(task.place)
        task.listener = threading.Thread(target=self._listen, args=(task,), daemon=True)
        task.listener.start()
        with suppress(OSError):  # a process that has died says so by its silence
            task.hand.give(Order(kind, fields, told, self.target))
        return task

    def _place(self, kind: str, wish: object) -> Path | None:
        if not isinstance(wish, Watch) or wish.run is None:
            return None if kind == "bound" else make_new_directory(kind, self.runs)
        under_way = self._tasks.get(wish.run)
        if under_way is not None and under_way.state == RUNNING:
            raise InvalidInput("this run is still going on.")
        if under_way is not None and under_way.state == STOPPED and under_way.place is not None:
            # Stopped before its first answer, it left no directory: it begins where it would have.
            make_directory(under_way.place)
            return under_way.place
        return find_stopped_run(self.runs, wish.run)

    def _await_end(self, name: str | None) -> None:
        """Wait until a job that was ended has cleared up: what goes on with it writes there."""
        ended = None if name is None else self._tasks.get(name)
        if ended is not None and ended.state != RUNNING and ended.listener is not None:
            ended.listener.join(5)

    def _hand(self) -> Hand:
        taken = self._spare
        self._spare = None
        return taken if taken is not None and taken.alive else Hand()

    def _keep(self, task: Task) -> None:
        # Jobs under way are never forgotten, however many there are.
        ended = [name for name, one in self._tasks.items() if one.state != RUNNING]
        for name in ended[: max(0, len(self._tasks) + 1 - KEPT)]:
            del self._tasks[name]
        # A run that goes on is the last one again.
        self._tasks.pop(task.name, None)
        self._tasks[task.name] = task

    def _listen(self, task: Task) -> None:
        """Hear a job to its end; then its process is kept for the next one, or ended."""
        while (said := task.hand.said()) is not None:
            if said.failed is not None or said.result != NOTHING:
                break
            if not said.ready:
                task.events.append(said.event)
        with self._lock:
            self._conclude(task, said)
        self.warm()

    def _conclude(self, task: Task, said: Said | None) -> None:
        if task.state == RUNNING and said is not None and said.failed is None:
            task.result = said.result
            task.state = DONE
        elif task.state == RUNNING:
            died = "The process of this job died. Try a smaller size."
            task.sentence = died if said is None else said.failed
            task.state = FAILED
        # A result is kept on disk; of anything else nothing should be left.
        if task.state != DONE:
            self._clear(task)
        if (
            said is not None
            and task.state not in (CANCELLED, STOPPED)
            and self._spare is None
            and not self._closed
        ):
            self._spare = task.hand
        else:
            task.hand.end()

    def _clear(self, task: Task) -> None:
        """Take away the directory of a cancelled job, or of one without a record or an answer."""
        # What was finished when the server ends is kept, even if nobody had seen it.
        unwanted = task.state == CANCELLED and not self._closed
        if task.place is None:
            return
        kept = ("record.json", "transcript.sqlite") if task.kind == "watch" else ("record.json",)
        if unwanted or not any((task.place / name).exists() for name in kept):
            shutil.rmtree(task.place, ignore_errors=True)

    def find(self, name: str) -> Task | None:
        """A job by name, if it is remembered."""
        return self._tasks.get(name)

    def see(self, name: str, after: int) -> Seen | None:
        """What is known of a job, or of a run that was watched before this explorer began."""
        if (task := self.find(name)) is not None:
            return task.seen(after)
        kept = read_watched_result(self.runs, name)
        if kept is None:
            return None
        state, sentence = (STOPPED, _STOPPED_SENTENCE) if kept == NOTHING else (DONE, None)
        return Seen(
            id=name, kind="watch", state=state, sentence=sentence, next=0, events=[], result=kept
        )

    def cancel(self, task: Task) -> None:
        """End a job; of a target the answers are kept, of anything else nothing."""
        with self._lock:
            if task.state == RUNNING:
                watched = task.kind == "watch"
                task.state = STOPPED if watched else CANCELLED
                task.sentence = _STOPPED_SENTENCE if watched else "Cancelled."
                task.hand.process.kill()

    def close(self) -> None:
        """End every process, and wait until what they leave behind is cleared."""
        with self._lock:
            self._closed = True
            # Cancelled all at once and waited for afterwards: they end side by side.
            tasks = list(self._tasks.values())
            spare = self._spare
            self._spare = None
        for task in tasks:
            self.cancel(task)
        for task in tasks:
            if task.listener is not None:
                task.listener.join(5)
        if spare is not None:
            spare.end()
