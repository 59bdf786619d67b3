"""Kinks of one or two outputs along a line, by pairs of samples.

A piece is two samples close together, and the line through them. Between two pieces with the same
line there is nothing; otherwise their lines meet at t*, where another pair is asked, just left and
just right of it. The first on the left line and the second on the right one: exactly one kink, at
t*. Anything else: that pair is a new piece. (One sample at t* is not enough: with weights of both
signs a broken line can come back to the meeting point.) A window that turns out to hold a kink of
its own is opened: its two samples become two pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import EPS, Array, Matrix, Vector
from keyhole.learners.networks.kinks import (
    LADDER,
    LINEAR,
    SUSPICIOUS,
    Bends,
    Crowded,
    Line,
    Noise,
    Smooth,
    Unresolved,
    find_middle,
    is_smooth,
    settle_kinks,
)

_WINDOW = 1e-4  # half a pair, as a share of its interval in theta
_WIDER = 1e-3  # the same on a segment, where imprecise hyperplanes found before count as noise
_SLACK = 12.0  # deviations beyond this many noises are real
_SHARP = 1e7  # a line known less well than this many noises is not compared with another
_LEVELS = 120  # halvings of theta, twice as many as doubles can resolve


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """The line through two samples; `sure` once a third lies on it."""

    a: float
    b: float
    fa: Vector
    fb: Vector
    sure: bool = False

    @property
    def slope(self) -> Vector:
        """Slope of the line."""
        return (self.fb - self.fa) / (self.b - self.a)

    def at(self, t: float) -> Vector:
        """The line at a place, from its nearer sample: far out answers are rounded more."""
        if abs(t - self.a) < abs(t - self.b):
            return self.fa + self.slope * (t - self.a)
        return self.fb + self.slope * (t - self.b)

    def bar(self, t: float, noise: Noise) -> float:
        """How far off the line may be there, and the answer with it."""
        rough_a = noise.near(self.a)
        rough_b = noise.near(self.b)
        near, far = rough_b, t - self.b
        if abs(t - self.a) < abs(t - self.b):
            near, far = rough_a, t - self.a
        # Split down to one number, a piece holds a jump and not a kink.
        if self.b == self.a:
            raise Unresolved
        tilt = (rough_a + rough_b) * abs(far) / (self.b - self.a)
        return _SLACK * (near + noise.near(t) + tilt)

    def holds(self, t: float, value: Vector, noise: Noise) -> bool:
        """Whether a sample lies on the line."""
        return float(np.abs(self.at(t) - value).max()) <= self.bar(t, noise)


@dataclass(slots=True)
class _KinkSearch:
    """Pieces in order; of the interval after each its kink, or None while it is open."""

    line: Line
    noise: Noise
    most: int
    pieces: list[Piece]
    window: float = _WINDOW
    kinks: list[float | None] = field(init=False)
    asked: list[tuple[Array, Matrix]] = field(init=False)
    suspicious: int = field(default=SUSPICIOUS, init=False)

    def __post_init__(self) -> None:
        self.kinks = [None] * (len(self.pieces) - 1)
        self.asked = []

    def ask(self, t: Array) -> Matrix:
        values = self.line(t)
        self.asked.append((t, values))
        return values

    def run(self) -> None:
        for _ in range(_LEVELS):
            self._open_windows()
            self._hear()
            self._drop_empty()
            jobs = [(i, *self._probe(i)) for i, kink in enumerate(self.kinks) if kink is None]
            if not jobs:
                return
            if len(self.pieces) > 8 * self.most + 64:
                break
            self._refuse_smooth([i for i, *_ in jobs])
            t = np.array([[at - h, at + h] for _, at, h, _ in jobs])
            values = self.ask(t.ravel()).reshape(len(jobs), 2, -1)
            self._place(jobs, t, values)
        raise Crowded if self.met > self.most else Unresolved

    @property
    def met(self) -> int:
        """Kinks put down so far."""
        return sum(kink is not None for kink in self.kinks)

    def _hear(self) -> None:
        """Raise the noise to the steepest piece."""
        steepest = max((float(np.abs(p.slope).max()) for p in self.pieces if p.sure), default=0.0)
        louder = self.noise.hear(steepest)
        if louder is not self.noise:
            self.noise = louder
            pairs = zip(self.kinks, self.pieces[:-1], self.pieces[1:], strict=True)
            self.kinks = [None if self._same(L, R) else kink for kink, L, R in pairs]

    def _refuse_smooth(self, still_open: list[int]) -> None:
        """Look, each time that pieces have doubled, whether the function bends everywhere."""
        if len(self.pieces) <= self.suspicious or len(self.kinks) < LINEAR * self.met:
            return
        self.suspicious *= 2
        a = np.array([self.pieces[i].b for i in still_open])
        b = np.array([self.pieces[i + 1].a for i in still_open])
        if is_smooth(self.line, self.noise.at, a, b):
            raise Smooth

    def _drop_empty(self) -> None:
        """Two pieces of one line become one, which is longer and so known better."""
        pieces, kinks = self.pieces[:1], list[float | None]()
        for kink, R in zip(self.kinks, self.pieces[1:], strict=True):
            L = pieces[-1]
            if kink is None and self._same(L, R):
                pieces[-1] = Piece(L.a, R.b, L.fa, R.fb, True)
            else:
                pieces.append(R)
                kinks.append(self._at_sample(L, R) if kink is None else kink)
        self.pieces, self.kinks = pieces, kinks

    def _at_sample(self, L: Piece, R: Piece) -> float | None:
        """A sample on both lines, if its own is sure: a chord over a kink meets both."""
        for mine, other, t, value in ((R, L, R.a, R.fa), (L, R, L.b, L.fb)):
            sharp = other.bar(t, self.noise) < 1e4 * self.noise.near(t)
            if mine.sure and sharp and other.holds(t, value, self.noise):
                return t
        return None

    def _same(self, L: Piece, R: Piece) -> bool:
        """Whether two pieces lie on one line, and one of them tells that of the other's place."""
        sharp = max(p.bar(t, self.noise) / self.noise.near(t) for p, t in ((L, R.a), (R, L.b)))
        near = L.holds(R.a, R.fa, self.noise) and L.holds(R.b, R.fb, self.noise)
        return (
            near
            and R.holds(L.a, L.fa, self.noise)
            and R.holds(L.b, L.fb, self.noise)
            and sharp < _SHARP
        )

    def _probe(self, i: int) -> tuple[float, float, bool]:
        """Where to ask next in an interval, half the window, and whether a kink is expected."""
        L, R = self.pieces[i], self.pieces[i + 1]
        mid = float(find_middle(np.array([L.b]), np.array([R.a]))[0])
        width = self.window * (np.arctan(R.a) - np.arctan(L.b))  # in theta
        turn = L.slope - R.slope
        steep = float(turn @ turn)
        if steep > 0.0:
            at = R.a + float((R.fa - L.at(R.a)) @ turn) / steep
            room = min(at - L.b, R.a - at)
            blur = max(L.bar(at, self.noise), R.bar(at, self.noise)) / steep**0.5
            h = width * (1 + at * at)
            # A meeting point known less well than the window is wide is no better than the middle.
            if room > 2 * h > 4 * blur:
                return at, h, True
        h = width * (1 + mid * mid)
        if not h > 8 * EPS * (1 + abs(mid)):
            raise Unresolved
        return mid, h, False

    def _place(self, jobs: list[tuple[int, float, float, bool]], t: Array, values: Array) -> None:
        """Put down kinks that show, new pieces for the rest."""
        answered = list(zip(jobs, t.tolist(), values, strict=True))
        # From the right, so that the places of intervals still to come stay where they are.
        for (i, at, _, met), (a, b), (fa, fb) in reversed(answered):
            L, R = self.pieces[i], self.pieces[i + 1]
            if met and L.holds(a, fa, self.noise) and R.holds(b, fb, self.noise):
                self.kinks[i] = at
                self.pieces[i] = Piece(L.a, a, L.fa, fa, True)
                self.pieces[i + 1] = Piece(b, R.b, fb, R.fb, True)
            else:
                self.pieces.insert(i + 1, Piece(a, b, fa, fb))
                self.kinks.insert(i, None)

    def _open_windows(self) -> None:
        """Split pieces that must hold a kink: unconfirmed, in an interval as small as they are."""
        suspects = [i for i in range(1, len(self.pieces) - 1) if self._suspect(i)]
        if not suspects:
            return
        old = [self.pieces[i] for i in suspects]
        inner = np.array([[p.a + (p.b - p.a) / 16, p.b - (p.b - p.a) / 16] for p in old])
        values = self.ask(inner.ravel()).reshape(len(old), 2, -1)
        answered = list(zip(suspects, old, inner.tolist(), values, strict=True))
        for i, p, (a, b), (fa, fb) in reversed(answered):
            self.pieces[i : i + 1] = [Piece(p.a, a, p.fa, fa), Piece(b, p.b, fb, p.fb)]
            self.kinks.insert(i, None)

    def _suspect(self, i: int) -> bool:
        p = self.pieces[i]
        left = p.a - self.pieces[i - 1].b
        right = self.pieces[i + 1].a - p.b
        sides = zip(self.kinks[i - 1 : i + 1], (left, right), strict=True)
        tight = any(kink is None and gap < 4 * (p.b - p.a) for kink, gap in sides)
        return not p.sure and tight and p.b - p.a > 64 * EPS * (1 + abs(p.a))


