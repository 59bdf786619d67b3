r"""Set disjointness inside tasks: inputs whose answer says whether two sets meet.

Alice holds a, Bob holds b, both in $\{0, 1\}^n$; whatever they say to each other, deciding whether
$a_i b_i = 1$ for some i takes n bits. A reduction writes a into tokens of Alice's and b into tokens
of Bob's, so that one answer of the task decides it. A model of the task, run by two people who own
the tokens, is then a way to talk, and what it sends cannot be less than n bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from keyhole._arrays import Array, Bool, Float, Int, Sequences
from keyhole.errors import InvalidInput
from keyhole.tasks import (
    EdgeWalks,
    FourCycles,
    Match3,
    Match3Bigram,
    Match3Local,
    Match4,
    SparseAverage,
    Task,
    find_kind,
)
from keyhole.tasks.base import Labels

Bits = Int[np.ndarray, "batch n"]
Met = Bool[np.ndarray, "batch"]
Grid = Float[Array, "batch length columns"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A task that decides disjointness of sets of `size` elements.

    Args:
        task: the task.
        size: n, how many bits either party holds.
        alice: the positions that depend on Alice's bits.
        bob: the positions that depend on Bob's bits; all others are public.
        rows: the rows whose answer decides; one of them says "the sets meet" if any does.
        level: answers above this, in their first number, say so.
        write: Alice's and Bob's bits as inputs.
    """

    task: Task
    size: int
    alice: tuple[int, ...]
    bob: tuple[int, ...]
    rows: tuple[int, ...]
    level: float
    write: Callable[[Any, Any], Array]

    def inputs(self, a: Bits, b: Bits) -> Sequences:
        """The inputs that stand for these sets."""
        if a.shape != b.shape or a.ndim != 2 or a.shape[1] != self.size:
            raise InvalidInput(
                f"both sets are rows of {self.size} bits, as many rows; got {a.shape} and"
                f" {b.shape}."
            )
        return self.write(a, b)

    def meets(self, Y: Labels) -> Met:
        """What answers say: whether the sets meet."""
        return np.asarray((Y[:, list(self.rows), 0] > self.level).any(axis=1))


# Every size that is looked at asks for it again.
@lru_cache(maxsize=16)
def reduction(task: Task) -> Reduction | None:
    """How a task decides disjointness; None where nothing is known, or it is too small."""
    reduce_task = find_kind(task).load("reduction")
    return None if reduce_task is None else reduce_task(task)


# Slots (i, 0) and (i, 1) stand at positions 2i and 2i + 1, and position 2q asks. Alice's token
# names slot (i, a_i) for every i. Bob's vectors are -e_1 but in slots (i, 1) with b_i = 1, where
# they are +e_1. Alice's mean is -e_1 where the sets do not meet, and at least (-1 + 2/q) e_1 where
# they do; the level lies half way.
def reduce_averages(task: SparseAverage) -> Reduction | None:
    """A token asks for one slot of every pair, and its mean tells whether any is both's."""
    q = task.q
    ask = 2 * task.q
    if task.length < ask + 1:
        return None

    def write(a: Any, b: Any) -> Array:
        z = np.zeros((len(a), task.length, task.dimension))
        z[:, :ask, 0] = -1.0
        z[:, 1:ask:2, 0] = 2.0 * b - 1.0
        y = np.broadcast_to(np.arange(q), (len(a), task.length, q)).copy()
        y[:, ask] = 2 * np.arange(q) + a
        return task.tokens(z, y)

    return Reduction(task, q, (ask,), tuple(range(ask)), (ask,), -1.0 + 1.0 / q, write)


