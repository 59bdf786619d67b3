r"""The read-out of a head whose answers are cast, to more digits than any answer has.

Floats are dense near 0. With v_k the largest entry and r near v_i / v_k, the single token e_i - r
e_k answers v_i - r v_k, which is small, with as many digits as any other answer: r is known to p
digits more after each such query, p those of the format. Tokens are as long as it takes to keep
that answer in the middle of the format's range. Only one overall scale is left, and every query
scales with it: it shows in where an answer passes from one float to the next, and is found by
bisection, one binary digit per query.

Frameworks round twice, to f32 and then to f16 or bf16. A number within half a spacing of f32 of the
middle between two floats is first rounded to that middle and then to the even one of the two, so
that an answer passes half a spacing of f32 beyond the middle above an even float, and as much
before it above an odd one. One query beside the latter tells if the former was a middle.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import (
    EPS,
    FORMATS,
    Array,
    Format,
    Mask,
    Matrix,
    Stack,
    Vector,
    find_power_of_two,
)
from keyhole.errors import BadAnswer
from keyhole.learners.base import Counterexample
from keyhole.learners.one_head.probes import Indices
from keyhole.learners.one_head.readout import NotAHead
from keyhole.oracles import Counted

GOAL = 2.0**-46  # relative error at which refining stops
_SCALE = 2.0**-50  # the same for the scale, which nothing after it improves
_ROUNDS = 10
_STEPS = 16  # of looking for a length at which answers are neither 0 nor infinite
# How far from balance arithmetic is tried, the largest first.
_LATTICE = (2.0**-6 / 3, 2.0**-14 / 3, 2.0**-28 / 3)
# A format whose smallest normal number has a larger exponent hides small entries beside large ones.
_SHALLOW = -100
# Roundings of narrower arithmetic: a few answers may show less by luck.
_COARSE = (2.0**-24, 2.0**-11, 2.0**-8)
_AGAIN = 3  # stalled tokens asked again at another length


FIRST_ROUNDING = FORMATS["f32"]


def _shift_by_second_rounding(form: Format) -> float:
    """How much larger a number is whose double of a bisection was taken for a single rounding."""
    return 1.0 + FIRST_ROUNDING.roundoff / (1.0 + form.roundoff)


class Unsuited(Exception):
    """Null balance does not apply; the message says why."""


def bound_cast_error(numbers: Array, form: Format) -> Array:
    """Largest error of casting: roundoff |a| + half the spacing of the smallest numbers."""
    return form.roundoff * np.abs(numbers) + 2.0 ** (form.least - form.digits)


@dataclass(eq=False, slots=True)
class CastReading:
    """What single tokens tell, more of it as it is asked.

    Args:
        oracle: the black box, counting.
        form: the format of its answers; with `via`, once they are seen to be rounded twice.
        rng: source of random tokens.
        V: the read-out as far as it is known, None before the first answers.
        bar: bound on the error of each entry, given the scale.
        inner: relative rounding of the arithmetic inside, as far as it shows.
        stalled: tokens whose answers show that rounding.
        edges: the last two tokens of a bisection, on both sides of the boundary.
    """

    oracle: Counted
    form: Format
    rng: np.random.Generator
    V: Matrix | None = None
    bar: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    inner: float = EPS
    stalled: list[Stack] = field(default_factory=list[Stack])
    edges: dict[bool, Stack] = field(default_factory=dict[bool, Stack])

    @property
    def room(self) -> float:
        """Size up to which answers are safe from overflow, by a factor of sixteen."""
        return 2.0 ** (self.form.largest - 4)

    def run(self) -> Matrix:
        """The read-out.

        Raises:
            Unsuited: there is no read-out, or a constant, a score bias or a residual acts.
            NotAHead: single tokens are not answered linearly, in any arithmetic.
        """
        self._constant()
        V = self.V = self._singles(self._length())
        if not V.any():
            raise Unsuited("Unit tokens are all answered with 0, other tokens are not.")
        top = np.abs(V).argmax(axis=0)
        self._scales(V, top)
        self._ratios(V, top)
        acts = self._bias(V) or self._residual(V)
        if not acts:
            self._alone(V)
        if acts or self.stalled:
            self._homogeneous()
            self.inner = next(
                (max(self.inner, u) for u in _COARSE if EPS < self.inner <= 8 * u), self.inner
            )
        if acts:
            raise Unsuited(acts)
        return V

    def _constant(self) -> None:
        zero = np.zeros((1, 1, self.oracle.width))
        c = self.oracle.ask(zero.copy())
        # A constant that changes is none.
        if c.any() and (self.oracle.ask(zero.copy()) != c).any():
            raise NotAHead(Counterexample(zero[0], c[0], np.zeros_like(c[0])))
        if c.any():
            raise Unsuited("A constant is added to the answers.")

    def _length(self) -> float:
        """A length of tokens at which answers are about 1."""
        x = self.rng.normal(size=self.oracle.width)
        x /= np.linalg.norm(x)
        length = 1.0
        for _ in range(_STEPS):
            try:
                size = float(np.abs(self.oracle.ask(length * x[None, None])).max())
            except BadAnswer:
                length *= 2.0**-24
                continue
            if size > 0:
                return length * find_power_of_two(1.0 / size)
            length *= 2.0**24
        raise Unsuited("No single token has an answer other than 0.")

    def _singles(self, length: float) -> Matrix:
        """V to the digits of the format; entries too small to be seen are asked at more length."""
        d = self.oracle.width
        for _ in range(_STEPS):
            try:
                answers = self.oracle.ask(length * np.eye(d)[:, None])
                break
            except BadAnswer:
                length /= 2.0**4
        else:
            raise Unsuited("Single tokens have no finite answers at any length.")
        V = answers / length
        self.bar = bound_cast_error(answers, self.form) / length
        if self.form.least > _SHALLOW:
            self._fainter(V, np.full(d, length))
        return V

    def _fainter(self, V: Matrix, lengths: Vector) -> None:
        """Ask tokens with an entry below normal size again, as long as other outputs allow."""
        for _ in range(2):
            faint = (np.abs(V) * lengths[:, None] < 2.0**self.form.least).any(axis=1)
            largest = np.maximum(np.abs(V).max(axis=1) * lengths, 2.0**-100)
            longer = np.minimum(2.0**20, self.room / largest)
            at = np.flatnonzero(faint & (longer >= 2.0))
            if len(at) == 0:
                return
            lengths[at] *= 2.0 ** np.floor(np.log2(longer[at]))
            answers = self.oracle.ask(lengths[at, None, None] * np.eye(len(V))[at, None])
            V[at] = answers / lengths[at, None]
            self.bar[at] = bound_cast_error(answers, self.form) / lengths[at, None]

    def _scales(self, V: Matrix, top: Indices) -> None:
        """The largest entry of every output, by bisecting where a power of two is passed."""
        d, outputs = V.shape
        seen = np.flatnonzero(V[top, np.arange(outputs)])
        k = top[seen]
        sizes = np.abs(V[k, seen])
        low, high = sizes - self.bar[k, seen], sizes + self.bar[k, seen]
        beside = np.abs(V[k]).max(axis=1) / sizes
        power = 2.0 ** np.floor(np.log2(np.minimum(1.0, self.room / beside)))
        for _ in range(64):
            wide = np.flatnonzero(high - low > _SCALE * low)
            if len(wide) == 0:
                break
            middle = (low[wide] + high[wide]) / 2
            lengths = power[wide] * (1.0 + self.form.roundoff) / middle
            answers = self.oracle.ask((lengths[:, None] * np.eye(d)[k[wide]])[:, None])
            above = np.abs(answers[np.arange(len(wide)), seen[wide]]) > power[wide]
            self.edges[bool(above[0])] = lengths[0] * np.eye(d)[k[wide[:1]], None]
            low[wide] = np.where(above, middle, low[wide])
            high[wide] = np.where(above, high[wide], middle)
        found = (low + high) / 2
        if len(found) and self._rounds_twice(
            int(k[0]), int(seen[0]), float(found[0]), float(power[0])
        ):
            found *= _shift_by_second_rounding(self.form)
            self.form = replace(self.form, via=FIRST_ROUNDING)
        V[k, seen] = np.copysign(found, V[k, seen])
        self.bar[k, seen] = high - low

    def _rounds_twice(self, k: int, out: int, size: float, power: float) -> bool:
        """Whether answers are rounded to f32 first: a question that tells once from twice.

        Of the floats above the power of two the first is odd. Beside the middle between it and the
        next, a size that was found from one rounding answers the first and, were it found from two,
        the next.
        """
        form = self.form
        if form.digits >= FIRST_ROUNDING.digits:
            return False
        length = power * (1.0 + 3 * form.roundoff - FIRST_ROUNDING.roundoff / 2) / size
        token = length * np.eye(self.oracle.width)[k]
        answer = abs(float(self.oracle.ask(token[None, None])[0, out]))
        twice = replace(form, via=FIRST_ROUNDING)
        expected = twice.cast(np.array(length * size * _shift_by_second_rounding(form)))
        return answer == float(expected)

    def _ratios(self, V: Matrix, top: Indices) -> None:
        """All other entries, as ratios to the largest of their output."""
        open_ = V != 0.0
        open_[top, np.arange(V.shape[1])] = False
        for _ in range(_ROUNDS):
            open_ &= self.bar > GOAL * np.abs(V)
            i, out = np.nonzero(open_)
            if len(i) == 0:
                break
            before = self.bar[i, out]
            stuck = self._refine(V, i, out, top[out])
            # Other outputs may forbid longer tokens.
            open_[i, out] &= ~stuck & (self.bar[i, out] < before / 4)

    def _refine(self, V: Matrix, i: Indices, out: Indices, k: Indices) -> Mask:
        """One query per entry; returns which of them show coarser arithmetic inside than expected.

        An answer of exactly 0 is either the ratio itself, or a sum that rounds to 0 inside; one
        more query tells.
        """
        r = V[i, out] / V[k, out]
        expected = self.bar[i, out]
        x, lengths = self._almost(V, i, out, k, r)
        answers = self.oracle.ask(x.copy())[np.arange(len(i)), out]
        rest = answers / lengths
        V[i, out] = r * V[k, out] + rest
        sizes = np.abs(V[i, out])
        self.bar[i, out] = bound_cast_error(answers, self.form) / lengths + 2 * EPS * sizes
        stuck = np.abs(rest) > 2 * expected + 64 * EPS * sizes
        gaps = np.where(stuck, np.abs(rest), 0.0)
        zero = np.flatnonzero((rest == 0.0) & (expected > GOAL * sizes))
        if len(zero):
            gaps[zero] = self._confirmed(V, i[zero], out[zero], k[zero])
            stuck |= gaps > 0
        self._stall(x[stuck], gaps[stuck] / np.maximum(sizes, gaps)[stuck])
        self.bar[i[stuck], out[stuck]] = gaps[stuck]
        return stuck

    def _almost(
        self, V: Matrix, i: Indices, out: Indices, k: Indices, r: Vector
    ) -> tuple[Stack, Vector]:
        """Tokens e_i - r e_k, as long as it takes to be answered with about 1 if r is right."""
        at = np.arange(len(i))
        beside = np.abs(V[i] - r[:, None] * V[k])
        beside[at, out] = 0.0
        with np.errstate(divide="ignore", over="ignore"):
            lengths = np.minimum(1.0 / self.bar[i, out], self.room / beside.max(axis=1))
        lengths = 2.0 ** np.floor(np.log2(lengths))
        x = np.zeros((len(i), 1, len(V)))
        x[at, 0, i] = lengths
        x[at, 0, k] = -lengths * r
        return x, lengths

    def _confirmed(self, V: Matrix, i: Indices, out: Indices, k: Indices) -> Vector:
        """How far answers are from what known shifts of the ratio should make; 0 if they do."""
        gaps = np.zeros(len(i))
        fine = self.bar[i, out]
        for share in _LATTICE:
            at = np.flatnonzero(gaps == 0.0)
            j, o = i[at], out[at]
            sizes = np.abs(V[j, o])
            shift = share * sizes
            self.bar[j, o] = shift
            x, lengths = self._almost(V, j, o, k[at], (V[j, o] - shift) / V[k[at], o])
            answers = self.oracle.ask(x.copy())[np.arange(len(at)), o] if len(at) else shift
            off = np.abs(answers / lengths - shift)
            allowed = 4 * bound_cast_error(answers, self.form) / lengths + 64 * EPS * sizes
            gaps[at] = np.where(off > allowed, off, 0.0)
        self.bar[i, out] = fine
        return gaps

    def _stall(self, x: Stack, shares: Vector) -> None:
        """Remember what shows the rounding of the arithmetic inside, the worst first."""
        worst = np.argsort(-shares)[:_AGAIN]
        self.stalled += [x[[j]] for j in worst]
        self.inner = max(self.inner, float(shares.max(initial=0.0)))

    def _alone(self, V: Matrix) -> None:
        """The arithmetic inside where there is no ratio: [(1 + b) x; -x; 0] answers b x V / 3."""
        if len(V) > 1:
            return
        size = float(np.abs(V).max())
        for share in _LATTICE:
            length = find_power_of_two(1.0 / (share * size))
            x = length * np.array([[[1.0 + share], [-1.0], [0.0]]])
            answers = self.oracle.ask(x.copy())
            gap = float(np.abs(answers / length - share * V / 3).max()) / size
            cast = float(bound_cast_error(answers, self.form).max())
            if gap > 4 * cast / (length * size) + 64 * EPS:
                self._stall(x, np.array([gap]))
                return

    def _homogeneous(self) -> None:
        """Refuse a target whose deviations do not scale with powers of two, as rounding does."""
        cases = [(x, 1 / 8) for x in self.stalled[:_AGAIN]]
        cases += [(x, 32.0) for x in self.edges.values()]
        for x, factor in cases:
            answer, scaled = (self.oracle.ask(times * x) for times in (1.0, factor))
            # Below normal size digits are lost, whichever of the two is smaller.
            lost = 4 * 2.0 ** (self.form.least - self.form.digits) / min(factor, 1.0)
            if (np.abs(scaled / factor - answer) > lost).any():
                raise NotAHead(Counterexample(factor * x[0], scaled[0], factor * answer[0]))

    def _bias(self, V: Matrix) -> str:
        """[x; -x; 0] answers 0 whatever W is, unless a score bias prefers x or -x."""
        x = self._random(V)
        length = min(2.0**60, 2.0 * self.room) / float(np.abs(x @ V).max())
        answer = self.oracle.ask(length * np.stack([x, -x, np.zeros_like(x)])[None])
        size = float((np.abs(x) @ np.abs(V)).max())
        seen = np.abs(answer).max() > 64 * self.inner * length * size
        return "A score bias acts." if seen else ""

    def _residual(self, V: Matrix) -> str:
        """[x; 0] with x V = 0 answers 0, unless single tokens are partly read as the last one."""
        x = self._random(V)
        R = np.linalg.svd(V, full_matrices=False)[0][:, : min(V.shape[1], len(V) - 1)]
        across = x - R @ (R.T @ x) if len(V) > 1 else x
        size = float((np.abs(across) @ np.abs(V)).max())
        length = 2.0**8 / size if size > 0 else 1.0
        answer = self.oracle.ask(length * np.stack([across, np.zeros_like(x)])[None])[0]
        expected = length * across @ V / 2
        cast = bound_cast_error(np.maximum(np.abs(expected), answer), self.form)
        slack = 64 * max(self.inner, 2.0**-44) * length * size + 2 * cast
        seen = (np.abs(answer - expected) > slack).any()
        return "A residual of the last token acts." if seen else ""

    def _random(self, V: Matrix) -> Vector:
        x = self.rng.normal(size=len(V))
        return x / np.linalg.norm(x)
