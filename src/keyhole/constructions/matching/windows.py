r"""Labels from gathered tokens: attention copies them into slots, and a map behind decides.

One head attends evenly to the window of a token and adds up values in slots, so that every slot
holds one token; a second attends to the token itself. Numbers are recovered by rounding, and the
map behind tries all pairs.

- Match3Local of radius K: windows of q = 2K + 1 positions; position j uses slot j mod q. A slot
  holds the value x_j / M and a presence, both times the weight of j, and their ratio is rounded.
- Match3: all positions, one slot each: n + 1 values, two heads.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Array, Matrix, Sequences, Stack
from keyhole.claims import Check
from keyhole.constructions.matching.positions import (
    UNEVEN,
    Sharp,
    encode_positions,
    find_fewest_harmonics,
)
from keyhole.constructions.shared.base import Evaluate
from keyhole.constructions.shared.certifying import Distances, Draft, Recipe
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.shared.rounding import bound_answer_rounding
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import Task
from keyhole.tasks.base import round_to_whole

# Pairs tried at a time.
PAIRS = 2**22
GATHERED = "farthest gathered number"
# Equal scores for all positions.
EVEN = Sharp(np.zeros(1), 1.0, 0.0, 0.0)
# Attention may leak up to 1 / (SHARE M): a number has M levels, and rounding needs half of one.
SHARE = 32.0


@dataclass(frozen=True, eq=False, slots=True)
class ValueSlots:
    """Tokens as codes of their position, value and presence in a slot, and value once more.

    Args:
        modulus: M, by which values are divided.
        positions: of the circle the codes are taken from.
        harmonics: of the codes.
        slots: position j uses slot j modulo this.
        presence: 1 where presences are kept, else 0.
    """

    modulus: int
    positions: int
    harmonics: int
    slots: int
    presence: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "value-slots"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        names = ("modulus", "positions", "harmonics", "slots", "presence")
        return {name: getattr(self, name) for name in names}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """None."""
        return {}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        batch, length, _ = X.shape
        places = np.arange(length, dtype=np.int64)
        codes = np.broadcast_to(
            encode_positions(places, self.positions, self.harmonics),
            (batch, length, 2 * self.harmonics),
        )
        slot = mark_slots(length, self.slots)
        value = X[..., :1] / self.modulus
        held = [value * slot, *[np.broadcast_to(slot, (batch, *slot.shape))] * self.presence]
        return np.concatenate([codes, *held, self.carry(X)], axis=-1)

    def carry(self, X: Sequences) -> Stack:
        """What a token has beside its slot: its value once more."""
        return X[..., :1] / self.modulus


@dataclass(frozen=True, eq=False, slots=True)
class PairLabels:
    """Whether own number and two gathered ones sum to zero: all pairs are tried.

    Args:
        modulus: M.
        slots: gathered numbers.
        presence: 1 where presences tell which slots are filled; 0 where all are, evenly.
    """

    modulus: int
    slots: int
    presence: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "pair-labels"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"modulus": self.modulus, "slots": self.slots, "presence": self.presence}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """None."""
        return {}

    def __call__(self, X: Sequences) -> Stack:
        """The labels."""
        rows = np.nan_to_num(X.reshape(-1, X.shape[-1]))
        step = max(1, PAIRS // self.slots**2)
        labels = [
            self._label_rows(rows[start : start + step]) for start in range(0, len(rows), step)
        ]
        return np.concatenate(labels).reshape(*X.shape[:2], 1)

    def _label_rows(self, rows: Array) -> Array:
        ends = [self.slots, self.slots * (1 + self.presence)]
        value, presence, own = np.split(rows, ends, axis=1)
        present = np.ones(value.shape, dtype=bool)
        share = np.full(value.shape, 1 / self.slots)
        if self.presence:
            # A window has at most as many positions as slots; half an even share tells noise apart.
            present = presence > 1 / (2 * self.slots)
            share = np.where(present, presence, 1.0)
        # Clipped, so that a wrong share cannot overflow a whole number.
        number = round_to_whole(np.clip(value / share, -1.0, 2.0) * self.modulus)
        asked = round_to_whole(own * self.modulus)[:, :, None]
        sums = number[:, :, None] + number[:, None, :] + asked
        fits = (sums % self.modulus == 0) & present[:, :, None] & present[:, None, :]
        return fits.any(axis=(1, 2)).astype(np.float64)


def mark_slots(length: int, slots: int) -> Matrix:
    """Whether a position uses a slot, as 0 and 1."""
    used = np.arange(length, dtype=np.int64)[:, None] % slots
    return (used == np.arange(slots)).astype(np.float64)


def build_gathering_layer(window: Sharp, itself: Sharp, slots: int, own: int = 1) -> SelfAttention:
    """One head that adds up slots over a window, one that carries the token itself."""
    harmonics = max(len(window.weights), len(itself.weights))
    rows = Layout.of(code=2 * harmonics, slot=slots, own=own)
    keys = Layout.of(code=2 * harmonics)
    values = Layout.of(slot=slots, own=own)
    blocks = [build_diagonal(sharp.weights, harmonics) for sharp in (window, itself)]
    Q = [Weights.zeros(rows, keys).place("code", "code", block).array for block in blocks]
    # Harmonics without weight are left out of the keys too: they would only be rounded.
    used = [np.sign(np.abs(block)) for block in blocks]
    K = [Weights.zeros(rows, keys).place("code", "code", block).array for block in used]
    V = [Weights.zeros(rows, values).place(name, name, 1.0).array for name in ("slot", "own")]
    return SelfAttention(np.stack(Q), np.stack(K), np.stack(V))


def build_diagonal(weights: Array, harmonics: int) -> Array:
    """Weights of cosines and sines, those without one filled up with 0."""
    padded = np.concatenate([weights, np.zeros(harmonics - len(weights))])
    return np.diag(np.concatenate([padded, padded]))


# Within a window weights differ by factors up to e^{2 eta}, eta being the most that rounding moves
# a score, and what leaks from outside is at most `leak` times a weight inside. A window of one
# position has only the leak.
def bound_gathered_error(sharp: Sharp, lost: float, *, alone: bool = False) -> float:
    """How far a gathered number may be from the even average over the window."""
    uneven = 1.0 if alone else math.exp(min(2 * sharp.moved, 20.0))
    return uneven - 1.0 + 2 * sharp.leak * uneven + lost


def state_position_assumptions(form: NumberFormat, *windows: Sharp) -> tuple[Check, ...]:
    """What proofs about positions assume; the first window has several, the others one."""
    largest = max(float(np.abs(one.weights).sum()) for one in windows)
    return (
        Check("scores moved by rounding", windows[0].moved, UNEVEN),
        Check("largest score", largest, form.range[1]),
    )


class GatheredRecipe(Recipe):
    """What recipes that gather share: the distance of gathered numbers from even averages."""

    __slots__ = ()

    @abstractmethod
    def ideal(self, task: Task, X: Stack) -> Stack:
        """What the layer should give."""

    def distances(
        self, task: Task, model: Transformer, X: Stack, evaluate: Evaluate | None
    ) -> tuple[Stack, Distances]:
        """Answers, and the largest distance of a gathered number from the ideal."""
        rows = model.blocks[0](X, evaluate)
        labels = rows if model.out is None else model.out(rows)
        return labels, (float(np.abs(rows - self.ideal(task, X)).max()),)


@dataclass(frozen=True, slots=True)
class Windows(GatheredRecipe):
    """Match3Local by one layer of two heads: one on the window, one on the token itself."""

    @property
    def name(self) -> str:
        """What people call it."""
        return "local-windows"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "SHT23/local"

    def embed(self, task: Any, accuracy: float) -> int:
        """The key width with the fewest harmonics."""
        return 2 * max(1, min(task.radius + 1, (task.length + task.radius) // 2))

    def work(self, task: Any) -> float:
        """Products of numbers that one sequence costs, about."""
        return task.length**2 * self.embed(task, 0.0) + task.length * (2.0 * task.radius + 1) ** 2

    def ideal(self, task: Any, X: Stack) -> Stack:
        """Values and presences of the window over its size, then the token's own value."""
        places = np.arange(task.length, dtype=np.int64)
        q = 2 * task.radius + 1
        near = (np.abs(places[:, None] - places) <= task.radius).astype(np.float64)
        near /= near.sum(axis=1, keepdims=True)
        slot = mark_slots(task.length, q)
        value = X[..., :1] / task.modulus
        presence = np.broadcast_to(near @ slot, (len(X), task.length, q))
        return np.concatenate([near @ (value * slot), presence, value], axis=-1)

    # A slot holds (w x/M + l1) / (w + l2) with l1, l2 at most leak w. Floats round each of the two
    # by three units of rounding at most; fixed point by half a spacing, of numbers that are at
    # least 1 / 2q.
    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """Windows on a circle longer than the sequence by the radius: they do not wrap around."""
        n, K, M = task.length, task.radius, task.modulus
        q = 2 * K + 1
        most = None if embed is None else embed // 2
        share = 1 / (SHARE * M)
        window = find_fewest_harmonics(n + K, K, tokens=n, share=share, form=form, most=most)
        itself = find_fewest_harmonics(n + K, 0, tokens=n, share=share, form=form, most=most)
        layer = build_gathering_layer(window, itself, 2 * q)
        harmonics = layer.Q.shape[2] // 2
        lost = 2 * bound_answer_rounding(form, n)
        off = max(window.leak + 4 * q * lost, itself.leak + lost)
        block = Block(ValueSlots(M, n + K, harmonics, q, 1), layer)
        model = Transformer((block,), PairLabels(M, q, 1))
        assumptions = (
            *state_position_assumptions(form, window, itself),
            Check("recovered numbers, off by", M * off, 0.25),
        )
        own = bound_gathered_error(itself, lost, alone=True)
        bounds = ((GATHERED, max(bound_gathered_error(window, lost), own)),)
        return Draft(model, 2 * harmonics, 2 * q + 1, 2, window.margin, assumptions, bounds)


