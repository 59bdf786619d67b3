"""One verdict for a task and the sizes of a model: too small, enough, or open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import Rng, as_generator
from keyhole.bounds.formulas import Inequality, Sizes
from keyhole.bounds.known_bounds import list_inequalities
from keyhole.bounds.planned import build_within_sizes, provable
from keyhole.constructions import Built, Size
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.numbers import number_format as format_named
from keyhole.tasks import Task, find_kind, list_tasks_with

LARGEST = 1 << 20  # sizes beyond which no gap is looked for


class BoundVerdict(StrEnum):
    """What is known of a task and sizes; the value is the sentence."""

    TOO_SMALL = "No model of these sizes does the task."
    ENOUGH = (
        "A model of these sizes does the task: it was built, and proved or checked on every input."
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


@dataclass(frozen=True, slots=True)
class Gap:
    """What lies between the largest size known to be too small and the least known to be enough.

    Args:
        axis: the size in question, all others as asked.
        too_small: the largest value that is too small; 0 where none is.
        asked: the value asked for.
        enough: the least value known to be enough; None where none is known.
    """

    axis: str
    too_small: int
    asked: int
    enough: int | None


@dataclass(frozen=True, slots=True)
class Bound:
    """A verdict and what it rests on.

    Args:
        task: the task.
        sizes: what was asked, for attention; None for other networks.
        verdict: TOO_SMALL, ENOUGH or OPEN.
        inequality: the one that decides, or comes nearest to deciding; None where none is known for
            the task.
        inequalities: all of them.
        built: the weights behind ENOUGH.
        gap: what lies between, along the size that matters.
        sentence: all of it in words.
        reason: why nothing was built, where nothing was, or why that is not enough.
        sampled: weights of these sizes that answered all that was asked, where that was not every
            input.
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

    @property
    def construction(self) -> str | None:
        """The name of the construction behind ENOUGH."""
        return None if self.built is None else self.built.construction

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
        residual: whether tokens are carried past attention layers.
        positional: whether keys depend on positions alone, values on the vectors alone, and nothing
            stands behind.
        builder: builds weights for the verdict ENOUGH; the constructions of this package when
            absent.
        rng: draws what building and checking need; nothing is built when absent, and then nothing
            is ENOUGH.

    Raises:
        InvalidInput: a size makes no sense.
    """
    rng = None if rng is None else as_generator(rng)
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
        residual=residual,
        positional=positional,
    )
    _check_asked_sizes(sizes, order)
    known = list_inequalities(task, sizes) if order == 2 else ()
    told = next((one for one in known if one.applies), None)
    if told is not None and told.violated:
        return Bound(
            task, sizes, BoundVerdict.TOO_SMALL, told, known, None, None, _explain_too_small(told)
        )
    built, reason = _try_builder(task, sizes, order, builder, rng)
    if built is not None and built.proved:
        return Bound(
            task, sizes, BoundVerdict.ENOUGH, told, known, built, None, _explain_enough(built)
        )
    gap = _find_gap(task, sizes, told, builder, order, rng)
    reason = reason if built is None else _not_proved(built)
    sentence = _explain_open(told, gap) if built is None else f"{_explain_open(told, gap)} {reason}"
    return Bound(task, sizes, BoundVerdict.OPEN, told, known, None, gap, sentence, reason, built)


def _choose_accuracy(task: Task, accuracy: float | None) -> float:
    return task.accuracy if accuracy is None else accuracy


def _check_asked_sizes(sizes: Sizes, order: int) -> None:
    for name in ("embed", "heads", "value_width", "layers"):
        if getattr(sizes, name) < 1:
            raise InvalidInput(
                f"--{name.replace('_', '-')} is a whole number >= 1; got {getattr(sizes, name)}."
            )
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
        return None, "Nothing was built."
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
    return "value_width" if told is not None and told.name == "partition-message" else "embed"


def _find_gap(
    task: Task,
    sizes: Sizes,
    told: Inequality | None,
    builder: Builder | None,
    order: int,
    rng: np.random.Generator | None,
) -> Gap:
    """What is known on either side of what was asked."""
    axis = choose_axis(told)
    below = find_least_open(task, sizes, axis) - 1 if order == 2 else 0
    free = replace(sizes, **dict.fromkeys(("embed", "value_width"), LARGEST))
    built, _ = _try_builder(task, free, order, builder or provable, rng)
    enough = None if built is None or not built.proved else getattr(built.size, axis)
    return Gap(axis, below, getattr(sizes, axis), enough)


def _format_amount(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:,.1f}"


def _explain_too_small(told: Inequality) -> str:
    return (
        f"No model of these sizes does the task: it needs {_format_amount(told.needed)} {told.unit}"
        f" and there are {_format_amount(told.available)} ({told.name}: {told.formula})."
    )


def _explain_enough(built: Built) -> str:
    size = built.size
    seen = built.checked
    if seen.exhaustive:
        share = "checked on every input"
    else:
        share = f"proved for every input, and {seen.inputs:,} were asked"
    return (
        f"These sizes are enough: the construction {built.construction} does the task with key"
        f" width {size.embed}, value width {size.value_width}, {size.heads}"
        f" head{'s' * (size.heads > 1)}, {size.layers} layer{'s' * (size.layers > 1)} and"
        f" {format_named(built.format).bits:.0f} bits; it was built and {share}, without error."
    )


def _not_proved(built: Built) -> str:
    """What is known of weights that answered all that was asked, and no more."""
    asked = built.certificate.sampled or f"{built.checked.inputs:,} inputs, not every one"
    return (
        f"Sampled: the construction {built.construction} of key width {built.size.embed} answered"
        f" all that was asked ({asked}); the rest was neither asked nor proved."
    )


def _explain_open(told: Inequality | None, gap: Gap) -> str:
    axis = gap.axis.replace("_", " ").replace("embed", "key width")
    below = f"up to {gap.too_small:,} too small" if gap.too_small else "none known to be too small"
    above = (
        f"from {gap.enough:,} on enough" if gap.enough is not None else "none known to be enough"
    )
    if told is None:
        near = ""
    else:
        near = (
            f" ({told.name}: {_format_amount(told.needed)} {told.unit} needed,"
            f" {_format_available(told.available)})"
        )
    return (
        f"Open: of {axis}s, other sizes as asked, {below}, {above}; {gap.asked:,} was asked{near}."
    )


def _format_available(available: float) -> str:
    return f"{_format_amount(available)} available" if isfinite(available) else "no limit on bits"


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
            task, None, BoundVerdict.TOO_SMALL, told, (told,), None, None, _explain_too_small(told)
        )
    sentence = (
        f"Open: {_format_amount(told.needed)} {told.unit} are needed and there are"
        f" {_format_amount(told.available)}."
    )
    return Bound(task, None, BoundVerdict.OPEN, told, (told,), None, None, sentence)
