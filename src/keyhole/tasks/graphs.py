"""Graph tasks: whether an edge is on a closed walk, or a node on a directed cycle of four."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from keyhole._arrays import Array, Float, PerSequence, Sequences, Stack
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

Adjacency = Float[Array, "batch nodes nodes"]


class EdgeWalks(ABC):
    """Whether a closed walk of so many edges goes through an edge; tokens are (tail, head).

    A walk may use an edge again. A self-loop is an edge like any other: it closes a walk with
    itself, and it fills one up that would be too short.
    """

    __slots__ = ()
    name: ClassVar[str]
    nodes: int
    length: int

    @property
    @abstractmethod
    def sides(self) -> int:
        """Edges of a walk."""

    def __post_init__(self) -> None:
        check_sizes(self, nodes=1, length=0)
        if self.length == 0:
            object.__setattr__(self, "length", 2 * self.nodes)

    @property
    def width(self) -> int:
        """Tail and head."""
        return 2

    @property
    def outputs(self) -> int:
        """One label an edge."""
        return 1

    @property
    def columns(self) -> Columns:
        """Both numbers are names of nodes."""
        return Columns(0, 2, self.nodes)

    @property
    def accuracy(self) -> float:
        """A label is right or wrong."""
        return 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Uniform edges; a walk through the last edge; paths that do not close."""
        return ("random", "planted", "near-miss")

    @property
    def count(self) -> int:
        """How many inputs there are."""
        return self.nodes ** (2 * self.length)

    def exhaustive(self) -> Iterator[Stack]:
        """Every sequence of edges."""
        for batch in batch_rows(iter(list_tuples(self.nodes, 2 * self.length))):
            yield batch.reshape(len(batch), self.length, 2)

    def sample(self, size: int, *, rng: np.random.Generator, kind: str = "random") -> Sequences:
        """Inputs of one kind."""
        check_kind(self, kind)
        edges = rng.integers(self.nodes, size=(size, self.length, 2))
        # Fewer edges than a walk has cannot close one of different edges.
        if kind != "random" and self.length >= self.sides:
            last = self.sides - 2
            for step in range(last + 1):
                edges[:, step, 0] = edges[:, step - 1, 1]
            edges[:, last, 1] = edges[:, -1, 0]
            # A near miss: the walk ends beside where it began.
            if kind == "near-miss":
                beside = rng.integers(1, max(2, self.nodes), size=size)
                edges[:, last, 1] = (edges[:, last, 1] + beside) % self.nodes
        return edges.astype(np.float64)

    def target(self, X: Sequences) -> Labels:
        """The truth: one edge less leads from the head back to the tail."""
        check_inputs(self, X)
        tail, head = np.moveaxis(round_to_whole(X), -1, 0)
        follows = (head[:, :, None] == tail[:, None, :]).astype(np.float64)
        reached = follows
        # From edge to edge: whether there is a walk, not how many.
        for _ in range(self.sides - 1):
            reached = np.minimum(reached @ follows, 1.0)
        return np.diagonal(reached, axis1=1, axis2=2).copy()[..., None]

    def error(self, Y: Labels, X: Sequences) -> PerSequence:
        """The share of edges labelled wrongly, per sequence."""
        return measure_wrong_labels(self, Y, X)


@dataclass(frozen=True, slots=True)
class Triangles(EdgeWalks):
    """Whether a closed walk of three edges goes through an edge; tokens are (tail, head).

    Args:
        nodes: nodes of the graph.
        length: edges of an input; twice the nodes when 0.
    """

    name: ClassVar[str] = "triangles"

    nodes: int
    length: int = 0

    @property
    def sides(self) -> int:
        """Three."""
        return 3


