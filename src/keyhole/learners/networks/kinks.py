r"""Every bend of a piecewise linear function along one line.

A generic line meets every hyperplane of a network once, so that all hidden units show up as kinks
of one function of one number. The line is $x_0 + t u$ with Gaussian $x_0$ and $u$; kinks of
hyperplanes near the origin are then spread like a Cauchy variable, evenly in $\theta = \arctan t$,
which is where intervals are halved.

**One or two outputs: pairs** (here). A piece is two samples close together, and the line through
them. Between two pieces with the same line there is nothing; otherwise their lines meet at t*,
where another pair is asked, just left and just right of it. The first on the left line and the
second on the right one: exactly one kink, at t*. Anything else: that pair is a new piece. (One
sample at t* is not enough: with weights of both signs a broken line can come back to the meeting
point.) A window that turns out to hold a kink of its own is opened: its two samples become two
pieces.

**Three outputs or more: chains** need only about two samples per kink; see the module of that name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import EPS, Array, Indices, Matrix, Vector
from keyhole.learners.networks.bends import SUSPICIOUS, is_smooth

Ask = Callable[[Matrix], Matrix]
# where the line is looked at from outside; each rung is readable from the next
LADDER = (1e4, 1e8, 1e12)
_WINDOW = 1e-4  # half a pair, as a share of its interval in theta
_WIDER = 1e-3  # the same on a segment, where imprecise hyperplanes found before count as noise
_SLACK = 12.0  # deviations beyond this many noises are real
_LEAST = 1e-300  # rounding where every answer is zero
_BENT = 1e-9  # relative deviations beyond this are bends, not rounding
_SHARP = 1e7  # a line known less well than this many noises is not compared with another
_LEVELS = 120


class Unresolved(Exception):
    """The function jumps, or bends more often than a network of the largest width that was allowed
    for.
    """


class Crowded(Unresolved):
    """More kinks were met along a line than hidden units are allowed for."""


class Smooth(Unresolved):
    """The function bends everywhere: it is not piecewise linear."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Size of the rounding of answers along a line: `share` of the size of the answers there.

    Args:
        share: rounding relative to the size of an answer.
        level: size of answers near the start of the line.
        slope: growth of that size per unit of t.
    """

    share: float
    level: float
    slope: float

    def at(self, t: Array) -> Array:
        """Rounding at places of the line."""
        return self.share * (self.level + self.slope * np.abs(t)) + _LEAST

    def near(self, t: float) -> float:
        """Rounding at one place."""
        return self.share * (self.level + self.slope * abs(t)) + _LEAST


@dataclass(frozen=True, eq=False, slots=True)
class Line:
    """A line through the space of points, and whom to ask about them."""

    ask: Ask
    start: Vector
    along: Vector

    def at(self, t: Array) -> Matrix:
        """Points of the line."""
        return self.start + np.asarray(t)[:, None] * self.along

    def __call__(self, t: Array) -> Matrix:
        """Answers along the line."""
        return self.ask(self.at(t))


@dataclass(frozen=True, eq=False, slots=True)
class Bends:
    """A line as it was resolved: k kinks, k + 1 slopes, and the samples that say so.

    Args:
        line: the line.
        noise: rounding of answers along it.
        t: places of the kinks, ascending.
        slopes: slope of the region before each kink, and after the last.
        places: every sample, ascending.
        values: answers there.
        bars: standard error of each slope.
        whole: whether the line goes on for ever; a segment may not be left.
    """

    line: Line
    noise: Noise
    t: Vector
    slopes: Matrix
    places: Vector
    values: Matrix
    bars: Vector
    whole: bool = True

    @property
    def jumps(self) -> Matrix:
        """Change of slope at each kink."""
        return np.diff(self.slopes, axis=0)

    def value(self, region: int, t: float) -> Vector:
        """The function at a place of a region, from the sample of that region nearest to it."""
        inside = np.flatnonzero(np.searchsorted(self.t, self.places) == region)
        at = inside[np.argmin(np.abs(self.places[inside] - t))]
        return self.values[at] + self.slopes[region] * (t - self.places[at])


def measure_line_noise(
    line: Line, *, roundoff: float, hidden: Ask | None = None
) -> tuple[Noise, Vector, Matrix]:
    """The rounding of answers, from a window too small to bend in, and the rungs of the ladder on
    both sides.

    Args:
        line: what to ask.
        roundoff: relative rounding of answers, at least.
        hidden: where answers are what a model leaves of larger ones, the sizes of those.
    """
    rungs = np.array([1.0, *LADDER, 1.3 * LADDER[-1], 2 * LADDER[-1]])
    places: Vector = np.concatenate([-rungs[::-1], 1e-7 * np.arange(7.0), rungs])
    values = line(places)
    inner = values[len(rungs) : len(rungs) + 7]
    rough = float(np.abs(np.diff(inner, 2, axis=0)).max()) / 2
    size = np.abs(values).max(axis=1) + (0.0 if hidden is None else hidden(line.at(places))[:, 0])
    level = float(size[len(rungs) - 1 : len(rungs) + 8].max())
    slope = float(max(size[0], size[-1])) / rungs[-1]
    share = max(4 * roundoff, 2 * rough / level if level > 0 else 0.0)
    # terms of an answer may be larger than their sum: far out, three samples of one line show how
    # much
    far = max(
        _measure_line_gap(places[i], values[i]) / max(float(size[i].max()), _LEAST)
        for i in (slice(0, 3), slice(-3, None))
    )
    share = max(share, 2 * far) if far < _BENT else share
    keep = np.r_[0, 2 : len(rungs) + 1, len(rungs) + 7 : len(places) - 2, len(places) - 1]
    return Noise(share, level, float(slope)), places[keep], values[keep]


def _measure_line_gap(t: Vector, values: Matrix) -> float:
    """How far the middle one of three samples is from the line through the others."""
    share = (t[1] - t[0]) / (t[2] - t[0])
    return float(np.abs(values[1] - (1 - share) * values[0] - share * values[2]).max())


def find_middle(a: Array, b: Array) -> Array:
    """The places half way between a and b in theta = arctan t."""
    # tan of the mean of two angles is (sin + sin)/(cos + cos), which stays exact far out.
    ra, rb = np.hypot(1.0, a), np.hypot(1.0, b)
    return (a / ra + b / rb) / (1.0 / ra + 1.0 / rb)


# --- pairs -----------------------------------------------------------------------------------------------------


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
        near, value = (self.a, self.fa) if abs(t - self.a) < abs(t - self.b) else (self.b, self.fb)
        return value + self.slope * (t - near)

    def bar(self, t: float, noise: Noise) -> float:
        """How far off the line may be there, and the answer with it."""
        rough, other, own = noise.near(self.a), noise.near(self.b), noise.near(t)
        near, far = (
            (rough, t - self.a) if abs(t - self.a) < abs(t - self.b) else (other, t - self.b)
        )
        if self.b == self.a:  # split down to one number: a jump, not a kink
            raise Unresolved
        return _SLACK * (near + own + (rough + other) * abs(far) / (self.b - self.a))

    def holds(self, t: float, value: Vector, noise: Noise) -> bool:
        """Whether a sample lies on the line."""
        return float(np.abs(self.at(t) - value).max()) <= self.bar(t, noise)


@dataclass(slots=True)
class _KinkSearch:
    """Pieces in order, and what is known of the interval after each: None when open, else its
    kink.
    """

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
        met = sum(kink is not None for kink in self.kinks)
        raise Crowded if met > self.most else Unresolved

    def _hear(self) -> None:
        """Terms that cancel far out are rounded all the same: as much as the steepest piece says,
        not as their sum.
        """
        steepest = max((float(np.abs(p.slope).max()) for p in self.pieces if p.sure), default=0.0)
        if steepest > 2 * self.noise.slope:
            self.noise = replace(self.noise, slope=steepest)
            pairs = zip(self.kinks, self.pieces[:-1], self.pieces[1:], strict=True)
            self.kinks = [None if self._same(L, R) else kink for kink, L, R in pairs]

    def _refuse_smooth(self, still_open: list[int]) -> None:
        """Look, each time that pieces have doubled, whether the function bends everywhere."""
        if len(self.pieces) <= self.suspicious:
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
        """A sample on both lines, if the line it belongs to is sure: a chord over a kink would meet
        the other, too.
        """
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
        """Where to ask next inside an interval, half the window, and whether a kink is expected
        there.
        """
        L, R = self.pieces[i], self.pieces[i + 1]
        mid = float(find_middle(np.array([L.b]), np.array([R.a]))[0])
        width = self.window * (np.arctan(R.a) - np.arctan(L.b))
        turn = L.slope - R.slope
        steep = float(turn @ turn)
        if steep > 0.0:
            at = R.a + float((R.fa - L.at(R.a)) @ turn) / steep
            room = min(at - L.b, R.a - at)
            blur = max(L.bar(at, self.noise), R.bar(at, self.noise)) / steep**0.5
            h = width * (1 + at * at)
            if room > 2 * h > 4 * blur:
                return at, h, True
        h = width * (1 + mid * mid)
        if not h > 8 * EPS * (1 + abs(mid)):
            raise Unresolved
        return mid, h, False

    def _place(self, jobs: list[tuple[int, float, float, bool]], t: Array, values: Array) -> None:
        """Kinks that show, new pieces for the rest; from the right, so that places stay where they
        are.
        """
        for (i, at, _, met), (a, b), (fa, fb) in reversed(
            list(zip(jobs, t.tolist(), values, strict=True))
        ):
            L, R = self.pieces[i], self.pieces[i + 1]
            if met and L.holds(a, fa, self.noise) and R.holds(b, fb, self.noise):
                self.kinks[i] = at
                self.pieces[i], self.pieces[i + 1] = (
                    Piece(L.a, a, L.fa, fa, True),
                    Piece(b, R.b, fb, R.fb, True),
                )
            else:
                self.pieces.insert(i + 1, Piece(a, b, fa, fb))
                self.kinks.insert(i, None)

    def _open_windows(self) -> None:
        """Pieces that no third sample confirms, and whose neighbourhood has shrunk to their size,
        hold a kink.
        """
        suspects = [i for i in range(1, len(self.pieces) - 1) if self._suspect(i)]
        if not suspects:
            return
        old = [self.pieces[i] for i in suspects]
        inner = np.array([[p.a + (p.b - p.a) / 16, p.b - (p.b - p.a) / 16] for p in old])
        values = self.ask(inner.ravel()).reshape(len(old), 2, -1)
        for i, p, (a, b), (fa, fb) in reversed(
            list(zip(suspects, old, inner.tolist(), values, strict=True))
        ):
            self.pieces[i : i + 1] = [Piece(p.a, a, p.fa, fa), Piece(b, p.b, fb, p.fb)]
            self.kinks.insert(i, None)

    def _suspect(self, i: int) -> bool:
        p = self.pieces[i]
        left, right = p.a - self.pieces[i - 1].b, self.pieces[i + 1].a - p.b
        sides = zip(self.kinks[i - 1 : i + 1], (left, right), strict=True)
        tight = any(kink is None and gap < 4 * (p.b - p.a) for kink, gap in sides)
        return not p.sure and tight and p.b - p.a > 64 * EPS * (1 + abs(p.a))


def resolve_line_by_pairs(
    line: Line, noise: Noise, places: Vector, values: Matrix, *, most: int
) -> Bends:
    """Resolve a line whose answers have one or two numbers; `places` are the rungs of the
    ladder.
    """
    inner = (np.abs(places) < LADDER[-1]) & (np.abs(places) > 1)
    beside = places[inner] + _WINDOW * np.abs(places[inner])
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
    return replace(
        _run_kink_search(_KinkSearch(line, noise, most, [first, last], _WIDER), [(places, values)]),
        whole=False,
    )


def _run_kink_search(search: _KinkSearch, before: list[tuple[Array, Matrix]]) -> Bends:
    """The bends that a search finds, from its samples and those asked before."""
    search.run()
    t = np.array([k for k in search.kinks if k is not None])
    places, values = (np.concatenate(part) for part in zip(*before, *search.asked, strict=True))
    return _settle_kinks(search.line, search.noise, t, places, values)


def _settle_kinks(line: Line, noise: Noise, t: Vector, places: Vector, values: Matrix) -> Bends:
    """Slopes from the outermost samples of every region, kinks where the lines meet."""
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order]
    for _ in range(2):
        slopes, first, last = _measure_region_slopes(t, places, values)
        turn, a, b = np.diff(slopes, axis=0), last[:-1], first[1:]
        # left line at b against the right one: (right - left)(b) = turn (b - t)
        rise = values[b] - values[a] - slopes[:-1] * (places[b] - places[a])[:, None]
        t = places[b] - np.einsum("km,km->k", rise, turn) / np.einsum("km,km->k", turn, turn)
        t = np.clip(
            t, places[a], np.nextafter(places[b], -np.inf)
        )  # weak kinks are known poorly, but which samples they part
    slopes, first, last = _measure_region_slopes(t, places, values)
    bars = (noise.at(places[first]) + noise.at(places[last])) / (places[last] - places[first])
    return Bends(line, noise, t, slopes, places, values, bars)


def _measure_region_slopes(
    t: Vector, places: Vector, values: Matrix
) -> tuple[Matrix, Indices, Indices]:
    """Slope of every region, from its first and last sample."""
    region, every = np.searchsorted(t, places), np.arange(len(t) + 1)
    first, last = np.searchsorted(region, every), np.searchsorted(region, every, "right") - 1
    if not (last > first).all():
        raise Unresolved
    return (values[last] - values[first]) / (places[last] - places[first])[:, None], first, last
