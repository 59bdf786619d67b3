r"""Tasks that follow pointers: look-up by index, composition of functions, induction heads, k hops.

Answers name a symbol, and are written in binary: every number of an answer is a label.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from keyhole._arrays import PerSequence, Sequences, Stack
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


def count_answer_bits(values: int) -> int:
    """Binary digits that tell so many values apart."""
    return max(1, (values - 1).bit_length())


def spell_in_bits(numbers: Any, values: int) -> Stack:
    """Whole numbers below `values` as binary digits, the largest first."""
    digits = np.arange(count_answer_bits(values), dtype=np.int64)[::-1]
    return ((np.asarray(numbers)[..., None] >> digits) & 1).astype(np.float64)


def read_bits(labels: Any) -> Any:
    """Whole numbers from their binary digits, each read at 1/2."""
    digits = np.arange(np.shape(labels)[-1], dtype=np.int64)[::-1]
    return np.sum((np.asarray(labels) > 0.5).astype(np.int64) << digits, axis=-1)


class _Pointing(ABC):
    """What these tasks share: answers in binary."""

    __slots__ = ()

    name: ClassVar[str]
    length: Any

    @property
    @abstractmethod
    def values(self) -> int:
        """Different answers."""

    @property
    @abstractmethod
    def columns(self) -> Columns:
        """How tokens are read."""

    @property
    @abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """The ways inputs are drawn, hardest last."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many inputs there are."""

    @abstractmethod
    def exhaustive(self) -> Iterator[Stack]:
        """Every input, in batches."""

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.columns.coded

    @property
    def outputs(self) -> int:
        """Binary digits of an answer."""
        return count_answer_bits(self.values)

    @property
    def accuracy(self) -> float:
        """A label is right or wrong."""
        return 0.0

    def sample(self, size: int, *, rng: np.random.Generator, kind: str = "random") -> Sequences:
        """Inputs of one kind."""
        check_kind(self, kind)
        drawn = self._draw_tokens(size, kind, rng)
        return drawn.reshape(size, self.length, self.width).astype(np.float64)

    @abstractmethod
    def _draw_tokens(self, size: int, kind: str, rng: np.random.Generator) -> Any:
        """Whole numbers of the tokens."""

    def target(self, X: Sequences) -> Labels:
        """The truth."""
        check_inputs(self, X)
        return spell_in_bits(self._find_answers(round_to_whole(X)), self.values)

    @abstractmethod
    def _find_answers(self, tokens: Any) -> Any:
        """The answer of every token, as a whole number."""

    def error(self, Y: Labels, X: Sequences) -> PerSequence:
        """The share of binary digits that are wrong, per sequence."""
        return measure_wrong_labels(self, Y, X)


@dataclass(frozen=True, slots=True)
class IndexLookup(_Pointing):
    """The symbol at the index that a token names; tokens are (symbol, index), indices from 0.

    Args:
        length: tokens of an input.
        symbols: different symbols.
    """

    name: ClassVar[str] = "index-lookup"

    length: int
    symbols: int = 2

    def __post_init__(self) -> None:
        check_sizes(self, length=1, symbols=2)

    @property
    def values(self) -> int:
        """An answer is a symbol."""
        return self.symbols

    @property
    def columns(self) -> Columns:
        """Symbols and indices, each a name of its own kind."""
        return Columns(0, 2, max(self.symbols, self.length))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Uniform; one symbol that differs from all others, and half of the tokens ask for it."""
        return ("random", "lone")

    @property
    def count(self) -> int:
        """How many inputs there are."""
        return (self.symbols * self.length) ** self.length

    def exhaustive(self) -> Iterator[Stack]:
        """Every input."""
        pairs = np.array([(x, t) for x in range(self.symbols) for t in range(self.length)])
        for batch in batch_rows(iter(list_tuples(len(pairs), self.length))):
            yield pairs[round_to_whole(batch)].astype(np.float64)

    def _draw_tokens(self, size: int, kind: str, rng: np.random.Generator) -> Any:
        symbols = rng.integers(self.symbols, size=(size, self.length))
        indices = rng.integers(self.length, size=(size, self.length))
        if kind == "lone":
            where = rng.integers(self.length, size=(size, 1))
            symbols = np.broadcast_to(symbols[:, :1], symbols.shape).copy()
            beside = (symbols[:, :1] + rng.integers(1, self.symbols, size=(size, 1))) % self.symbols
            np.put_along_axis(symbols, where, beside, axis=1)
            indices = np.where(rng.random(indices.shape) < 0.5, where, indices)
        return np.stack([symbols, indices], axis=-1)

    def _find_answers(self, tokens: Any) -> Any:
        return np.take_along_axis(tokens[..., 0], tokens[..., 1], axis=1)


@dataclass(frozen=True, slots=True)
class Composition(_Pointing):
    """f(g(x)) for the value x of every token: first n tokens are g, the next n are f, one asks.

    The token at position i < n holds g(i), the one at n + i holds f(i).

    Args:
        symbols: n, the size of the domain; inputs have 2n + 1 tokens.
    """

    name: ClassVar[str] = "composition"

    symbols: int

    def __post_init__(self) -> None:
        check_sizes(self, symbols=2)

    @property
    def length(self) -> int:
        """The table of g, that of f, and a token that asks."""
        return 2 * self.symbols + 1

    @property
    def values(self) -> int:
        """An answer is an element of the domain."""
        return self.symbols

    @property
    def columns(self) -> Columns:
        """Elements of the domain."""
        return Columns(0, 1, self.symbols)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Uniform; permutations; f of one value everywhere but where the last token leads."""
        return ("random", "permutations", "lone")

    @property
    def count(self) -> int:
        """How many inputs there are."""
        return self.symbols**self.length

    def exhaustive(self) -> Iterator[Stack]:
        """Every pair of functions, and every x."""
        rows = batch_rows(iter(list_tuples(self.symbols, self.length)))
        return (batch[..., None] for batch in rows)

    def _draw_tokens(self, size: int, kind: str, rng: np.random.Generator) -> Any:
        n = self.symbols
        x = rng.integers(n, size=(size, self.length))
        if kind == "permutations":
            x[:, : 2 * n] = rng.permuted(np.tile(np.arange(n), (size, 2, 1)), axis=2).reshape(
                size, 2 * n
            )
        if kind == "lone":
            x[:, n : 2 * n] = x[:, n : n + 1]
            rows = np.arange(size)
            lead = n + x[rows, x[:, -1]]
            x[rows, lead] = (x[rows, lead] + rng.integers(1, n, size=size)) % n
        return x

    def _find_answers(self, tokens: Any) -> Any:
        x = tokens[..., 0]
        inner = np.take_along_axis(x[:, : self.symbols], x, axis=1)
        return np.take_along_axis(x[:, self.symbols : 2 * self.symbols], inner, axis=1)


