r"""Read-outs of all heads from plateaus at moved x.

On one plateau x may move without a head changing its mind: $P_i(x_0 + \delta z) - P_i(x_0) = \delta
\sum_{h\ \mathrm{on}} V_h^\top z$, and neighbouring plateaus differ by $s_h V_h^\top z$. Not every
plateau is asked. With $s_0 = -1$ and $s_{H+1} = 1$ two relations hold at every x:
$$\sum_i (s_i - s_{i+1}) P_i(x) = 0, \qquad P_0(x) + P_H(x) = x^\top B \text{ without a residual}.$$
The first follows from $P_0 + P_H = \sum_h s_h (P_h - P_{h-1})$, and fails beside a head with W = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, pin_one_thread
from keyhole.learners.joint_heads.hard_pairs import HardPairs, Unseparated
from keyhole.learners.joint_heads.moved_answers import MovedAnswers, Relations
from keyhole.learners.joint_heads.switching_heads import Switches, solve_signs

_RANK = 1e-9  # of the largest singular value of a read-out: what is below is rounding
_SPARE = 1  # moves beyond the largest rank that show it
_UNEVEN = 0.02  # smallest singular value kept, over the largest, below which more moves help
_CONDITION = 3e3  # of the row spaces side by side, at which they still tell read-outs apart


@dataclass(frozen=True, eq=False, slots=True)
class Readouts:
    """What every head writes.

    Args:
        V: read-outs of the heads that switch, heads by width by outputs.
        idle: read-out of a head with W = 0, or None.
        U: residual, or None.
    """

    V: Stack
    idle: Matrix | None
    U: Matrix | None


def find_relations(switches: Switches, *, residual: bool) -> Relations:
    """The relations that hold, and the narrowest plateaus they determine."""
    many = switches.heads + 1
    rows: list[Vector] = []
    lone: list[float] = []
    if switches.signs is not None and not switches.idle.any():
        signs = np.concatenate([[-1.0], switches.signs, [1.0]])
        rows.append(signs[:-1] - signs[1:])
        lone.append(0.0)
    if not residual:
        rows.append(np.eye(many)[0] + np.eye(many)[-1])
        lone.append(1.0)
    R = np.array(rows).reshape(-1, many)
    widths = switches.ends - switches.starts
    choices = [
        which
        for which in combinations(range(many), len(R))
        if abs(np.linalg.det(R[:, list(which)])) > 0.5
    ]
    saved = min(choices, key=lambda which: float(widths[list(which)].sum()))
    return Relations(R, np.array(lone), saved)


class Moves:
    """Changes of plateaus per unit of move, along orthonormal directions."""

    def __init__(
        self, pairs: HardPairs, switches: Switches, relations: Relations, rng: np.random.Generator
    ) -> None:
        self.pairs = pairs
        self.switches = switches
        self.relations = relations
        width = len(switches.circle.x)
        with pin_one_thread():
            self.directions = np.linalg.qr(rng.normal(size=(width, width)))[0].T
        self.slopes = np.zeros((switches.heads + 1, 0, switches.plateaus.shape[1]))

    @property
    def count(self) -> int:
        """Moves made so far."""
        return self.slopes.shape[1]

    def make(self, count: int) -> None:
        """Move x along so many more directions."""
        Z = self.directions[self.count : self.count + count]
        moved = MovedAnswers(self.pairs, self.switches, self.relations.asked, Z, self.relations)
        moved.ask()
        self.slopes = np.concatenate([self.slopes, moved.complete(self.relations)], axis=1)


def measure_readouts(
    pairs: HardPairs, switches: Switches, *, residual: bool, even: bool, rng: np.random.Generator
) -> Readouts:
    r"""Read-outs of all heads, the residual, and the read-out of a head with W = 0.

    Args:
        pairs: how to ask.
        switches: the plateaus.
        residual: whether a residual acts.
        even: whether no score bias acts, so that $[x; 0]$ answers $c + \sum_h V_h^\top x/2$.
        rng: source of the directions of the moves.
    """
    moves = Moves(pairs, switches, find_relations(switches, residual=residual), rng)
    width = len(switches.circle.x)
    while moves.count < width:
        spaces = _find_row_spaces(moves)
        if spaces is not None:
            return _split_readouts(moves, spaces, residual=residual, even=even)
        moves.make(_count_next_moves(moves))
    return _assemble_readouts(moves, residual=residual)


def _count_next_moves(moves: Moves) -> int:
    """How many moves to make next: all where row spaces cannot be independent."""
    count = moves.count
    width = len(moves.switches.circle.x)
    ranks = sum(_find_rank(rows) for rows in _list_known_rows(moves))
    if ranks > moves.slopes.shape[2] or moves.switches.signs is None or moves.switches.idle.any():
        return width - count
    return min(width - count, max(3 if count == 0 else 1, count // 4))


def _list_known_rows(moves: Moves) -> list[Matrix]:
    """For every head the vectors V_h^T x known so far, up to sign."""
    changes = np.diff(moves.slopes, axis=0)
    return [
        np.concatenate([jump[None], change])
        for jump, change in zip(moves.switches.jumps, changes, strict=True)
    ]


def _find_rank(rows: Matrix) -> int:
    with pin_one_thread():
        values = np.linalg.svd(rows, compute_uv=False)
    return int((values > _RANK * values[0]).sum())


def _find_row_spaces(moves: Moves) -> list[Matrix] | None:
    """Orthonormal rows of what each head writes into; None while more moves are needed.

    Read-outs are of low rank where moves stop showing new vectors.
    """
    if moves.switches.signs is None or moves.switches.idle.any():
        return None
    spaces: list[Matrix] = []
    for rows in _list_known_rows(moves):
        with pin_one_thread():
            _, values, right = np.linalg.svd(rows, full_matrices=False)
        rank = int((values > _RANK * values[0]).sum())
        spare = len(rows) - rank
        if spare < _SPARE or (values[rank - 1] < _UNEVEN * values[0] and spare < _SPARE + 2):
            return None
        spaces.append(right[:rank])
    together = np.concatenate(spaces)
    if len(together) > together.shape[1]:
        return None
    return spaces if np.linalg.cond(together) <= _CONDITION else None


def _split_readouts(moves: Moves, spaces: list[Matrix], *, residual: bool, even: bool) -> Readouts:
    """Read-outs of low rank: the part of their sum in each row space, along all the others."""
    B = moves.pairs.lone.B
    whole = _measure_sum(moves, even=even) if residual else B
    with pin_one_thread():
        coordinates = whole @ np.linalg.pinv(np.concatenate(spaces))
    parts = np.split(coordinates, np.cumsum([len(space) for space in spaces])[:-1], axis=1)
    V = np.stack([part @ space for part, space in zip(parts, spaces, strict=True)])
    return Readouts(V, None, B - V.sum(axis=0) if residual else None)


def _measure_sum(moves: Moves, *, even: bool) -> Matrix:
    """The sum of all read-outs, apart from the residual."""
    pairs = moves.pairs
    Z = moves.directions
    if even:
        tokens = np.stack([pairs.length * Z, 0.0 * Z], axis=1)
        return 2.0 * Z.T @ (pairs.oracle.ask(tokens) - pairs.lone.c) / pairs.length
    # With a score bias both ends of the half circle are asked: every head is on at one of them.
    ends = [0, moves.switches.heads]
    left = Z[moves.count :]
    more = MovedAnswers(pairs, moves.switches, ends, left)
    more.ask()
    slopes = np.concatenate([moves.slopes[ends], more.slopes], axis=1)
    return Z.T @ slopes.sum(axis=0)


def _assemble_readouts(moves: Moves, *, residual: bool) -> Readouts:
    """Read-outs from moves along all directions."""
    Z = moves.directions
    slopes = np.einsum("kd,pko->pdo", Z, moves.slopes)
    changes = np.diff(slopes, axis=0)
    ends = slopes[0] + slopes[-1]
    signs = moves.switches.signs
    if signs is None:
        signs = solve_signs(changes.reshape(len(changes), -1), ends.ravel())
    if signs is None:
        raise Unseparated("Two heads are mirror images, or a head with W = 0 acts.")
    V = signs[:, None, None] * changes
    idle = ends - V.sum(axis=0) if moves.switches.idle.any() else None
    rest = moves.pairs.lone.B - V.sum(axis=0)
    return Readouts(V, idle, (rest if idle is None else rest - idle) if residual else None)
