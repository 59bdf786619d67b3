r"""Matching by one attention unit of order s: Match2, Match3 and Match4 as a sum of cosines.

The cosine of a sum of s angles is a signed sum of products of s cosines and sines with an even
number of sines,

$$\cos(a_0 + \dots + a_{s-1})
= \sum_{|S| \text{ even}} (-1)^{|S|/2} \prod_{t \in S} \sin a_t \prod_{t \notin S} \cos a_t,$$

which is $2^{s-1}$ columns of queries and keys for each frequency; one more scores the blank token.
Order 2 with one frequency are the weights of [SHT23] for Match2 (m = 3), order 3 those for Match3
(m = 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from keyhole._arrays import Stack, Vector
from keyhole.claims import Check
from keyhole.constructions.matching.waves import (
    Angles,
    Frequencies,
    draw_frequencies,
    estimate_typical_gap,
    find_digits,
    measure_frequencies,
    use_single_frequency,
)
from keyhole.constructions.shared.certifying import LABELS, Draft, Recipe
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.shared.rounding import (
    Scores,
    bound_moved_score,
    choose_scores,
    narrow_gap,
)
from keyhole.errors import DoesNotFit
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Block, Layer, Transformer
from keyhole.models.tensor import TensorAttention
from keyhole.tasks import Task

# Frequencies tried.
MOST = 12
# Times the least gap a format can do with is good enough to stop drawing.
ROOM = 1.15
# Times the gap of random frequencies is more than any draw has.
HOPELESS = 2.2


def list_sine_subsets(order: int) -> list[tuple[int, ...]]:
    """Which numbers each term takes the sine of; first the terms with the query's cosine."""
    even = [S for size in range(0, order + 1, 2) for S in combinations(range(order), size)]
    return sorted(even, key=lambda S: (0 in S, S))