@dataclass(frozen=True, slots=True)
class GatherAll(GatheredRecipe):
    """Match3 by one layer that gathers every number: two ordinary heads, n + 1 values."""

    @property
    def name(self) -> str:
        """What people call it."""
        return "match3-gather"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "keyhole/gather"

    def embed(self, task: Task, accuracy: float) -> int:
        """The key width with one harmonic."""
        return 2

    def work(self, task: Task) -> float:
        """Products of numbers that one sequence costs, about."""
        return 2.0 * task.length**3

    def ideal(self, task: Any, X: Stack) -> Stack:
        """All values, each over their number, then the token's own."""
        value = X[..., 0] / task.modulus
        everyone = np.broadcast_to(value[:, None] / task.length, (len(X), task.length, task.length))
        return np.concatenate([everyone, value[..., None]], axis=-1)

    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """Equal scores for the first head, the token itself for the second."""
        n, M = task.length, task.modulus
        itself = sharpen_own_position(n, M, form, embed)
        layer = build_gathering_layer(EVEN, itself, n)
        lost = 2 * bound_answer_rounding(form, n)
        block = Block(ValueSlots(M, n + 1, len(itself.weights), n, 0), layer)
        model = Transformer((block,), PairLabels(M, n, 0))
        off = M * max(n * lost, itself.leak + lost)
        assumptions = (
            *state_position_assumptions(form, EVEN, itself),
            Check("recovered numbers, off by", off, 0.25),
        )
        bounds = ((GATHERED, bound_gathered_error(itself, lost, alone=True)),)
        embed = 2 * len(itself.weights)
        return Draft(model, embed, n + 1, 2, itself.margin, assumptions, bounds)


def sharpen_own_position(length: int, levels: int, form: NumberFormat, embed: int | None) -> Sharp:
    """Attention to the token itself, such that numbers of so many levels are recovered."""
    most = None if embed is None else embed // 2
    return find_fewest_harmonics(
        length + 1, 0, tokens=length + 1, share=1 / (SHARE * levels), form=form, most=most
    )
