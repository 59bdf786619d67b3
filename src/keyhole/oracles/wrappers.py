"""One behaviour per wrapper; wrappers nest."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Answers, Sequences
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.oracles.base import FORMATS, Imperfection, Ledger, Oracle, check_answers, meter_oracle
from keyhole.oracles.progress.bars import ProgressBar, open_bar

# Told of a phase, and of sequences that were answered in it.
Told = Callable[[str, int], None]
# Handed a batch and its answers.
Hears = Callable[[Sequences, Answers], None]

# Context variables: recoveries in different threads of a server do not hear of each other.
_asking: ContextVar[str | None] = ContextVar("phase of the outermost ledger", default=None)
_watcher: ContextVar[Told | None] = ContextVar("who counts answers as they come", default=None)
_hearer: ContextVar[Hears | None] = ContextVar("who hears answers as they come", default=None)


def name_phase() -> str:
    """The phase in which the outermost ledger books what is asked now."""
    return _asking.get() or "ask"


@contextmanager
def watch_batches(tell: Told) -> Generator[None]:
    """While inside, `tell` hears of batches that `Watched` oracles made here answer."""
    before = _watcher.set(tell)
    try:
        yield
    finally:
        _watcher.reset(before)


@contextmanager
def hear_answers(hear: Hears) -> Generator[None]:
    """While inside, `hear` is handed what `Watched` oracles made here are asked and answer."""
    before = _hearer.set(hear)
    try:
        yield
    finally:
        _hearer.reset(before)


@dataclass(slots=True)
class Wrapper:
    """Passes everything on."""

    inner: Oracle

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.inner.width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer."""
        return self.inner.outputs

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        return self.inner.ask(X)


@dataclass(slots=True)
class Counted(Wrapper):
    """Counts sequences, tokens, calls and seconds by phase; a failed call counts too."""

    ledger: Ledger = field(default_factory=Ledger)
    _phase: str = field(default="ask", init=False)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Book what is asked inside under `name`."""
        before = self._phase
        self._phase = name
        try:
            yield
        finally:
            self._phase = before

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch, counted."""
        entry = self.ledger[self._phase]
        asked = len(X)
        start = time.perf_counter()
        # The outermost ledger names the phase: learners inside learners count under it.
        before = _asking.set(_asking.get() or self._phase)
        try:
            return self.inner.ask(X)
        except BudgetSpent as spent:
            # A cut batch costs what was answered of it.
            asked = spent.answered
            raise
        finally:
            _asking.reset(before)
            entry.sequences += asked
            entry.tokens += asked * X.shape[1]
            entry.calls += 1
            entry.seconds += time.perf_counter() - start


@dataclass(slots=True)
class Declared(Wrapper):
    """States how far answers of the oracle inside may be off; changes nothing else."""

    imperfection: Imperfection


@dataclass(slots=True)
class ChangedAnswers(Wrapper):
    """Changes answers, and declares how; what it changes stays right when a budget cuts a batch."""

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch, changed."""
        try:
            return self.change(self.inner.ask(X))
        except BudgetSpent as spent:
            # Answers in the refusal are changed too, or a cut would leak exact ones.
            answers = None if spent.answers is None else self.change(spent.answers)
            raise BudgetSpent(str(spent), answers) from spent

    @property
    def imperfection(self) -> Imperfection:
        """What is declared of the change."""
        return Imperfection()

    def change(self, answers: Answers) -> Answers:
        """What is handed out instead of `answers`."""
        return answers


@dataclass(slots=True)
class Noisy(ChangedAnswers):
    """Adds independent Gaussian noise to every answer, repeated questions included.

    Args:
        inner: the oracle to disturb.
        deviation: standard deviation of the noise.
        seed: seed of the noise.
        position: how many answers were disturbed before; a resumed run goes on from there.
    """

    deviation: float
    seed: int = 0
    position: int = 0

    @property
    def imperfection(self) -> Imperfection:
        """Random errors of that standard deviation."""
        return Imperfection(noise=self.deviation)

    def change(self, answers: Answers) -> Answers:
        """Answers with noise."""
        return answers + self.deviation * self._spawn_generator(len(answers)).normal(
            size=answers.shape
        )

    def _spawn_generator(self, count: int) -> np.random.Generator:
        # A stream by position: an answer has the same noise in a run that was resumed before it.
        stream = np.random.Philox(key=self.seed, counter=[0, 0, 0, self.position])
        self.position += count
        return np.random.Generator(stream)


@dataclass(slots=True)
class Disturbed(Noisy):
    """Moves every answer by exactly `deviation`, up or down: the most a tolerance allows."""

    @property
    def imperfection(self) -> Imperfection:
        """Absolute errors up to that size."""
        return Imperfection(tolerance=self.deviation)

    def change(self, answers: Answers) -> Answers:
        """Answers moved by plus or minus the tolerance."""
        signs = self._spawn_generator(len(answers)).choice([-1.0, 1.0], size=answers.shape)
        return answers + self.deviation * signs


@dataclass(slots=True)
class Rounded(ChangedAnswers):
    """Rounds answers to a number of decimals."""

    decimals: int

    @property
    def imperfection(self) -> Imperfection:
        """Absolute errors up to half a unit of the last decimal."""
        return Imperfection.decimals(self.decimals)

    def change(self, answers: Answers) -> Answers:
        """Rounded answers."""
        return np.round(answers, self.decimals)


@dataclass(slots=True)
class Cast(ChangedAnswers):
    """Casts answers to a narrower number format; the arithmetic inside stays what it is."""

    format: str

    def __post_init__(self) -> None:
        # Raises here, not at the first question, where there is no such format.
        Imperfection.cast(self.format)

    @property
    def imperfection(self) -> Imperfection:
        """Answers in that format."""
        return Imperfection.cast(self.format)

    def change(self, answers: Answers) -> Answers:
        """Cast answers; one beyond the format's range is refused, since it is not finite."""
        batch, outputs = answers.shape
        return check_answers(FORMATS[self.format].cast(answers), batch=batch, outputs=outputs)


