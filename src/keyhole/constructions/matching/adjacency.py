r"""Directed 4-cycles from gathered rows: one layer gives every node the whole adjacency matrix.

The first of two heads attends evenly to all nodes and adds up rows in slots, $n^2$ numbers; the
second carries the node's number. The map behind looks for a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Array, Sequences, Stack
from keyhole.claims import Check
from keyhole.constructions.matching.positions import encode_positions
from keyhole.constructions.matching.windows import (
    EVEN,
    GATHERED,
    GatheredRecipe,
    bound_gathered_error,
    build_gathering_layer,
    sharpen_own_position,
    state_position_assumptions,
)
from keyhole.constructions.shared.certifying import Draft
from keyhole.constructions.shared.rounding import bound_answer_rounding
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import Task
from keyhole.tasks.base import round_to_whole


@dataclass(frozen=True, eq=False, slots=True)
class RowSlots:
    """Rows of a matrix as codes of their number, the row in its slot, and the number's share.

    Args:
        nodes: rows, and numbers in each.
        harmonics: of the codes.
    """

    nodes: int
    harmonics: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "row-slots"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"nodes": self.nodes, "harmonics": self.harmonics}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """None."""
        return {}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        number = round_to_whole(X[..., -1])
        codes = encode_positions(np.arange(self.nodes), self.nodes + 1, self.harmonics)[number]
        slot = (number[..., None] == np.arange(self.nodes)).astype(np.float64)
        rows = (slot[..., None] * X[..., None, :-1]).reshape(*X.shape[:2], -1)
        return np.concatenate([codes, rows, X[..., -1:] / self.nodes], axis=-1)


@dataclass(frozen=True, eq=False, slots=True)
class CycleLabels:
    """Whether a node is on a 4-cycle of a gathered matrix.

    Args:
        nodes: of the graph.
    """

    nodes: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "cycle-labels"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"nodes": self.nodes}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """None."""
        return {}

    # Walks from a over b to c and from c over d back to a, without those in which b and d are one
    # node.
    def __call__(self, X: Sequences) -> Stack:
        """The labels."""
        n = self.nodes
        edges = (X[..., :-1].reshape(-1, n, n) > 1 / (2 * n)) & ~np.eye(n, dtype=bool)
        own = np.clip(round_to_whole(np.nan_to_num(X[..., -1]).ravel() * n), 0, n - 1)
        step = edges.astype(np.float64)
        both = (edges & edges.swapaxes(1, 2)).astype(np.float64)
        there = step @ step
        back = both @ both
        rows = np.arange(len(own))
        walks = there[rows, own] * there[rows, :, own] - back[rows, own]
        walks[rows, own] = 0.0
        return (walks > 0.5).any(axis=1).astype(np.float64).reshape(*X.shape[:2], 1)


@dataclass(frozen=True, slots=True)
class GatherRows(GatheredRecipe):
    """FourCycles by one layer that gathers the matrix: two ordinary heads, n^2 + 1 values."""

    @property
    def name(self) -> str:
        """What people call it."""
        return "four-cycles-gather"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "keyhole/gather"

    @property
    def quick_length(self) -> int:
        """Tokens up to which drafting takes a moment: weights have nodes to the power of four."""
        return 32

    def embed(self, task: Task, accuracy: float) -> int:
        """The key width with one harmonic."""
        return 2

    def work(self, task: Task) -> float:
        """Products of numbers that one sequence costs, about."""
        return 4.0 * task.length**4

    def ideal(self, task: Any, X: Stack) -> Stack:
        """The whole matrix over the number of nodes, then the node's number over it."""
        n = task.nodes
        matrix = np.broadcast_to(X[..., :-1].reshape(len(X), 1, -1) / n, (len(X), n, n * n))
        return np.concatenate([matrix, X[..., -1:] / n], axis=-1)

    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """Equal scores for the first head, the node itself for the second."""
        n = task.nodes
        itself = sharpen_own_position(n, n, form, embed)
        layer = build_gathering_layer(EVEN, itself, n * n)
        lost = 2 * bound_answer_rounding(form, n)
        model = Transformer((Block(RowSlots(n, len(itself.weights)), layer),), CycleLabels(n))
        off = n * max(lost, itself.leak + lost)
        assumptions = (
            *state_position_assumptions(form, EVEN, itself),
            Check("recovered numbers, off by", off, 0.25),
        )
        bounds = ((GATHERED, bound_gathered_error(itself, lost, alone=True)),)
        return Draft(
            model, 2 * len(itself.weights), n * n + 1, 2, itself.margin, assumptions, bounds
        )
