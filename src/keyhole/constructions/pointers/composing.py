r"""Index look-up by one layer, composition of functions by two: each follows one pointer.

The token that asks for x fetches the token at position x, which holds g(x), and with it the token
at n + g(x), which holds f(g(x)). One head, key width 2 at high precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Sequences, Stack
from keyhole.constructions.matching.windows import sharpen_own_position
from keyhole.constructions.pointers.pointed_rows import (
    FETCHED,
    FetchedBits,
    FetchingRecipe,
    Pointing,
    build_pointing_layer,
    judge_fetching,
    lay_out_pointed_rows,
    recover_levels,
    write_pointed_rows,
)
from keyhole.constructions.shared.certifying import Draft
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import Task
from keyhole.tasks.base import round_to_whole


def _list_places(X: Sequences) -> Any:
    """Angles of the tokens of a batch."""
    return np.broadcast_to(np.arange(1, X.shape[1] + 1, dtype=np.int64), X.shape[:2])


@dataclass(frozen=True, eq=False, slots=True)
class IndexPointers(Pointing):
    """Tokens (symbol, index) that point to their index and are known by their symbol.

    Args:
        positions: of the circle.
        harmonics: of the codes.
        levels: symbols are divided by this.
    """

    positions: int
    harmonics: int
    levels: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "index-pointers"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"positions": self.positions, "harmonics": self.harmonics, "levels": self.levels}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        pointers = np.clip(round_to_whole(X[..., 1]) + 1, 0, self.positions - 1)
        return write_pointed_rows(
            self.positions,
            self.harmonics,
            _list_places(X),
            pointers,
            X[..., :1] / self.levels,
            self.levels,
        )


@dataclass(frozen=True, eq=False, slots=True)
class ValuePointers(Pointing):
    """Rows that point to a position by a value: their own at first, then the one they fetched.

    Args:
        symbols: n, the size of the domain.
        harmonics: of the codes.
        fetched: 0 where tokens come as they are and point into the first table; 1 where they come
            with what they fetched and point into the second.
    """

    symbols: int
    harmonics: int
    fetched: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "value-pointers"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"symbols": self.symbols, "harmonics": self.harmonics, "fetched": self.fetched}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        levels = positions = 2 * self.symbols + 2
        if self.fetched:
            own, value, pointer = (recover_levels(X[..., k], levels) for k in (-3, -2, -1))
            pointer = pointer + self.symbols
        else:
            own = _list_places(X)
            value = pointer = round_to_whole(X[..., 0])
        pointer = np.clip(pointer + 1, 0, positions - 1)
        state = value[..., None] / levels
        return write_pointed_rows(positions, self.harmonics, own, pointer, state, levels)


@dataclass(frozen=True, slots=True)
class LookUp(FetchingRecipe):
    """Index look-up by one layer of one head."""

    @property
    def name(self) -> str:
        """What people call it."""
        return "look-up"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "BHBK24/index-lookup"

    def embed(self, task: Task, accuracy: float) -> int:
        """The key width with one harmonic."""
        return 2

    def work(self, task: Task) -> float:
        """Products of numbers that one sequence costs, about."""
        return 6.0 * task.length**2

    def count_levels(self, task: Any) -> int:
        """Symbols."""
        return task.symbols

    def count_state(self, task: Task) -> int:
        """A symbol."""
        return 1

    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """Attention to the position that a token names; nothing else need be kept."""
        n = task.length
        sharp = sharpen_own_position(n, task.symbols, form, embed)
        harmonics = len(sharp.weights)
        whole = build_pointing_layer(sharp, 1)
        rows = lay_out_pointed_rows(harmonics, 1)
        V = Weights.zeros(rows, Layout.of(symbol=1)).place("state", "symbol", 1.0).array
        layer = SelfAttention(whole.Q, whole.K, V[None])
        block = Block(IndexPointers(n + 1, harmonics, task.symbols), layer)
        model = Transformer((block,), FetchedBits(task.symbols, task.symbols))
        seen = judge_fetching(sharp, task.symbols, n + 1, form)
        bounds = ((FETCHED, seen.off),)
        return Draft(model, 2 * harmonics, 1, 1, sharp.margin, seen.assumptions, bounds)


@dataclass(frozen=True, slots=True)
class TwoLookUps(FetchingRecipe):
    """Composition by two layers of one head."""

    @property
    def name(self) -> str:
        """What people call it."""
        return "two-look-ups"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "keyhole/two-look-ups"

    def embed(self, task: Task, accuracy: float) -> int:
        """The key width with one harmonic."""
        return 2

    def work(self, task: Task) -> float:
        """Products of numbers that one sequence costs, about."""
        return 24.0 * task.length**2

    def count_levels(self, task: Task) -> int:
        """Positions: symbols are fewer."""
        return task.length + 1

    def count_state(self, task: Task) -> int:
        """An element of the domain."""
        return 1

    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """The same layer twice, behind two maps."""
        n = task.length
        levels = self.count_levels(task)
        sharp = sharpen_own_position(n, levels, form, embed)
        harmonics = len(sharp.weights)
        layer = build_pointing_layer(sharp, 1)
        blocks = tuple(
            Block(ValuePointers(task.symbols, harmonics, fetched), layer, residual=True)
            for fetched in (0, 1)
        )
        seen = judge_fetching(sharp, levels, n + 1, form)
        return Draft(
            Transformer(blocks, FetchedBits(levels, task.symbols)),
            2 * harmonics,
            layer.outputs,
            1,
            sharp.margin,
            seen.assumptions,
            ((FETCHED, seen.off),),
        )
