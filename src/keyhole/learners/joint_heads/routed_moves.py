r"""Read-outs of all heads from last tokens at which one head is on and all others are off.

Once the steps at x are known, a soft answer tells $x^\top W_h y$ of every head, and a few of them
tell it for all y of a small space. There H linear equations choose a y with $x^\top W_h y = s_h$
for one head and $-s_g$ for the others, $s$ their usual sizes: each switch is then about as far away
as can be, and x moves a long way without a head changing its mind,
$$G(x + \delta z, y_h) - V_h^\top x = \delta\, V_h^\top z.$$
These are more precise than what plateaus show, on which x moves less and several heads answer. One
head less is asked where no residual acts, as all read-outs add up to what lone tokens answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Mask, Matrix, Stack, Vector, pin_one_thread
from keyhole.learners.joint_heads.hard_pairs import HardPairs, Unseparated, measure_grain
from keyhole.learners.joint_heads.soft_pairs import SoftPairs
from keyhole.learners.joint_heads.switching_heads import Switches

MANY = 4  # heads from which on routing saves answers in which one switched
WIDE = 48  # width from which on these are more than routing costs
_SPACE = 2.0  # dimensions of the space of y, over the heads
_SURE = 4.0  # standard deviations of a score difference that a move leaves to a switch
_LONGEST = 0.25  # a move, of |x|
_SHORTEST = 0.02  # a longest move below which nothing is gained
_WHOLE = 0.5  # of a step in a change, from which on that head counts as switched
_SOFT = 4.0  # a score difference that is read with all digits
_AIM = 2.0
_SHORTER = 3.0
_TRIES = 12


@dataclass(frozen=True, eq=False, slots=True)
class Routes:
    """Last tokens of length one at which chosen heads are on at x.

    Args:
        last: one for every head alone; the last one for all heads together.
        base: what they answer at x.
        moves: how far x may move.
    """

    last: Matrix
    base: Matrix
    moves: Vector


def find_routes(
    soft: SoftPairs,
    switches: Switches,
    lengths: tuple[float, float],
    still: Vector,
    rng: np.random.Generator,
) -> Routes | None:
    """Routes at the x of the half circle; None where there are few heads, or no such y.

    Args:
        soft: how to ask.
        switches: the steps at x, with their signs.
        lengths: a and b of a soft answer.
        still: a soft answer at y = 0 at the same b.
        rng: source of the space of y.
    """
    width = len(switches.circle.x)
    size = int(np.ceil(_SPACE * switches.heads))
    if switches.heads < MANY or width < max(WIDE, size) or switches.signs is None:
        return None
    with pin_one_thread():
        Y = np.linalg.qr(rng.normal(size=(width, size)))[0].T
    a, b = lengths
    shift = switches.read_logits(still)
    x = np.broadcast_to(switches.circle.x, Y.shape)
    logits = _read(soft, switches, x, a * Y, b)
    if np.abs(logits).max() > _SOFT:
        shorter = _AIM / float(np.abs(logits).max())
        logits, shift = _read(soft, switches, x, a * Y, shorter * b), shorter * shift
    if np.abs(logits).max() > _SOFT:
        return None
    return _plan_routes(switches, Y, logits - shift)


def _read(soft: SoftPairs, switches: Switches, x: Matrix, last: Matrix, b: float) -> Matrix:
    answers = soft.ask_pairs(x, last, np.full(len(x), b))
    return np.stack([switches.read_logits(answer) for answer in answers])


def _plan_routes(switches: Switches, Y: Matrix, logits: Matrix) -> Routes | None:
    """Coordinates along Y with equal margins, in units of the usual score of each head."""
    heads = switches.heads
    signs = switches.signs
    sizes = np.sqrt((logits**2).mean(axis=0))
    if signs is None or not sizes.min() > 0:
        return None
    wanted = np.concatenate([2.0 * np.eye(heads) - 1.0, np.ones((1, heads))])
    with pin_one_thread():
        inverse = np.asarray(np.linalg.pinv(logits / sizes), dtype=np.float64)
        along: Matrix = wanted @ inverse
    if np.abs(along @ (logits / sizes) - wanted).max() > 0.5:
        return None
    # The usual score of unit tokens is the unit, so 1 / |y| is the margin in its deviations.
    lengths = np.linalg.norm(along, axis=1)
    moves = np.minimum(_LONGEST, 1.0 / (_SURE * lengths))
    if moves.min() < _SHORTEST:
        return None
    own = signs[:, None] * switches.jumps
    base = np.concatenate([own, own.sum(axis=0)[None]])
    return Routes(along / lengths[:, None] @ Y, base, moves)


@dataclass(slots=True)
class RoutedMoves:
    """Changes of what every head answers per unit of move of x, along orthonormal directions.

    Args:
        pairs: how to ask.
        switches: the steps at x.
        routes: last tokens.
        residual: whether a residual acts.
        directions: of the moves, one per row.
        changes: heads by moves by outputs.
    """

    pairs: HardPairs
    switches: Switches
    routes: Routes
    residual: bool
    directions: Matrix
    changes: Stack = field(init=False)

    def __post_init__(self) -> None:
        heads, outputs = self.switches.jumps.shape
        self.changes = np.zeros((heads, 0, outputs))

    @property
    def routed(self) -> bool:
        """Whether single heads can be asked alone."""
        return True

    @property
    def count(self) -> int:
        """Moves made so far."""
        return self.changes.shape[1]

    @property
    def grain(self) -> float:
        """What rounding of coarse answers adds to a number of the changes; 0 beside float64."""
        return measure_grain(self.pairs.lone, self.routes.base, float(self.routes.moves.min()))

    def make(self, count: int) -> None:
        """Move x along so many more directions."""
        heads = self.switches.heads
        Z = self.directions[self.count : self.count + count]
        least = int(np.argmin(self.routes.moves[:heads]))
        asked = [at for at in range(heads) if self.residual or at != least]
        found = np.zeros((heads, len(Z), self.changes.shape[2]))
        found[asked] = self._measure(asked, Z)
        if not self.residual:
            found[least] = Z @ self.pairs.lone.B - found.sum(axis=0)
        self.changes = np.concatenate([self.changes, found], axis=1)

    def measure_alone(self, heads: list[int]) -> Stack:
        """Read-outs of some heads, from moves along all directions left."""
        left = self._measure(heads, self.directions[self.count :])
        changes = np.concatenate([self.changes[heads], left], axis=1)
        return np.einsum("kd,hko->hdo", self.directions, changes)

    def measure_sum(self) -> Matrix:
        """The sum of all read-outs, from all heads together along the directions left."""
        left = self._measure([self.switches.heads], self.directions[self.count :])[0]
        known = self.changes.sum(axis=0)
        return self.directions.T @ np.concatenate([known, left])

    def list_readouts(self) -> Stack:
        """Read-outs of all heads, once x has moved along all directions."""
        return np.einsum("kd,hko->hdo", self.directions, self.changes)

    def _measure(self, which: list[int], Z: Matrix) -> Stack:
        """Changes per unit of move, for some routes and all directions.

        Raises:
            Unseparated: a head switches wherever x moves.
        """
        move = np.repeat(self.routes.moves[which, None], len(Z), axis=1)
        slopes = np.zeros((len(which), len(Z), self.changes.shape[2]))
        open_ = np.ones(move.shape, dtype=bool)
        for _ in range(_TRIES):
            if not open_.any():
                return slopes
            open_ = self._take(which, Z, move, slopes, open_)
            # The opposite move drives a switch the other way; where both flip it, a shorter one.
            by = np.where(move < 0, _SHORTER, -1.0)
            move = np.where(open_, np.abs(move) / by, move)
        raise Unseparated("A head switches wherever x moves.")

    def _take(self, which: list[int], Z: Matrix, move: Matrix, slopes: Stack, open_: Mask) -> Mask:
        """Ask what is open; what stays so, as a head changed its mind."""
        at, along = np.nonzero(open_)
        routes = np.array(which, dtype=np.int64)[at]
        lengths = move[at, along]
        x = self.switches.circle.x + lengths[:, None] * Z[along]
        changes = self.pairs.ask(x, self.routes.last[routes]) - self.routes.base[routes]
        slopes[at, along] = changes / lengths[:, None]
        # A head that changed its mind adds or takes away its whole step.
        with pin_one_thread():
            held = np.abs(changes @ np.linalg.pinv(self.switches.jumps)).max(axis=1)
        left = np.zeros_like(open_)
        left[at, along] = held > _WHOLE
        return left
