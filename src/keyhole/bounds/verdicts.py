"""One verdict for a task and the sizes of a model: too small, enough, or open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import Rng, as_generator
from keyhole.bounds.base import Inequality, Sizes
from keyhole.bounds.explaining import (
    Gap,
    describe_network_need,
    explain_enough,
    explain_open,
    explain_proven,
    explain_sampled,
    explain_silence,
    explain_too_small,
    format_amount,
)
from keyhole.bounds.known_bounds import (
    list_inequalities,
    quote_conjecture,
    quote_published_depth,
)
from keyhole.bounds.planned import (
    build_within_sizes,
    choose_proof,
    describe_building,
    list_proofs,
)
from keyhole.constructions import Built, Proven, Size
from keyhole.drawing.faces import Face
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.numbers import number_format as format_named
from keyhole.tasks import Task, find_kind, list_tasks_with

LARGEST = 1 << 20  # sizes beyond which no gap is looked for


class BoundVerdict(StrEnum):
    """What is known of a task and sizes; the value is the sentence."""

    TOO_SMALL = "No model of these sizes, in the class that is named, does the task."
    ENOUGH = (
        "A model of these sizes does the task: it is proved for every input, or was checked on"
        " every one."
    )
    OPEN = "Neither an impossibility nor a model of these sizes is known here."


@runtime_checkable
class Builder(Protocol):
    """Whatever can build weights for a task within sizes."""

    def __call__(self, task: Task, sizes: Sizes, *, order: int, rng: np.random.Generator) -> Built:
        """The weights, checked.

        Raises:
            DoesNotFit: with the reason.
        """
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Bound(Face):
    """A verdict and what it rests on.

    Args:
        task: the task.
        sizes: what was asked, for attention; None for other networks.
        verdict: TOO_SMALL, ENOUGH or OPEN.
        inequality: the one that decides, or comes nearest to deciding; None where none is known for
            the task.
        inequalities: all of them.
        built: the weights behind ENOUGH, where they were built.
        proven: the proof by a formula behind ENOUGH, where one is known.
        gap: what lies between, along the size that matters.
        sentence: all of it in words.
        reason: why nothing was built, where nothing was, or why that is not enough.
        sampled: weights of these sizes that answered all that was asked, where that was not every
            input.
        conjecture: what is conjectured of open sizes, and proved nowhere.
    """

    task: Task
    sizes: Sizes | None
    verdict: BoundVerdict
    inequality: Inequality | None
    inequalities: tuple[Inequality, ...]
    built: Built | None
    gap: Gap | None
    sentence: str
    reason: str = ""
    sampled: Built | None = None
    proven: Proven | None = None
    conjecture: str = ""

    @property
    def construction(self) -> str | None:
        """The name of the construction behind ENOUGH."""
        found = self.proven if self.built is None else self.built
        return None if found is None else found.construction

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the inequality assumes of the class of models."""
        return () if self.inequality is None else self.inequality.assumptions


