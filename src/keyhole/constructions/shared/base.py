"""What a construction gives: weights that run, their size, a proof, and what checks showed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import Stack
from keyhole.claims import Certificate, Outcome
from keyhole.drawing.faces import Face
from keyhole.models.stack import Layer, Transformer
from keyhole.tasks import Task, find_kind

# Sequences: lists up to this long are checked whole.
EXHAUSTIVE = 20_000
# Sequences of each kind otherwise.
SAMPLED = 64

Evaluate = Callable[[Layer, Stack], Stack]


@dataclass(frozen=True, slots=True)
class Size:
    """What a model costs, in the measures of [SHT23].

    Args:
        embed: m, width of queries and keys.
        value_width: v, width of values.
        heads: H, in the widest layer.
        layers: D.
        bits: p, bits of a number of the smallest format that was seen to hold.
    """

    embed: int
    value_width: int
    heads: int
    layers: int
    bits: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A model against the brute-force truth.

    Args:
        inputs: sequences asked.
        errors: how many of them were answered with a larger error than allowed.
        worst: the largest error.
        exhaustive: whether these were all inputs that matter.
    """

    inputs: int
    errors: int
    worst: float
    exhaustive: bool


@dataclass(frozen=True, slots=True, repr=False)
class Built(Face):
    """Explicit weights for a task.

    Args:
        task: what they compute.
        construction: the name of the recipe.
        model: the weights.
        size: what they cost.
        format: the number format they were checked under.
        margin: least gap of scores between what must and what must not be attended to, before
            scaling, as measured.
        error_bound: proven for every input; inf where nothing is.
        certificate: the theorem confronted with this case.
        checked: the model against brute force.
    """

    task: Task
    construction: str
    model: Transformer
    size: Size
    format: str
    margin: float
    error_bound: float
    certificate: Certificate
    checked: Checked

    @property
    def proved(self) -> bool:
        """Whether no input fails: every one was asked, or a proof covers those that were not."""
        covered = self.checked.exhaustive or self.certificate.outcome is Outcome.HOLDS
        return self.checked.errors == 0 and covered


@dataclass(frozen=True, slots=True)
class Proven:
    """A construction that is proved for every input by a formula, before it is built.

    Args:
        construction: the name of the recipe.
        theorem: the id of the claim behind it.
        size: what it costs.
        argument: what the proof rests on, in words.
        order: the largest order of its attention.
    """

    construction: str
    theorem: str
    size: Size
    argument: str
    order: int = 2


@runtime_checkable
class Construction(Protocol):
    """A recipe for weights."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        ...

    def suits(self, task: Task) -> bool:
        """Whether the recipe is for this task at all."""
        ...

    def embed(self, task: Task, accuracy: float) -> int:
        """The key width it would need, before building; a guess where it is found by trying."""
        ...

    def build(
        self,
        task: Task,
        *,
        accuracy: float,
        number_format: str,
        embed: int | None,
        rng: np.random.Generator,
    ) -> Built:
        """The weights, checked under a number format, with key width at most `embed` where given.

        Raises:
            DoesNotFit: with the reason.
        """
        ...


def say_nothing(what: str) -> None:
    """Whoever builds without being asked how it goes."""


def list_recipes(task: Task) -> tuple[Construction, ...]:
    """Every recipe declared for a task, in the order in which they are tried."""
    return find_kind(task).load("recipes") or ()


def is_declared_for(recipe: Construction, task: Task) -> bool:
    """Whether a recipe is among those of a task."""
    return any(recipe.name == one.name for one in list_recipes(task))


def check_model(
    task: Task,
    model: Transformer,
    *,
    allowed: float,
    rng: np.random.Generator,
    evaluate: Evaluate | None = None,
    limit: int = EXHAUSTIVE,
    sampled: int = SAMPLED,
) -> Checked:
    """A model against the truth: on every input where they are few, else on samples.

    Args:
        task: the task.
        model: the weights.
        allowed: errors up to this are none.
        rng: draws the samples.
        evaluate: another way to evaluate layers, such as under a number format.
        limit: lists up to this long are checked whole.
        sampled: sequences of each kind, where the list is longer.
    """
    whole = task.count <= limit
    batches = task.exhaustive() if whole else _draw_samples(task, sampled, rng)
    errors = np.concatenate([task.error(model(X, evaluate), X) for X in batches])
    return Checked(len(errors), int((errors > allowed).sum()), float(errors.max()), whole)


def _draw_samples(task: Task, size: int, rng: np.random.Generator) -> Iterator[Stack]:
    for kind in task.kinds:
        yield task.sample(size, rng=rng, kind=kind)
