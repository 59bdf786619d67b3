r"""Match3Local by one head: the average place of a window tells whose window it is.

One head attends evenly to the window of a token and adds up values in slots, as in windows.py, and
beside them the places j / N. A window of radius K reaches from $\max(0, i - K)$ to $\min(N - 1, i +
K)$; the mean of its places rises with i, by a half at the ends and by 1 between, as long as no two
windows hold everybody, 2K < N. So the mean tells i, and slot i mod (2K + 1) the token's own number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Array, Sequences, Stack, Vector
from keyhole.claims import Check
from keyhole.constructions.matching.positions import Sharp, find_fewest_harmonics
from keyhole.constructions.matching.windows import (
    GATHERED,
    SHARE,
    GatheredRecipe,
    PairLabels,
    ValueSlots,
    bound_gathered_error,
    build_diagonal,
    mark_slots,
    state_position_assumptions,
)
from keyhole.constructions.shared.certifying import Draft
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.shared.rounding import bound_answer_rounding
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Block, Transformer

# Half steps are told apart from a quarter off; the rest is room.
OFF = 0.2
# Scores inside a window of radius K may be moved by this over K: places then average to 0.1.
EVEN = 0.045


@dataclass(frozen=True, eq=False, slots=True)
class PlacedSlots(ValueSlots):
    """Tokens as codes of their position, value and presence in a slot, and place j / N."""

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "placed-slots"

    def carry(self, X: Sequences) -> Stack:
        """The place of every token over their number."""
        places = np.arange(X.shape[1], dtype=np.float64)[:, None] / X.shape[1]
        return np.broadcast_to(places, (*X.shape[:2], 1))


@dataclass(frozen=True, eq=False, slots=True)
class WindowLabels:
    """Whether the owner of a window and two numbers in it sum to zero.

    Args:
        modulus: M.
        length: N.
        radius: K.
    """

    modulus: int
    length: int
    radius: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "window-labels"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"modulus": self.modulus, "length": self.length, "radius": self.radius}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """None."""
        return {}

    def __call__(self, X: Stack) -> Stack:
        """The labels."""
        slots = 2 * self.radius + 1
        middles = find_middles(self.length, self.radius)
        between = (middles[1:] + middles[:-1]) / 2
        owner = np.searchsorted(between, np.nan_to_num(X[..., -1]) * self.length)
        slot = (owner % slots)[..., None]
        value = np.take_along_axis(X[..., :slots], slot, axis=-1)
        presence = np.take_along_axis(X[..., slots : 2 * slots], slot, axis=-1)
        own = value / np.where(presence > 0, presence, 1.0)
        gathered = np.concatenate([X[..., :-1], np.clip(own, -1.0, 2.0)], axis=-1)
        return PairLabels(self.modulus, slots, 1)(gathered)


def find_middles(length: int, radius: int) -> Vector:
    """The mean place of every token's window."""
    places = np.arange(length, dtype=np.float64)
    return (np.maximum(places - radius, 0) + np.minimum(places + radius, length - 1)) / 2


# Within a window weights differ by factors up to e^{2 eta}, and places are at most K from their
# mean, from which they differ by 0 in sum; what leaks outside is at most N away.
def bound_middle_error(window: Sharp, length: int, radius: int, lost: float) -> float:
    """How far the mean place may be from that of an even window, in places."""
    uneven = math.expm1(min(2 * window.moved, 20.0))
    return radius * uneven + length * (2 * window.leak + lost)


@dataclass(frozen=True, slots=True)
class OneWindow(GatheredRecipe):
    """Match3Local by one layer of one head, where no two windows hold everybody."""

    @property
    def name(self) -> str:
        """What people call it."""
        return "local-window"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "SHT23/local"

    def suits(self, task: Any) -> bool:
        """Whether windows tell whose they are."""
        return GatheredRecipe.suits(self, task) and 2 * task.radius < task.length

    def embed(self, task: Any, accuracy: float) -> int:
        """The key width with the fewest harmonics."""
        return 2 * max(1, min(task.radius + 1, (task.length + task.radius) // 2))

    def work(self, task: Any) -> float:
        """Products of numbers that one sequence costs, about."""
        return task.length**2 * self.embed(task, 0.0) + task.length * (2.0 * task.radius + 1) ** 2

    def ideal(self, task: Any, X: Stack) -> Stack:
        """Values and presences of the window over its size, then the mean place over N."""
        places = np.arange(task.length, dtype=np.int64)
        near = (np.abs(places[:, None] - places) <= task.radius).astype(np.float64)
        near /= near.sum(axis=1, keepdims=True)
        slot = mark_slots(task.length, 2 * task.radius + 1)
        values = near @ (X[..., :1] / task.modulus * slot)
        middles = find_middles(task.length, task.radius)[:, None] / task.length
        fixed = np.concatenate([near @ slot, middles], axis=-1)
        return np.concatenate([values, np.broadcast_to(fixed, (len(X), *fixed.shape))], axis=-1)

    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """A window on a circle longer than the sequence by the radius: it does not wrap around."""
        n, K, M = task.length, task.radius, task.modulus
        q = 2 * K + 1
        most = None if embed is None else embed // 2
        share = 1 / (SHARE * max(M, n))
        window = find_fewest_harmonics(
            n + K, K, tokens=n, share=share, form=form, most=most, uneven=EVEN / K
        )
        lost = 2 * bound_answer_rounding(form, n)
        slots = PlacedSlots(M, n + K, len(window.weights), q, 1)
        model = Transformer(
            (Block(slots, build_window_layer(window, 2 * q)),), WindowLabels(M, n, K)
        )
        assumptions = (
            *state_position_assumptions(form, window),
            Check("recovered numbers, off by", M * (window.leak + 4 * q * lost), 0.25),
            Check("recovered places, off by", bound_middle_error(window, n, K, lost), OFF),
        )
        bounds = ((GATHERED, bound_gathered_error(window, lost)),)
        embed = 2 * len(window.weights)
        return Draft(model, embed, 2 * q + 1, 1, window.margin, assumptions, bounds)


def build_window_layer(window: Sharp, slots: int) -> SelfAttention:
    """One head that adds up slots and places over a window."""
    harmonics = len(window.weights)
    rows = Layout.of(code=2 * harmonics, slot=slots, place=1)
    keys = Layout.of(code=2 * harmonics)
    values = Layout.of(slot=slots, place=1)
    block = build_diagonal(window.weights, harmonics)
    Q = Weights.zeros(rows, keys).place("code", "code", block).array
    K = Weights.zeros(rows, keys).place("code", "code", np.sign(np.abs(block))).array
    V = Weights.zeros(rows, values).place("slot", "slot", 1.0).place("place", "place", 1.0).array
    return SelfAttention(Q[None], K[None], V[None])
