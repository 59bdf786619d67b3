r"""Read-outs of all heads from plateaus at moved x.

On one plateau x may move without a head changing its mind: $P_i(x_0 + \delta z) - P_i(x_0) = \delta
\sum_{h\ \mathrm{on}} V_h^\top z$, and neighbouring plateaus differ by $s_h V_h^\top z$. Not every
plateau is asked. With $s_0 = -1$ and $s_{H+1} = 1$ two relations hold at every x:
$$\sum_i (s_i - s_{i+1}) P_i(x) = 0, \qquad P_0(x) + P_H(x) = x^\top B \text{ without a residual}.$$
The first follows from $P_0 + P_H = \sum_h s_h (P_h - P_{h-1})$, and fails beside a head with W = 0.

An answer far from $P_i(x_0)$ was given by other heads: the switches move with x, and one of them
passed the last token. The opposite move drives that switch the other way.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from keyhole._arrays import Mask, Matrix, Stack, Vector, pin_one_thread
from keyhole.learners.joint_heads.hard_pairs import HardPairs, Unseparated
from keyhole.learners.joint_heads.switching_heads import Switches, solve_signs

_SHARE = 0.125  # of the width of a plateau: how far x moves, as rounding is divided by the move
_SHORTEST = 0.02  # such a move, of |x|
_LONGEST = 0.1
_SMALL = 0.005  # such a move where only the size of a change tells whether a head switched
_SHORTER = 8.0  # the next move where both directions flip a head
_TRIES = 8
_HELD = 0.5  # of a step, in a change
_FLIPPED = 0.3  # of the least step
_SLOPES = 50.0  # of the largest plateau, times the move
_RANK = 1e-9  # of the largest singular value of a read-out: what is below is rounding
_SPARE = 2  # moves beyond the largest rank that show it
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


@dataclass(frozen=True, eq=False, slots=True)
class Relations:
    """Linear relations between plateaus at every x, and the plateaus they save from being asked.

    Args:
        rows: coefficients, one row per relation.
        lone: the multiple of x B that each of them adds up to.
        saved: numbers of the plateaus that follow from the others.
    """

    rows: Matrix
    lone: Vector
    saved: tuple[int, ...]

    @classmethod
    def of(cls, switches: Switches, *, residual: bool) -> Relations:
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
        return cls(R, np.array(lone), saved)

    def complete(self, asked: Stack, lone: Matrix) -> Stack:
        """All plateaus by moves by outputs, from those that were asked and x B of every move."""
        many = self.rows.shape[1]
        kept = [at for at in range(many) if at not in self.saved]
        full = np.zeros((many, *asked.shape[1:]))
        full[kept] = asked
        if self.saved:
            wanted = self.lone[:, None, None] * lone
            known = np.einsum("rk,kmo->rmo", self.rows[:, kept], asked)
            solved = np.linalg.inv(self.rows[:, list(self.saved)])
            full[list(self.saved)] = np.einsum("sr,rmo->smo", solved, wanted - known)
        return full


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
        kept = [at for at in range(self.switches.heads + 1) if at not in self.relations.saved]
        # Few moves may be long: a head that they switch is asked again. Many had better not be.
        bold = len(Z) < len(self.directions) // 2
        asked = measure_slopes(self.pairs, self.switches, kept, Z, bold=bold)
        more = self.relations.complete(asked, Z @ self.pairs.lone.B)
        self.slopes = np.concatenate([self.slopes, more], axis=1)


def measure_slopes(
    pairs: HardPairs, switches: Switches, which: list[int], Z: Matrix, *, bold: bool = False
) -> Stack:
    """Changes of some plateaus per unit of move along the rows of Z: plateaus, moves, outputs.

    Raises:
        Unseparated: no move, however short, leaves all heads as they are.
    """
    count = len(Z)
    y, before, move = (
        np.repeat(part[which], count, axis=0)
        for part in (switches.last_tokens, switches.plateaus, _choose_moves(switches, bold=bold))
    )
    z = np.tile(Z, (len(which), 1))
    slopes = np.zeros_like(before)
    left = np.arange(len(z))
    for _ in range(_TRIES):
        changes = pairs.ask(switches.circle.x + move[left] * z[left], y[left]) - before[left]
        flipped = _find_flips(switches, changes, np.abs(move[left, 0]))
        done = left[~flipped]
        slopes[done] = changes[~flipped] / move[done]
        left = left[flipped]
        if len(left) == 0:
            return slopes.reshape(len(which), count, before.shape[1])
        move[left] = np.where(move[left] > 0, -move[left], -move[left] / _SHORTER)
    raise Unseparated("A head switches wherever x moves.")


def _choose_moves(switches: Switches, *, bold: bool) -> Matrix:
    """How far x moves on each plateau, as a column: far on a wide one, or where it may be bold."""
    widths = switches.ends - switches.starts
    # Where only the size of a change tells whether a head switched, all moves must be small.
    if switches.heads >= switches.plateaus.shape[1]:
        return np.full((len(widths), 1), _SMALL)
    shares = np.full_like(widths, _LONGEST) if bold else _SHARE * widths
    return np.clip(shares, _SHORTEST, _LONGEST)[:, None]


def _find_flips(switches: Switches, changes: Matrix, moves: Vector) -> Mask:
    """Which changes are those of a head that switched.

    With more outputs than heads a change shows how much of every step it holds: about the move
    where no head switched, and 1 for one that did. Otherwise only its size tells.
    """
    steps = switches.jumps
    if len(steps) < steps.shape[1]:
        with pin_one_thread():
            held = changes @ np.linalg.pinv(steps)
        return np.abs(held).max(axis=1) > _HELD
    least = float(np.abs(steps).max(axis=1).min())
    most = np.minimum(_FLIPPED * least, _SLOPES * moves * np.abs(switches.plateaus).max())
    return np.abs(changes).max(axis=1) > most


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
    moves = Moves(pairs, switches, Relations.of(switches, residual=residual), rng)
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
    return min(width - count, max(3 if count == 0 else 2, count // 4))


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
        if spare < _SPARE or (values[rank - 1] < _UNEVEN * values[0] and spare < 2 * _SPARE):
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
    more = measure_slopes(pairs, moves.switches, ends, left)
    slopes = np.concatenate([moves.slopes[ends], more], axis=1)
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