# Token 0 is 1 and public, and so is whatever a party does not need: 1 is neutral. Alice's token i
# is v_i where a_i = 1, Bob's M - 1 - v_i where b_i = 1, with v = 0, 2, 3, .., n. A sum 1 + x + x'
# is 0 modulo M only for x = v_i and x' = M - 1 - v_i: with neutral ones it is 3, v + 2 or 1 - v,
# where v is neither 1 nor as large as M - 2; two of Alice's give at most 2n + 1 < M, two of Bob's
# 2M - 1 - v - v' with v + v' <= 2n < M - 1. So M >= 2n + 2 is enough.
def _reduce_matching(
    task: Any, size: int, alice: list[int], bob: list[int], row: int
) -> Reduction | None:
    size = min(size, (task.modulus - 2) // 2)
    v = np.where(np.arange(size) == 0, 0, np.arange(size) + 1)
    return _reduce_pairs(task, v, task.modulus - 1 - v, alice[:size], bob[:size], row)


def _reduce_pairs(
    task: Any, mine: Any, yours: Any, alice: list[int], bob: list[int], row: int
) -> Reduction | None:
    """Alice's and Bob's values at their positions where their bits are 1, and 1 everywhere else."""
    if len(mine) < 1:
        return None

    def write(a: Any, b: Any) -> Array:
        x = np.ones((len(a), task.length))
        x[:, alice] = np.where(a == 1, mine, 1)
        x[:, bob] = np.where(b == 1, yours, 1)
        return x[..., None]

    return Reduction(task, len(mine), tuple(alice), tuple(bob), (row,), 0.5, write)


def reduce_triples(task: Match3) -> Reduction | None:
    """The first token matches with one of Alice's and one of Bob's."""
    size = (task.length - 1) // 2
    return _reduce_matching(
        task, size, list(range(1, size + 1)), list(range(size + 1, 2 * size + 1)), 0
    )


def reduce_windows(task: Match3Local) -> Reduction | None:
    """The same inside the window of one token."""
    centre = min(task.radius, (task.length - 1) // 2)
    inside = [
        j
        for j in range(max(0, centre - task.radius), min(task.length, centre + task.radius + 1))
        if j != centre
    ]
    size = len(inside) // 2
    return _reduce_matching(task, size, inside[:size], inside[size : 2 * size], centre)


# Neighbours are one of Alice's and one of Bob's, in turn. With v_i alternating between 0 and 2,
# Bob's token i and Alice's i + 1 sum with 1 to v_{i+1} - v_i = +-2, the others as above to 2, 3, 4
# or +-1: none is 0 for M >= 5.
def reduce_bigrams(task: Match3Bigram) -> Reduction | None:
    """The first token matches with two neighbours, one of either party."""
    size = (task.length - 1) // 2 if task.modulus >= 5 else 0
    v = 2 * (np.arange(size) % 2)
    return _reduce_pairs(
        task,
        v,
        task.modulus - 1 - v,
        list(range(1, 2 * size, 2)),
        list(range(2, 2 * size + 1, 2)),
        0,
    )


# One partner may be a neutral 1, so that v_i and M - 2 - v_i match. All v even, at most 2n - 2:
# sums of four with one, or two, on Bob's side are odd where they could be 0, and all others stay
# inside (0, M) for M >= 6n.
def reduce_quadruples(task: Match4) -> Reduction | None:
    """The first token matches with a neutral one and one of either party."""
    size = min((task.length - 1) // 2, task.modulus // 6)
    v = 2 * np.arange(size)
    return _reduce_pairs(
        task,
        v,
        task.modulus - 2 - v,
        list(range(1, size + 1)),
        list(range(size + 1, 2 * size + 1)),
        0,
    )


# The public edge is 0 -> 1; Alice's edges lead 1 -> i. Bob's lead i -> 0 where a walk has three
# edges; where it has s, they lead i -> 2, and public ones 2 -> 3, .., s - 2 -> 0. An edge nobody
# needs is 0 -> 1 again. Every edge leads from one of s levels to the next (i are one level), so a
# walk of s edges through 0 -> 1 goes round once, over a node i that both of them have.
def reduce_walks(task: EdgeWalks) -> Reduction | None:
    """The first edge is closed by one of Alice's, one of Bob's and public ones."""
    public = task.sides - 3
    size = min((task.length - 1 - public) // 2, task.nodes - 2 - public)
    if size < 1:
        return None
    node = np.arange(size) + 2 + public
    # Where Bob's edges lead, and the public ones from there on.
    tails = np.arange(public) + 2
    heads = np.append(tails[1:], 0)[:public]
    end = 2 if public else 0
    own = slice(1, size + 1)
    yours = slice(size + 1, 2 * size + 1)

    def write(a: Any, b: Any) -> Array:
        edges = np.zeros((len(a), task.length, 2))
        edges[..., 1] = 1.0
        edges[:, own, 0] = a
        edges[:, own, 1] = np.where(a == 1, node, 1)
        edges[:, yours, 0] = np.where(b == 1, node, 0)
        edges[:, yours, 1] = np.where(b == 1, end, 1)
        edges[:, 2 * size + 1 : 2 * size + 1 + public] = np.stack([tails, heads], axis=1)
        return edges

    alice = tuple(range(1, size + 1))
    bob = tuple(range(size + 1, 2 * size + 1))
    return Reduction(task, size, alice, bob, (0,), 0.5, write)


# Nodes fall into groups A, B, C, D of k. A_i -> B_j iff a_ij, B_j -> C_j, C_j -> D_i iff b_ij, D_i
# -> A_i. Every edge leads from a group to the next, so a cycle of four is A_i, B_j, C_j, D_i, and
# is there iff a_ij = b_ij = 1.
def reduce_four_cycles(task: FourCycles) -> Reduction | None:
    """A cycle takes one edge of Alice's and one of Bob's."""
    k = task.nodes // 4
    if k < 1:
        return None
    A, B, C, D = (np.arange(k) + k * group for group in range(4))

    def write(a: Any, b: Any) -> Array:
        edges = np.zeros((len(a), task.nodes, task.nodes))
        edges[:, :k, k : 2 * k] = a.reshape(-1, k, k)
        edges[:, 2 * k : 3 * k, 3 * k : 4 * k] = b.reshape(-1, k, k).swapaxes(1, 2)
        edges[:, B, C] = 1.0
        edges[:, D, A] = 1.0
        return task.tokens(edges)

    return Reduction(
        task, k * k, tuple(range(2 * k)), tuple(range(2 * k, 4 * k)), tuple(range(k)), 0.5, write
    )


# Node 0 leads to all of Alice's nodes, her node j to Bob's node j iff a_j, his node j to the last
# iff b_j, and the last back to 0: a cycle of four through 0 goes over some j with a_j = b_j = 1.
def reduce_cycles_of_one_node(task: FourCycles) -> Reduction | None:
    """The first node is on a cycle over one of Alice's nodes and one of Bob's."""
    size = (task.nodes - 2) // 2
    if size < 1:
        return None
    alice = np.arange(size) + 1
    bob = alice + size

    def write(a: Any, b: Any) -> Array:
        edges = np.zeros((len(a), task.nodes, task.nodes))
        edges[:, 0, alice] = 1.0
        edges[:, alice, bob] = a
        edges[:, bob, -1] = b
        edges[:, -1, 0] = 1.0
        return task.tokens(edges)

    return Reduction(task, size, tuple(map(int, alice)), tuple(map(int, bob)), (0,), 0.5, write)


def list_every_pair(size: int) -> tuple[Bits, Bits]:
    """All pairs of sets of so many bits: 4^size rows."""
    rows = np.array(list(product((0, 1), repeat=size)), dtype=np.int64)
    return np.repeat(rows, len(rows), axis=0), np.tile(rows, (len(rows), 1))


def draw_random_pairs(size: int, count: int, *, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Pairs of sets half of which meet, in one element: the hard ones."""
    a, b = rng.integers(2, size=(2, count, size))
    b = b * (1 - a)
    met = np.flatnonzero(np.arange(count) % 2)
    where = rng.integers(size, size=len(met))
    a[met, where] = b[met, where] = 1
    return a, b