def build_wave_unit(order: int, count: int, chosen: Scores) -> Layer:
    """The unit whose scores are cosines of sums, for tokens laid out as `Angles` does."""
    terms = {"_".join(["sin", *map(str, S)]): S for S in list_sine_subsets(order)}
    rows = Layout.of(cos=count, sin=count, real=1, blank=1)
    columns = Layout.of(**dict.fromkeys(terms, count), blank=1)
    factors = [Weights.zeros(rows, columns).place("blank", "blank", 1.0) for _ in range(order)]
    factors[0] = Weights.zeros(rows, columns).place("real", "blank", chosen.blank)
    for column, S in terms.items():
        for t, sign in enumerate([chosen.unit, (-1.0) ** (len(S) // 2), *[1.0] * (order - 2)]):
            factors[t] = factors[t].place("sin" if t in S else "cos", column, sign)
    Q, *K = (factor.array for factor in factors)
    V = Weights.zeros(rows, Layout.of(label=1)).place("real", "label", 1.0).array
    if order == 2:
        return SelfAttention(Q[None], K[0][None], V[None])
    return TensorAttention(Q, tuple(K), (V,) * len(K))


def build_blank_row(width: int) -> Vector:
    """The blank token: 1 in the last place."""
    return np.eye(width)[-1]


def state_score_assumptions(chosen: Scores, form: NumberFormat) -> tuple[Check, ...]:
    """What the proof of a unit with a blank token assumes."""
    return (
        Check("score margin needed", chosen.needed, chosen.margin),
        Check("largest score", chosen.scale, form.range[1]),
    )


@lru_cache(maxsize=16)
def find_nearest_residues(modulus: int, frequencies: tuple[float, ...]) -> tuple[int, ...]:
    """The residues that fall short least."""
    values = np.array(frequencies)
    if len(values) == 1:
        return use_single_frequency(modulus).nearest
    return measure_frequencies(modulus, values).nearest


def draw_near_misses(
    task: Any, model: Transformer, size: int, *, rng: np.random.Generator
) -> Stack:
    """Inputs whose sums miss by the residues that the angles of a model tell apart least."""
    angles: Any = model.blocks[-1].map
    residues = find_nearest_residues(angles.modulus, tuple(angles.frequencies))
    return task.near(size, residues, rng=rng)


def draft_unit(block: Block, embed: int, gap: float, chosen: Scores, form: NumberFormat) -> Draft:
    """One unit with a blank token, and what its scores prove of labels."""
    bounds = tuple(zip(LABELS, (chosen.matched, chosen.unmatched), strict=True))
    assumptions = state_score_assumptions(chosen, form)
    return Draft(Transformer((block,)), embed, 1, 1, gap, assumptions, bounds)


@dataclass(frozen=True, slots=True)
class Waves(Recipe):
    """Match_s by one unit of order s.

    Args:
        order: s.
        several: whether there is more than one frequency.
    """

    order: int
    several: bool = False

    @property
    def name(self) -> str:
        """What people call it."""
        return f"match{self.order}-{'waves' if self.several else 'circle'}"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        if self.several:
            return "keyhole/several-frequencies"
        return "SHT23/match2" if self.order == 2 else "SHT23/third-order"

    @property
    def by_formula(self) -> bool:
        """Whether `draft_by_formula` evaluates formulas alone: gaps need no scan."""
        return True

    @property
    def quick_length(self) -> int:
        """Tokens up to which drafting takes a moment: it does not depend on them."""
        return 2**62

    def embed(self, task: Task, accuracy: float) -> int:
        """The key width: exactly for one frequency, the least possible for several."""
        return 2 ** (self.order - 1) * (2 if self.several else 1) + 1

    def work(self, task: Task) -> float:
        """Products of numbers that one sequence costs, about."""
        return (task.length + 1.0) ** self.order * 2**self.order

    def inputs(
        self, task: Any, model: Transformer, size: int, *, rng: np.random.Generator
    ) -> Iterator[Stack]:
        """Inputs whose sums miss by the residues that fall short least."""
        yield draw_near_misses(task, model, size, rng=rng)

    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """One frequency, or as few as the proof needs; as many as there is room for, if none do.

        Raises:
            DoesNotFit: the key width asked for is too small.
        """
        most = self._count_most(task, embed)
        if not self.several:
            return self._draft_with(task, use_single_frequency(task.modulus), form)
        tried = (
            self._draft_with(task, found, form)
            for found in self._draw_rising(task, form, most, rng)
        )
        proven = next((draft for draft in tried if draft.proven), None)
        if proven is not None:
            return proven
        # No gap is 2 or more: the best of all draws is taken.
        widest = draw_frequencies(task.modulus, most, wanted=2.0, rng=rng)
        return self._draft_with(task, widest, form)

    def draft_by_formula(self, task: Any, *, form: NumberFormat, embed: int | None) -> Draft:
        """One frequency, or as few digits as the proof needs; the most there is room for, if none.

        Raises:
            DoesNotFit: the key width asked for is too small.
        """
        most = self._count_most(task, embed)
        if not self.several:
            return self._draft_with(task, use_single_frequency(task.modulus), form)
        digits = (find_digits(task.modulus, count) for count in range(2, most + 1))
        tried = (
            self._draft_with(task, found, form)
            for found in digits
            if found.gap > self._count_wanted_gap(form, found.count)
        )
        proven = next((draft for draft in tried if draft.proven), None)
        return proven or self._draft_with(task, find_digits(task.modulus, most), form)

    def _count_most(self, task: Task, embed: int | None) -> int:
        """How many frequencies there may be.

        Raises:
            DoesNotFit: the key width asked for is too small.
        """
        most = MOST if self.several else 1
        if embed is not None:
            most = min(most, (embed - 1) // 2 ** (self.order - 1))
        if most < (2 if self.several else 1):
            raise DoesNotFit(
                f"{self.name} has key width at least {self.embed(task, 0.0)}; asked for {embed}."
            )
        return most

    def _count_wanted_gap(self, form: NumberFormat, count: int) -> float:
        """Twice what rounding moves a score by: no proof does with less."""
        return 2 * bound_moved_score(form, self.order, count * 2 ** (self.order - 1))

    def _draw_rising(
        self, task: Any, form: NumberFormat, most: int, rng: np.random.Generator
    ) -> Iterator[Frequencies]:
        """Digits and best draws of ever more frequencies, where the gap wanted is not hopeless."""
        for count in range(2, most + 1):
            wanted = self._count_wanted_gap(form, count)
            digits = find_digits(task.modulus, count)
            if digits.gap > wanted:
                yield digits
            if HOPELESS * estimate_typical_gap(task.modulus, count) >= wanted:
                yield draw_frequencies(task.modulus, count, wanted=ROOM * wanted, rng=rng)

    def _draft_with(self, task: Any, frequencies: Frequencies, form: NumberFormat) -> Draft:
        order, count, n = self.order, frequencies.count, task.length
        tuples = n ** (order - 1)
        rho = bound_moved_score(form, order, count * 2 ** (order - 1))
        gap = narrow_gap(frequencies.gap, order)
        mixed = (n + 1) ** (order - 1) - tuples - 1
        chosen = choose_scores(gap, tuples=tuples, mixed=mixed, factor=count, rho=rho, form=form)
        block = Block(
            Angles(task.modulus, frequencies.values),
            build_wave_unit(order, count, chosen),
            build_blank_row(2 * count + 2),
        )
        embed = count * 2 ** (order - 1) + 1
        return draft_unit(block, embed, frequencies.gap, chosen, form)
