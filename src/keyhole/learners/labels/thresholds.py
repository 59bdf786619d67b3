r"""What one label tells of a head: on which side of a threshold a number lies.

One token: $f([x]) = x \cdot v$, so the label of $g_i e_i - \rho g_k e_k$ compares $|v_i|$ with
$\rho |v_k|$, where g are the signs of v.

Two tokens: ask $[s a + r b; r b]$ with $a \cdot v > 0 > b \cdot v$. The scores differ by $s r\,
a^\top W b$, so

$$f = r\, b \cdot v + \sigma(p\, t)\, s\, a \cdot v, \qquad t = a^\top W b,\ p = s r,$$

which is positive exactly when $\sigma(p t) > k r / s$ with $k = -(b \cdot v)/(a \cdot v)$. With $s
/ r = k (1 + e^{-p \theta})$ that reads $t > \theta$: every label compares a form of W with a
threshold of our choice, and the scale of v does not matter. The product p is free; it is chosen so
that $|p \theta| \le 1$, where neither rounding nor an error of k is magnified: an error $\epsilon$
of $\log k$ moves the threshold by at most $(1 + e)\,\epsilon / p$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Mask, Matrix, Vector, pin_one_thread
from keyhole.learners.labels.bisection import Brackets, Indices, Voter, find_likely_middle

_ROOM = 1 << 20  # numbers in one batch
_TINY = -900.0  # log2 of ratios below which an entry of v counts as zero
_FAR = 133  # log2 of the largest and smallest forms looked for
_PROBES = 3  # random forms by which the scale of W is found


class Unread(Exception):
    """Forms of W beyond every threshold: the labels are those of a softmax at 0 or 1."""


@dataclass(slots=True)
class Ratios:
    """One column of V up to a positive factor: signs, the largest entry, ratios to it as log2.

    Args:
        voter: who is asked.
        output: which label.
        signs: signs of the entries, 0 for those that are zero.
        length: factor of the tokens asked, which keeps them within a bound.
    """

    voter: Voter
    output: int
    signs: Vector
    length: float
    pivot: int = field(default=0, init=False)
    others: Indices = field(init=False)
    logs: Brackets = field(init=False)

    def __post_init__(self) -> None:
        self.others = np.flatnonzero(self.signs)
        self.logs = Brackets.unknown(0)

    def seek(self) -> None:
        """Find the largest entry by a tournament, d - 1 comparisons."""
        left = self.others
        while left.size > 1:
            half = left.size // 2
            first, second = left[:half], left[half : 2 * half]
            ahead = self._exceeds(first, second, np.zeros(half))
            left = np.concatenate([np.where(ahead, first, second), left[2 * half :]])
        self.pivot = int(left[0])
        self.others = self.others[self.others != self.pivot]
        self.logs = Brackets.unknown(len(self.others), at_most=0.0)

    def refine(self, bits: int) -> None:
        """Bisect ratios until they are known to a relative 2^-bits."""

        def enough(logs: Brackets) -> Mask:
            return (logs.width <= 2.0 ** (1 - bits)) | (logs.hi <= _TINY)

        self.logs.find(
            self.above, enough, _halve_brackets, bits + 16, mending=not self.voter.steady
        )

    def above(self, which: Indices, at: Vector) -> Mask:
        """Whether the ratios of these entries exceed 2^at."""
        return self._exceeds(self.others[which], np.full(len(which), self.pivot), at)

    def _exceeds(self, i: Indices, k: Indices, at: Vector) -> Mask:
        X = np.zeros((len(i), 1, len(self.signs)))
        rows = np.arange(len(i))
        # The longer of the two is of full length, so that no ratio is too large to be asked.
        X[rows, 0, i] = self.length * self.signs[i] * np.exp2(-np.maximum(at, 0.0))
        X[rows, 0, k] = -self.length * self.signs[k] * np.exp2(np.minimum(at, 0.0))
        return self.voter.ask(X)[:, self.output] if len(i) else np.zeros(0, dtype=bool)

    @property
    def column(self) -> Vector:
        """The column with norm 1; zero when every sign is, and signs alone before ratios are."""
        # A budget may end before the entries of this column were compared.
        if len(self.logs.hi) < len(self.others):
            return self.signs / max(1.0, float(np.linalg.norm(self.signs)))
        v = np.zeros(len(self.signs))
        shown = self.logs.hi > _TINY
        # Of all entries, so that none overflows.
        largest = float(self.logs.middle[shown].max(initial=0.0))
        if self.signs.any():
            v[self.pivot] = self.signs[self.pivot] * np.exp2(-largest)
        powers = np.exp2(np.where(shown, self.logs.middle - largest, -np.inf))
        v[self.others] = self.signs[self.others] * powers
        norm = float(np.linalg.norm(v))
        return v / norm if norm > 0 else v

    @property
    def error(self) -> float:
        """Largest relative error of an entry."""
        shown = self.logs.width[self.logs.hi > _TINY]
        # Half the width, times ln 2, and a little more.
        return 0.36 * float(shown.max(initial=0.0))


def _halve_brackets(lo: Vector, hi: Vector) -> Vector:
    """The middle; while there is no lower end, twice as far down each time."""
    down = np.where(hi < 0, 2 * hi, -1.0)
    return np.where(np.isfinite(lo), hi - (hi - np.where(np.isfinite(lo), lo, hi)) / 2, down)


def draw_label_basis(v: Vector, *, rng: np.random.Generator) -> Matrix:
    r"""Random orthonormal rows u with $u \cdot v = |v| / \sqrt d$ for every one.

    With orthogonal P and Q whose first columns are $1/\sqrt d$ and v, it is $P Q^\top$. The rest of
    both is random, so that forms of W in this basis have one size, however its entries are spread.
    """
    d = len(v)
    draws = rng.normal(size=(2, d, d))
    draws[0, :, 0] = 1.0
    draws[1, :, 0] = v
    with pin_one_thread():
        (P, R), (Q, S) = (np.linalg.qr(draw) for draw in draws)
        P[:, 0] *= np.sign(R[0, 0])
        Q[:, 0] *= np.sign(S[0, 0])
        return P @ Q.T


@dataclass(slots=True)
class LabelForms:
    """Comparisons of forms u_i^T W u_j with thresholds.

    Args:
        voter: who is asked.
        output: which label.
        v: its read-out, up to a positive factor.
        U: the basis, one vector per row.
        bound: largest norm of a token.
        scale: rough size of the forms; p <= 1/scale, so that a threshold is one question for good.
    """

    voter: Voter
    output: int
    v: Vector
    U: Matrix
    bound: float
    scale: float = field(default=0.0, init=False)

    def above(self, which: Indices, at: Vector) -> Mask:
        """Whether forms -u_i^T W u_j exceed thresholds; indices count them row by row."""
        i, j = np.divmod(which, len(self.U))
        return self.compare(self.U, i, -self.U, j, at)

    def compare(self, A: Matrix, i: Indices, B: Matrix, j: Indices, at: Vector) -> Mask:
        """Whether a_i^T W b_j > at, for rows of A with a.v > 0 and of B with b.v < 0."""
        size = max(1, _ROOM // (2 * A.shape[1]))
        parts = [
            self._compare(A[i[n : n + size]], B[j[n : n + size]], at[n : n + size])
            for n in range(0, len(i), size)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=bool)

    def _compare(self, a: Matrix, b: Matrix, at: Vector) -> Mask:
        k = -(b @ self.v) / (a @ self.v)
        room = self.reach(k, np.einsum("qd,qd->q", a, b))
        with np.errstate(divide="ignore"):
            p = np.minimum(1 / np.maximum(np.abs(at), self.scale), room)
        q = k * (1 + np.exp(-p * at))
        s = np.sqrt(p * q)[:, None]
        r = np.sqrt(p / q)[:, None]
        return self.voter.ask(np.stack([s * a + r * b, r * b], axis=1))[:, self.output]

    def reach(self, k: Vector, cosine: Vector) -> Vector:
        """The largest product p that a bound R on tokens allows.

        It keeps |s a + r b|^2 = p (q + 1/q + 2 a.b) <= R^2, where the ratio q = s/r stays between
        k (1 + 1/e) and k (1 + e).
        """
        ends = np.outer([1 + math.exp(-1), 1 + math.e], k)
        squared = (ends + 1 / ends).max(axis=0) + 2 * np.maximum(cosine, 0.0)
        return np.minimum(self.bound**2 / squared, 2.0**_FAR)

    @property
    def least(self) -> float:
        """The largest product that every pair of unit vectors with k = 1 may have."""
        return float(self.reach(np.ones(1), np.ones(1))[0])

    @property
    def floor(self) -> int:
        """log2 of the smallest forms looked for: of bounded tokens, to move a share by 2^-40."""
        return max(-_FAR, math.ceil(-40 - math.log2(self.least)))

    def find_scale(self, *, rng: np.random.Generator) -> float:
        """The largest of a few random forms, to a factor of four; 0 where none can be seen.

        Raises:
            Unread: they are above all that can be asked.
        """
        d = len(self.v)
        w = rng.normal(size=(2, _PROBES, d))
        w -= (w @ self.v)[..., None] * self.v
        norms = np.linalg.norm(w, axis=2, keepdims=True)
        a, b = (self.v + w / np.where(norms > 0, norms, 1.0)) / math.sqrt(2.0)
        floor = self.floor
        low, high = floor - 1, _FAR + 1
        probe = min(max(0, floor), _FAR)
        step = 3
        while high - low > 2:
            if self._outside(a, -b, 2.0**probe):
                low = probe
            else:
                high = probe
            # Ever longer steps until both ends are known, halves from then on.
            if high == _FAR + 1:
                probe = low + step
            elif low == floor - 1:
                probe = high - step
            else:
                probe = (low + high) // 2
            probe = min(max(probe, low + 1), high - 1)
            step *= 2
        if high == _FAR + 1:
            raise Unread
        self.scale = 2.0**high if low >= floor else 0.0
        return self.scale

    def _outside(self, a: Matrix, b: Matrix, at: float) -> bool:
        """Whether one of the forms is larger than `at` in size."""
        n = np.tile(np.arange(len(a)), 2)
        over = self.compare(a, n, b, n, np.repeat([at, -at], len(a)))
        return bool(over[: len(a)].any() or not over[len(a) :].all())


@dataclass(slots=True)
class Measurement:
    """All d^2 forms, bisected in step.

    Args:
        forms: how they are compared with thresholds.
        bits: each is known to within 2^-bits of their root mean square in the end.
    """

    forms: LabelForms
    bits: int
    rms: float = field(init=False)
    found: Brackets = field(init=False)

    def __post_init__(self) -> None:
        self.rms = self.forms.scale
        self.found = Brackets.unknown(self.forms.U.size)

    def run(self) -> None:
        """Bisect.

        Raises:
            Unread: a form is beyond every threshold.
        """
        mending = not self.forms.voter.steady
        rounds = self.bits + 160
        if not self.found.find(self._above, self._enough, self._split, rounds, mending=mending):
            raise Unread

    def _above(self, which: Indices, at: Vector) -> Mask:
        if np.abs(at).max(initial=0.0) > self.forms.scale * 2.0**60:
            raise Unread
        return self.forms.above(which, at)

    def _enough(self, found: Brackets) -> Mask:
        if (found.width < self.rms / 4).all():
            self.rms = max(float(np.sqrt(np.mean(found.middle**2))), self.forms.scale * 2.0**-40)
        width = self.rms * 2.0 ** (1 - self.bits)
        return found.width <= np.maximum(width, 2.0**-50 * np.abs(found.middle))

    def _split(self, lo: Vector, hi: Vector) -> Vector:
        return find_likely_middle(lo, hi, self.rms)

    @property
    def W(self) -> Matrix:
        """The matrix as far as it is known; forms of which nothing is known count as 0."""
        d = len(self.forms.U)
        with pin_one_thread():
            return -self.forms.U.T @ self.found.middle.reshape(d, d) @ self.forms.U

    def error(self, ratio_error: float) -> float:
        """A bound on the Frobenius error of W, given the largest relative error of an entry of v.

        Half the widths, and what the error of v moves thresholds by: a unit vector u has |u.dv| <=
        |v| error, and u.v = |v| / sqrt d, so that log k is wrong by at most 2 sqrt(d) error.
        """
        d = len(self.forms.U)
        per = np.maximum(np.abs(self.found.middle), self.forms.scale)
        per = np.maximum(per, 1 / self.forms.least)
        moved = (1 + math.e) * 2 * math.sqrt(d) * ratio_error * per
        return float(np.linalg.norm(self.found.width / 2 + moved))
