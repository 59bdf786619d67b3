"""The oracle protocol, the ledger, and the border check every black box's answers pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import EPS, Answers, Sequences
from keyhole.errors import BadAnswer, InvalidInput


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


def checked(answers: Any, *, batch: int, outputs: int | None) -> Answers:
    """`answers` as a finite (batch, outputs) array; (batch,) becomes one output.

    Raises:
        InvalidInput: the shape is wrong on the first call (`outputs` not yet known).
        BadAnswer: the shape is wrong later, or a number is not finite.
    """
    problem = InvalidInput if outputs is None else BadAnswer
    try:
        array = np.array(answers, dtype=np.float64)  # a copy: an answer may be a view of the question
    except (TypeError, ValueError) as error:
        raise problem(
            f"the target must answer a batch of {batch} with numbers, one row per sequence; got {answers!r:.80}."
        ) from error
    array = array[:, None] if array.ndim == 1 else array
    fits = array.ndim == 2 and len(array) == batch and array.shape[1] == (outputs or array.shape[1]) >= 1
    if not fits:
        wanted = f"({batch},) or ({batch}, {outputs or 'outputs'})"
        raise problem(f"the target must answer a batch of {batch} with shape {wanted}; got {np.shape(answers)}.")
    if not np.isfinite(array).all():
        first = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise BadAnswer(
            f"the target answered {array[first].tolist()} to sequence {first} of a batch of {batch}; "
            "answers must be finite. Check the target on that input, or bound the tokens it is asked."
        )
    return array


_FORMATS = {"f64": EPS, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


@dataclass(frozen=True, slots=True)
class Imperfection:
    """How far answers may be from the function behind them, as declared by whoever knows the target.

    Args:
        roundoff: largest relative rounding of the target's arithmetic and answers.
    """

    roundoff: float = EPS

    @classmethod
    def cast(cls, name: str) -> Imperfection:
        """That of arithmetic and answers in a narrower format: f32, f16 or bf16."""
        if name not in _FORMATS:
            raise InvalidInput(f"answers are {', '.join(_FORMATS)}; got {name!r}.")
        return cls(_FORMATS[name])

    @property
    def perfect(self) -> bool:
        """Whether answers are float64 values of the function itself."""
        return self.roundoff <= EPS


def declared(oracle: Any) -> Imperfection:
    """The imperfection declared on an oracle or on the nearest oracle it wraps."""
    for _ in range(64):
        stated = getattr(oracle, "imperfection", None)
        if isinstance(stated, Imperfection):
            return stated
        oracle = getattr(oracle, "inner", None)
    return Imperfection()
