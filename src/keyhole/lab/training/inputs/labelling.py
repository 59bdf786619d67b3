"""Lessons with answers yes or no, and simple guesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Array, Sequences, Stack
from keyhole.errors import InvalidInput
from keyhole.lab.training.inputs.lessons import Examples, Lesson, Posed
from keyhole.tasks import Task, find_kind, list_tasks_with

_WRONG = 0.05  # of the labels of a sequence


@dataclass(frozen=True, slots=True)
class Labelling(Lesson[Posed]):
    """A task whose answers are yes or no.

    Args:
        inputs: how inputs are drawn: one of the task's kinds, "mixed" (a share of each), or one
            that a lesson adds.
    """

    inputs: str = "mixed"

    @classmethod
    def choose(cls, task: Posed, inputs: str | None) -> Lesson[Any]:
        """The lesson on one kind of inputs, the last of those the lesson adds unless told."""
        known = (*task.kinds, "mixed", *cls.list_own_inputs(task))
        if inputs is not None and inputs not in known:
            raise InvalidInput(
                f"--inputs of this {task.name} is one of {', '.join(known)}; got"
                f" {inputs!r}.{_explain_missing(inputs)}"
            )
        return cls(task, inputs or known[-1])

    @classmethod
    def list_own_inputs(cls, task: Posed) -> tuple[str, ...]:
        """Kinds of inputs that the task itself does not draw."""
        return ()

    @property
    def labels(self) -> bool:
        """Answers are yes or no."""
        return True

    @property
    def allowed(self) -> float:
        """A share of the labels may be wrong."""
        return _WRONG

    def draw(self, size: int, *, rng: np.random.Generator) -> Sequences:
        """Inputs of the kind that was asked for."""
        if self.inputs != "mixed":
            return self.draw_kind(self.inputs, size, rng)
        kinds = self.task.kinds
        # Equal shares, rounded up, then cut to size after shuffling.
        each = [self.task.sample(-(-size // len(kinds)), rng=rng, kind=kind) for kind in kinds]
        return np.concatenate(each)[rng.permutation(len(kinds) * -(-size // len(kinds)))[:size]]

    def draw_kind(self, kind: str, size: int, rng: np.random.Generator) -> Sequences:
        """Inputs of one kind."""
        return self.task.sample(size, rng=rng, kind=kind)

    def lines(self, tests: Examples, seen: Examples) -> dict[str, float]:
        """The majority, the best guess by how many tokens differ, and those of the task."""
        X, Y = tests
        majority = np.full(Y.shape, float(seen.Y.mean() > 0.5))
        by_count = _guess_by_count(X, seen)
        guesses = {"majority": majority, "distinct_count": by_count, **self.guess_labels(X)}
        return {
            name: float(np.not_equal(guess > 0.5, Y > 0.5).mean())
            for name, guess in guesses.items()
        }

    def guess_labels(self, X: Stack) -> dict[str, Array]:
        """Guesses that only this task has."""
        return {}


def _explain_missing(inputs: str) -> str:
    if inputs != "strict":
        return ""
    return " Strict ones need match2 or match3 and a prime modulus from 5 to 4,093."


def _count_distinct_tokens(X: Stack) -> Any:
    """How many different tokens each sequence has."""
    return np.array([len({row.tobytes() for row in x}) for x in X])


def _guess_by_count(X: Stack, seen: Examples) -> Array:
    """The more frequent answer among seen inputs with as many different tokens."""
    then = _count_distinct_tokens(seen.X)
    now = _count_distinct_tokens(X)
    usual = float(seen.Y.mean())
    rates = {count: float(seen.Y[then == count].mean()) for count in set(then.tolist())}
    # A count that was never seen gets the usual answer.
    return np.array([rates.get(int(count), usual) for count in now])[:, None, None] * np.ones(
        (1, X.shape[1], 1)
    )


def choose_lesson(task: Task, inputs: str | None = None) -> Lesson[Any]:
    """How a task is taught; matching modulo an odd prime on strict inputs unless told otherwise.

    Raises:
        InvalidInput: the task is not taught, or has no such inputs.
    """
    lesson: type[Lesson[Any]] | None = find_kind(task).load("lesson")
    if lesson is None:
        raise InvalidInput(
            f"tasks that can be trained are {list_tasks_with('lesson')}; got {task.name}."
        )
    return lesson.choose(task, inputs)