@dataclass(frozen=True, slots=True)
class ClosedWalks(EdgeWalks):
    """Whether a closed walk of so many edges goes through an edge; four make a directed 4-cycle.

    Tokens are (tail, head), as of `Triangles`, which are the walks of three edges.

    Args:
        nodes: nodes of the graph.
        length: edges of an input; twice the nodes when 0.
        hops: edges of a walk.
    """

    name: ClassVar[str] = "closed-walks"

    nodes: int
    length: int = 0
    hops: int = 4

    def __post_init__(self) -> None:
        check_sizes(self, hops=3)
        EdgeWalks.__post_init__(self)

    @property
    def sides(self) -> int:
        """As many as it was made with."""
        return self.hops


@dataclass(frozen=True, slots=True)
class FourCycles:
    """Whether a node is on a directed 4-cycle; tokens are rows of a matrix with their number.

    A cycle has four different nodes.

    Args:
        nodes: nodes of the graph, one token each.
    """

    name: ClassVar[str] = "four-cycles"

    nodes: int

    def __post_init__(self) -> None:
        check_sizes(self, nodes=1)

    @property
    def length(self) -> int:
        """One token a node."""
        return self.nodes

    @property
    def width(self) -> int:
        """A row of the matrix and the node's number."""
        return self.nodes + 1

    @property
    def outputs(self) -> int:
        """One label a node."""
        return 1

    @property
    def columns(self) -> Columns:
        """The row as it is; only the last number is the name of a node."""
        return Columns(self.nodes, 1, self.nodes)

    @property
    def accuracy(self) -> float:
        """A label is right or wrong."""
        return 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Sparse random graphs; a cycle through the last node; a cycle with one edge missing."""
        return ("random", "planted", "near-miss")

    @property
    def count(self) -> int:
        """How many graphs there are."""
        return 2 ** (self.nodes**2)

    def tokens(self, edges: Adjacency) -> Sequences:
        """Adjacency matrices as inputs."""
        numbers = np.broadcast_to(
            np.arange(self.nodes, dtype=np.float64)[:, None], (len(edges), self.nodes, 1)
        )
        return np.concatenate([edges, numbers], axis=-1)

    def exhaustive(self) -> Iterator[Stack]:
        """Every graph."""
        for batch in batch_rows(iter(list_tuples(2, self.nodes**2))):
            yield self.tokens(batch.reshape(len(batch), self.nodes, self.nodes))

    def sample(self, size: int, *, rng: np.random.Generator, kind: str = "random") -> Sequences:
        """Inputs of one kind."""
        check_kind(self, kind)
        # A little more than one edge a node: long walks exist, and cycles are rare.
        share = 1.2 / max(2, self.nodes)
        edges = (rng.random((size, self.nodes, self.nodes)) < share).astype(np.float64)
        if kind != "random" and self.nodes >= 4:
            for graph in edges:
                cycle = [self.nodes - 1, *rng.choice(self.nodes - 1, 3, replace=False)]
                graph[cycle, np.roll(cycle, -1)] = 1.0
                if kind == "near-miss":
                    graph[cycle[-1], cycle[0]] = 0.0
        return self.tokens(edges)

    def target(self, X: Sequences) -> Labels:
        """The truth, over all triples of other nodes."""
        check_inputs(self, X)
        edges = X[..., : self.nodes] > 0.5
        return np.stack([self._cycles(graph) for graph in edges])[..., None].astype(np.float64)

    def _cycles(self, edges: np.ndarray) -> np.ndarray:
        """Whether each node a lies on a cycle a, b, c, d: some c is reached by b, and left by d."""
        off = edges & ~np.eye(self.nodes, dtype=bool)
        there = np.einsum("ab,bc->ac", off.astype(int), off.astype(int))
        # One node serves there and back.
        both = np.einsum("ab,bc,cb,ba->ac", *[off.astype(int)] * 4)
        # A walk over b and back over the same b is no cycle of four nodes.
        walks = there * there.T - both
        np.fill_diagonal(walks, 0)
        return (walks > 0).any(axis=1)

    def error(self, Y: Labels, X: Sequences) -> PerSequence:
        """The share of nodes labelled wrongly, per sequence."""
        return measure_wrong_labels(self, Y, X)
