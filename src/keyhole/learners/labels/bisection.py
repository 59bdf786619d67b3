"""Numbers from yes and no: labels by majority, and many bisections in step with each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from keyhole._arrays import Array, Mask, Stack, Vector
from keyhole.oracles import Counted

Indices = NDArray[np.int64]
# Whether the numbers of these indices exceed these thresholds.
Test = Callable[[Indices, Vector], Mask]
MOST_VOTES = 61
_SUSPICIOUS = 2  # an end that so many questions did not move is asked again
_MENDING = 24  # how often an end that does not hold is moved, eight times as far each time
_PASSES = 6  # how often narrowing and mending alternate
_TOO_MANY = 0.3  # share of ends that may turn out wrong in one pass


@dataclass(slots=True)
class Voter:
    """Labels of sequences, by majority where labels are flipped at random.

    An answer above zero is the positive label and any other the negative one, so that -1/+1, 0/1
    and booleans are all read alike. A majority of `votes` is decided as soon as one side has more
    than half of them.

    Args:
        oracle: who is asked.
        votes: an odd number; how often a question is asked at most.
        steady: whether labels are known not to be flipped: contradictions are the target's own.
    """

    oracle: Counted
    votes: int = 1
    steady: bool = False
    _seen: dict[bool, float] = field(default_factory=dict[bool, float], init=False)

    def once(self, X: Stack) -> Mask:
        """One label per sequence and output, asked once."""
        answers = self.oracle.ask(X.copy())
        positive = answers > 0
        for sign, chosen in ((True, answers[positive]), (False, answers[~positive])):
            if chosen.size and (chosen != self._seen.setdefault(sign, float(chosen[0]))).any():
                self._seen[sign] = 1.0 if sign else -1.0
        return positive

    def ask(self, X: Stack) -> Mask:
        """One label per sequence and output, by majority."""
        need = self.votes // 2 + 1
        ayes = np.sum([self.once(X) for _ in range(need)], axis=0)
        noes = need - ayes
        for _ in range(self.votes - need):
            open_ = np.flatnonzero(((ayes < need) & (noes < need)).any(axis=1))
            if not open_.size:
                break
            more = self.once(X[open_])
            ayes[open_] += more
            noes[open_] += ~more
        return ayes >= need

    def coded(self, positive: Mask) -> Array:
        """Labels as the target writes them; +1 and -1 where it answers more than two numbers."""
        return np.where(positive, self._seen.get(True, 1.0), self._seen.get(False, -1.0))

    def flips(self, X: Stack, times: int) -> tuple[int, int]:
        """How often sequences asked again get another label than most times, out of how many."""
        ayes = np.sum([self.once(X) for _ in range(times)], axis=0)
        return int(np.minimum(ayes, times - ayes).sum()), times * ayes.size


def count_votes(flips: int, asked: int, chance: float = 1e-4) -> int | None:
    """The least odd number of votes whose majority errs with less than `chance`, or None.

    The rate of flips is taken two standard errors above what was seen.
    """
    rate = flips / asked
    rate += 2 * math.sqrt(max(rate, 1 / asked) / asked)
    # A majority of coins that fall wrong more often than right errs the more, the more of them.
    if rate >= 0.5:
        return None
    for votes in range(3, MOST_VOTES + 1, 2):
        wrong = range(votes // 2 + 1, votes + 1)
        errs = sum(math.comb(votes, n) * rate**n * (1 - rate) ** (votes - n) for n in wrong)
        if errs < chance:
            return votes
    return None


class Unsteady(Exception):
    """The same question got two labels, too often to be mended."""


@dataclass(eq=False, slots=True)
class Brackets:
    """Numbers between `lo` (below, asked) and `hi` (at or above); ends may be infinite.

    After one wrong label all right ones drive the bracket towards it, and the wrong question stays
    an end. So an end that many later questions did not move is suspicious, and asking it again
    finds nearly every wrong label.
    """

    lo: Vector
    hi: Vector
    ages: NDArray[np.int64] = field(init=False)  # questions since each end was moved, lo and hi

    def __post_init__(self) -> None:
        self.ages = np.zeros((2, len(self.lo)), dtype=np.int64)

    @classmethod
    def unknown(cls, count: int, *, at_most: float = math.inf) -> Brackets:
        """Nothing is known but an upper end."""
        return cls(np.full(count, -math.inf), np.full(count, at_most))

    @property
    def width(self) -> Vector:
        """How far the ends are apart."""
        return self.hi - self.lo

    @property
    def middle(self) -> Vector:
        """The middle; the finite end where the other is not, and 0 where neither is."""
        lo = np.where(np.isfinite(self.lo), self.lo, np.where(np.isfinite(self.hi), self.hi, 0.0))
        hi = np.where(np.isfinite(self.hi), self.hi, lo)
        return lo + (hi - lo) / 2

    def find(
        self,
        test: Test,
        enough: Callable[[Brackets], Mask],
        split: Callable[[Vector, Vector], Vector],
        rounds: int,
        *,
        mending: bool = True,
    ) -> bool:
        """Narrow and mend until all numbers are known well enough; whether they are in the end.

        Raises:
            Unsteady: too many ends did not hold.
        """
        for _ in range(_PASSES):
            if not self._narrow(test, enough, split, rounds):
                return False
            moved = self._mend(test) if mending else 0
            if moved == 0:
                return True
            if moved > 2 + _TOO_MANY * len(self.lo):
                break
        raise Unsteady

    def _narrow(
        self,
        test: Test,
        enough: Callable[[Brackets], Mask],
        split: Callable[[Vector, Vector], Vector],
        rounds: int,
    ) -> bool:
        """Ask one question about every number not known well enough, again and again."""
        for _ in range(rounds):
            open_ = np.flatnonzero(~enough(self))
            if not open_.size:
                return True
            at = split(self.lo[open_], self.hi[open_])
            above = test(open_, at)
            self.lo[open_] = np.where(above, at, self.lo[open_])
            self.hi[open_] = np.where(above, self.hi[open_], at)
            self.ages[:, open_] = np.where(np.stack([above, ~above]), 0, self.ages[:, open_] + 1)
        return bool(enough(self).all())

    def doubtful(self, test: Test) -> int:
        """How many finite ends do not hold when asked again."""
        low, high = self._ends(0)
        return int((~test(low, self.lo[low])).sum() + test(high, self.hi[high]).sum())

    def _ends(self, age: int) -> tuple[Indices, Indices]:
        """Numbers whose lower, and upper, end is finite and was not moved by so many questions."""
        low, high = np.isfinite([self.lo, self.hi]) & (self.ages >= age)
        return np.flatnonzero(low), np.flatnonzero(high)

    def _mend(self, test: Test) -> int:
        """Ask suspicious ends again, move outwards those that do not hold, and count them."""
        step = 8 * np.where(np.isfinite(self.width), self.width, 1.0)
        low, high = self._ends(_SUSPICIOUS)
        moved = set[int]()
        for _ in range(_MENDING):
            low = low[~test(low, self.lo[low])]
            high = high[test(high, self.hi[high])]
            if not (low.size or high.size):
                break
            moved.update(low.tolist(), high.tolist())
            # An end that does not hold is one of the other kind.
            self.hi[low], self.lo[high] = self.lo[low], self.hi[high]
            self.lo[low] -= step[low]
            self.hi[high] += step[high]
            both = np.concatenate([low, high])
            step[both] *= 8
            self.ages[:, both] = 0
        return len(moved)


# A prior for numbers of unknown tails: Student's distribution with two degrees of freedom, in
# closed form. Its upper tail is S(x) = 1 / (h (h + x)) with h = sqrt(2 + x^2), and S(x) = s at x =
# (1 - 2s) / sqrt(2s (1 - s)). Far out a step multiplies by sqrt 2, and for Gaussian numbers the
# medians cost little more than those of their own prior.


def find_likely_middle(lo: Vector, hi: Vector, scale: float) -> Vector:
    """The number that is as likely below as above; the middle of brackets narrow beside `scale`."""
    mirrored = hi <= 0
    near = np.where(mirrored, -hi, lo)
    far = np.where(mirrored, -lo, hi)
    tail = (_tail_probability(near / scale) + _tail_probability(far / scale)) / 2
    guess = scale * (1 - 2 * tail) / np.sqrt(2 * tail * (1 - tail))
    narrow = far - near <= scale / 4
    # Infinite ends are put aside first: their middle is not a number.
    middle = np.where(narrow, near, 0.0) + np.where(narrow, far - near, 0.0) / 2
    middle = np.where(narrow, middle, guess)
    return np.where(mirrored, -middle, middle)


def _tail_probability(x: Vector) -> Vector:
    """Probability above x, exact to rounding in the upper tail, where brackets are mirrored to."""
    size = np.minimum(np.abs(x), 1e150)
    h = np.sqrt(2 + size**2)
    upper = 1 / (h * (h + size))
    return np.where(x < 0, 1 - upper, upper)
