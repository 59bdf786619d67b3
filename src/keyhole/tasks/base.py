"""What a task is: inputs drawn or listed, the truth by brute force, and how wrong an answer is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import islice, product
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import Array, Float, Int, PerSequence, Sequences, Stack, check_sequences
from keyhole.errors import InvalidInput

Labels = Float[Array, "batch length outputs"]
Integers = Int[np.ndarray, "batch length"]
# Sequences of an exhaustive list that are made at a time.
BATCH = 256


@dataclass(frozen=True, slots=True)
class Columns:
    """How the numbers of a token are to be read.

    Args:
        plain: leading columns that are numbers as they are.
        coded: further columns, whole numbers that stand for something.
        values: how many different ones there are.
    """

    plain: int
    coded: int
    values: int


@runtime_checkable
class Task(Protocol):
    """A function of sequences, one answer per token, with its inputs and its truth.

    `name` is what the command line calls it.
    """

    name: ClassVar[str]

    @property
    def length(self) -> int:
        """Tokens of an input."""
        ...

    @property
    def width(self) -> int:
        """Numbers of a token before anything embeds it."""
        ...

    @property
    def outputs(self) -> int:
        """Numbers of an answer, per token."""
        ...

    @property
    def columns(self) -> Columns:
        """How tokens are read."""
        ...

    @property
    def accuracy(self) -> float:
        """The largest error allowed where nobody says another; 0 where answers are labels."""
        ...

    @property
    def count(self) -> int:
        """How many inputs `exhaustive` lists."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """The ways `sample` can draw, hardest last."""
        ...

    def sample(self, size: int, *, rng: np.random.Generator, kind: str = "random") -> Sequences:
        """Inputs of one kind."""
        ...

    def exhaustive(self) -> Iterator[Stack]:
        """Every input that matters, in batches."""
        ...

    def target(self, X: Sequences) -> Labels:
        """The truth."""
        ...

    def error(self, Y: Labels, X: Sequences) -> PerSequence:
        """How wrong answers are, per sequence; 0 where all are right."""
        ...


def measure_wrong_labels(task: Task, Y: Labels, X: Sequences) -> PerSequence:
    """The share of tokens answered on the wrong side of 1/2; NaN is wrong."""
    right = np.where(task.target(X) > 0.5, Y > 0.5, Y < 0.5)
    return 1.0 - right.mean(axis=(1, 2))


def round_to_whole(X: Array) -> Any:
    """Numbers that stand for integers, as integers."""
    return np.rint(X).astype(np.int64)


def batch_rows(rows: Iterator[Any], size: int = BATCH) -> Iterator[Array]:
    """Rows from an iterator, stacked so many at a time."""
    while batch := list(islice(rows, size)):
        yield np.asarray(batch, dtype=np.float64)


def list_tuples(values: int, length: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of that length over 0 .. values - 1."""
    return product(range(values), repeat=length)


def check_sizes(task: Any, **least: int) -> None:
    """Raise unless the named sizes are whole numbers no smaller than stated."""
    for name, smallest in least.items():
        size = getattr(task, name)
        # True is an int to Python, and no size to anybody.
        if isinstance(size, bool) or not isinstance(size, int) or size < smallest:
            raise InvalidInput(
                f"{spell_option(name)} of {task.name} is a whole number >= {smallest}; got"
                f" {size!r}."
            )


def name_in_jobs(size: str) -> str:
    """What jobs call a size."""
    # They call the size of z a width, as they do that of tokens.
    return "width" if size == "dimension" else size


def spell_option(name: str) -> str:
    """How the command line spells a size."""
    return f"--{name_in_jobs(name).replace('_', '-')}"


def check_kind(task: Task, kind: str) -> None:
    """Raise unless the task can be sampled that way."""
    if kind not in task.kinds:
        raise InvalidInput(f"{task.name} is sampled as {', '.join(task.kinds)}; got {kind!r}.")


def check_inputs(task: Task, X: Sequences) -> None:
    """Raise unless `X` are inputs of the task."""
    check_sequences(X, task.width)
    if X.shape[1] != task.length:
        raise InvalidInput(
            f"inputs of this {task.name} have {task.length} tokens; got {X.shape[1]}."
        )


def sizes_of(task: Any) -> dict[str, Any]:
    """The sizes a task was made with, by name."""
    return {item.name: getattr(task, item.name) for item in fields(task)}
