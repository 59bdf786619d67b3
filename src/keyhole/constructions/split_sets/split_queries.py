r"""Sets split over heads: the token map, and the least gap of scores over all sets at once.

Head h of H averages the members h, h + H, h + 2H, .. of a sorted set of q: r = q/H positions, any
two of them at least H apart on the circle of N. With angles $\theta_j = 2 \pi j/N$ its score is

$$-\alpha \prod_{i} (1 - \cos(\theta - \theta_i))$$

up to a constant: 2r cosines and sines, 0 on the part and less everywhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from keyhole._arrays import Array, Int, Matrix, Sequences, Stack
from keyhole.constructions.shared.layout import Layout
from keyhole.tasks.base import round_to_whole

Parts = Int[np.ndarray, "parts members"]
# Parts that are listed at most.
LISTED = 200_000


def encode_circle(length: int, harmonics: int) -> Matrix:
    """Cosines, then sines, of the first multiples of every position's angle."""
    multiples = np.outer(np.arange(length), np.arange(1, harmonics + 1)) % length
    angles = 2.0 * np.pi * multiples / length
    return np.column_stack([np.cos(angles), np.sin(angles)])


# Multiplying by 1 - cos(theta - t) turns coefficients c_k into c_k - (e^{-it} c_{k-1} + e^{it}
# c_{k+1})/2; a real polynomial has A_k = 2 Re c_k and B_k = -2 Im c_k for k > 0.
def expand_parts(parts: Parts, length: int) -> Matrix:
    """Queries of parts: minus the coefficients of the product, cosines first."""
    turns = np.exp(-2j * np.pi * parts / length)
    count, members = parts.shape
    c = np.zeros((count, 2 * members + 1), dtype=np.complex128)
    c[:, members] = 1.0
    for turn in turns.T[:, :, None]:
        up = np.roll(c, 1, axis=1)
        down = np.roll(c, -1, axis=1)
        c = c - (turn * up + np.conj(turn) * down) / 2.0
    upper = c[:, members + 1 :]
    return -np.concatenate([2.0 * upper.real, -2.0 * upper.imag], axis=1)


def split_by_stride(sets: Any, heads: int) -> Any:
    """The parts of sets, one row a head: every H-th member of the sorted set."""
    ordered = np.sort(sets, axis=-1)
    shaped = ordered.reshape(*ordered.shape[:-1], -1, heads)
    return np.moveaxis(shaped, -1, -2)


def count_parts(length: int, members: int) -> int:
    """How many sets of so many positions there are, admissible or not."""
    return math.comb(length, members)


def list_spread_parts(length: int, members: int, apart: int) -> Iterator[tuple[int, ...]]:
    """Every set of positions of which any two are so far apart on the circle."""
    for part in combinations(range(length), members):
        gaps = np.diff([*part, part[0] + length])
        if members == 1 or gaps.min() >= apart:
            yield part


# 1 - cos grows with the distance from 0, so the nearest members come first. On either side of a
# position that is not a member the nearest are b and c away with b + c >= H, both at least 1, and
# the others follow H apart: fewer apart is not allowed, and more only makes factors larger.
def find_least_gap(length: int, members: int, apart: int) -> float:
    """The least product over all parts and all positions outside them."""
    steps = np.arange(members)

    def multiply(first: int, count: int) -> float:
        return float(np.prod(1.0 - np.cos(2.0 * np.pi * (first + apart * steps[:count]) / length)))

    return min(
        multiply(b, count) * multiply(max(1, apart - b), members - count)
        for b in range(1, max(2, apart))
        for count in range(members + 1)
    )


def choose_sharpness(length: int, members: int, gap: float, accuracy: float) -> float:
    """The factor at which attention off a part moves averages by at most the accuracy."""
    return math.log(2.0 * max(1, length - members) / (members * accuracy)) / gap


@dataclass(frozen=True, eq=False, slots=True)
class SplitQueries:
    """Maps a token (z ; y ; i) to its vector, its key, and a query for every part of its set.

    Args:
        length: N.
        q: members of a set.
        heads: H.
        sharpness: by which queries are scaled.
        dimension: of the vectors.
    """

    length: int
    q: int
    heads: int
    sharpness: float
    dimension: int = 1

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "split-queries"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        names = ("length", "q", "heads", "sharpness", "dimension")
        return {name: getattr(self, name) for name in names}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """None."""
        return {}

    @property
    def members(self) -> int:
        """Of a part."""
        return self.q // self.heads

    @property
    def layout(self) -> Layout:
        """The vector, the key, and the queries of the heads."""
        queries = {f"query{h}": 2 * self.members for h in range(self.heads)}
        return Layout.of(value=self.dimension, key=2 * self.members, **queries)

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        place = np.clip(round_to_whole(X[..., -1]), 0, self.length - 1)
        sets = round_to_whole(X[..., self.dimension : self.dimension + self.q])
        parts = split_by_stride(sets, self.heads).reshape(-1, self.members)
        queries = self.sharpness * expand_parts(parts, self.length)
        keys = encode_circle(self.length, self.members)[place]
        return np.concatenate(
            [X[..., : self.dimension], keys, queries.reshape(*X.shape[:2], -1)], axis=-1
        )
