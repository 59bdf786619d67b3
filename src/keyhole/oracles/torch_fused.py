"""Queries, keys and values of an attention layer that torch models hold in one matrix.

GPT-2 and its kin stack all queries, then all keys, then all values; GPT-NeoX and Bloom stack them
head by head. Where keys are shared, groups of heads have one set of rows of keys and values each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Split:
    """Where queries, keys and values stand in one projection.

    Args:
        heads: number of heads.
        groups: number of sets of keys and values.
        size: numbers of one head.
        by_head: whether the three of a head stand side by side, instead of all heads of each.
    """

    heads: int
    groups: int
    size: int
    by_head: bool

    @property
    def rows(self) -> tuple[int, int]:
        """Sizes of queries and of keys, all heads together."""
        return self.heads * self.size, self.groups * self.size

    def take(self, joined: Any, which: int) -> Any:
        """Queries (0), keys (1) or values (2), from what the projection answers."""
        if self.by_head:
            return joined.unflatten(-1, (self.heads, 3, self.size))[..., which, :].flatten(-2)
        queries, keys = self.rows
        start = (0, queries, queries + keys)[which]
        return joined[..., start : start + (queries, keys, keys)[which]]


def find_split(rows: int, heads: int | None, groups: int | None, by_head: bool) -> Split | None:
    """How so many rows hold three projections; None where they cannot.

    Args:
        rows: of the projection.
        heads: number of heads, where it is known.
        groups: number of sets of keys and values, where a model says so.
        by_head: whether rows of this name go head by head.
    """
    if heads is None:
        return None
    shared = heads if groups is None else groups
    if heads % shared or rows % (heads + 2 * shared):
        return None
    # Of groups that stand side by side with their heads, as Falcon's do, nothing is read.
    if by_head and 1 < shared < heads:
        return None
    return Split(heads, shared, rows // (heads + 2 * shared), by_head and shared == heads)


def build_projections(part: Callable[[Any], Any], split: Split) -> tuple[Any, Any, Any]:
    """Queries, keys and values as three callables on tokens."""

    def projection(which: int) -> Callable[[Any], Any]:
        return lambda tokens: split.take(part(tokens), which)

    return projection(0), projection(1), projection(2)
