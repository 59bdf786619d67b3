"""Sparse averages by H heads of key width 2q/H, certified for all sets by their parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from keyhole.claims import Basis, Certificate, Check
from keyhole.constructions.shared.base import Built, Size
from keyhole.constructions.shared.holding import check_in_format
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.shared.rounding import U, is_fixed, is_rounding
from keyhole.constructions.split_sets.split_queries import (
    LISTED,
    SplitQueries,
    choose_sharpness,
    count_parts,
    encode_circle,
    expand_parts,
    find_least_gap,
    list_spread_parts,
)
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat, evaluate
from keyhole.models.numbers import number_format as format_named
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import SparseAverage, Task

# Of what is allowed, the share that attention off a set may take; the rest is for rounding.
SHARE = 0.25


def build_split_layer(phi: SplitQueries) -> SelfAttention:
    """Heads with one query block each, one key block, and 1/H of the vector."""
    tokens = phi.layout
    embed = Layout.of(embed=2 * phi.members)
    value = Layout.of(value=phi.dimension)
    key = Weights.zeros(tokens, embed).place("key", "embed", 1.0).array
    share = Weights.zeros(tokens, value).place("value", "value", 1.0 / phi.heads).array
    Q = [
        Weights.zeros(tokens, embed).place(f"query{h}", "embed", 1.0).array
        for h in range(phi.heads)
    ]
    return SelfAttention(np.stack(Q), np.stack([key] * phi.heads), np.stack([share] * phi.heads))


class AskedParts(NamedTuple):
    """What attention gave every part that a set can have.

    Args:
        parts: how many were asked.
        worst: largest distance of attention from the even one, in l1.
    """

    parts: int
    worst: float


# One head is one unit, and heads share nothing but their sum: the mean over a set is the mean of
# the heads' averages, and is off by no more than the worst of them. Values are coordinates, so that
# answers are the attention itself, rounded as the format rounds it.
@lru_cache(maxsize=64)
def ask_every_part(
    length: int, members: int, apart: int, sharpness: float, form: str
) -> AskedParts:
    """Attention of one head on every admissible part, in a number format."""
    parts = np.array(list(list_spread_parts(length, members, apart)), dtype=np.int64)
    held = format_named(form)
    width = 2 * members
    keys = encode_circle(length, members)
    rows = Layout.of(key=width, query=width, place=length)
    embed, place = Layout.of(embed=width), Layout.of(place=length)
    unit = SelfAttention(
        Weights.zeros(rows, embed).place("query", "embed", 1.0).array[None],
        Weights.zeros(rows, embed).place("key", "embed", 1.0).array[None],
        Weights.zeros(rows, place).place("place", "place", 1.0).array[None],
    )
    worst = 0.0
    for start in range(0, len(parts), length):
        asked = parts[start : start + length]
        queries = np.zeros((length, width))
        queries[: len(asked)] = sharpness * expand_parts(asked, length)
        X = np.concatenate([keys, queries, np.eye(length)], axis=1)[None]
        weights = _evaluate_unit(unit, X, held)[0, : len(asked)]
        ideal = np.zeros_like(weights)
        np.put_along_axis(ideal, asked, 1.0 / members, axis=1)
        worst = max(worst, float(np.abs(weights - ideal).sum(axis=1).max()))
    return AskedParts(len(parts), worst)


# The product has coefficients of absolute sum 2^r, each of which some 10 r roundings made, and a
# score adds 2r of them: rounding moves scores by at most eta, weights by a factor e^(2 eta).
def bound_every_part(length: int, members: int, gap: float, sharpness: float) -> float:
    """The same by a formula, for float64: attention off a part, and what rounding moves."""
    off = (length - members) / members * math.exp(-sharpness * gap)
    eta = sharpness * 2.0**members * (10.0 * members + 12.0) * U
    return 2.0 * off * math.exp(min(2.0 * eta, 20.0)) + math.expm1(min(2.0 * eta, 20.0))


def _evaluate_unit(unit: SelfAttention, X: Any, held: NumberFormat) -> Any:
    if not is_rounding(held):
        return unit(X)
    return evaluate(unit, X, held, inner=not is_fixed(held))


# Vectors of the unit ball are rounded to values, and heads to their sum: half a spacing each, of
# numbers of at most 1.
def bound_value_rounding(form: NumberFormat, heads: int, dimension: int) -> float:
    """What the rounding of values and answers adds to an error."""
    if not is_rounding(form):
        return 1e-14 * heads
    return (heads + 2) * form.spacing * dimension**0.5


@dataclass(frozen=True, slots=True)
class SplitHeads:
    """Sparse averaging by so many heads, each on its part of every set.

    Args:
        heads: H.
    """

    heads: int

    @property
    def name(self) -> str:
        """What people call it."""
        return f"split-heads-{self.heads}"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "keyhole/split-heads"

    def suits(self, task: Task) -> bool:
        """Whether every set splits evenly."""
        if not isinstance(task, SparseAverage) or task.at_most or task.q == task.length:
            return False
        return task.q % self.heads == 0

    def embed(self, task: Any, accuracy: float) -> int:
        """The key width."""
        return 2 * task.q // self.heads

    def build(
        self,
        task: Any,
        *,
        accuracy: float,
        number_format: str,
        embed: int | None,
        rng: np.random.Generator,
    ) -> Built:
        """The weights, with every part of every set asked in a number format.

        Raises:
            DoesNotFit: with the reason.
        """
        form = format_named(number_format)
        width = self.embed(task, accuracy)
        if embed is not None and width > embed:
            raise DoesNotFit(f"{self.name} has key width {width}; asked for {embed}.")
        gap = find_least_gap(task.length, task.q // self.heads, self.heads)
        sharpness = choose_sharpness(task.length, task.q // self.heads, gap, SHARE * accuracy)
        worst, basis = self._find_worst_error(task, gap, sharpness, form)
        if worst > accuracy:
            raise DoesNotFit(
                f"{self.name} comes within {worst:.2g} in {form.name}, and {accuracy:g} is allowed."
            )
        phi = SplitQueries(task.length, task.q, self.heads, sharpness, task.dimension)
        model = Transformer((Block(phi, build_split_layer(phi)),))
        checked = check_in_format(task, model, form, allowed=accuracy, rng=rng)
        bits = self._count_bits(task, gap, sharpness, accuracy, form)
        return Built(
            task,
            self.name,
            model,
            Size(width, task.dimension, self.heads, 1, bits),
            form.name,
            gap,
            worst,
            Certificate(
                self.theorem,
                (Check("members left over by the split", float(task.q % self.heads), 0.0),),
                (
                    Check("largest error over all sets", worst, accuracy),
                    Check("sequences answered with a larger error", float(checked.errors), 0.0),
                ),
                basis=basis,
            ),
            checked,
        )

    def _find_worst_error(
        self, task: Any, gap: float, sharpness: float, form: NumberFormat
    ) -> tuple[float, Basis]:
        """The largest error over all sets: every part asked, or by a formula where too many.

        Raises:
            DoesNotFit: neither is possible, or the format overflows.
        """
        members = task.q // self.heads
        lost = bound_value_rounding(form, self.heads, task.dimension)
        if count_parts(task.length, members) <= LISTED:
            try:
                asked = ask_every_part(task.length, members, self.heads, sharpness, form.name)
            except InvalidInput as overflow:
                raise DoesNotFit(f"{self.name} does not fit: {overflow}") from overflow
            return asked.worst + lost, Basis.EXHAUSTIVE
        if is_rounding(form):
            raise DoesNotFit(
                f"{self.name} is certified in {form.name} by asking all parts of {members}"
                f" positions, at most {LISTED:,}; there are"
                f" {count_parts(task.length, members):,}. Allow more heads, or take f64."
            )
        return bound_every_part(task.length, members, gap, sharpness) + lost, Basis.PROVED

    def _count_bits(
        self, task: Any, gap: float, sharpness: float, accuracy: float, form: NumberFormat
    ) -> int:
        """The bits of the format asked for, or of f32 where that is enough."""
        if form.name != "f64":
            return int(form.bits)
        try:
            worst, _ = self._find_worst_error(task, gap, sharpness, format_named("f32"))
        except DoesNotFit:
            return 64
        return 32 if worst <= accuracy else 64


def list_split_recipes(task: Task, heads: int) -> tuple[SplitHeads, ...]:
    """Every number of heads from two up to so many by which the sets of a task split evenly."""
    return tuple(one for one in map(SplitHeads, range(2, heads + 1)) if one.suits(task))
