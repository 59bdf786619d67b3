r"""q-sparse averaging: every token names q others and asks for the mean of their vectors.

A token is $x_i = (z_i ; y_i ; i)$ with $z_i$ in the unit ball of $\mathbb{R}^{d'}$ and $y_i$ a set
of q positions, written as q numbers, counted from 0 and padded with -1 where sets may be smaller.
The paper's y are subsets, so that a position is named once: numbers that repeat one are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any, ClassVar

import numpy as np

from keyhole._arrays import Array, Float, PerSequence, Sequences, Stack
from keyhole.errors import InvalidInput
from keyhole.tasks.base import (
    Columns,
    Labels,
    check_inputs,
    check_kind,
    check_sizes,
    round_to_whole,
)

Sets = Float[Array, "batch length length"]


@dataclass(frozen=True, slots=True)
class SparseAverage:
    r"""The mean of the vectors a token names, $\frac{1}{|y_i|} \sum_{j \in y_i} z_j$.

    Args:
        length: tokens of an input.
        q: positions a token names.
        dimension: size of the vectors z.
        at_most: whether a token may name fewer than q positions (never none).
    """

    name: ClassVar[str] = "sparse-average"

    length: int
    q: int
    dimension: int = 1
    at_most: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, length=1, q=1, dimension=1)
        if self.q > self.length:
            raise InvalidInput(
                f"a set of positions has at most {self.length} members, the length; got q ="
                f" {self.q}."
            )

    @property
    def width(self) -> int:
        """Numbers of a token: the vector, the set and the position."""
        return self.dimension + self.q + 1

    @property
    def outputs(self) -> int:
        """Numbers of an answer."""
        return self.dimension

    @property
    def columns(self) -> Columns:
        """The vector as it is; the positions named and the token's own as codes."""
        return Columns(self.dimension, self.q + 1, self.length)

    @property
    def accuracy(self) -> float:
        """A quarter of what one member of a set counts."""
        return 1.0 / (4.0 * self.q)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Random sets; neighbours; every other position; one position told from all others."""
        return ("random", "contiguous", "alternating", "separating")

    @property
    def count(self) -> int:
        """Sequences that name every set once."""
        return -(-self._count_sets() // self.length)

    def _count_sets(self) -> int:
        least = 1 if self.at_most else self.q
        return sum(comb(self.length, size) for size in range(least, self.q + 1))

    def sample(self, size: int, *, rng: np.random.Generator, kind: str = "random") -> Sequences:
        """Inputs whose sets are of one kind.

        "separating" sets one vector of the last token's set to +e_1 and all others to -e_1, the
        inputs by which two sets are told apart.
        """
        check_kind(self, kind)
        z = self._draw_vectors(size, rng)
        sets = [self._draw_set(kind, rng) for _ in range(size * self.length)]
        y = np.stack(sets).reshape(size, self.length, self.q)
        # Sets with and without that position get answers 2/q apart.
        if kind == "separating":
            z[:] = 0.0
            z[..., 0] = -1.0
            z[np.arange(size), y[:, -1, 0], 0] = 1.0
        return self.tokens(z, y)

    def _draw_vectors(self, size: int, rng: np.random.Generator) -> Stack:
        z = rng.normal(size=(size, self.length, self.dimension))
        # Uniform in the ball: volume grows with the power of the dimension.
        radius = rng.random((size, self.length, 1)) ** (1 / self.dimension)
        return z / np.linalg.norm(z, axis=-1, keepdims=True) * radius

    def _draw_set(self, kind: str, rng: np.random.Generator) -> Any:
        size = int(rng.integers(1, self.q + 1)) if self.at_most else self.q
        # Every other position wraps onto itself where the set is more than half of the circle.
        step = 2 if kind == "alternating" and 2 * size <= self.length else 1
        if kind in ("contiguous", "alternating"):
            members = (int(rng.integers(self.length)) + step * np.arange(size)) % self.length
        else:
            members = rng.choice(self.length, size, replace=False)
        return np.concatenate([np.sort(members), np.full(self.q - size, -1)])

    def tokens(self, z: Stack, y: Any) -> Sequences:
        """Vectors and sets as tokens; the sets are padded with -1."""
        positions = np.broadcast_to(
            np.arange(self.length, dtype=np.float64)[:, None], (*z.shape[:2], 1)
        )
        return np.concatenate([z, np.asarray(y, dtype=np.float64), positions], axis=-1)

    def exhaustive(self) -> Iterator[Stack]:
        """Every set once, beside vectors that tell the first token's first position."""
        sets = self._list_sets()
        for _ in range(self.count):
            named = [next(sets, None) for _ in range(self.length)]
            # The sets run out within the last sequence: its tokens name the last one again.
            last = next(y for y in reversed(named) if y is not None)
            y = np.array([last if one is None else one for one in named])
            z = np.zeros((1, self.length, self.dimension))
            z[..., 0] = -1.0
            z[0, y[0, 0], 0] = 1.0
            yield self.tokens(z, y[None])

    def _list_sets(self) -> Iterator[list[int]]:
        for size in range(1 if self.at_most else self.q, self.q + 1):
            for members in combinations(range(self.length), size):
                yield [*members, *[-1] * (self.q - size)]

    def members(self, X: Sequences) -> Sets:
        """Whether token i names position j, as 0 and 1.

        Raises:
            InvalidInput: a token names a position twice.
        """
        y = round_to_whole(X[..., self.dimension : self.dimension + self.q])
        rising = np.sort(y, axis=-1)
        twice = (rising[..., 1:] == rising[..., :-1]) & (rising[..., 1:] >= 0)
        if twice.any():
            raise InvalidInput(
                "a token names each position of its set once; got position"
                f" {int(rising[..., 1:][twice][0])} twice."
            )
        return (y[..., None] == np.arange(self.length)).any(axis=2).astype(np.float64)

    def target(self, X: Sequences) -> Labels:
        """The truth."""
        check_inputs(self, X)
        named = self.members(X)
        return named @ X[..., : self.dimension] / named.sum(axis=-1, keepdims=True)

    def error(self, Y: Labels, X: Sequences) -> PerSequence:
        """Largest distance of an answer from the truth, per sequence."""
        gap = np.linalg.norm(Y - self.target(X), axis=-1).max(axis=1)
        # NaN compares false with every bound, and would pass for right.
        return np.where(np.isnan(gap), np.inf, gap)
