r"""Directed triangles through an edge by one unit of order 3 on edge tokens.

A node is a vector r of cosines and sines, one pair for each frequency. Edges i, j, l close a walk
where the head of each is the tail of the next, and the score adds up the three agreements,

$$\langle r(\mathrm{head}_i), r(\mathrm{tail}_j) \rangle
+ \langle r(\mathrm{head}_j), r(\mathrm{tail}_l) \rangle
+ \langle r(\mathrm{head}_l), r(\mathrm{tail}_i) \rangle,$$

each in its own block of columns, in which the third edge contributes ones. It is 3 for a closed
walk and at most 3 - gap otherwise. Edges may repeat, so a self-loop closes a walk with itself, as
the task says.
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
from keyhole.tasks import Task
from keyhole.tasks.base import round_to_whole

SIDES = 3


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


def build_walk_unit(count: int, chosen: Scores) -> TensorAttention:
    """The unit whose scores add up the three agreements."""
    size = 2 * count
    rows = Layout.of(tail=size, head=size, real=1, blank=1)
    columns = Layout.of(first=size, second=size, third=size, blank=1)

    def blocks(scale: float, **where: str) -> Weights:
        weights = Weights.zeros(rows, columns)
        for column, row in where.items():
            # The third edge of an agreement contributes ones, from the coordinate that is always 1.
            block = scale * np.ones((1, size)) if row == "real" else scale
            weights = weights.place(row, column, block)
        return weights

    Q = blocks(chosen.unit, first="head", second="real", third="tail").place(
        "real", "blank", chosen.blank
    )
    K1 = blocks(1.0, first="tail", second="head", third="real").place("blank", "blank", 1.0)
    K2 = blocks(1.0, first="real", second="tail", third="head").place("blank", "blank", 1.0)
    V = Weights.zeros(rows, Layout.of(label=1)).place("real", "label", 1.0).array
    return TensorAttention(Q.array, (K1.array, K2.array), (V, V))


@dataclass(frozen=True, slots=True)
class ClosedWalks(Recipe):
    """Triangles by one unit of order 3 with key width 3 x 2k + 1 for k frequencies."""

    @property
    def name(self) -> str:
        """What people call it."""
        return "triangle-walks"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "keyhole/closed-walks"

    def embed(self, task: Task, accuracy: float) -> int:
        """The key width with one frequency."""
        return 2 * SIDES + 1

    def work(self, task: Task) -> float:
        """Products of numbers that one sequence costs, about."""
        return (task.length + 1.0) ** 3 * (2 * SIDES + 1)

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
        for count in range(2, self._count_most(embed) + 1):
            if draft.proven:
                break
            # The proof needs more than twice what rounding moves a score by.
            wanted = 2.5 * SIDES * bound_moved_score(form, 2, 2 * SIDES * count)
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
        for count in range(2, self._count_most(embed) + 1):
            if draft.proven:
                break
            draft = self._draft_with(task, find_digits(nodes, count), form)
        return draft

    def _count_most(self, embed: int | None) -> int:
        """How many frequencies there may be.

        Raises:
            DoesNotFit: the key width asked for is too small.
        """
        most = MOST if embed is None else min(MOST, (embed - 1) // (2 * SIDES))
        if most < 1:
            raise DoesNotFit(
                f"{self.name} has key width at least {2 * SIDES + 1}; asked for {embed}."
            )
        return most

    def _draft_with(self, task: Any, frequencies: Frequencies, form: NumberFormat) -> Draft:
        count = frequencies.count
        n = task.length
        rho = bound_moved_score(form, 2, 2 * SIDES * count)
        gap = narrow_gap(frequencies.gap, 2) / SIDES
        chosen = choose_scores(
            gap, tuples=n**2, mixed=2 * n, factor=SIDES * count, rho=rho, form=form
        )
        angles = EdgeAngles(frequencies.modulus, frequencies.values)
        block = Block(angles, build_walk_unit(count, chosen), build_blank_row(4 * count + 2))
        return draft_unit(block, 2 * SIDES * count + 1, frequencies.gap, chosen, form)
