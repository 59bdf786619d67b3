"""The smallest number format in which weights still compute their task, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.constructions.shared.base import Checked, check_model
from keyhole.constructions.shared.rounding import choose_evaluation
from keyhole.errors import InvalidInput
from keyhole.models.numbers import FixedPoint, NumberFormat, number_format
from keyhole.models.stack import Layer, Transformer
from keyhole.tasks import Task

# From the coarser to the finer; bf16 and f16 have as many bits, and bf16 the wider range.
FLOATS = ("bf16", "f16", "f32", "f64")
# Sequences of each kind, a format.
SAMPLED = 16
# Bits before and after the point that float64 carries.
WIDEST = 52

Trial = Callable[[NumberFormat], Checked]


@dataclass(frozen=True, slots=True)
class Held:
    """What was seen of one number format.

    Args:
        format: its name.
        bits: of one number.
        checked: the model in it, against the truth.
    """

    format: str
    bits: int
    checked: Checked


def check_in_format(
    task: Task,
    model: Transformer,
    form: str | NumberFormat,
    *,
    allowed: float = 0.0,
    rng: np.random.Generator,
) -> Checked:
    """A model against the truth in a number format; a number that overflows is an error."""
    form = number_format(form)
    try:
        return check_model(
            task,
            model,
            allowed=allowed,
            rng=rng,
            evaluate=choose_evaluation(form),
            limit=1_000,
            sampled=SAMPLED,
        )
    except InvalidInput:
        # The format overflowed.
        return Checked(1, 1, float("inf"), False)


def find_smallest_format(
    task: Task,
    model: Transformer,
    *,
    allowed: float = 0.0,
    rng: np.random.Generator,
    trial: Trial | None = None,
    fixed: bool = True,
) -> Held | None:
    """The format of fewest bits without an error on the inputs asked; None if f64 has one.

    Formats of equal width are tried from the coarser to the finer. Fixed point has as many bits
    before the point as the largest number needs and as few behind as hold.

    Args:
        task: the task.
        model: the weights.
        allowed: errors up to this are none.
        rng: draws inputs.
        trial: another way to check the model in a format.
        fixed: whether fixed point is tried.
    """

    def usual(form: NumberFormat) -> Checked:
        return check_in_format(task, model, form, allowed=allowed, rng=rng)

    trial = usual if trial is None else trial
    floats = next(_try_formats(map(number_format, FLOATS), trial), None)
    points = None
    # Where float64 itself fails, no fixed point that float64 emulates holds.
    if fixed and floats is not None:
        points = _find_least_fixed(_count_integer_bits(task, model, rng), trial)
    held = [one for one in (floats, points) if one is not None]
    return min(held, key=lambda one: one.bits, default=None)


def _try_formats(forms: Iterator[NumberFormat], trial: Trial) -> Iterator[Held]:
    for form in forms:
        checked = trial(form)
        if checked.errors == 0:
            yield Held(form.name, int(form.bits), checked)


def _find_least_fixed(integer: int, trial: Trial) -> Held | None:
    """Bisection on the bits behind the point."""
    low = 0
    high = WIDEST - integer
    if high < 1 or next(_try_formats(iter([FixedPoint(integer, high)]), trial), None) is None:
        return None
    while low < high:
        middle = (low + high) // 2
        holds = trial(FixedPoint(integer, middle)).errors == 0
        low, high = (low, middle) if holds else (middle + 1, high)
    return next(_try_formats(iter([FixedPoint(integer, high)]), trial), None)


def _count_integer_bits(task: Task, model: Transformer, rng: np.random.Generator) -> int:
    """Bits before the point of the largest query, key, value or answer on some inputs."""
    # Attention weights reach 1, whatever the tokens are.
    largest = [1.0]

    def watched(layer: Layer, tokens: Stack) -> Stack:
        largest.extend(float(np.abs(tokens @ array).max()) for array in matrices(layer))
        rows = layer(tokens)
        largest.append(float(np.abs(rows).max()))
        return rows

    for kind in task.kinds:
        model(task.sample(2, rng=rng, kind=kind), watched)
    return max(0, int(np.ceil(np.log2(max(largest) + 1e-9))))


def matrices(layer: Any) -> Iterator[Matrix]:
    """Every query, key and value matrix of a layer."""
    for name in ("Q", "K", "V"):
        weight: Any = getattr(layer, name)
        yield from weight if isinstance(weight, tuple) or weight.ndim == 3 else [weight]
