r"""Where heads switch: one x, y on half a circle, and a softmax so hard that answers are steps.

On $y(\theta) = \cos\theta\, y_0 + \sin\theta\, y_1$ the logit of head h is $\tau (A_0 \cos\theta +
A_1 \sin\theta)$, which changes sign exactly once in $[0, \pi)$. For $\tau$ large G is a step
function whose steps are $\pm D_h \cdot x$, and $G(\theta + \pi) = B \cdot x - G(\theta)$ closes the
circle. Bisection brackets every step. In a narrow bracket a smaller $\tau$ makes the one step soft
while the others stay hard: two logits there give $(A_0, A_1)$, a third confirms them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Mask, Matrix, Vector
from keyhole.learners.several_heads.pairs import (
    Pairs,
    Unresolved,
    log_odds,
    logistic,
    round_to_powers,
)

_GRID = 8  # angles before bisection; steps of opposite size that share a cell cancel
_STEP = 2.0**12  # a step of so many roundings of the largest value is no accident
_FIRST = 2.0**-10  # width of brackets at first
_APART = 2.0**-8  # width of a bracket over the gap to the next
_EDGE = 3e-4  # shares nearer to 0 or 1 are too hard to read a logit from
_SPREAD = 0.3  # shares nearer to each other are too soft
_ROUNDS = 24  # of bisection: more halvings than any goal asks for at once
_TRIES = 4  # at steps that are not those of one head, each in narrower brackets


@dataclass(frozen=True, eq=False, slots=True)
class PairCircle:
    """Pairs with one x and y on half a circle.

    Args:
        pairs: queries.
        x: direction of the first token.
        Y: two orthonormal rows, y_0 and y_1.
        hard: product of lengths at which steps are sharp.
        narrowest: brackets are not bisected below this width.
        most: more steps than this are given up.
        straight: misfit of a third logit at which a step still counts as that of one head.
    """

    pairs: Pairs
    x: Vector
    Y: Matrix
    hard: float
    narrowest: float
    most: int
    straight: float = 1e-7

    def values(self, angles: Vector, tau: Vector | float) -> Matrix:
        """G at these angles."""
        return self.pairs.ask(
            np.broadcast_to(self.x, (len(angles), len(self.x))),
            locate_on_circle(angles) @ self.Y,
            tau,
        )


@dataclass(frozen=True, eq=False, slots=True)
class Brackets:
    """Intervals of angles in order, with the values at both ends and the width wanted."""

    lo: Vector
    hi: Vector
    L: Matrix
    R: Matrix
    goal: Vector

    def __getitem__(self, which: Mask) -> Brackets:
        return Brackets(
            self.lo[which], self.hi[which], self.L[which], self.R[which], self.goal[which]
        )

    @property
    def jumps(self) -> Matrix:
        """The steps, R - L."""
        return self.R - self.L

    @property
    def width(self) -> Vector:
        """How wide each is."""
        return self.hi - self.lo

    @property
    def gap(self) -> Vector:
        """Distance to the nearer neighbour, around the half circle."""
        after = np.append(self.lo[1:], self.lo[:1] + np.pi) - self.hi
        return np.minimum(after, np.roll(after, 1))


def locate_on_circle(angles: Vector) -> Matrix:
    """(cos, sin) rows."""
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def join_brackets(*parts: Brackets) -> Brackets:
    """All brackets, in order."""
    order = np.argsort(np.concatenate([part.lo for part in parts]))
    names = ("lo", "hi", "L", "R", "goal")
    return Brackets(
        *(np.concatenate([getattr(part, name) for part in parts])[order] for name in names)
    )


@dataclass(frozen=True, eq=False, slots=True)
class Steps:
    """Steps on a circle: their sizes, and their logits tau (A . (cos, sin)), which all rise."""

    J: Matrix
    A: Matrix

    @property
    def roots(self) -> Vector:
        """Angles in [0, pi) at which logits vanish."""
        return np.arctan2(-self.A[:, 0], self.A[:, 1]) % np.pi


def find_steps(circle: PairCircle, soft: float) -> Steps:
    """All steps on the circle, isolated, with their logits.

    Raises:
        Unresolved: steps could not be told apart, or one of them is not that of a single head.
    """
    brackets, size = scan_circle(circle)
    if len(brackets.lo) == 0:
        raise Unresolved
    brackets = _narrow_brackets(circle, brackets, size)
    for _ in range(_TRIES):
        tau, logits = _soften_brackets(circle, brackets, soft)
        A, misfit = _fit_step_logits(brackets, tau, logits)
        rounding = 2.0**14 * circle.pairs.roundoff * size / np.abs(brackets.jumps).max(axis=1)
        doubtful = np.logical_not(misfit <= np.maximum(circle.straight, rounding))
        if not doubtful.any():
            return Steps(brackets.jumps, A)
        # Two heads in one bracket look like one that is bent: cut finer, they part.
        goal = np.where(doubtful, brackets.width * 2.0**-6, brackets.width)
        if (goal < circle.narrowest).any():
            break
        brackets = bisect_brackets(circle, replace(brackets, goal=goal), size)
        brackets = _narrow_brackets(circle, brackets, size)
    raise Unresolved


def scan_circle(circle: PairCircle) -> tuple[Brackets, float]:
    """Brackets of the first width, and the largest value: what rounding is relative to."""
    angles = np.linspace(0.0, np.pi, _GRID + 1)
    values = circle.values(angles[:-1], circle.hard)
    # The far end of the half circle is the near one mirrored, and costs no query.
    values = np.vstack([values, circle.x @ circle.pairs.B - values[0]])
    size = float(np.abs(values).max())
    cells = Brackets(angles[:-1], angles[1:], values[:-1], values[1:], np.full(_GRID, _FIRST))
    stepping = _keep_stepping_brackets(circle, cells, size)
    return bisect_brackets(circle, stepping, size), size


def _keep_stepping_brackets(circle: PairCircle, brackets: Brackets, size: float) -> Brackets:
    """Those whose two ends differ."""
    least = _STEP * circle.pairs.roundoff * size
    return brackets[np.abs(brackets.jumps).max(axis=1, initial=0.0) > least]


def _halve_brackets(circle: PairCircle, brackets: Brackets, size: float) -> Brackets:
    """Each cut in the middle; halves without a step are dropped."""
    middle = (brackets.lo + brackets.hi) / 2
    values = circle.values(middle, circle.hard)
    halves = replace(brackets, hi=middle, R=values), replace(brackets, lo=middle, L=values)
    return join_brackets(*(_keep_stepping_brackets(circle, half, size) for half in halves))


def bisect_brackets(circle: PairCircle, brackets: Brackets, size: float) -> Brackets:
    """Brackets cut until none is wider than its goal."""
    for _ in range(_ROUNDS):
        wide = brackets.width > brackets.goal
        if not wide.any():
            return brackets
        brackets = join_brackets(brackets[~wide], _halve_brackets(circle, brackets[wide], size))
        if len(brackets.lo) > circle.most:
            break
    raise Unresolved


def _narrow_brackets(circle: PairCircle, brackets: Brackets, size: float) -> Brackets:
    """Brackets cut until each is far narrower than the gap to the next."""
    for _ in range(_ROUNDS):
        # At most three halvings at once: gaps grow as neighbours shrink, and less may do.
        goal = np.maximum(brackets.gap * _APART, brackets.width * 2.0**-3)
        goal = np.maximum(goal, circle.narrowest)
        if (brackets.width <= goal).all():
            return brackets
        brackets = bisect_brackets(circle, replace(brackets, goal=goal), size)
    raise Unresolved


def _soften_brackets(circle: PairCircle, brackets: Brackets, soft: float) -> tuple[Vector, Matrix]:
    """A product of lengths per bracket at which both ends can be read, and three logits there.

    They are those at lo, in the middle and at hi.
    A bracket that is hard at one product and even at the next has logits NaN.
    """
    low = np.full(len(brackets.lo), soft * 2.0**-8)
    high = np.full(len(brackets.lo), circle.hard)
    tau = round_to_powers(np.sqrt(low * high))
    shares = np.full((2, len(tau)), np.nan)
    waiting = hard = even = np.ones(len(tau), dtype=bool)
    for _ in range(_ROUNDS):
        shares[:, waiting] = _read_step_shares(circle, brackets[waiting], tau[waiting])
        # A share beyond 0 or 1 is no share: other heads are soft as well.
        strange = ((shares < -_EDGE) | (shares > 1 + _EDGE)).any(axis=0)
        even = strange | (shares[1] - shares[0] < _SPREAD)
        hard = ~even & ((shares < _EDGE) | (shares > 1 - _EDGE)).any(axis=0)
        high = np.where(hard, tau, high)
        low = np.where(even, tau, low)
        between = np.where(hard | even, round_to_powers(np.sqrt(low * high)), tau)
        waiting = between != tau
        tau = between
        if not waiting.any():
            break
    shares[:, hard | even] = np.nan
    halves = replace(brackets, lo=(brackets.lo + brackets.hi) / 2)
    middle = _read_step_shares(circle, halves, tau, ends=1)[0]
    return tau, log_odds(np.stack([shares[0], middle, shares[1]]))


def _read_step_shares(circle: PairCircle, brackets: Brackets, tau: Vector, ends: int = 2) -> Matrix:
    """How much of its step each bracket shows at its ends."""
    angles = np.concatenate([brackets.lo, brackets.hi][:ends])
    J = brackets.jumps
    G = circle.values(angles, np.tile(tau, ends)).reshape(ends, *J.shape)
    return ((G - brackets.L) * J).sum(axis=2) / (J * J).sum(axis=1)


def _fit_step_logits(brackets: Brackets, tau: Vector, logits: Matrix) -> tuple[Matrix, Vector]:
    """(A_0, A_1) from the logits at both ends, and how far the one in the middle is off."""
    ends = np.stack([locate_on_circle(brackets.lo), locate_on_circle(brackets.hi)], axis=1)
    A: Array = np.linalg.solve(ends, (logits[[0, 2]] / tau).T[..., None])[..., 0].astype(np.float64)
    middle = (locate_on_circle((brackets.lo + brackets.hi) / 2) * A).sum(axis=1) * tau
    return A, np.abs(logistic(middle) - logistic(logits[1]))
