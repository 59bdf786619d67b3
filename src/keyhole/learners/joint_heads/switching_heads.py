r"""Where single heads switch on a half circle, and with which sign.

On $y(\theta) = y_0 \cos\theta + y_1 \sin\theta$, $\theta \in [0, \pi]$, every $a_h = x^\top W_h y$
has one zero, where G jumps by $J_h = s_h V_h^\top x$ with $s_h = 1$ for a head that turns on. So G
has plateaus $P_0, \dots, P_H$. No fine bisection is needed to know that every jump is that of one
head: a soft answer lies in $P_0 + \mathrm{span}\{J_h\}$ only then, as long as outputs outnumber
heads. Signs follow from $P_0 + P_H = \sum_h V_h^\top x = \sum_h s_h J_h$.

A head with W = 0 never switches and adds half its $V^\top x$ to every plateau; asked with two
copies of the first token it adds two thirds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from keyhole._arrays import Indices, Matrix, Vector
from keyhole.learners.joint_heads.hard_pairs import (
    HalfCircle,
    LoneTokens,
    Unseparated,
    find_hard_pairs,
    measure_rounding,
)
from keyhole.oracles import Counted

_GRID = 5  # angles asked first, both ends included
_JUMP = 2.0**12  # roundings of G above which two values are two plateaus
_MANY = 2.0**8  # roundings of coarse answers that add up in a sum of steps
MISFIT = 1e-9  # of the largest plateau: a part of a soft answer in no single jump
_NARROW = 1e-5  # an interval in which two heads that switch are not told apart
_FINE = 8e-3  # the same where outputs do not tell whether one head switches in an interval
_ZERO = 1e-12  # of the largest singular value of steps: what is below is rounding
_MOST_SEARCHED = 12  # heads whose signs are tried one by one
_SUM = 1e-11  # of the largest step: a sum that is right to rounding
_HARD = 8.0  # a score difference that counts for all larger ones
SIGN = 1e-6  # distance of a solved sign from 1 or -1
_UNSURE = 2.0**15  # the same in roundings of coarse answers


@dataclass(frozen=True, eq=False, slots=True)
class Switches:
    """Plateaus of G along a half circle, and the heads that switch between them.

    Args:
        circle: the half circle.
        starts: first known angle of each plateau; that of the first lies before 0.
        ends: last known angle of each plateau.
        plateaus: values of G, one row each: one more than there are heads.
        signs: whether each head turns on (1) or off (-1); None where x alone does not tell.
        idle: V^T x of a head with W = 0; zero where there is none.
    """

    circle: HalfCircle
    starts: Vector
    ends: Vector
    plateaus: Matrix
    signs: Vector | None
    idle: Vector

    @property
    def jumps(self) -> Matrix:
        """Steps between neighbouring plateaus, one row per head."""
        return np.diff(self.plateaus, axis=0)

    @property
    def heads(self) -> int:
        """How many heads switch."""
        return len(self.plateaus) - 1

    def read_logits(self, soft: Vector) -> Vector:
        """Score differences of all heads in a soft answer at x, as far as outputs tell them."""
        signs = np.ones(self.heads) if self.signs is None else self.signs
        inverse = np.asarray(np.linalg.pinv(self.jumps, rcond=_ZERO), dtype=np.float64)
        turned = (soft - self.plateaus[0]) @ inverse
        # A head that turns off along the half circle is on at its start.
        shares = 0.5 + signs * (turned - 0.5)
        with np.errstate(divide="ignore", invalid="ignore"):
            logits = np.log(shares / (1.0 - shares))
        return np.clip(np.nan_to_num(logits, nan=_HARD, posinf=_HARD, neginf=-_HARD), -_HARD, _HARD)

    @property
    def last_tokens(self) -> Matrix:
        """A last token in the middle of every plateau."""
        return self.circle.at((self.starts + self.ends) / 2)


class Scan:
    """Angles and values of G, refined where it changes."""

    def __init__(self, oracle: Counted, lone: LoneTokens, circle: HalfCircle) -> None:
        self.circle = circle
        self.angles = np.linspace(0.0, np.pi, _GRID)
        x = np.broadcast_to(circle.x, (_GRID, len(circle.x)))
        self.pairs, self.values = find_hard_pairs(oracle, lone, x, circle.at(self.angles))
        largest = float(np.linalg.norm(self.values, axis=1).max())
        self.size = float(np.abs(self.values).max())
        self.zero = _JUMP * measure_rounding(self.pairs, largest)

    def _ask(self, angles: Vector) -> Matrix:
        x = np.broadcast_to(self.circle.x, (len(angles), len(self.circle.x)))
        return self.pairs.ask(x, self.circle.at(angles))

    @property
    def changing(self) -> Indices:
        """Numbers of the intervals over which G changes."""
        return np.flatnonzero(np.linalg.norm(np.diff(self.values, axis=0), axis=1) > self.zero)

    @property
    def ends(self) -> Matrix:
        """The first and the last plateau."""
        return self.values[[0, -1]]

    @property
    def steps(self) -> Matrix:
        """Changes of G, one row per interval."""
        return np.diff(self.values, axis=0)[self.changing]

    def halve(self, which: Indices) -> None:
        """Ask in the middle of some intervals."""
        between = (self.angles[which] + self.angles[which + 1]) / 2
        self.angles = np.insert(self.angles, which + 1, between)
        self.values = np.insert(self.values, which + 1, self._ask(between), axis=0)

    def _choose_crowded(self) -> Indices:
        """The interval that most likely holds two switches: wide, with a large step."""
        changing = self.changing
        sizes = (np.diff(self.values, axis=0)[changing] ** 2).sum(axis=1)
        return changing[[int(np.argmax(np.diff(self.angles)[changing] * sizes))]]

    def explains(self, soft: Vector, misfit: float) -> bool:
        """Whether a soft answer is a sum of shares of the steps seen, up to a misfit."""
        away = soft - self.values[0]
        shares = away @ np.linalg.pinv(self.steps, rcond=_ZERO)
        misfit = self.pairs.lone.allow(misfit, _MANY)
        return float(np.abs(away - shares @ self.steps).max()) <= misfit * self.size

    def separate(self, soft: Vector, misfit: float = MISFIT) -> None:
        """Halve intervals until every step is that of one head.

        Args:
            soft: a soft answer at the same x.
            misfit: what may be left of it, of the largest plateau.

        Raises:
            Unseparated: two heads switch within one narrow interval, or nothing switches.
        """
        outputs = self.values.shape[1]
        if len(self.changing) == 0:
            raise Unseparated("No head moves with the last token.")
        while len(self.changing) < outputs and not self.explains(soft, misfit):
            crowded = self._choose_crowded()
            if np.diff(self.angles)[crowded].max() <= _NARROW:
                raise Unseparated("Two heads switch at the same last tokens.")
            self.halve(crowded)
        # With as many steps as outputs a soft answer is always a sum of them: only bisection helps.
        while len(self.changing) >= outputs:
            wide = self.changing[np.diff(self.angles)[self.changing] > _FINE]
            if len(wide) == 0:
                break
            self.halve(wide)

    def close(self) -> Switches:
        """The plateaus, and signs where the values tell them."""
        cuts = self.changing
        starts = self.angles[np.append(-1, cuts) + 1]
        ends = self.angles[np.append(cuts, len(self.angles) - 1)]
        # The last plateau continues the first, seen from the other side.
        starts[0] = starts[-1] - np.pi
        ends[-1] = ends[0] + np.pi
        plateaus = self.values[np.append(0, cuts + 1)]
        signs, idle = self._read_signs(plateaus)
        return Switches(self.circle, starts, ends, plateaus, signs, idle)

    def _read_signs(self, plateaus: Matrix) -> tuple[Vector | None, Vector]:
        """Signs of the steps, and what a head with W = 0 adds to both ends together."""
        nothing = np.zeros(plateaus.shape[1])
        steps = np.diff(plateaus, axis=0)
        whole = plateaus[0] + plateaus[-1]
        few = len(steps) >= plateaus.shape[1]
        signs = self._find_signs(steps, whole)
        if signs is not None:
            return signs, nothing
        first = self.circle.at(np.zeros(1))
        lean = self.pairs.ask(self.circle.x[None], first, copies=2)[0] - plateaus[0]
        # A plain mean of three tokens gives the two copies 2/3, one of two gives 1/2.
        idle = 6.0 * lean
        signs = self._find_signs(steps, whole - idle)
        # Moves of x may tell later what one x does not.
        if signs is None and few:
            return None, nothing
        if signs is None:
            raise Unseparated("Two heads are mirror images, or a head with W = 0 has a score bias.")
        return signs, idle

    def _find_signs(self, steps: Matrix, whole: Vector) -> Vector | None:
        allow = self.pairs.lone.allow
        # With as many steps as outputs any sum is one of steps: only signs are few enough to try.
        if len(steps) >= steps.shape[1]:
            return search_signs(steps, whole, allow(_SUM, _MANY))
        return solve_signs(steps, whole, allow(SIGN, _UNSURE))


def solve_signs(steps: Matrix, whole: Vector, distance: float) -> Vector | None:
    """Signs with which the steps add up to the whole, solved to a distance, or None."""
    solved = whole @ np.linalg.pinv(steps, rcond=_ZERO)
    signs = np.where(solved < 0, -1.0, 1.0)
    return signs if float(np.abs(solved - signs).max()) <= distance else None


def search_signs(steps: Matrix, whole: Vector, share: float) -> Vector | None:
    """The one choice of signs with which the steps add up to the whole, or None.

    The sum may be off by a share of the largest step.
    """
    if len(steps) > _MOST_SEARCHED:
        return None
    choices = np.array(list(product((-1.0, 1.0), repeat=len(steps))))
    misfits = np.abs(choices @ steps - whole).max(axis=1)
    right = choices[misfits <= share * np.abs(steps).max()]
    return right[0] if len(right) == 1 else None
