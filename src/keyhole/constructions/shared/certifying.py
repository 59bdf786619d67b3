"""Labels against the truth: inputs to ask, what is measured on them, certificates from it.

Wrong labels alone would let small faults pass where margins are wide, so certificates also compare
every number that a layer gives with the ideal one, up to the proven distance.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from keyhole._arrays import Stack
from keyhole.claims import Basis, Certificate, Check
from keyhole.constructions.shared.base import (
    EXHAUSTIVE,
    Built,
    Checked,
    Evaluate,
    Size,
    is_declared_for,
)
from keyhole.constructions.shared.holding import find_smallest_format, matrices
from keyhole.constructions.shared.rounding import choose_evaluation
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.numbers import NumberFormat
from keyhole.models.numbers import number_format as format_named
from keyhole.models.stack import Transformer
from keyhole.tasks import Task

# Sequences of each kind.
SAMPLED = 64
# The same where formats are tried: there are dozens of formats, and one wrong answer rules one out.
FEWER = 6
# Products of numbers that a check may cost, about.
WORK = 10**8
LABELS = "farthest answer to a match", "farthest answer to no match"

Distances = tuple[float, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Draft:
    """Weights with what is proven of them, before they are checked.

    Args:
        model: the weights.
        embed: width of queries and keys.
        value_width: width of values.
        heads: in the widest layer.
        margin: least gap of scores, before scaling.
        assumptions: of the theorem, measured.
        bounds: names and proven limits of the distances a recipe measures.
    """

    model: Transformer
    embed: int
    value_width: int
    heads: int
    margin: float
    assumptions: tuple[Check, ...]
    bounds: tuple[tuple[str, float], ...]

    @property
    def proven(self) -> bool:
        """Whether the assumptions hold."""
        return all(check.holds for check in self.assumptions)


@dataclass(frozen=True, slots=True)
class SeenLabels:
    """What asking a model showed.

    Args:
        checked: its labels against the truth.
        distances: largest distances from the ideal.
    """

    checked: Checked
    distances: Distances


class Recipe(ABC):
    """A construction of labels: drafts weights, and says how far from the ideal they may be."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """What people call it."""

    @property
    @abstractmethod
    def theorem(self) -> str:
        """The id of the theorem behind it."""

    def suits(self, task: Task) -> bool:
        """Whether the recipe is for this task at all."""
        return is_declared_for(self, task)

    @property
    def by_formula(self) -> bool:
        """Whether `draft_by_formula` evaluates formulas alone, so that many formats are tried."""
        return False

    @property
    def quick_length(self) -> int:
        """Tokens up to which drafting takes a moment."""
        return 1024

    @abstractmethod
    def embed(self, task: Task, accuracy: float) -> int:
        """The key width it would need."""

    @abstractmethod
    def draft(
        self, task: Task, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """Weights for a number format, proven where it allows.

        Raises:
            DoesNotFit: with the reason.
        """

    def draft_by_formula(self, task: Task, *, form: NumberFormat, embed: int | None) -> Draft:
        """Weights that take a moment to find, where `draft` would search for smaller ones.

        Raises:
            DoesNotFit: with the reason.
        """
        return self.draft(task, form=form, embed=embed, rng=np.random.default_rng(0))

    def distances(
        self, task: Task, model: Transformer, X: Stack, evaluate: Evaluate | None
    ) -> tuple[Stack, Distances]:
        """Answers, and the largest distances of what layers give from the ideal: here 1 and 0."""
        Y = model(X, evaluate)
        return Y, measure_label_distances(task, Y, X)

    @abstractmethod
    def work(self, task: Task) -> float:
        """Products of numbers that one sequence costs, about."""

    def inputs(
        self, task: Task, model: Transformer, size: int, *, rng: np.random.Generator
    ) -> Iterator[Stack]:
        """Inputs that are hard for this recipe in particular."""
        return iter(())

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

        Where the format is too coarse for the proof the certificate is silent, and the weights are
        given only if no input that was asked is answered wrongly.

        Raises:
            DoesNotFit: with the reason.
        """
        return build_from_recipe(self, task, number_format=number_format, embed=embed, rng=rng)


def build_from_recipe(
    recipe: Recipe, task: Task, *, number_format: str, embed: int | None, rng: np.random.Generator
) -> Built:
    """Weights drafted, checked and certified."""
    form = format_named(number_format)
    draft = recipe.draft(task, form=form, embed=embed, rng=rng)
    seen = ask_model(
        recipe, task, draft.model, choose_inputs(recipe, task, draft.model, rng=rng), form=form
    )
    if seen.checked.errors and not draft.proven:
        failed = next(check for check in draft.assumptions if not check.holds)
        raise DoesNotFit(
            f"{recipe.name} does not fit into {form.name} here: {failed.name} is"
            f" {failed.measured:.3g}, which must not exceed {failed.limit:.3g}, and"
            f" {seen.checked.errors} of {seen.checked.inputs} inputs came out wrong."
        )
    trials = choose_inputs(recipe, task, draft.model, rng=rng, sampled=FEWER, limit=FEWER * FEWER)
    held = find_smallest_format(
        task, draft.model, rng=rng, trial=partial(_check_labels, recipe, task, draft.model, trials)
    )
    bits = min(int(min(form.bits, 64)), held.bits if held is not None else 64)
    return Built(
        task,
        recipe.name,
        draft.model,
        Size(draft.embed, draft.value_width, draft.heads, len(draft.model.blocks), bits),
        form.name,
        draft.margin,
        max(bound for _, bound in draft.bounds) if draft.proven else math.inf,
        Certificate(
            recipe.theorem,
            draft.assumptions,
            conclude_from_labels(seen, draft.bounds),
            "" if draft.proven else _sampled(seen.checked),
            Basis.PROVED if draft.proven else Basis.EXHAUSTIVE,
        ),
        seen.checked,
    )