def bound(
    task: Task,
    *,
    embed: int,
    bits: float = inf,
    number_format: str | None = None,
    heads: int = 1,
    value_width: int | None = None,
    layers: int = 1,
    order: int = 2,
    accuracy: float | None = None,
    token_width: int | None = None,
    residual: bool = False,
    positional: bool = False,
    builder: Builder | None = None,
    rng: Rng | None = None,
) -> Bound:
    """Whether attention of these sizes can do a task: TOO_SMALL, ENOUGH or OPEN.

    Args:
        task: the task, with its own sizes.
        embed: m, width of queries and keys.
        bits: p, bits of a number; infinite for real numbers.
        number_format: f64, f32, f16, bf16 or fixed:I.F, instead of `bits`.
        heads: H.
        value_width: v, width of values; as wide as an answer when absent.
        layers: D.
        order: order of attention; only standard attention, 2, has lower bounds here.
        accuracy: largest error for tasks with real answers; 1 / (4q) when absent.
        token_width: numbers of a token behind the token map, of p bits each; any when absent.
        residual: whether tokens are carried past attention layers.
        positional: whether keys are positions alone, values vectors alone, and nothing is behind.
        builder: builds weights for ENOUGH; the constructions of this package when absent.
        rng: draws what building and checking need; nothing is built when absent, and then formulas
            alone make sizes ENOUGH, which takes a moment at any size.

    Raises:
        InvalidInput: a size makes no sense.
    """
    held = None if number_format is None else format_named(number_format)
    sizes = Sizes(
        embed=embed,
        bits=bits if held is None else held.bits,
        heads=heads,
        value_width=task.outputs if value_width is None else value_width,
        layers=layers,
        fixed=None if held is None else held.fixed,
        format=number_format,
        accuracy=_choose_accuracy(task, accuracy),
        token_width=token_width,
        residual=residual,
        positional=positional,
    )
    _check_asked_sizes(sizes, order)
    return _judge_sizes(task, sizes, order, builder, None if rng is None else as_generator(rng))


def _judge_sizes(
    task: Task, sizes: Sizes, order: int, builder: Builder | None, rng: np.random.Generator | None
) -> Bound:
    """Inequalities first, then formulas, then what was built."""
    known = list_inequalities(task, sizes) if order == 2 else ()
    told = _choose_inequality(known)
    if told is not None and told.violated:
        said = explain_too_small(told)
        return Bound(task, sizes, BoundVerdict.TOO_SMALL, told, known, None, None, said)
    proofs = list_proofs(task, sizes, order=order)
    proven = choose_proof(proofs, sizes)
    built, reason = _try_builder(task, sizes, order, builder, rng)
    if built is not None and built.proved:
        said = explain_enough(built)
        return Bound(
            task, sizes, BoundVerdict.ENOUGH, told, known, built, None, said, proven=proven
        )
    if proven is not None:
        said = explain_proven(proven)
        return Bound(task, sizes, BoundVerdict.ENOUGH, told, known, None, None, said, proven=proven)
    gap = _find_gap(task, sizes, told, order, proofs)
    reason = reason if built is None else explain_sampled(built)
    # Order 3 does Match3 in one layer: the conjecture is about standard attention.
    guess = quote_conjecture(task, sizes) if order == 2 else ""
    published = quote_published_depth(task, sizes) if order == 2 else ""
    # Reasons of many constructions are a list, which stands in a field of its own.
    why = f"{reason.partition('. ')[0].rstrip('.')}." if reason and built is None else reason
    parts = (f"{explain_open(told, gap)}{explain_silence(known, told)}", why, guess, published)
    said = " ".join(part for part in parts if part)
    return Bound(
        task,
        sizes,
        BoundVerdict.OPEN,
        told,
        known,
        None,
        gap,
        said,
        reason,
        built,
        conjecture=guess,
    )


def _choose_inequality(known: tuple[Inequality, ...]) -> Inequality | None:
    """The violated one that excludes most models, else the one that comes nearest."""
    violated = [one for one in known if one.violated]
    # Of two that are violated the one with more available assumes less.
    if violated:
        return max(violated, key=lambda one: one.available / one.needed)
    return next((one for one in known if one.applies), None)


def _choose_accuracy(task: Task, accuracy: float | None) -> float:
    return task.accuracy if accuracy is None else accuracy


def _check_asked_sizes(sizes: Sizes, order: int) -> None:
    for name in ("embed", "heads", "value_width", "layers"):
        if getattr(sizes, name) < 1:
            raise InvalidInput(
                f"--{name.replace('_', '-')} is a whole number >= 1; got {getattr(sizes, name)}."
            )
    if sizes.token_width is not None and sizes.token_width < 1:
        raise InvalidInput(f"--token-width is a whole number >= 1; got {sizes.token_width}.")
    if not sizes.bits >= 1 or (isfinite(sizes.bits) and sizes.bits != int(sizes.bits)):
        raise InvalidInput(
            f"--bits is a whole number >= 1, or left out for real numbers; got {sizes.bits}."
        )
    if not 0 <= sizes.accuracy < inf or order < 2:
        raise InvalidInput(
            f"--accuracy is at least 0 and --order at least 2; got {sizes.accuracy} and {order}."
        )


