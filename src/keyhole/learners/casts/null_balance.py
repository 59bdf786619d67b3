r"""Forms $T = x^\top W y$ from cast answers: null balance.

The query $[y + \alpha x;\ y - \beta x;\ y]$ has scores $\alpha t$, $-\beta t$ and 0 (up to a common
one) with t = x . W y, and answers $v \cdot y + G\, v \cdot x$ where

$$G(t) = \frac{\alpha e^{\alpha t} - \beta e^{-\beta t}}{1 + e^{\alpha t} + e^{-\beta t}}.$$

G grows with t, its slope being the variance of $(\alpha, -\beta, 0)$ under the softmax, so an
answer gives t. The lengths are chosen so that the answer would be 0 if t were what is believed of
it: what is answered is the error of that belief, with all the digits of the format. So each query
multiplies the error by the format's rounding. Neither v nor its error moves the null when y is
short beside x; where it cannot be, v . y is part of the balance.

With $\alpha = L e^{-w/2}$, $\beta = L e^{w/2}$ and v . y = 0 the null is at $w = 2 L t \cosh(w/2)$,
which has a solution for $L |t| < 0.66$. For y of length s and L s = P that is P |T| < 0.66; only P
matters to the scores, and L is free to carry the answer to the middle of the format's range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from keyhole._arrays import Format, Mask, Matrix, Vector, pin_one_thread, rms
from keyhole.errors import BadAnswer
from keyhole.learners.casts.cast_readout import GOAL, bound_cast_error
from keyhole.learners.one_head.designs import Design
from keyhole.learners.one_head.probes import Indices, Saturated
from keyhole.oracles import Counted

_AIM = 0.4  # largest P |T| asked
_PROBES = 4  # forms looked at to find the scale
_STEPS = 40  # of looking for it
_FIRST = 16  # rounds of asking saturated forms again
_INVISIBLE = 64.0  # roundings of the arithmetic inside below which a form counts as not seen
_LARGEST = 2.0**133  # a product at which no effect means W = 0
_SHARE = 64.0  # x is at least so many times as long as y
# x is so many times as long as the square root of P where it may, and at most.
_EASY, _SPREAD = 2.0**20, 2.0**70
_NUMBERS = 1 << 21  # numbers in one call


class Query(NamedTuple):
    """Lengths of balanced queries: `s` of y, `up` and backwards `down` of x; rho = v.y / v.x."""

    s: Vector
    up: Vector
    down: Vector
    rho: Vector


def evaluate_balance(t: Vector, up: Vector, down: Vector) -> tuple[Vector, Vector]:
    """G and its slope."""
    a, b = np.exp(np.clip(up * t, -700, 700)), np.exp(np.clip(-down * t, -700, 700))
    total, first, second = 1 + a + b, up * a - down * b, up * up * a + down * down * b
    return first / total, second / total - (first / total) ** 2


def invert_balance(g: Vector, up: Vector, down: Vector) -> Vector:
    """The t with G(t) = g, for g between -down and up, by Newton steps kept inside a bracket."""
    low, high = -60.0 / np.minimum(up, down), 60.0 / np.minimum(up, down)
    t = np.zeros_like(g)
    for _ in range(80):
        value, slope = evaluate_balance(t, up, down)
        low, high = np.where(value <= g, t, low), np.where(value >= g, t, high)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = t + (g - value) / slope
        # Far out G is flat, and a Newton step leaves the bracket.
        inside = (step >= low) & (step <= high)
        moved = np.where(inside, step, (low + high) / 2)
        if (np.abs(moved - t) <= 1e-17 * np.abs(t)).all():
            break
        t = moved
    return t


def balance_lengths(t: Vector, rho: Vector, length: Vector) -> tuple[Vector, Vector]:
    """Lengths (up, down) at which rho + G(t) = 0, as far as there are any."""
    z, ratio, w = length * t, rho / length, np.zeros_like(t)
    for _ in range(30):
        a, b = np.exp(-w / 2), np.exp(w / 2)
        A, B = np.exp(np.clip(a * z, -50, 50)), np.exp(np.clip(-b * z, -50, 50))
        value = ratio * (1 + A + B) + a * A - b * B
        slope = -(ratio * z * (a * A + b * B) + a * (1 + a * z) * A + b * (1 - b * z) * B) / 2
        w = np.clip(w - value / np.minimum(slope, -0.1), -2.0, 2.0)
    return length * np.exp(-w / 2), length * np.exp(w / 2)


@dataclass(eq=False, slots=True)
class CastForms:
    """Forms of all vectors of a design (columns) along all rows of Y (rows), in lock-step.

    Args:
        oracle: the black box, counting.
        form: the format of its answers.
        V: the read-out.
        inner: relative rounding of the arithmetic inside.
        design: vectors x, one at a time.
        Y: unit tokens y.
        T: the forms believed.
        cast: bounds on their errors that come from casting.
        noise: those that come from the arithmetic inside.
    """

    oracle: Counted
    form: Format
    V: Matrix
    inner: float
    design: Design
    Y: Matrix
    T: Matrix = field(init=False)
    cast: Matrix = field(init=False)
    noise: Matrix = field(init=False)
    top: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        shape = (len(self.Y), len(self.design.X))
        self.T = np.zeros(shape)
        self.cast = np.full(shape, np.inf)
        self.noise = np.zeros(shape)

    @property
    def known(self) -> bool:
        """Whether every form was read at least once."""
        return bool(np.isfinite(self.cast).all())

    @property
    def bar(self) -> float:
        """Error of the forms relative to them, in root mean square: three tenths of the bounds."""
        size = rms(self.T)
        error = rms(np.where(np.isfinite(self.cast), self.cast + self.noise, 0.0))
        return 0.3 * error / size if size > 0 else 0.0

    def matrix(self) -> Matrix:
        """W from the forms."""
        with pin_one_thread():
            return self.design.solve(self.T).T @ self.Y

    def calibrate(self, rng: np.random.Generator) -> bool:
        """Find the product of lengths at which forms are of order one; False when W never acts.

        Raises:
            Saturated: none was found.
        """
        count = min(_PROBES, self.T.size)
        x = self.design.X[np.resize(rng.permutation(len(self.design.X)), count), 0]
        Y = rng.normal(size=(count, len(self.V)))
        Y /= np.linalg.norm(Y, axis=1, keepdims=True)
        most = float(self._most(np.full(1, np.inf))[0])
        none = np.zeros(count)
        P = min(1.0, most)
        low, high = 0.0, np.inf
        for _ in range(_STEPS):
            T, cast, noise, seen = self._ask(x, Y, np.full(count, P), none, none + 1 / P)
            size = float(np.abs(T).max())
            if seen.all() and size > float((4 * cast + _INVISIBLE * noise).max()):
                self.top = min(most, _AIM / (2 * size))
                return True
            if seen.all():
                if most <= P:
                    return self._end_without_scores(most)
                low = P
                P = float(np.sqrt(P * high)) if high < np.inf else min(P * 2.0**40, most)
            else:
                high = P
                P = float(np.sqrt(P * low)) if low > 0 else P * 2.0**-40
            # No shorter tokens are left: what was read of V is not what answers.
            if P == 0.0:
                break
        raise Saturated

    def _end_without_scores(self, most: float) -> bool:
        """That W is zero; tokens kept short by the range of the format would show none either."""
        if most < 1.0:
            raise Saturated
        return False

    @property
    def _room(self) -> float:
        """Size up to which answers are expected at most, far from overflow."""
        return 2.0 ** (self.form.largest - 5)

    def _most(self, expected: Vector) -> Vector:
        """The largest product at which an answer stays in its room, forms being up to `expected`.

        x has length L >= sqrt(64 P) and the answer is about |V| L min(1, P expected).
        """
        size = float(np.linalg.norm(self.V, axis=0).max())
        plain = (self._room / size) ** 2 / _SHARE
        with np.errstate(divide="ignore", over="ignore"):
            close = (self._room / (size * np.sqrt(_SHARE) * expected)) ** (2 / 3)
        return np.minimum(np.maximum(plain, close), _LARGEST)

    def first(self) -> None:
        """Read every form once; those that are saturated again with shorter tokens.

        Raises:
            Saturated: some stay so.
        """
        P = np.full(self.T.size, self.top)
        for _ in range(_FIRST):
            at = np.flatnonzero(~np.isfinite(self.cast.ravel()))
            if len(at) == 0:
                return
            self._update(at, P[at], 1.0 / P[at])
            P[at] /= 16.0
        raise Saturated

    def refine(self, allowed: Callable[[], int], rounds: int) -> None:
        """Balance and read again what is not known well enough, the worst first, while allowed."""
        size = rms(self.T)
        self.top = _AIM / size if size > 0 else self.top
        for _ in range(rounds):
            cast, noise = self.cast.ravel(), self.noise.ravel()
            at = np.flatnonzero(cast > np.maximum(GOAL * size, noise))
            at = np.sort(at[np.argsort(-cast[at])][: max(0, allowed())])
            if len(at) == 0:
                return
            P = np.minimum(self.top, _AIM / (np.abs(self.T.ravel()[at]) + cast[at]))
            P = np.minimum(P, self._most(cast[at] + noise[at]))
            try:
                self._update(at, P, cast[at])
            # An error far beyond its bound: no head is behind this, as fresh queries will show.
            except BadAnswer:
                return

    def _update(self, at: Indices, P: Vector, expected: Vector) -> None:
        """Ask forms by index, in calls of bounded size."""
        many = max(1, _NUMBERS // (3 * len(self.V)))
        T, cast, noise = (array.reshape(-1) for array in (self.T, self.cast, self.noise))
        for start in range(0, len(at), many):
            part = slice(start, start + many)
            j, i = np.divmod(at[part], self.T.shape[1])
            found = self._ask(self.design.X[i, 0], self.Y[j], P[part], T[at[part]], expected[part])
            for array, values in zip((T, cast, noise), found[:3], strict=True):
                array[at[part]] = np.where(found[3], values, array[at[part]])

    def _ask(
        self, x: Matrix, y: Matrix, P: Vector, T: Vector, expected: Vector
    ) -> tuple[Vector, Vector, Vector, Mask]:
        """Forms believed to be T within `expected`, their error bounds, and which were readable."""
        lengths = self._lengths(y, P, T, expected)
        up, down = lengths.up[:, None], lengths.down[:, None]
        tokens = np.stack([up * x, -down * x, np.zeros_like(x)], axis=1)
        last = lengths.s[:, None] * y
        answers = self.oracle.ask(tokens + last[:, None])
        return self._read(answers, lengths)

    def _lengths(self, y: Matrix, P: Vector, T: Vector, expected: Vector) -> Query:
        """L so that the answer expected is about 1, within what the ratio of x and y allows."""
        size = float(np.abs(self.design.X[:, 0] @ self.V).max())
        with np.errstate(over="ignore", divide="ignore"):
            wanted = 1.0 / (np.minimum(expected * P, 1.0) * size)
            easy = np.minimum(self._room * wanted, _EASY * np.sqrt(P))
        L = np.clip(np.maximum(wanted, easy), np.sqrt(_SHARE * P), _SPREAD * np.sqrt(P))
        L = np.ldexp(1.0, np.round(np.log2(L)).astype(np.intp))
        s = P / L
        rho = s * (y @ self.V @ self.design.decoder[0])
        return Query(s, *balance_lengths(s * T, rho, L), rho)

    def _read(self, answers: Matrix, lengths: Query) -> tuple[Vector, Vector, Vector, Mask]:
        reader = self.design.decoder[0]
        s, up, down, rho = lengths
        g = answers @ reader - rho
        error = bound_cast_error(answers, self.form) @ np.abs(reader)
        # Near either end G is flat, and its inverse magnifies the error of an answer.
        margin = np.maximum(8 * error, 2.0**-20 * (up + down))
        seen = (g < up - margin) & (g > -down + margin)
        t = invert_balance(np.where(seen, g, 0.0), up, down)
        slope = evaluate_balance(t, up, down)[1] * s
        inner = self.inner * (up + down + np.abs(rho))
        return t / s, error / slope, inner / slope, seen
