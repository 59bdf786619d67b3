"""What is trained on: how inputs are drawn, and what simple predictors reach."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from keyhole._arrays import Sequences, Stack
from keyhole.errors import InvalidInput
from keyhole.lab.runs.record_parts import Given
from keyhole.tasks import SparseAverage, Task
from keyhole.tasks.base import Labels, round_to_whole

# Strictly below 1/q, whatever rounding does.
_BELOW = 0.99
Posed = TypeVar("Posed", bound=Task)


class Examples(NamedTuple):
    """Inputs and their right answers."""

    X: Stack
    Y: Stack


@dataclass(frozen=True, slots=True)
class Lesson(ABC, Generic[Posed]):
    """A task to be learned.

    Args:
        task: the task.
    """

    task: Posed

    @property
    @abstractmethod
    def labels(self) -> bool:
        """Whether answers are yes or no: the loss is logistic, errors are shares."""

    @classmethod
    @abstractmethod
    def choose(cls, task: Posed, inputs: str | None) -> Lesson[Any]:
        """The lesson of a task on the inputs asked for.

        Raises:
            InvalidInput: the task has no such inputs.
        """

    @property
    @abstractmethod
    def allowed(self) -> float:
        """Largest error of a sequence with which the task still counts as done."""

    @abstractmethod
    def draw(self, size: int, *, rng: np.random.Generator) -> Sequences:
        """Inputs as training and tests see them."""

    def targets(self, X: Sequences) -> Labels:
        """The truth."""
        return self.task.target(X)

    @abstractmethod
    def lines(self, tests: Examples, seen: Examples) -> dict[str, float]:
        """Errors of simple predictors on tests, by name, fitted to `seen` where need be."""

    def find_optimum(self, sizes: dict[str, Given]) -> dict[str, float]:
        """The least error of models of these sizes, by name, where one is known."""
        return {}

    def members(self, X: Sequences) -> Stack | None:
        """Which tokens each token should attend to, as 0 and 1, where the task says so."""
        return None


@dataclass(frozen=True, slots=True)
class Averaging(Lesson[SparseAverage]):
    """Sparse averaging of unit vectors: answering zero has a squared error of 1/q."""

    @classmethod
    def choose(cls, task: SparseAverage, inputs: str | None) -> Lesson[Any]:
        """The lesson on its one kind of inputs."""
        if inputs is not None:
            raise InvalidInput(
                f"--inputs is for tasks with answers yes or no; {task.name} has one kind of inputs."
            )
        return cls(task)

    @property
    def labels(self) -> bool:
        """Answers are vectors."""
        return False

    @property
    def allowed(self) -> float:
        """Just below 1/q: right answers to sets that meet and sets that do not are 2/q apart."""
        return _BELOW / self.task.q

    def draw(self, size: int, *, rng: np.random.Generator) -> Sequences:
        """Vectors uniform on the sphere, sets uniform."""
        task = self.task
        z = rng.normal(size=(size, task.length, task.dimension))
        # Length 1 makes the error of answering zero the same for every input.
        z /= np.linalg.norm(z, axis=-1, keepdims=True)
        y = _draw_sets(task.length, task.q, (size, task.length), rng)
        if task.at_most:
            # Sets are drawn sorted: without this the last members would be missing most.
            y = rng.permuted(y, axis=-1)
            y = np.where(
                np.arange(task.q) < rng.integers(1, task.q + 1, size=(size, task.length, 1)),
                y,
                task.length,
            )
            y = np.sort(y, axis=-1)
        return task.tokens(z, np.where(y == task.length, -1, y))

    def targets(self, X: Sequences) -> Labels:
        """The truth, without listing who is named by whom."""
        task = self.task
        y = round_to_whole(X[..., task.dimension : task.dimension + task.q])
        there = (y >= 0)[..., None]
        z = X[np.arange(len(X))[:, None, None], np.maximum(y, 0), : task.dimension]
        return np.sum(z * there, axis=2) / there.sum(axis=2)

    # Vectors are independent with mean zero. The mean of all answers |y|/N of the squared length of
    # the target right; a model that reads once and cannot look ahead misses the members behind the
    # asking token, half of all others.
    def lines(self, tests: Examples, seen: Examples) -> dict[str, float]:
        """Zero, the mean of all, and the floor of models that read once; relative to zero."""
        task = self.task
        sizes = np.arange(1 if self.task.at_most else self.task.q, self.task.q + 1)
        mean = 1.0 - 1.0 / (task.length * float(np.mean(1.0 / sizes)))
        return {
            "zero": 1.0,
            "mean_of_all": mean,
            "causal_floor": (task.length - 1) / (2.0 * task.length),
        }

    # Linear attention answers M G z with G of rank m and M the sets; for random sets the best G
    # keeps the direction of all ones and m - 1 others, which are alike: of the error of the mean of
    # all, 1 - q/N, a share (N - m)/(N - 1) stays.
    def find_optimum(self, sizes: dict[str, Given]) -> dict[str, float]:
        """The least error of linear attention of this width, for sets of one size."""
        task = self.task
        width, heads = sizes.get("embed"), sizes.get("heads", 1)
        if task.at_most or task.length < 2:
            return {}
        if not isinstance(width, int) or not isinstance(heads, int):
            return {}
        # Layers divide their width among heads, units give each head the whole of it.
        rank = width if "hidden" in sizes else width * heads
        kept = max(0, task.length - rank) / (task.length - 1)
        return {"linear_optimum": (1.0 - task.q / task.length) * kept}

    def members(self, X: Sequences) -> Stack:
        """Who is named."""
        return self.task.members(X)


# The k-th member is a number below N - k that counts only what is left: it goes up by one for every
# smaller member.
def _draw_sets(length: int, q: int, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Sets of q positions, uniform, in rising order."""
    y = np.empty((*shape, q), dtype=np.int64)
    for k in range(q):
        member = rng.integers(length - k, size=shape)
        for j in range(k):
            member += member >= y[..., j]
        y[..., k] = member
        y[..., : k + 1].sort(axis=-1)
    return y
