r"""Layers that fetch what a pointer names, and what is proved of them.

Position t of a sequence is the angle of t + 1 on a circle of N + 1; angle 0 is the blank's. A row
holds the code of its own position as a key, that of another as a query, what it is known by, and
room for what it fetches. Numbers are multiples of 1/L, recovered by rounding: what is fetched may
be off by less than half of that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Array, Sequences, Stack
from keyhole.claims import Check
from keyhole.constructions.matching.positions import Sharp, encode_positions
from keyhole.constructions.matching.windows import (
    bound_gathered_error,
    build_diagonal,
    state_position_assumptions,
)
from keyhole.constructions.shared.base import Evaluate
from keyhole.constructions.shared.certifying import Distances, Recipe
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.shared.rounding import bound_answer_rounding
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Transformer
from keyhole.tasks import Task
from keyhole.tasks.base import round_to_whole
from keyhole.tasks.pointing import spell_in_bits

FETCHED = "farthest fetched number from a whole one"
# Half a level would be the wrong one.
OFF = 0.25


def recover_levels(numbers: Array, levels: int) -> Any:
    """Whole numbers from multiples of 1/levels; wild numbers end inside the range."""
    return round_to_whole(np.clip(np.nan_to_num(numbers), 0.0, 1.0) * levels)


def lay_out_pointed_rows(harmonics: int, state: int) -> Layout:
    """Codes, own position, what a row is known by, and what it fetches."""
    return Layout.of(key=2 * harmonics, query=2 * harmonics, own=1, state=state, fetched=state)


def write_pointed_rows(
    positions: int, harmonics: int, own: Any, pointers: Any, state: Stack, levels: int
) -> Stack:
    """Rows whose queries are the codes of pointers."""
    codes = encode_positions(np.arange(positions), positions, harmonics)
    return np.concatenate(
        [codes[own], codes[pointers], own[..., None] / levels, state, np.zeros_like(state)],
        axis=-1,
    )


def build_pointing_layer(sharp: Sharp, state: int) -> SelfAttention:
    """The layer that adds the state of the row pointed to; a residual keeps the row itself."""
    harmonics = len(sharp.weights)
    rows = lay_out_pointed_rows(harmonics, state)
    codes = Layout.of(code=2 * harmonics)
    block = build_diagonal(sharp.weights, harmonics)
    Q = Weights.zeros(rows, codes).place("query", "code", block).array
    K = Weights.zeros(rows, codes).place("key", "code", 1.0).array
    V = Weights.zeros(rows, rows).place("state", "fetched", 1.0).array
    return SelfAttention(Q[None], K[None], V[None])


def build_blank(positions: int, sharp: Sharp, state: int) -> Array:
    """The row at angle 0, which is known by zeros."""
    harmonics = len(sharp.weights)
    blank = np.zeros(lay_out_pointed_rows(harmonics, state).width)
    blank[: 2 * harmonics] = encode_positions(np.array([0]), positions, harmonics)[0]
    return blank


class Pointing(ABC):
    """A token map into pointed rows, told by whole numbers."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """By which it is found again when loaded."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""

    @property
    def tensors(self) -> Mapping[str, Array]:
        """None."""
        return {}

    @abstractmethod
    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""


@dataclass(frozen=True, eq=False, slots=True)
class FetchedBits(Pointing):
    """The last fetched number, written in binary.

    Args:
        levels: numbers are multiples of one over this.
        values: different answers.
    """

    levels: int
    values: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "fetched-bits"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"levels": self.levels, "values": self.values}

    def __call__(self, X: Sequences) -> Stack:
        """The binary digits."""
        found = np.minimum(recover_levels(X[..., -1], self.levels), self.values - 1)
        return spell_in_bits(found, self.values)


@dataclass(frozen=True, slots=True)
class Fetching:
    """What is proved of one fetching layer.

    Args:
        assumptions: of the proof, measured.
        off: the most by which a fetched number may be off, in levels.
    """

    assumptions: tuple[Check, ...]
    off: float


def judge_fetching(sharp: Sharp, levels: int, tokens: int, form: NumberFormat) -> Fetching:
    """A layer that fetches one position, rounding counted."""
    lost = 2 * bound_answer_rounding(form, tokens)
    off = levels * bound_gathered_error(sharp, lost, alone=True)
    position = state_position_assumptions(form, sharp)[1:]
    return Fetching((*position, Check("fetched numbers, off by", off, OFF)), off)


class FetchingRecipe(Recipe):
    """What recipes that fetch share: every fetched number is compared with the next whole one."""

    __slots__ = ()

    @abstractmethod
    def count_levels(self, task: Task) -> int:
        """Fetched numbers are multiples of one over this."""

    @abstractmethod
    def count_state(self, task: Task) -> int:
        """How many numbers a row fetches."""

    def distances(
        self, task: Task, model: Transformer, X: Stack, evaluate: Evaluate | None
    ) -> tuple[Stack, Distances]:
        """Answers, and how far fetched numbers are from whole ones, in levels."""
        rows = X
        farthest = 0.0
        for block in model.blocks:
            rows = block(rows, evaluate)
            fetched = rows[..., -self.count_state(task) :] * self.count_levels(task)
            farthest = max(farthest, float(np.abs(fetched - np.rint(fetched)).max()))
        return rows if model.out is None else model.out(rows), (farthest,)
