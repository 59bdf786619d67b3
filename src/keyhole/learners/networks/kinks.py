r"""Every bend of a piecewise linear function along one line.

A generic line meets every hyperplane of a network once, so that all hidden units show up as kinks
of one function of one number. The line is $x_0 + t u$ with Gaussian $x_0$ and $u$; kinks of
hyperplanes near the origin are then spread like a Cauchy variable, evenly in $\theta = \arctan t$,
which is where intervals are halved.

With one output kinks are searched by pairs of samples (pair_search), which end here, in
`settle_kinks`; with more the pieces beside an interval tell kinks from fewer (centroid_search).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Indices, Matrix, Vector

Ask = Callable[[Matrix], Matrix]
# Where the line is looked at from outside: each rung can be read from the next in doubles.
LADDER = (1e4, 1e8, 1e12)
_LEAST = 1e-300  # rounding where every answer is zero
_BENT = 1e-9  # relative deviations beyond this are bends, not rounding
_LEVEL = 1e-6  # growth per unit of t, beside the size near the start, of answers that do not grow
_APART = np.array([1.0, 1.234567891, 1.618033989, 2.0])  # samples near one rung: no round numbers
_CANCELLED = 0.2  # of the size near the start: what a thousand roundings are on the last rung

SUSPICIOUS = 128  # intervals of one line, from which on it is worth asking
LINEAR = 4  # unless one in so many turned out to hold kinks alone
_PLACES = 8
_STEPS = np.array([1.0, 0.5, 0.25])
_QUARTER = 0.05  # how far from a quarter, relatively
_AGREEING = 3  # places at least that look smooth, and half of those that tell
_CLEAR = 50.0  # roundings that a second difference is larger than


class Unresolved(Exception):
    """The function jumps, or bends more often than the widest network allowed for."""


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

    def hear(self, steepest: float) -> Noise:
        """The noise where a slope was met: terms that cancel far out are rounded all the same."""
        return replace(self, slope=steepest) if steepest > 2 * self.slope else self


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
        # Kinks that moved past all samples between them.
        if not len(inside):
            raise Unresolved
        at = inside[np.argmin(np.abs(self.places[inside] - t))]
        return self.values[at] + self.slopes[region] * (t - self.places[at])


def measure_line_noise(
    line: Line, *, roundoff: float, hidden: Ask | None = None
) -> tuple[Noise, Vector, Matrix]:
    """The rounding of answers in a window too small to bend in, and the rungs on both sides.

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
    # Terms of an answer may exceed their sum; far out, three samples of one line show by how much.
    outer = slice(0, 3), slice(-3, None)
    gaps = [_measure_line_gap(places[i], values[i]) for i in outer]
    far = max(gap / max(float(size[i].max()), _LEAST) for gap, i in zip(gaps, outer, strict=True))
    if far < _BENT:
        share = max(share, 2 * far)
    # Where all terms cancel answers do not grow, and their rounding does.
    if (far >= _BENT or slope < _LEVEL * level) and max(gaps) < _CANCELLED * level:
        loudest = max(max(gaps) / rungs[-1], _measure_nearer_rounding(line, level))
        slope = max(slope, 2 * loudest / share)
    keep = np.r_[0, 2 : len(rungs) + 1, len(rungs) + 7 : len(places) - 2, len(places) - 1]
    return Noise(share, level, float(slope)), places[keep], values[keep]


def _measure_nearer_rounding(line: Line, level: float) -> float:
    """Rounding of answers per unit of t where terms cancel, at the nearer rungs.

    On the last one terms of opposite sign may round alike, and cancel without a trace.
    """
    rungs = np.array([side * rung for rung in LADDER[:-1] for side in (-1.0, 1.0)])
    places = rungs[:, None] * _APART
    values = line(places.ravel()).reshape(*places.shape, -1)
    gaps = np.array([_measure_line_gap(t, F) for t, F in zip(places, values, strict=True)])
    loud = gaps / np.abs(places[:, -1])
    # A larger one is a bend.
    return float(loud[loud < _CANCELLED * level / LADDER[-1]].max(initial=0.0))


