r"""Matching tasks: whether a token, with one, two or three others, sums to zero modulo M.

$$\mathrm{Match}_s(X)_i
= 1\{\exists j_1, \dots, j_{s-1} : x_i + x_{j_1} + \dots + x_{j_{s-1}} = 0 \bmod M\}$$

Partners may repeat, and may be the token itself. Tokens are whole numbers 0 .. M - 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from keyhole._arrays import Mask, PerSequence, Sequences, Stack
from keyhole.errors import InvalidInput
from keyhole.tasks.base import (
    Columns,
    Labels,
    batch_rows,
    check_inputs,
    check_kind,
    check_sizes,
    list_tuples,
    measure_wrong_labels,
    round_to_whole,
)

# Sums of four tokens stay exact in float64.
LARGEST_MODULUS = 2**50
KINDS = ("random", "planted", "balanced", "near-miss")
# Times as many random inputs as wanted, from which balanced ones are picked.
DRAWS = 8


@dataclass(frozen=True, slots=True)
class _Match(ABC):
    """What the matching tasks share; each knows its truth and how a match is planted.

    Args:
        length: tokens of an input.
        modulus: M, how many values a token can have.
    """

    name: ClassVar[str]

    length: int
    modulus: int

    def __post_init__(self) -> None:
        check_sizes(self, length=1, modulus=2)
        if self.modulus > LARGEST_MODULUS:
            raise InvalidInput(
                f"--modulus is at most 2^50, so that sums are exact; got {self.modulus}."
            )

    @property
    def width(self) -> int:
        """One number a token."""
        return 1

    @property
    def outputs(self) -> int:
        """One label a token."""
        return 1

    @property
    def columns(self) -> Columns:
        """A number stands for itself modulo M."""
        return Columns(0, 1, self.modulus)

    @property
    def accuracy(self) -> float:
        """A label is right or wrong."""
        return 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Uniform; a match for the last token; for half of them; sums that miss by one."""
        return KINDS

    @property
    def count(self) -> int:
        """How many inputs there are."""
        return self.modulus**self.length

    def exhaustive(self) -> Iterator[Stack]:
        """Every input."""
        return (
            batch[..., None] for batch in batch_rows(iter(list_tuples(self.modulus, self.length)))
        )

    def sample(self, size: int, *, rng: np.random.Generator, kind: str = "random") -> Sequences:
        """Inputs of one kind."""
        check_kind(self, kind)
        if kind == "balanced":
            return self._draw_balanced(size, rng)
        drawn = {"planted": 0, "near-miss": 1}.get(kind)
        x = rng.integers(self.modulus, size=(size, self.length))
        if drawn is not None:
            off = rng.choice([-1, 1], size=size) * drawn
            self._plant(x, off, rng)
        return x[..., None].astype(np.float64)

    def near(self, size: int, residues: Sequence[int], *, rng: np.random.Generator) -> Sequences:
        """Inputs that miss a match with the last token by one of these residues, up to sign."""
        x = rng.integers(self.modulus, size=(size, self.length))
        self._plant(x, rng.choice(residues, size=size) * rng.choice([-1, 1], size=size), rng)
        return x[..., None].astype(np.float64)

    def _draw_balanced(self, size: int, rng: np.random.Generator) -> Sequences:
        """Inputs half of whose last tokens have a match, as far as the draws allow."""
        # Where M is small random inputs match by themselves, where it is large only planted ones.
        kinds = ("planted", "random", "near-miss")
        pool = np.concatenate([self.sample(DRAWS * size, rng=rng, kind=kind) for kind in kinds])
        matched = self.target(pool)[:, -1, 0] > 0.5
        # Those without a match from the end, where the near misses are: the hard ones.
        without = np.flatnonzero(~matched)[::-1][: size // 2]
        chosen = np.concatenate([np.flatnonzero(matched)[: -(-size // 2)], without])
        # Where one half is missing the first inputs fill up: a batch has the size asked for.
        chosen = np.concatenate([chosen, np.arange(size - len(chosen))])
        return pool[rng.permutation(chosen)]

    @abstractmethod
    def _plant(self, x: Any, off: Any, rng: np.random.Generator) -> None:
        """Change partners so that they and the last token sum to `off`, all of them for a miss."""

    def target(self, X: Sequences) -> Labels:
        """The truth."""
        check_inputs(self, X)
        x = round_to_whole(X[..., 0])
        return np.stack([self._find_matched(row) for row in x])[..., None].astype(np.float64)

    @abstractmethod
    def _find_matched(self, x: Any) -> Any:
        """Whether each token of one sequence has a match."""

    def error(self, Y: Labels, X: Sequences) -> PerSequence:
        """The share of tokens labelled wrongly, per sequence."""
        return measure_wrong_labels(self, Y, X)


@dataclass(frozen=True, slots=True)
class Match2(_Match):
    """Whether there is a partner with $x_i + x_j = 0$ modulo M."""

    name: ClassVar[str] = "match2"

    def _plant(self, x: Any, off: Any, rng: np.random.Generator) -> None:
        _plant_last(x, off, self.modulus, 1, rng)

    def _find_matched(self, x: Any) -> Any:
        return np.isin(-x % self.modulus, x)


@dataclass(frozen=True, slots=True)
class Match3(_Match):
    """Whether there are two partners with $x_i + x_{j_1} + x_{j_2} = 0$ modulo M."""

    name: ClassVar[str] = "match3"

    def _plant(self, x: Any, off: Any, rng: np.random.Generator) -> None:
        _plant_last(x, off, self.modulus, 2, rng)

    def _find_matched(self, x: Any) -> Any:
        return np.isin(-x % self.modulus, _find_pair_sums(x, self.modulus))


@dataclass(frozen=True, slots=True)
class Match4(_Match):
    """Whether there are three partners with which the token sums to zero modulo M."""

    name: ClassVar[str] = "match4"

    def _plant(self, x: Any, off: Any, rng: np.random.Generator) -> None:
        _plant_last(x, off, self.modulus, 3, rng)

    def _find_matched(self, x: Any) -> Any:
        # Two pairs: (x_i + x_j) and a sum of two others, which is N^3 instead of N^4.
        own = (x[:, None] + np.unique(x)) % self.modulus
        return np.isin(-own % self.modulus, _find_pair_sums(x, self.modulus)).any(axis=1)


@dataclass(frozen=True, slots=True)
class Match3Bigram(_Match):
    """Whether there is a j with $x_i + x_j + x_{j+1} = 0$ modulo M."""

    name: ClassVar[str] = "match3-bigram"

    def _plant(self, x: Any, off: Any, rng: np.random.Generator) -> None:
        # A lone token has no neighbouring pair to change.
        if self.length == 1:
            return
        for row, miss in zip(x, off, strict=True):
            pairs = range(self.length - 1) if miss else rng.integers(self.length - 1, size=1)
            for j in pairs:
                row[j] = (miss - row[-1] - row[j + 1]) % self.modulus

    def _find_matched(self, x: Any) -> Any:
        return np.isin(-x % self.modulus, (x[:-1] + x[1:]) % self.modulus)


@dataclass(frozen=True, slots=True)
class Match3Local(_Match):
    """Whether two partners at most `radius` away complete the token to zero modulo M.

    Args:
        radius: how far a partner may be.
    """

    name: ClassVar[str] = "match3-local"

    radius: int = 1

    def __post_init__(self) -> None:
        _Match.__post_init__(self)
        check_sizes(self, radius=1)

    def _plant(self, x: Any, off: Any, rng: np.random.Generator) -> None:
        first = max(0, self.length - 1 - self.radius)
        _plant_last(x[:, first:], off, self.modulus, 2, rng)

    def _find_matched(self, x: Any) -> Any:
        places = np.arange(len(x))[:, None] + np.arange(-self.radius, self.radius + 1)
        there = (places >= 0) & (places < len(x))
        near = x[np.clip(places, 0, len(x) - 1)]
        sums = x[:, None, None] + near[:, :, None] + near[:, None, :]
        return ((sums % self.modulus == 0) & there[:, :, None] & there[:, None, :]).any(axis=(1, 2))


@dataclass(frozen=True, eq=False, slots=True)
class PlantedTriples:
    """Sequences of which half hold one planted triple that sums to zero, the others by chance.

    Args:
        task: Match3 with M = N^4.
        X: the sequences.
        planted: which of them hold one.
    """

    task: Match3
    X: Sequences
    planted: Mask


# A uniform sequence has fewer than N^3/6 triples of three positions, each of sum 0 with chance 1/M:
# with M = N^4 some triple has with chance below 1/(6N). A planted one is uniform but for that.
def draw_planted_triples(length: int, size: int, *, rng: np.random.Generator) -> PlantedTriples:
    """The distribution on which Match3 is conjectured to be hard: uniform, or one triple planted.

    Args:
        length: N, three tokens at least; M is its fourth power.
        size: sequences; every second one has a triple planted.
        rng: source of the sequences.
    """
    task = Match3(length, length**4)
    check_sizes(task, length=3)
    x = rng.integers(task.modulus, size=(size, length))
    planted = np.arange(size) % 2 == 1
    for i in np.flatnonzero(planted):
        a, b, c = rng.choice(length, size=3, replace=False)
        x[i, c] = (-x[i, a] - x[i, b]) % task.modulus
    return PlantedTriples(task, x[..., None].astype(np.float64), planted)


def _find_pair_sums(x: Any, modulus: int) -> Any:
    values = np.unique(x)
    return np.unique((values[:, None] + values) % modulus)


def _plant_last(x: Any, off: Any, modulus: int, partners: int, rng: np.random.Generator) -> None:
    """Give the last token partners that sum with it to `off`: some, or all for a miss."""
    others = x.shape[1] - 1
    if others == 0:
        return
    for row, miss in zip(x, off, strict=True):
        order = rng.permutation(others)
        # A near miss must leave no other match, so that every partner is moved.
        groups = max(1, others // partners) if miss else 1
        for group in range(groups):
            chosen = order[group * partners : (group + 1) * partners]
            named = [*chosen, *rng.choice(others, partners - len(chosen))]
            last = named[0]
            rest = named[1:]
            # The sum would count the position twice.
            if last in rest:
                continue
            row[last] = (miss - row[-1] - row[rest].sum()) % modulus
