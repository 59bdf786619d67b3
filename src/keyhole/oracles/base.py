"""The oracle protocol, the ledger, and the border check every black box's answers pass."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import EPS, FORMATS, Answers, Sequences, Vector
from keyhole.errors import BadAnswer, InvalidInput

# Tokens and answers are at most as long: what says more (a server may) is not to be believed, and
# no learner could ask the square of it.
LARGEST = 1 << 20
_QUOTED = 8  # numbers of an answer that a message quotes


@runtime_checkable
class Oracle(Protocol):
    """A batch of sequences in, one row of answers per sequence out.

    Whoever asks does not use the array again, so an oracle may keep it or change it.
    """

    @property
    def width(self) -> int:
        """Size of a token."""
        ...

    @property
    def outputs(self) -> int | None:
        """Numbers per answer; None until the first answer of a target that does not say."""
        ...

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch of sequences of one length, handed over with its array."""
        ...


@dataclass(slots=True)
class Entry:
    """What one phase has cost."""

    sequences: int = 0
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0

    def plus(self, other: Entry) -> Entry:
        """Both costs."""
        return Entry(
            self.sequences + other.sequences,
            self.tokens + other.tokens,
            self.calls + other.calls,
            self.seconds + other.seconds,
        )


@dataclass(slots=True)
class Ledger:
    """Costs by phase, in the order the phases began."""

    phases: dict[str, Entry] = field(default_factory=dict[str, Entry])

    def __getitem__(self, phase: str) -> Entry:
        return self.phases.setdefault(phase, Entry())

    def total(self, *, without: str | None = None) -> Entry:
        """Sum over the phases, leaving out one by name."""
        entries = [entry for name, entry in self.phases.items() if name != without]
        return Entry(
            sum(e.sequences for e in entries),
            sum(e.tokens for e in entries),
            sum(e.calls for e in entries),
            sum(e.seconds for e in entries),
        )

    def plus(self, later: Ledger) -> Ledger:
        """Costs of both, phase by phase."""
        phases = dict(self.phases)
        for name, entry in later.phases.items():
            phases[name] = phases.get(name, Entry()).plus(entry)
        return Ledger(phases)


def check_answers(answers: Any, *, batch: int, outputs: int | None) -> Answers:
    """`answers` as a finite (batch, outputs) array; (batch,) becomes one output.

    Raises:
        InvalidInput: the shape is wrong on the first call (`outputs` not yet known).
        BadAnswer: the shape is wrong later, or a number is not finite.
    """
    problem = InvalidInput if outputs is None else BadAnswer
    try:
        # A copy: an answer may be a view of the question
        array = np.array(answers, dtype=None if np.iscomplexobj(answers) else np.float64)
        if array.dtype.kind == "c":
            raise TypeError("imaginary parts would be lost")
    except (TypeError, ValueError) as error:
        raise problem(
            f"the target must answer a batch of {batch} with numbers, one row per sequence; got"
            f" {answers!r:.80}."
        ) from error
    # Targets with one output often drop its axis.
    array = array[:, None] if array.ndim == 1 else array
    rows, columns = array.shape if array.ndim == 2 else (-1, 0)
    if rows != batch or columns != (outputs or columns) or columns < 1:
        wanted = f"({batch},) or ({batch}, {outputs or 'outputs'})"
        raise problem(
            f"the target must answer a batch of {batch} with shape {wanted}; got"
            f" {np.shape(answers)}."
        )
    if not np.isfinite(array).all():
        first = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise BadAnswer(
            f"the target answered {_quote_row(array[first])} to sequence {first} of a batch of"
            f" {batch}; answers must be finite. Check the target on that input, or bound the tokens"
            " it is asked."
        )
    return array


