"""Lengths of tokens at which scores have the size aimed at, and what measures scores so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.learners.joint_heads.hard_pairs import Unseparated
from keyhole.learners.joint_heads.soft_pairs import split_product

TARGET = 0.9  # root-mean-square score difference aimed at
_SHORTEST = 2.0**-6  # a / b below which a score bias is small beside the other scores
_LONGEST = 2.0**10  # a / b beyond which y would cost too many digits


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths a of y and b of x."""

    a: float
    b: float


@dataclass(frozen=True, slots=True)
class ScoreSizes:
    """Root mean squares of x . W y and of x . h over all heads, x and y of length one.

    The second is 0 where no score bias acts.
    """

    column: float
    bias: float = 0.0

    def choose_lengths(self) -> Lengths:
        """Lengths at which scores have the size aimed at; a column about as large as a bias.

        Raises:
            Unseparated: no score was seen beside the bias.
        """
        if self.column == 0.0:
            raise Unseparated("Score biases outweigh all that the last token does.")
        plain = Lengths(*split_product(TARGET / self.column))
        if self.bias == 0.0:
            return plain
        b = TARGET / float(np.sqrt(2.0) * self.bias)
        a = min(self.bias / self.column, _LONGEST * b)
        return plain if a < _SHORTEST * b else Lengths(a, b)

    def measure_at(self, lengths: Lengths) -> float:
        """Root mean square of scores at the given lengths."""
        return lengths.b * float(np.hypot(lengths.a * self.column, self.bias))


@runtime_checkable
class Scores(Protocol):
    """What measures vectors a W_h y + h_h of all heads at given lengths."""

    lengths: Lengths

    @property
    def coarse(self) -> bool:
        """Whether answers are coarser than float64."""
        ...

    @property
    def heads(self) -> int:
        """How many heads there are."""
        ...

    def measure_columns(self, Y: Matrix) -> Stack:
        """These vectors: rows of Y by heads by width."""
        ...

    def draw_tokens(self, count: int, rng: np.random.Generator) -> Stack:
        """So many tokens of every head or more, whatever its range."""
        ...

    def choose_few_tokens(self, ranges: list[Matrix], rng: np.random.Generator) -> Stack | None:
        """Few tokens of every head that tell coordinates along its range; None where none do."""
        ...

    def measure_along(self, Y: Matrix, few: Stack) -> Stack:
        """Forms of these vectors along few tokens: rows of Y by heads by tokens."""
        ...