def _measure_line_gap(t: Vector, values: Matrix) -> float:
    """How far samples are, at most, from the line through the first and the last."""
    share = ((t - t[0]) / (t[-1] - t[0]))[:, None]
    return float(np.abs(values - (1 - share) * values[0] - share * values[-1]).max())


def find_middle(a: Array, b: Array) -> Array:
    """The places half way between a and b in theta = arctan t."""
    # tan of the mean of two angles is (sin + sin)/(cos + cos), which stays exact far out.
    ra = np.hypot(1.0, a)
    rb = np.hypot(1.0, b)
    return (a / ra + b / rb) / (1.0 / ra + 1.0 / rb)


def settle_kinks(line: Line, noise: Noise, t: Vector, places: Vector, values: Matrix) -> Bends:
    """Slopes from the outermost samples of every region, kinks where the lines meet."""
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order]
    for _ in range(2):
        slopes, first, last = _measure_region_slopes(t, places, values)
        turn = np.diff(slopes, axis=0)
        a, b = last[:-1], first[1:]
        # Left line at b against the right one: (right - left)(b) = turn (b - t).
        rise = values[b] - values[a] - slopes[:-1] * (places[b] - places[a])[:, None]
        t = places[b] - np.einsum("km,km->k", rise, turn) / np.einsum("km,km->k", turn, turn)
        # Weak kinks are known poorly, but which samples they part is certain.
        t = np.clip(t, places[a], np.nextafter(places[b], -np.inf))
    slopes, first, last = _measure_region_slopes(t, places, values)
    bars = (noise.at(places[first]) + noise.at(places[last])) / (places[last] - places[first])
    return Bends(line, noise, t, slopes, places, values, bars)


def _measure_region_slopes(
    t: Vector, places: Vector, values: Matrix
) -> tuple[Matrix, Indices, Indices]:
    """Slope of every region, from its first and last sample."""
    region = np.searchsorted(t, places)
    every = np.arange(len(t) + 1)
    first = np.searchsorted(region, every)
    last = np.searchsorted(region, every, "right") - 1
    # One sample gives no slope: two kinks closer than samples can be told apart.
    if not (last > first).all():
        raise Unresolved
    return (values[last] - values[first]) / (places[last] - places[first])[:, None], first, last


def is_smooth(
    ask: Callable[[Vector], Matrix], rounding: Callable[[Array], Array], a: Vector, b: Vector
) -> bool:
    r"""Whether the function is smooth inside most of a few short open intervals, 7 queries each.

    The second difference $f(t - h) - 2 f(t) + f(t + h)$ of a smooth function is $h^2 f''(t)$, so
    that half the step leaves a quarter of it. A piecewise linear function gives zero where it has
    no kink in between; one kink leaves more than a quarter or, at the next halving, nothing; and
    with many the quarter comes out only by chance.

    Args:
        ask: answers at places of the line.
        rounding: how far off an answer may be there.
        a: left ends of the open intervals.
        b: right ends.
    """
    chosen = np.argsort(b - a)[np.geomspace(1, max(1, len(a) // 2), _PLACES).astype(np.intp) - 1]
    middle = (a[chosen] + b[chosen]) / 2
    h = (b[chosen] - a[chosen]) / 2
    offsets = np.concatenate([-_STEPS, [0.0], _STEPS[::-1]])
    t: Matrix = middle[:, None] + h[:, None] * offsets
    values = ask(t.ravel()).reshape(len(chosen), len(offsets), -1)
    second = np.linalg.norm(values[:, :3] + values[:, :3:-1] - 2 * values[:, 3:4], axis=2)
    clear = second[:, -1] > _CLEAR * rounding(t).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        quarter = np.abs(4.0 * second[:, 1:] / second[:, :-1] - 1.0).max(axis=1) < _QUARTER
    agreeing = int((clear & quarter).sum())
    return len(a) > _PLACES and agreeing >= _AGREEING and 2 * agreeing >= int(clear.sum())