def _quote_row(row: Vector) -> str:
    """A row that is not finite: the whole of a short one, the first such number of a long one."""
    if len(row) <= _QUOTED:
        return str(row.tolist())
    place = int(np.flatnonzero(~np.isfinite(row))[0])
    return f"{row[place]} as number {place} (from 0) of {len(row)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imperfection:
    """How far answers may be from their function, as declared by whoever knows the target.

    Args:
        roundoff: largest relative rounding of the target's arithmetic and answers.
        tolerance: largest absolute error of an answer, however it is chosen.
        noise: standard deviation of a random error, drawn anew for every answer; NaN where there is
            one of unknown size.
        levels: how many different answers there are; 2 for labels, None where any number may come.
        format: the number format answers are cast to, whatever the arithmetic inside.
        token_bound: largest norm of a token that may be asked; None where there is no bound.
        lengths: the shortest and the longest sequence that may be asked; None where any may.
        cause: a sentence on where the rounding comes from, where that was seen.
    """

    # Float64 is what a target computes in unless somebody says otherwise.
    roundoff: float = EPS
    tolerance: float = 0.0
    noise: float = 0.0
    levels: int | None = None
    format: str = "f64"
    token_bound: float | None = None
    lengths: tuple[int, int] | None = None
    cause: str = ""

    def __post_init__(self) -> None:
        if not (self.tolerance >= 0 and np.isfinite(self.tolerance)):
            raise InvalidInput(f"a tolerance is a finite number >= 0; got {self.tolerance}.")
        if self.noise < 0 or np.isinf(self.noise):
            raise InvalidInput(f"a standard deviation is a finite number >= 0; got {self.noise}.")
        if self.token_bound is not None and not 0 < self.token_bound < np.inf:
            raise InvalidInput(
                f"a bound on the norm of tokens is a finite number > 0; got {self.token_bound}."
            )
        if self.lengths is not None and not 1 <= self.lengths[0] <= self.lengths[1]:
            raise InvalidInput(
                "lengths are two whole numbers MIN:MAX, 1 <= MIN <= MAX; got"
                f" {self.lengths[0]}:{self.lengths[1]}."
            )
        if self.format not in FORMATS:
            raise InvalidInput(f"answers are {', '.join(FORMATS)}; got {self.format!r}.")

    @classmethod
    def cast(cls, name: str) -> Imperfection:
        """That of answers in f32, f16 or bf16, whose arithmetic may be as narrow."""
        return cls(format=name, roundoff=FORMATS[name].roundoff if name in FORMATS else EPS)

    @classmethod
    def decimals(cls, count: int) -> Imperfection:
        """That of answers rounded to so many decimals."""
        return cls(tolerance=0.5 * 10.0**-count)

    @property
    def perfect(self) -> bool:
        """Whether answers are float64 values of the function itself."""
        return self.roundoff <= EPS and not self.absolute and self.levels is None

    @property
    def absolute(self) -> bool:
        """Whether answers carry an error that does not shrink with them."""
        return self.tolerance > 0 or self.noise != 0

    def combined(self, inner: Imperfection) -> Imperfection:
        """Both: errors and variances add; the narrowest format, levels, bound and lengths hold."""
        # None is no bound: only bounds that exist can be compared.
        bounds = [b for b in (self.token_bound, inner.token_bound) if b is not None]
        levels = [n for n in (self.levels, inner.levels) if n is not None]
        lengths = [pair for pair in (self.lengths, inner.lengths) if pair is not None]
        return Imperfection(
            roundoff=max(self.roundoff, inner.roundoff),
            tolerance=self.tolerance + inner.tolerance,
            noise=float(np.hypot(self.noise, inner.noise)),
            levels=min(levels, default=None),
            format=max(self.format, inner.format, key=lambda name: FORMATS[name].roundoff),
            token_bound=min(bounds, default=None),
            lengths=_intersect_lengths(lengths),
            cause=" ".join(dict.fromkeys(c for c in (self.cause, inner.cause) if c)),
        )


def _intersect_lengths(lengths: list[tuple[int, int]]) -> tuple[int, int] | None:
    if not lengths:
        return None
    return max(low for low, _ in lengths), min(high for _, high in lengths)


def read_imperfection(oracle: Any) -> Imperfection:
    """What an oracle and all oracles it wraps declare, combined."""
    stated = Imperfection()
    for part in walk_wrapped(oracle):
        own = getattr(part, "imperfection", None)
        stated = stated.combined(own) if isinstance(own, Imperfection) else stated
    return stated


def walk_wrapped(oracle: Any) -> Generator[Any]:
    """An oracle and those it wraps, from the outside in."""
    # An oracle that wraps itself must not hold us for ever.
    for _ in range(64):
        if oracle is None:
            break
        yield oracle
        oracle = getattr(oracle, "inner", None)


class Meters:
    """Who is told when an oracle asks again by itself, or finds that it never asked.

    A batch is paid for once, before it is asked. An oracle that has to ask part of it again, not
    knowing whether the first attempt was answered, says so here first; one that gives up on a part
    that was certainly never answered hands it back as a negative number.
    """

    def __init__(self) -> None:
        self.listening: list[Callable[[int], None]] = []
        self.total = 0

    def charge(self, sequences: int) -> None:
        """Tell everyone, the outermost first: a budget refuses before a transcript writes.

        Raises:
            BudgetSpent: a budget has no room for them.
        """
        for listener in self.listening:
            listener(sequences)
        self.total += sequences


@contextmanager
def meter_oracle(oracle: Any, charge: Callable[[int], None]) -> Generator[None]:
    """While inside, `charge` hears of sequences that the oracle inside asks again or hands back."""
    meters = _find_meters(oracle)
    if meters is None:
        yield
        return
    meters.listening.append(charge)
    try:
        yield
    finally:
        meters.listening.remove(charge)


def count_asked_again(oracle: Any) -> int:
    """Sequences an oracle asked beyond those it was asked, less those it never asked."""
    meters = _find_meters(oracle)
    return 0 if meters is None else meters.total


def _find_meters(oracle: Any) -> Meters | None:
    found = (getattr(part, "meters", None) for part in walk_wrapped(oracle))
    return next((meters for meters in found if isinstance(meters, Meters)), None)