def resolve_line_by_pairs(
    line: Line, noise: Noise, places: Vector, values: Matrix, *, most: int
) -> Bends:
    """Resolve a line whose answers have one or two numbers, from the rungs of the ladder."""
    # The start is looked at too: a line may have been drawn through it for what shows there.
    inner = (np.abs(places) < LADDER[-1]) & (np.abs(places) != 1)
    beside = places[inner] + _WINDOW * np.maximum(np.abs(places[inner]), 1.0)
    extra = line(beside)
    pairs = zip(places[inner].tolist(), beside.tolist(), values[inner], extra, strict=True)
    first = Piece(float(places[0]), float(places[1]), values[0], values[1])
    last = Piece(float(places[-2]), float(places[-1]), values[-2], values[-1])
    search = _KinkSearch(line, noise, most, [first, *(Piece(*pair) for pair in pairs), last])
    return _run_kink_search(search, [(places, values), (beside, extra)])


def resolve_segment(line: Line, noise: Noise, *, most: int) -> Bends:
    """Resolve the part of a line from t = 0 to 1, by pairs whatever the number of outputs."""
    places = np.array([0.0, _WIDER, 1.0 - _WIDER, 1.0])
    values = line(places)
    first, last = (Piece(*places[i : i + 2].tolist(), *values[i : i + 2]) for i in (0, 2))
    search = _KinkSearch(line, noise, most, [first, last], _WIDER)
    return replace(_run_kink_search(search, [(places, values)]), whole=False)


def _run_kink_search(search: _KinkSearch, before: list[tuple[Array, Matrix]]) -> Bends:
    """The bends that a search finds, from its samples and those asked before."""
    search.run()
    t = np.array([k for k in search.kinks if k is not None])
    places, values = (np.concatenate(part) for part in zip(*before, *search.asked, strict=True))
    return settle_kinks(search.line, search.noise, t, places, values)
