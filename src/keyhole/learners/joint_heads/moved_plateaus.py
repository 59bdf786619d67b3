r"""Read-outs of all heads from plateaus at moved x.

On one plateau x may move without a head changing its mind: $P_i(x_0 + \delta z) - P_i(x_0) = \delta
\sum_{h\ \mathrm{on}} V_h^\top z$, and neighbouring plateaus differ by $s_h V_h^\top z$. Not every
plateau is asked. With $s_0 = -1$ and $s_{H+1} = 1$ two relations hold at every x:
$$\sum_i (s_i - s_{i+1}) P_i(x) = 0, \qquad P_0(x) + P_H(x) = x^\top B \text{ without a residual}.$$
The first follows from $P_0 + P_H = \sum_h s_h (P_h - P_{h-1})$, and fails beside a head with W = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, pin_one_thread
from keyhole.learners.joint_heads.hard_pairs import HardPairs, Unseparated, measure_grain
from keyhole.learners.joint_heads.moved_answers import MovedAnswers, Relations
from keyhole.learners.joint_heads.switching_heads import SIGN, Switches, solve_signs

_RANK = 1e-9  # of the largest singular value of a read-out: what is below is rounding
_FIRST = 3  # moves made at once
FEW = 5  # moves after which it pays to ask heads one by one
_SPARE = 1  # moves beyond the largest rank that show it
_SHARPER = 6  # ranks over the further moves that make spaces precise
_UNEVEN = 0.02  # smallest singular value kept, over the largest, below which more moves help
_ABOVE = 8.0  # of what rounding adds, from which on singular values of coarse rows count
_UNSURE = 2.0**15  # roundings of coarse answers by which a solved sign may be off
_COARSE_CONDITION = 100.0  # the next where answers are coarse
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


@runtime_checkable
class Moves(Protocol):
    """How read-outs of all heads change as x moves along orthonormal directions."""

    pairs: HardPairs
    switches: Switches
    directions: Matrix

    @property
    def routed(self) -> bool:
        """Whether single heads can be asked alone."""
        ...

    @property
    def count(self) -> int:
        """Moves made so far."""
        ...

    @property
    def changes(self) -> Stack:
        """V_h^T z up to sign: heads by moves by outputs."""
        ...

    @property
    def grain(self) -> float:
        """What rounding of coarse answers adds to a number of the changes; 0 beside float64."""
        ...

    def make(self, count: int) -> None:
        """Move x along so many more directions."""
        ...

    def measure_sum(self) -> Matrix:
        """The sum of all read-outs, from moves along all directions left."""
        ...

    def measure_alone(self, heads: list[int]) -> Stack:
        """Read-outs of some heads, from moves along all directions left."""
        ...

    def list_readouts(self) -> Stack:
        """Read-outs of all heads, once x has moved along all directions."""
        ...


class PlateauMoves:
    """Changes of plateaus per unit of move, along orthonormal directions."""

    def __init__(
        self, pairs: HardPairs, switches: Switches, relations: Relations, directions: Matrix
    ) -> None:
        self.pairs = pairs
        self.switches = switches
        self.relations = relations
        self.directions = directions
        self.slopes = np.zeros((switches.heads + 1, 0, switches.plateaus.shape[1]))
        self.shortest = np.inf

    @property
    def routed(self) -> bool:
        """Whether single heads can be asked alone: plateaus show several at once."""
        return False

    @property
    def count(self) -> int:
        """Moves made so far."""
        return self.slopes.shape[1]

    def make(self, count: int) -> None:
        """Move x along so many more directions."""
        Z = self.directions[self.count : self.count + count]
        moved = MovedAnswers(self.pairs, self.switches, self.relations.asked, Z, self.relations)
        self.shortest = min(self.shortest, moved.ask())
        self.slopes = np.concatenate([self.slopes, moved.complete(self.relations)], axis=1)

    @property
    def changes(self) -> Stack:
        """Changes of the steps: V_h^T z up to sign."""
        return np.diff(self.slopes, axis=0)

    @property
    def grain(self) -> float:
        """What rounding of coarse answers adds to a number of the changes; 0 beside float64."""
        return measure_grain(self.pairs.lone, self.switches.plateaus, self.shortest)

    def measure_sum(self) -> Matrix:
        """The sum of all read-outs, from both ends of the half circle: every head is on at one."""
        ends = [0, self.switches.heads]
        left = self.directions[self.count :]
        more = MovedAnswers(self.pairs, self.switches, ends, left)
        more.ask()
        slopes = np.concatenate([self.slopes[ends], more.slopes], axis=1)
        return self.directions.T @ slopes.sum(axis=0)

    def measure_alone(self, heads: list[int]) -> Stack:
        """Read-outs of single heads, which plateaus do not show.

        Raises:
            Unseparated: always.
        """
        raise Unseparated(f"No last tokens turn {len(heads)} heads away from all others.")

    def list_readouts(self) -> Stack:
        """Read-outs of all heads, then that of a head with W = 0 where there is one.

        Raises:
            Unseparated: signs that make the steps add up to both ends are not found.
        """
        slopes = np.einsum("kd,pko->pdo", self.directions, self.slopes)
        changes = np.diff(slopes, axis=0)
        ends = slopes[0] + slopes[-1]
        signs = self.switches.signs
        if signs is None:
            distance = self.pairs.lone.allow(SIGN, _UNSURE)
            signs = solve_signs(changes.reshape(len(changes), -1), ends.ravel(), distance)
        if signs is None:
            raise Unseparated("Two heads are mirror images, or a head with W = 0 acts.")
        V = signs[:, None, None] * changes
        if not self.switches.idle.any():
            return V
        return np.concatenate([V, (ends - V.sum(axis=0))[None]])


def measure_readouts(
    moves: PlateauMoves, route: Callable[[PlateauMoves], Moves], *, residual: bool, even: bool
) -> Readouts:
    r"""Read-outs of all heads, the residual, and the read-out of a head with W = 0.

    Args:
        moves: of x, none made yet.
        route: how to begin anew where more than a few are needed.
        residual: whether a residual acts.
        even: whether no score bias acts, so that $[x; 0]$ answers $c + \sum_h V_h^\top x/2$.
    """
    width = len(moves.directions)
    now: Moves = moves
    sharpened = False
    while now.count < width:
        spaces = _find_row_spaces(now)
        if spaces is not None and now.routed and not sharpened:
            sharpened = True
            # Spaces seen through few more moves than their ranks cost reads of scores a digit.
            now.make(min(width - now.count, max(map(len, spaces)) // _SHARPER))
            continue
        alone = None if spaces is None else _choose_alone(now, spaces)
        if spaces is not None and alone is not None:
            return _split_readouts(now, spaces, alone, residual=residual, even=even)
        if now is moves and (now.count >= FEW or _are_dependent(now)):
            now = route(moves)
        now.make(_count_next_moves(now))
    return _assemble_readouts(now, residual=residual)


def _are_dependent(moves: Moves) -> bool:
    """Whether the read-outs have more rows than there are outputs."""
    ranks = sum(_find_rank(rows, moves.grain) for rows in _list_known_rows(moves))
    return ranks > moves.changes.shape[2]


def _count_next_moves(moves: Moves) -> int:
    """How many moves to make next: all where single row spaces are of no use."""
    count = moves.count
    width = len(moves.switches.circle.x)
    useless = not moves.routed and _are_dependent(moves)
    if useless or moves.switches.signs is None or moves.switches.idle.any():
        return width - count
    if count == 0:
        return min(width, _FIRST)
    # As many as show the rank of heads that share all outputs evenly, no more at once.
    guess = moves.changes.shape[2] // len(moves.changes)
    few = max(1, count // 4)
    return min(width - count, min(few, guess - count) if count < guess else max(1, count // 16))


def _list_known_rows(moves: Moves) -> list[Matrix]:
    """For every head the vectors V_h^T x known so far, up to sign."""
    return [
        np.concatenate([jump[None], change])
        for jump, change in zip(moves.switches.jumps, moves.changes, strict=True)
    ]


def _find_rank(rows: Matrix, grain: float) -> int:
    with pin_one_thread():
        values: Vector = np.linalg.svd(rows, compute_uv=False).astype(np.float64)
    return _count_values(values, rows, grain)


def _count_values(values: Vector, rows: Matrix, grain: float) -> int:
    """How many singular values are more than rounding."""
    noise = _ABOVE * grain * float(np.sqrt(max(rows.shape)))
    return int((values > max(_RANK * values[0], noise)).sum())


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
        rank = _count_values(values, rows, moves.grain)
        spare = len(rows) - rank
        if (
            rank == 0
            or spare < _SPARE
            or (values[rank - 1] < _UNEVEN * values[0] and spare <= _SPARE)
        ):
            return None
        spaces.append(right[:rank])
    return spaces


def _choose_alone(moves: Moves, spaces: list[Matrix]) -> list[int] | None:
    """Heads to be read alone, so that the spaces of the others tell their read-outs apart.

    None where that saves nothing.
    """
    alone: list[int] = []
    most = _COARSE_CONDITION if moves.pairs.lone.coarse else _CONDITION
    while True:
        rest = [at for at in range(len(spaces)) if at not in alone]
        with pin_one_thread():
            left, values, _ = np.linalg.svd(np.concatenate([spaces[at] for at in rest]))
        few = left.shape[0] == len(values)
        if few and values[-1] * most >= values[0]:
            return alone
        if not moves.routed or len(rest) <= 2:
            return None
        # The head with most part in what depends on the others.
        ends = np.cumsum([len(spaces[at]) for at in rest])[:-1]
        parts = [float(np.linalg.norm(part)) for part in np.split(left[:, -1], ends)]
        alone.append(rest[int(np.argmax(parts))])


def _split_readouts(
    moves: Moves, spaces: list[Matrix], alone: list[int], *, residual: bool, even: bool
) -> Readouts:
    """Read-outs of low rank: the part of their sum in each row space, along all the others."""
    B = moves.pairs.lone.B
    whole = _measure_sum(moves, even=even) if residual else B
    V = np.zeros((len(spaces), *B.shape))
    if alone:
        V[alone] = moves.measure_alone(alone)
    rest = [at for at in range(len(spaces)) if at not in alone]
    kept = [spaces[at] for at in rest]
    with pin_one_thread():
        coordinates = (whole - V.sum(axis=0)) @ np.linalg.pinv(np.concatenate(kept))
    parts = np.split(coordinates, np.cumsum([len(space) for space in kept])[:-1], axis=1)
    V[rest] = [part @ space for part, space in zip(parts, kept, strict=True)]
    return Readouts(V, None, B - V.sum(axis=0) if residual else None)


def _measure_sum(moves: Moves, *, even: bool) -> Matrix:
    """The sum of all read-outs, apart from the residual."""
    pairs = moves.pairs
    Z = moves.directions
    if even:
        tokens = np.stack([pairs.length * Z, 0.0 * Z], axis=1)
        return 2.0 * Z.T @ (pairs.oracle.ask(tokens) - pairs.lone.c) / pairs.length
    return moves.measure_sum()


def _assemble_readouts(moves: Moves, *, residual: bool) -> Readouts:
    """Read-outs from moves along all directions."""
    V = moves.list_readouts()
    U = moves.pairs.lone.B - V.sum(axis=0) if residual else None
    heads = moves.switches.heads
    return Readouts(V[:heads], V[heads] if len(V) > heads else None, U)
