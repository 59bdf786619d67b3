"""Sizes that are enough for sparse averages by a formula: nothing is built, and no set is asked.

Every formula is that of a construction which `build` gives too: its keys, its queries, and what a
number format takes from their scores, as functions of the sizes alone.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from keyhole._arrays import EPS
from keyhole.constructions.shared.base import Proven, Size
from keyhole.constructions.shared.rounding import is_fixed, is_rounding
from keyhole.constructions.sparse_averages.all_at_once import (
    COHERENCE,
    EXCHANGE,
    PRODUCT,
    bound_coherent_sizes,
)
from keyhole.constructions.sparse_averages.choosing_sets import set_sizes
from keyhole.constructions.sparse_averages.closed_gaps import (
    Cyclic,
    bound_circle_error,
    bound_leak,
    count_cyclic_bits,
)
from keyhole.constructions.sparse_averages.key_families import (
    coherence_wanted,
    count_incoherent_width,
)
from keyhole.constructions.sparse_averages.rounded_sets import bound_rounding_loss
from keyhole.models.numbers import FixedPoint, NumberFormat, number_format
from keyhole.tasks import SparseAverage

# Of the accuracy that exact arithmetic may use; rounding has the rest.
SHARE = 0.5
# Of one-hot keys, which share the sharpness with queries.
ONE_HOT_SIZE = 3.0
# Fixed point that float64 carries.
WIDEST = 53

Error = Callable[[NumberFormat], float]


@dataclass(frozen=True, slots=True)
class _Formula:
    """A construction as a formula.

    Args:
        construction: its name.
        theorem: the id of the claim behind it.
        argument: why it holds for every set.
        width: of keys.
        largest: no number that is held is larger.
        error: proven, by number format.
        bits: of fixed point that is wide enough, where that is known beyond float64.
    """

    construction: str
    theorem: str
    argument: str
    width: int
    largest: float
    error: Error
    bits: int | None = None


def prove_average_sizes(
    task: SparseAverage, *, accuracy: float, form: str | int | None
) -> Iterator[Proven]:
    """Constructions proved for every set in a number format, with the bits they need.

    Args:
        task: the task.
        accuracy: largest error of an answer.
        form: a format by name, a number of bits of fixed point, or None for real numbers.
    """
    for formula in _list_formulas(task, accuracy):
        bits = _count_bits(formula, accuracy, form)
        if bits is not None:
            size = Size(formula.width, task.dimension, 1, 1, bits)
            yield Proven(formula.construction, formula.theorem, size, formula.argument)


def _list_formulas(task: SparseAverage, accuracy: float) -> Iterator[_Formula]:
    if task.q == task.length and not task.at_most:
        yield _Formula(
            "uniform",
            "keyhole/one-hot-keys",
            "equal scores",
            1,
            1.0,
            lambda form: bound_rounding_loss(task, form) + task.length * EPS,
        )
        return
    wanted = {n: _count_wanted(task, n, SHARE * accuracy) for n in set_sizes(task)}
    yield _describe_circle(task, accuracy, wanted)
    yield _describe_incoherent(task, wanted)
    yield _describe_one_hot(task, wanted)


def _count_wanted(task: SparseAverage, size: int, accuracy: float) -> float:
    rest = task.length - size
    return max(0.0, math.log(2.0 * rest / (size * accuracy))) if rest else 0.0


def _describe_circle(task: SparseAverage, accuracy: float, wanted: dict[int, float]) -> _Formula:
    """Trigonometric keys: real numbers always hold them, fixed point of bits that are counted."""
    sizes = [
        Cyclic(task.length, 2 * task.q, n, gap) for n, gap in wanted.items() if n < task.length
    ]
    spare = (1 - SHARE) * accuracy
    return _Formula(
        "trigonometric keys",
        "SHT23/3",
        PRODUCT,
        2 * task.q,
        2.0 ** min(1000.0, max(one.log_entry for one in sizes)),
        lambda form: (
            max(bound_circle_error(one, form) for one in sizes) + bound_rounding_loss(task, form)
        ),
        max(count_cyclic_bits(one, dimension=task.dimension, spare=spare) for one in sizes),
    )


def _describe_incoherent(task: SparseAverage, wanted: dict[int, float]) -> _Formula:
    """Random signs that are little alike, which some draw of this width is."""
    width = count_incoherent_width(task)
    mu = coherence_wanted(task)

    def error(form: NumberFormat) -> float:
        found = [
            bound_coherent_sizes(task.length, width, n, mu, gap, form) for n, gap in wanted.items()
        ]
        return max(found) + bound_rounding_loss(task, form)

    largest = max(3.0 * gap for gap in wanted.values())
    return _Formula("incoherent keys", "keyhole/coherence", COHERENCE, width, largest, error)


# A member scores 3 alpha, all others 0: only its own entry of the query and the score are rounded,
# whatever the width.
def _describe_one_hot(task: SparseAverage, wanted: dict[int, float]) -> _Formula:
    """One-hot keys, of which one set of a size stands for all."""

    def error(form: NumberFormat) -> float:
        return max(
            _bound_one_hot_error(task.length, n, gap, form) for n, gap in wanted.items()
        ) + bound_rounding_loss(task, form)

    largest = max(ONE_HOT_SIZE, max(wanted.values()) / ONE_HOT_SIZE)
    return _Formula("one-hot keys", "keyhole/one-hot-keys", EXCHANGE, task.length, largest, error)


def _bound_one_hot_error(length: int, size: int, wanted: float, form: NumberFormat) -> float:
    if max(ONE_HOT_SIZE, wanted / ONE_HOT_SIZE) > form.range[1]:
        return math.inf
    half = 0.5 * form.spacing if is_rounding(form) else 0.0
    eta = ONE_HOT_SIZE * half if is_fixed(form) else 2.02 * wanted * half
    eta += (length + 2) * EPS * wanted
    inner = 0.0 if is_fixed(form) else half
    return bound_leak(length, size, wanted) + math.expm1(min(2.0 * eta, 700.0)) + inner


def _count_bits(formula: _Formula, accuracy: float, form: str | int | None) -> int | None:
    """Bits with which a formula holds within the format; None where it does not."""
    if isinstance(form, str) and form != "exact":
        held = number_format(form)
        return int(held.bits) if formula.error(held) <= accuracy else None
    most = form if isinstance(form, int) else math.inf
    needed = _find_fewest_bits(formula, accuracy)
    needed = formula.bits if needed is None else needed
    return needed if needed is not None and needed <= most else None


def _find_fewest_bits(formula: _Formula, accuracy: float) -> int | None:
    """The fewest bits of fixed point, of those that float64 carries."""
    integer = math.floor(math.log2(max(1.0, formula.largest)) + 1e-9) + 1
    splits = [FixedPoint(integer, fraction) for fraction in range(WIDEST - integer)]
    # More bits behind the point are never worse.
    found = bisect_left(splits, True, key=lambda form: formula.error(form) <= accuracy)
    return integer + found + 1 if found < len(splits) else None