class _Hopping(_Pointing):
    """What follows the symbol where it was last seen, k times; 0 where there is none.

    With positions from 1, find(i) is the largest j <= i whose predecessor holds the symbol of i,
    and the answer at i is 1 + the symbol at find(find(..find(i))).
    """

    __slots__ = ()

    symbols: int
    hops: Any

    @property
    def values(self) -> int:
        """None, or a symbol."""
        return self.symbols + 1

    @property
    def columns(self) -> Columns:
        """Symbols."""
        return Columns(0, 1, self.symbols)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Uniform; of two symbols alone; every symbol followed by one of its own."""
        return ("random", "few", "periodic")

    @property
    def count(self) -> int:
        """How many inputs there are."""
        return self.symbols**self.length

    def exhaustive(self) -> Iterator[Stack]:
        """Every sequence of symbols."""
        rows = batch_rows(iter(list_tuples(self.symbols, self.length)))
        return (batch[..., None] for batch in rows)

    def _draw_tokens(self, size: int, kind: str, rng: np.random.Generator) -> Any:
        if kind == "random":
            return rng.integers(self.symbols, size=(size, self.length))
        names = rng.permuted(np.tile(np.arange(self.symbols), (size, 1)), axis=1)
        if kind == "few":
            chosen = rng.integers(2, size=(size, self.length))
            return np.take_along_axis(names, chosen, axis=1)
        period = rng.integers(2, self.symbols + 1, size=(size, 1))
        return np.take_along_axis(names, np.arange(self.length, dtype=np.int64) % period, axis=1)

    def _find_answers(self, tokens: Any) -> Any:
        # Position 0 stands for none, and finds itself.
        x = np.concatenate([np.full((len(tokens), 1), -1), tokens[..., 0]], axis=1)
        found = self._find_followers(x)
        place = np.broadcast_to(np.arange(x.shape[1], dtype=np.int64), x.shape)
        for _ in range(self.hops):
            place = np.take_along_axis(found, place, axis=1)
        return np.take_along_axis(x, place, axis=1)[:, 1:] + 1

    @staticmethod
    def _find_followers(x: Any) -> Any:
        """For every position the largest j up to it whose predecessor holds the same symbol."""
        positions = np.arange(x.shape[1], dtype=np.int64)
        same = x[:, :, None] == x[:, None, :-1]
        earlier = positions[:, None] >= positions[None, 1:]
        # The predecessor of position 1 is no token.
        real = positions[1:] >= 2
        return np.max(np.where(same & earlier & real, positions[1:], 0), axis=2, initial=0)


@dataclass(frozen=True, slots=True)
class InductionHeads(_Hopping):
    """The symbol behind the last earlier occurrence of a token's own, written as 1 + symbol.

    Args:
        length: tokens of an input.
        symbols: different symbols.
    """

    name: ClassVar[str] = "induction-heads"

    length: int
    symbols: int = 4

    def __post_init__(self) -> None:
        check_sizes(self, length=1, symbols=2)

    @property
    def hops(self) -> int:
        """One."""
        return 1


@dataclass(frozen=True, slots=True)
class KHop(_Hopping):
    """The symbol that k steps of looking back lead to, written as 1 + symbol; 0 where none does.

    Args:
        length: tokens of an input.
        symbols: different symbols.
        hops: k.
    """

    name: ClassVar[str] = "k-hop"

    length: int
    symbols: int = 4
    hops: int = 2

    def __post_init__(self) -> None:
        check_sizes(self, length=1, symbols=2, hops=1)