def _try_builder(
    task: Task, sizes: Sizes, order: int, builder: Builder | None, rng: np.random.Generator | None
) -> tuple[Built | None, str]:
    """A checked model within the sizes, or why there is none."""
    if rng is None:
        return None, describe_building(task)
    try:
        built = (builder or build_within_sizes)(task, sizes, order=order, rng=rng)
    except DoesNotFit as error:
        return None, str(error)
    over = describe_excess(built.size, sizes)
    if over:
        return None, f"The construction {built.construction} needs {over}."
    if built.checked.errors:
        return (
            None,
            f"The construction {built.construction} failed {built.checked.errors} of its checks.",
        )
    return built, ""


def describe_excess(size: Size, sizes: Sizes) -> str:
    """Which sizes of a built model are larger than allowed, in words; empty where it fits."""
    allowed = {
        name: getattr(sizes, name) for name in ("embed", "value_width", "heads", "layers", "bits")
    }
    over = [
        f"{name.replace('_', ' ')} {getattr(size, name)}"
        for name in allowed
        if getattr(size, name) > allowed[name]
    ]
    return ", ".join(over)


# Every inequality is monotone in the sizes, so that bisection finds where it stops to bite.
def find_least_open(task: Task, sizes: Sizes, axis: str) -> int:
    """The least value of a size at which no inequality is violated; LARGEST where none is."""
    low = 0
    high = LARGEST
    while high - low > 1:
        middle = (low + high) // 2
        small = any(
            one.violated for one in list_inequalities(task, replace(sizes, **{axis: middle}))
        )
        low, high = (middle, high) if small else (low, middle)
    return high


def choose_axis(told: Inequality | None) -> str:
    """The size an inequality is drawn against: values where keys do not enter, else keys."""
    message = told is not None and told.name.startswith("partition-message")
    return "value_width" if message else "embed"


def _find_gap(
    task: Task,
    sizes: Sizes,
    told: Inequality | None,
    order: int,
    proofs: tuple[Proven, ...],
) -> Gap:
    """What is known on either side of what was asked, by inequalities and formulas."""
    axis = choose_axis(told)
    below = find_least_open(task, sizes, axis) - 1 if order == 2 else 0
    enough = min((getattr(proven.size, axis) for proven in proofs), default=None)
    return Gap(axis, below, getattr(sizes, axis), enough)


def bound_network(
    task: Task,
    *,
    hidden: int | None = None,
    state_bits: int | None = None,
    accuracy: float | None = None,
) -> Bound:
    """The same for networks without attention, by their first layer or their state.

    Args:
        task: sparse averaging.
        hidden: units of the first layer of a fully connected network.
        state_bits: bits of the state of a recurrent one.
        accuracy: largest error; 1 / (4q) when absent.
    """
    bound_task = find_kind(task).load("network_bound")
    if bound_task is None or (hidden is None) == (state_bits is None):
        raise InvalidInput(
            f"bounds on other networks are for {list_tasks_with('network_bound')}, with --hidden or"
            " --state-bits."
        )
    told = bound_task(task, hidden, state_bits, _choose_accuracy(task, accuracy))
    if told.violated:
        return Bound(
            task, None, BoundVerdict.TOO_SMALL, told, (told,), None, None, explain_too_small(told)
        )
    sentence = (
        f"Open: {format_amount(told.available)} {told.unit} are there;"
        f" {describe_network_need(told)}."
    )
    return Bound(task, None, BoundVerdict.OPEN, told, (told,), None, None, sentence)