@dataclass(slots=True)
class Signs(ChangedAnswers):
    """Answers with labels only: 1 where the number is positive, -1 where it is not."""

    @property
    def imperfection(self) -> Imperfection:
        """Two levels."""
        return Imperfection(levels=2)

    def change(self, answers: Answers) -> Answers:
        """Labels."""
        return np.where(answers > 0, 1.0, -1.0)


@dataclass(slots=True)
class Budgeted(Wrapper):
    """Never asks more than `budget` sequences; what still fits comes with `BudgetSpent`.

    What the oracle inside asks again by itself counts too; where that does not fit, nothing more is
    asked at all.

    Args:
        inner: the oracle to guard.
        budget: how many sequences may be asked in all.
        spent: how many were asked before this object was made.
    """

    budget: int
    spent: int = 0
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise InvalidInput(f"a budget is a whole number of queries >= 0; got {self.budget}.")

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch, or `BudgetSpent` with the answers that still fitted."""
        room = 0 if self._closed else max(0, min(len(X), self.budget - self.spent))
        self.spent += room
        with meter_oracle(self.inner, self._charge):
            if room == len(X):
                return self.inner.ask(X)
            raise BudgetSpent(self._sentence, self.inner.ask(X[:room]) if room else None)

    @property
    def _sentence(self) -> str:
        return f"the budget of {self.budget} queries is spent."

    def _charge(self, sequences: int) -> None:
        """Pay for what is asked again."""
        if self.spent + sequences > self.budget:
            # Later, smaller questions are not asked either: a larger budget goes on here.
            self._closed = True
            raise BudgetSpent(self._sentence)
        self.spent += sequences


@dataclass(slots=True)
class Chunked(Wrapper):
    """Splits batches so that no call carries more than `numbers` numbers, if it can."""

    numbers: int = 1 << 22

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch, in several calls where it is large."""
        size = max(1, self.numbers // max(1, X.shape[1] * X.shape[2]))
        if len(X) <= size:
            return self.inner.ask(X)
        parts: list[Answers] = []
        for i in range(0, len(X), size):
            try:
                parts.append(self.inner.ask(X[i : i + size]))
            except BudgetSpent as spent:
                # What earlier chunks brought is paid for, and handed on with the refusal.
                answered = [*parts, *([] if spent.answers is None else [spent.answers])]
                joined = np.concatenate(answered) if answered else None
                raise BudgetSpent(str(spent), joined) from spent
        return np.concatenate(parts)


@dataclass(slots=True)
class Watched(Wrapper):
    """Shows progress while used as a context, in a terminal (on standard error) or a notebook.

    Whoever calls `watch_batches` or `hear_answers` hears of it too.

    Args:
        inner: the oracle to watch.
        expected: how many sequences the plan foresees.
        title: what is going on.
        bar: whether to draw a bar at all.
    """

    expected: int
    title: str = "asking"
    bar: bool = True
    _shown: ProgressBar | None = field(default=None, init=False)
    _tell: Told | None = field(default=None, init=False)
    _hear: Hears | None = field(default=None, init=False)

    def __enter__(self) -> Watched:
        self._tell = _watcher.get()
        self._hear = _hearer.get()
        self._shown = open_bar(self.title, self.expected) if self.bar else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch; the bar moves when they are there."""
        try:
            answers = self.inner.ask(X)
        except BudgetSpent as spent:
            self._advance(X[: spent.answered], spent.answers)
            raise
        self._advance(X, answers)
        return answers

    def _advance(self, X: Sequences, answers: Answers | None) -> None:
        if self._hear is not None and answers is not None:
            self._hear(X, answers)
        if self._shown is not None:
            self._shown.advance(len(X))
        if self._tell is not None:
            self._tell(name_phase(), len(X))
