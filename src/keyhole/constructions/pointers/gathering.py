r"""One layer that gathers the whole input: two heads, N + 1 values, and a map that knows the task.

The first head adds up all tokens in slots of their own, the second carries the token's position.
What one layer does with N + 1 values is not far from what it needs: see docs/lower-bounds.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Sequences, Stack
from keyhole.claims import Check
from keyhole.constructions.matching.positions import encode_positions
from keyhole.constructions.matching.windows import (
    EVEN,
    GATHERED,
    GatheredRecipe,
    bound_gathered_error,
    build_gathering_layer,
    mark_slots,
    sharpen_own_position,
    state_position_assumptions,
)
from keyhole.constructions.pointers.pointed_rows import Pointing
from keyhole.constructions.shared.certifying import Draft
from keyhole.constructions.shared.rounding import bound_answer_rounding
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import Task, sizes_of, task_named
from keyhole.tasks.base import round_to_whole


@dataclass(frozen=True, eq=False, slots=True)
class PlacedValues(Pointing):
    """Tokens as codes of their position, their value in a slot of its own, and their position.

    Args:
        levels: values and positions are divided by this.
        positions: of the circle.
        harmonics: of the codes.
    """

    levels: int
    positions: int
    harmonics: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "placed-values"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"levels": self.levels, "positions": self.positions, "harmonics": self.harmonics}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        length = X.shape[1]
        places = np.arange(length, dtype=np.int64)
        codes = encode_positions(places, self.positions, self.harmonics)
        own = places[:, None] / self.levels
        fixed = [np.broadcast_to(part, (len(X), *part.shape)) for part in (codes, own)]
        slots = X[..., :1] / self.levels * mark_slots(length, length)
        return np.concatenate([fixed[0], slots, fixed[1]], axis=-1)


@dataclass(frozen=True, eq=False, slots=True)
class WholeAnswers(Pointing):
    """The answer of a task at one position, from all of its tokens.

    Args:
        task: its name.
        length: tokens of an input.
        symbols: of the task.
        hops: of the task; 0 where it has none.
    """

    task: str
    length: int
    symbols: int
    hops: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "whole-answers"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its task and sizes."""
        names = ("task", "length", "symbols", "hops")
        return {name: getattr(self, name) for name in names}

    def _pose(self) -> Task:
        sizes = {"symbols": self.symbols}
        sizes |= {"length": self.length} if self.task != "composition" else {}
        sizes |= {"hops": self.hops} if self.hops else {}
        return task_named(self.task, **sizes)

    def __call__(self, X: Sequences) -> Stack:
        """The answers."""
        levels = max(self.length, self.symbols)
        rows = np.nan_to_num(X.reshape(-1, X.shape[-1]))
        values = round_to_whole(np.clip(rows[:, :-1] * self.length, 0.0, 1.0) * levels)
        own = np.clip(round_to_whole(rows[:, -1] * levels), 0, self.length - 1)
        tokens = np.minimum(values, self.symbols - 1)[..., None].astype(np.float64)
        answers = self._pose().target(tokens)
        return answers[np.arange(len(own)), own].reshape(*X.shape[:2], -1)


@dataclass(frozen=True, slots=True)
class GatherWhole(GatheredRecipe):
    """Tasks of one symbol a token by one layer that gathers it all: two heads, N + 1 values."""

    @property
    def name(self) -> str:
        """What people call it."""
        return "gather-whole"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "keyhole/gather"

    @property
    def quick_length(self) -> int:
        """Tokens up to which drafting takes a moment."""
        return 256

    def embed(self, task: Task, accuracy: float) -> int:
        """The key width with one harmonic."""
        return 2

    def work(self, task: Task) -> float:
        """Products of numbers that one sequence costs, about."""
        return 3.0 * task.length**3

    def ideal(self, task: Any, X: Stack) -> Stack:
        """All values, each over their number, then the position."""
        n = task.length
        levels = max(n, task.symbols)
        everyone = np.broadcast_to(X[:, None, :, 0] / (levels * n), (len(X), n, n))
        own = np.broadcast_to(np.arange(n, dtype=np.int64)[:, None] / levels, (len(X), n, 1))
        return np.concatenate([everyone, own], axis=-1)

    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """Equal scores for the first head, the token itself for the second."""
        n = task.length
        levels = max(n, task.symbols)
        itself = sharpen_own_position(n, levels, form, embed)
        harmonics = len(itself.weights)
        layer = build_gathering_layer(EVEN, itself, n)
        lost = 2 * bound_answer_rounding(form, n)
        hops = sizes_of(task).get("hops", 0)
        answers = WholeAnswers(task.name, n, task.symbols, hops)
        model = Transformer((Block(PlacedValues(levels, n + 1, harmonics), layer),), answers)
        off = levels * max(n * lost, itself.leak + lost)
        assumptions = (
            *state_position_assumptions(form, EVEN, itself),
            Check("recovered numbers, off by", off, 0.25),
        )
        bounds = ((GATHERED, bound_gathered_error(itself, lost, alone=True)),)
        return Draft(model, 2 * harmonics, n + 1, 2, itself.margin, assumptions, bounds)
