r"""Answers on the plateaus of a half circle where x has moved.

On one plateau x may move without a head changing its mind: $P_i(x_0 + \delta z) - P_i(x_0) = \delta
\sum_{h\ \mathrm{on}} V_h^\top z$. The switches move with x, though, and where one of them passed
the last token the answer is $P_i + \sum_j f_j (P_{j+1} - P_j)$ at the moved x. With more outputs
than heads the change tells $f_j \in \{-1, 0, 1\}$, as it holds each step about $f_j$ times; then
moves may be long, and rounding, which is divided by them, does not grow. Elsewhere an answer that
is far from $P_i(x_0)$ is asked again: the opposite move drives that switch the other way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Mask, Matrix, Stack, Vector, pin_one_thread
from keyhole.learners.joint_heads.hard_pairs import HardPairs, Unseparated
from keyhole.learners.joint_heads.switching_heads import Switches

_SHARE = 0.125  # of the width of a plateau: how far x moves, as rounding is divided by the move
_SHORTEST = 0.02  # such a move, of |x|
_LONGEST = 0.1
_SMALL = 0.005  # such a move where only the size of a change tells whether a head switched
_SHORTER = 8.0  # the next move where both directions flip a head
_CLEARER = 3.0  # the same where changes tell which heads switched
_TRIES = 24
_UNCLEAR = 0.25  # of a step, by which a change may be off whole ones
_SPREAD = 0.4  # of the largest part of a step in a change that no head switched in
_FLIPPED = 0.3  # of the least step
_SLOPES = 50.0  # of the largest plateau, times the move
_MIXED = 30.0  # condition at which answers that heads switched in still tell all plateaus


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

    @property
    def asked(self) -> list[int]:
        """Numbers of the other plateaus."""
        return [at for at in range(self.rows.shape[1]) if at not in self.saved]


@dataclass(slots=True)
class MovedAnswers:
    """Some plateaus at x moved along some directions.

    Args:
        pairs: how to ask.
        switches: the plateaus.
        which: numbers of those that are asked.
        Z: orthonormal directions, one per row.
        relations: what determines the other plateaus; None where every answer has to be that of
            the very heads that are on at x.
        slopes: changes per unit of move, whole steps of heads that switched taken out.
        flips: what is on that was not (1) or the reverse (-1), per step.
    """

    pairs: HardPairs
    switches: Switches
    which: list[int]
    Z: Matrix
    relations: Relations | None = None
    slopes: Stack = field(init=False)
    flips: Stack = field(init=False)

    def __post_init__(self) -> None:
        heads, outputs = self.switches.jumps.shape
        self.slopes = np.zeros((len(self.which), len(self.Z), outputs))
        self.flips = np.zeros((len(self.which), len(self.Z), heads))

    @property
    def told(self) -> bool:
        """Whether answers that heads switched in are of use."""
        steps = self.switches.jumps
        return self.relations is not None and len(steps) < steps.shape[1]

    def ask(self) -> float:
        """Ask until every direction is told; the shortest move that was made.

        Raises:
            Unseparated: no move, however short, tells what the heads do.
        """
        # Few moves may be long: a head that they switch is asked again. Many had better not be.
        few = self.relations is not None and len(self.Z) < self.Z.shape[1] // 2
        lengths = _choose_moves(self.switches, few=few)
        move = np.tile(lengths[self.which, None], (1, len(self.Z)))
        open_ = np.ones(move.shape, dtype=bool)
        # One head leaves no plateau to be moved on.
        if not open_.any():
            return float(np.inf)
        for _ in range(_TRIES):
            unclear = ~self._take(open_, move)
            open_ = unclear | self._find_redundant()
            if not open_.any():
                return float(np.abs(move).min(initial=np.inf))
            # What is unclear gets clear with shorter moves, what is mixed or flipped the other way.
            shorter = (unclear & self.told) | (move < 0)
            by = _CLEARER if self.told else _SHORTER
            move[open_] = np.where(shorter, np.abs(move) / by, -move)[open_]
        raise Unseparated("A head switches wherever x moves.")

    def _take(self, open_: Mask, move: Matrix) -> Mask:
        """Ask what is open; whether each answer is understood."""
        at, along = np.nonzero(open_)
        rows = np.array(self.which, dtype=np.int64)[at]
        lengths = move[at, along]
        x = self.switches.circle.x + lengths[:, None] * self.Z[along]
        changes = self.pairs.ask(x, self.switches.last_tokens[rows])
        changes -= self.switches.plateaus[rows]
        flips, clear = _read_flips(self.switches, changes, np.abs(lengths))
        if self.relations is None:
            clear &= ~flips.any(axis=1)
        self.flips[at, along] = flips
        self.slopes[at, along] = (changes - flips @ self.switches.jumps) / lengths[:, None]
        told = np.ones_like(open_)
        told[at, along] = clear
        return told

    def _find_redundant(self) -> Mask:
        """Of every direction whose answers do not tell all plateaus, the one that says least new.

        Most often a head switched, so that one plateau was asked twice and another not at all.
        """
        flipped: Mask = np.asarray(self.flips.any(axis=2))
        if self.relations is None or not flipped.any():
            return flipped
        left, values, _ = np.linalg.svd(self._list_equations(self.relations))
        mixed = values[:, -1] * _MIXED < values[:, 0]
        weight = np.abs(left[:, : len(self.which), -1]).T * flipped
        least: Mask = weight == weight.max(axis=0)
        return least & flipped & mixed

    def _list_equations(self, relations: Relations) -> Stack:
        """Coefficients of the plateaus in answers and relations: directions by rows by plateaus."""
        many = self.switches.heads + 1
        own = np.eye(many)[np.array(self.which, dtype=np.int64)]
        turned = own[:, None] + self.flips @ np.diff(np.eye(many), axis=0)
        fixed = np.broadcast_to(relations.rows, (len(self.Z), *relations.rows.shape))
        return np.concatenate([turned.swapaxes(0, 1), fixed], axis=1)

    def complete(self, relations: Relations) -> Stack:
        """Changes of all plateaus per unit of move: plateaus, moves, outputs."""
        wanted = relations.lone[:, None] * (self.Z @ self.pairs.lone.B)[:, None]
        told = np.concatenate([self.slopes.swapaxes(0, 1), wanted], axis=1)
        solved: Stack = np.linalg.solve(self._list_equations(relations), told).astype(np.float64)
        return solved.swapaxes(0, 1)


def _choose_moves(switches: Switches, *, few: bool) -> Vector:
    """How far x moves on each plateau: far on a wide one, or where moves are few."""
    widths = switches.ends - switches.starts
    # Where only the size of a change tells whether a head switched, all moves must be small.
    if switches.heads >= switches.plateaus.shape[1]:
        return np.full_like(widths, _SMALL)
    shares = np.full_like(widths, _LONGEST) if few else _SHARE * widths
    clear = max(_SMALL, _UNCLEAR / float(_guess_parts(switches).max()))
    return np.minimum(np.clip(shares, _SHORTEST, _LONGEST), clear)


def _guess_parts(switches: Switches) -> Vector:
    """How much of every step is in a change that no head switched in, per unit of move.

    Such a change is about as large as a plateau, times the move.
    """
    with pin_one_thread():
        inverse = np.linalg.pinv(switches.jumps)
    largest = np.linalg.norm(switches.plateaus, axis=1).max()
    return _SPREAD * largest * np.linalg.norm(inverse, axis=0)


def _read_flips(switches: Switches, changes: Matrix, moves: Vector) -> tuple[Matrix, Mask]:
    """Heads that switched, as multiples of their steps, and whether that is clear.

    With more outputs than heads a change shows how much of every step it holds: about the move
    where no head switched. Otherwise only its size tells that some did.
    """
    steps = switches.jumps
    if len(steps) < steps.shape[1]:
        with pin_one_thread():
            held = changes @ np.linalg.pinv(steps)
        flips = np.round(held)
        doubtful = moves[:, None] * _guess_parts(switches) > _UNCLEAR
        off = np.where(doubtful, np.abs(held), np.abs(held - flips))
        return flips, (off.max(axis=1) < _UNCLEAR) & (np.abs(flips).max(axis=1) <= 1.0)
    least = float(np.abs(steps).max(axis=1).min())
    most = np.minimum(_FLIPPED * least, _SLOPES * moves * np.abs(switches.plateaus).max())
    return np.zeros((len(changes), len(steps))), np.abs(changes).max(axis=1) <= most
