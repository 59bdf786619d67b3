r"""Directed closed walks of s edges through an edge by one unit of order s on edge tokens.

A node is a vector r of cosines and sines, one pair for each frequency. Edges $i_1, \dots, i_s$
close a walk where the head of each is the tail of the next, and the score adds up the s agreements,

$$\sum_{t=1}^{s} \langle r(\mathrm{head}_{i_t}), r(\mathrm{tail}_{i_{t+1}}) \rangle,
\qquad i_{s+1} = i_1,$$

each in its own block of columns, to which all other edges contribute ones. It is s for a closed
walk and at most s - gap otherwise. Edges may repeat, so a self-loop closes a walk with itself, as
the task says. Three edges are triangles, four directed 4-cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Sequences, Stack
from keyhole.constructions.matching.wave_units import MOST, build_blank_row, draft_unit
from keyhole.constructions.matching.waves import (
    Frequencies,
    Wavy,
    draw_frequencies,
    evaluate_waves,
    find_digits,
    use_single_frequency,
)
from keyhole.constructions.shared.certifying import Draft, Recipe
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.shared.rounding import (
    Scores,
    bound_moved_score,
    choose_scores,
    narrow_gap,
)
from keyhole.errors import DoesNotFit
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Block, Transformer
from keyhole.models.tensor import TensorAttention
from keyhole.tasks.base import round_to_whole


@dataclass(frozen=True, eq=False, slots=True)
class EdgeAngles(Wavy):
    """Edges as the angles of their nodes, then a 1, then a 0 that only the blank fills."""

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "edge-angles"

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        cos, sin = evaluate_waves(round_to_whole(X) % self.modulus, self.modulus, self.frequencies)
        codes = np.concatenate([cos, sin], axis=-1).reshape(*X.shape[:2], -1)
        real = np.ones((*X.shape[:2], 1))
        return np.concatenate([codes, real, np.zeros_like(real)], axis=-1)


def build_walk_unit(sides: int, count: int, chosen: Scores) -> TensorAttention:
    """The unit whose scores add up the agreements of so many edges."""
    size = 2 * count
    rows = Layout.of(tail=size, head=size, real=1, blank=1)
    agreements = [f"agreement_{t}" for t in range(sides)]
    columns = Layout.of(**dict.fromkeys(agreements, size), blank=1)

    def factor(edge: int, scale: float) -> Weights:
        weights = Weights.zeros(rows, columns)
        for t, name in enumerate(agreements):
            # The head of edge t meets the tail of the next; the others contribute ones, from the
            # coordinate that is always 1.
            if edge == t:
                weights = weights.place("head", name, scale)
            elif edge == (t + 1) % sides:
                weights = weights.place("tail", name, scale)
            else:
                weights = weights.place("real", name, scale * np.ones((1, size)))
        return weights

    Q = factor(0, chosen.unit).place("real", "blank", chosen.blank).array
    keys = [factor(t, 1.0).place("blank", "blank", 1.0).array for t in range(1, sides)]
    V = Weights.zeros(rows, Layout.of(label=1)).place("real", "label", 1.0).array
    return TensorAttention(Q, tuple(keys), (V,) * len(keys))


@dataclass(frozen=True, slots=True)
class WalkUnit(Recipe):
    """Closed walks of s edges by one unit of order s, key width 2ks + 1 for k frequencies.

    Args:
        called: what people call it.
    """

    called: str

    @property
    def name(self) -> str:
        """What people call it."""
        return self.called

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "keyhole/closed-walks"

    def embed(self, task: Any, accuracy: float) -> int:
        """The key width with one frequency."""
        return 2 * task.sides + 1

    def work(self, task: Any) -> float:
        """Products of numbers that one sequence costs, about."""
        return (task.length + 1.0) ** task.sides * (2 * task.sides + 1)

    def inputs(
        self, task: Any, model: Transformer, size: int, *, rng: np.random.Generator
    ) -> Iterator[Stack]:
        """Edges one step along the circle of nodes from closing a walk."""
        X = task.sample(size, rng=rng, kind="planted")
        X[:, : max(0, task.length - 1), rng.integers(2)] += rng.choice([-1, 1])
        yield X % task.nodes

    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """As few frequencies as the proof needs.

        Raises:
            DoesNotFit: the key width asked for is too small.
        """
        nodes = max(2, task.nodes)
        draft = self._draft_with(task, use_single_frequency(nodes), form)
        for count in range(2, self._count_most(task, embed) + 1):
            if draft.proven:
                break
            # The proof needs more than twice what rounding moves a score by.
            wanted = 2.5 * task.sides * bound_moved_score(form, 2, 2 * task.sides * count)
            draft = self._draft_with(
                task, draw_frequencies(nodes, count, wanted=wanted, rng=rng), form
            )
        return draft

    @property
    def by_formula(self) -> bool:
        """Whether `draft_by_formula` evaluates formulas alone: gaps need no scan."""
        return True

    def draft_by_formula(self, task: Any, *, form: NumberFormat, embed: int | None) -> Draft:
        """One frequency, or as few digits as the proof needs.

        Raises:
            DoesNotFit: the key width asked for is too small.
        """
        nodes = max(2, task.nodes)
        draft = self._draft_with(task, use_single_frequency(nodes), form)
        for count in range(2, self._count_most(task, embed) + 1):
            if draft.proven:
                break
            draft = self._draft_with(task, find_digits(nodes, count), form)
        return draft

    def _count_most(self, task: Any, embed: int | None) -> int:
        """How many frequencies there may be.

        Raises:
            DoesNotFit: the key width asked for is too small.
        """
        most = MOST if embed is None else min(MOST, (embed - 1) // (2 * task.sides))
        if most < 1:
            raise DoesNotFit(
                f"{self.name} has key width at least {2 * task.sides + 1}; asked for {embed}."
            )
        return most

    def _draft_with(self, task: Any, frequencies: Frequencies, form: NumberFormat) -> Draft:
        count, sides, n = frequencies.count, task.sides, task.length
        rho = bound_moved_score(form, 2, 2 * sides * count)
        gap = narrow_gap(frequencies.gap, 2) / sides
        tuples = n ** (sides - 1)
        # All others but that of blanks alone hold a blank and an edge, and score 0.
        mixed = (n + 1) ** (sides - 1) - tuples - 1
        chosen = choose_scores(
            gap, tuples=tuples, mixed=mixed, factor=sides * count, rho=rho, form=form
        )
        angles = EdgeAngles(frequencies.modulus, frequencies.values)
        unit = build_walk_unit(sides, count, chosen)
        block = Block(angles, unit, build_blank_row(4 * count + 2))
        return draft_unit(block, 2 * sides * count + 1, frequencies.gap, chosen, form)