def _sampled(checked: Checked) -> str:
    return "" if checked.exhaustive else f"{checked.inputs:,} inputs, not every one"


@dataclass(frozen=True, eq=False, slots=True)
class Inputs:
    """Sequences to ask, and whether they are all there are."""

    batches: tuple[Stack, ...]
    exhaustive: bool


def choose_inputs(
    recipe: Recipe,
    task: Task,
    model: Transformer,
    *,
    rng: np.random.Generator,
    sampled: int = SAMPLED,
    limit: int = EXHAUSTIVE,
) -> Inputs:
    """Every input where they are few, else samples of every kind and hard ones."""
    if task.count <= limit and task.count * recipe.work(task) <= WORK:
        return Inputs(tuple(task.exhaustive()), True)
    size = max(2, min(sampled, int(WORK / (recipe.work(task) * (len(task.kinds) + 1)))))
    drawn = [task.sample(size, rng=rng, kind=kind) for kind in task.kinds]
    return Inputs((*drawn, *recipe.inputs(task, model, size, rng=rng)), False)


def _check_labels(
    recipe: Recipe, task: Task, model: Transformer, inputs: Inputs, form: NumberFormat
) -> Checked:
    return ask_model(recipe, task, model, inputs, form=form).checked


def ask_model(
    recipe: Recipe, task: Task, model: Transformer, inputs: Inputs, *, form: NumberFormat
) -> SeenLabels:
    """A model on inputs in a number format; overflow is an error of every sequence."""
    evaluate = choose_evaluation(form)
    errors: list[float] = []
    farthest: Distances = ()
    for X in inputs.batches:
        wrong, far = _ask_batch(recipe, task, model, X, evaluate)
        errors += wrong
        # Overflow says how far it is of three distances, whatever a recipe measures.
        farthest = tuple(map(max, zip(farthest or far, far, strict=False)))
    return SeenLabels(
        Checked(len(errors), sum(error > 0 for error in errors), max(errors), inputs.exhaustive),
        farthest,
    )


def _ask_batch(
    recipe: Recipe, task: Task, model: Transformer, X: Stack, evaluate: Evaluate | None
) -> tuple[list[float], Distances]:
    try:
        Y, far = recipe.distances(task, model, X, evaluate)
    except InvalidInput:
        # The format overflowed: no answer is right, and none of the numbers is near its ideal.
        return [1.0] * len(X), (math.inf,) * 3
    distances = tuple(math.inf if math.isnan(d) else d for d in far)
    return [float(error) for error in task.error(Y, X)], distances


def conclude_from_labels(
    seen: SeenLabels, bounds: Sequence[tuple[str, float]]
) -> tuple[Check, ...]:
    """No sequence answered wrongly, and no number farther from the ideal than proven."""
    far = [
        Check(name, distance, bound)
        for (name, bound), distance in zip(bounds, seen.distances, strict=False)
    ]
    return (Check("sequences answered wrongly", seen.checked.errors, 0), *far)


def measure_label_distances(task: Task, Y: Stack, X: Stack) -> tuple[float, float]:
    """Largest distance of answers from 1 where there is a match, and from 0 elsewhere."""
    matched = task.target(X) > 0.5
    off = np.abs(Y - task.target(X))
    to_match = float(np.max(off, where=matched, initial=0.0))
    return to_match, float(np.max(off, where=~matched, initial=0.0))


def certify_other_weights(
    built: Built, model: Transformer, recipes: Sequence[Recipe], *, rng: np.random.Generator
) -> Certificate:
    """The certificate for other weights of this shape: REFUTED where they are not as good.

    What is proven is proven of the weights that were built: of others only the inputs asked are
    known.

    Args:
        built: what a recipe gave.
        model: the weights in question.
        recipes: among which the one is found that built it.
        rng: draws inputs.

    Raises:
        InvalidInput: none of the recipes built it.
    """
    recipe = next((recipe for recipe in recipes if recipe.name == built.construction), None)
    if recipe is None:
        names = ", ".join(recipe.name for recipe in recipes)
        raise InvalidInput(
            f"constructions that are certified again are {names}; got {built.construction}."
        )
    seen = ask_model(
        recipe,
        built.task,
        model,
        choose_inputs(recipe, built.task, model, rng=rng),
        form=format_named(built.format),
    )
    bounds = [(check.name, check.limit) for check in built.certificate.conclusion[1:]]
    # A proof is about the numbers it was made for, and says nothing of weights that differ in one.
    sampled = _sampled(seen.checked)
    basis = Basis.EXHAUSTIVE
    if same_weights(model, built.model):
        sampled = built.certificate.sampled
        basis = built.certificate.basis
    return replace(
        built.certificate,
        conclusion=conclude_from_labels(seen, bounds),
        sampled=sampled,
        basis=basis,
    )


def same_weights(one: Transformer, other: Transformer) -> bool:
    """Whether two models are the same numbers throughout."""
    ours = list(_numbers(one))
    theirs = list(_numbers(other))
    return len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs))


def _numbers(model: Transformer) -> Iterator[Any]:
    """Every number and word of a model, maps first."""
    maps = [*(block.map for block in model.blocks), model.out]
    for part in filter(None, maps):
        yield from (part.name, *sorted(part.settings.items()), *part.tensors.values())
    for block in model.blocks:
        yield from (type(block.layer).__name__, block.residual, block.blank is None)
        yield from [] if block.blank is None else [block.blank]
        yield from matrices(block.layer)
