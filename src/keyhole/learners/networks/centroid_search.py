r"""Every bend along one line from about 1.5 samples per kink, with two outputs or more.

Let two straight pieces L and R bound an interval (a, b), with J the change of slope from L to R and
E what R has at b beside L. Over the kinks between, $J = \sum_j D_j$ and $E = \sum_j (b - t_j) D_j$.

One kink: $E = (b - t) J$, which is m equations for one number and takes no query. Otherwise a
sample is taken at the centroid $t^* = b - E J / |J|^2$. Jumps of many outputs are nearly
orthogonal, so that it is a mean of the $t_j$ weighted by $|D_j|^2$, and parts them. If there are
two, the sample leaves $D_1 (t^* - t_1)$ beside L, which is in the plane of E and J,

$$\alpha E + \beta J, \qquad t_2 = b + \beta/\alpha, \quad t_1 = (t^* - \alpha t_2)/(1 - \alpha),$$

m equations for two numbers. Otherwise the sample and one more beside it are a new piece.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import EPS, Array, Indices, Mask, Matrix, Vector
from keyhole.learners.networks.bend_fit import DOUBT, ask_closer, has_parallel_jumps, refine_bends
from keyhole.learners.networks.kinks import (
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
)

_SLACK = 12.0  # deviations beyond this many noises are real
_CLEAR = 100.0  # what shows a kink is larger than so many of them
_SHARP = 1e7  # a piece known less well than this many noises is not compared with another
_WINDOW = 2e-3  # distance of the two samples of a piece, as a share of the room round it
_WIDER = 2e-2  # the same once some intervals turn out to hold two kinks at most
_EDGE = 0.04  # of an interval, as an angle: no sample is closer to its ends
_APART = 1e-4  # sine of the angle of E and J, below which they tell no plane
_CLIPPED = 1e-3  # of the window of a piece: how near its samples the kinks of a false one lie
_START = 3e-4  # the same for rungs of the ladder, as a share of their distance
_LEVELS = 120


@dataclass(frozen=True, eq=False, slots=True)
class _Between:
    """What the pieces on both sides say of some intervals.

    Args:
        a: left ends.
        b: right ends.
        J: change of slope.
        E: what the right piece has at b beside the left one.
        reach: how far off the left piece may be at b, and the right one at a.
        centroid: where to ask.
        tilts: errors of both slopes.
    """

    a: Vector
    b: Vector
    J: Matrix
    E: Matrix
    reach: Matrix
    centroid: Vector
    tilts: Matrix

    def keep(self, which: Mask) -> _Between:
        """Some of the intervals."""
        rows = self.a[which], self.b[which], self.J[which], self.E[which]
        return _Between(*rows, self.reach[:, which], self.centroid[which], self.tilts[:, which])


@dataclass(slots=True)
class CentroidSearch:
    """Pieces in order; of the interval after each how many kinks it holds, where that is known.

    Args:
        line: what is asked.
        noise: rounding of answers along it.
        most: kinks allowed for.
        planar: whether two kinks may be told from one sample.
        ends: first and last sample of every piece.
        F: answers there.
        sure: whether a third sample lies on the piece.
        count: kinks of the interval after it, -1 while that is open.
        t: where they are.
        missed: whether the centroid turned out to lie beyond all kinks, while that is open.
    """

    line: Line
    noise: Noise
    most: int
    planar: bool
    ends: Matrix
    F: Array
    sure: Mask
    count: Indices = field(init=False)
    t: Matrix = field(init=False)
    missed: Mask = field(init=False)
    places: list[Array] = field(default_factory=list[Array], init=False)
    values: list[Matrix] = field(default_factory=list[Matrix], init=False)
    suspicious: int = field(default=SUSPICIOUS, init=False)
    window: float = field(default=_WINDOW, init=False)

    def __post_init__(self) -> None:
        self.count = np.full(len(self.ends) - 1, -1)
        self.t = np.zeros((len(self.ends) - 1, 2))
        self.missed = np.zeros(len(self.ends) - 1, np.bool_)

    def ask(self, t: Array) -> Matrix:
        """Answers, which are kept."""
        values = self.line(t)
        self.places.append(t)
        self.values.append(values)
        return values

    def run(self) -> Vector:
        """Every kink, ascending."""
        for _ in range(_LEVELS):
            self.hear()
            between = self.judge()
            self.mend_false_pieces()
            todo = np.flatnonzero(self.count < 0)
            if not len(todo):
                return self.list_kinks()
            if len(self.ends) > 4 * self.most + 64:
                break
            if between is None or len(between.a) != len(todo):
                continue
            self.refuse_smooth(between)
            # Where pieces are many kinks apart, samples far from each other have one between.
            if self.has_closed(8):
                self.window = _WIDER
            self.probe(todo, between)
        raise Crowded if (self.count > 0).sum() > self.most else Unresolved

    def has_closed(self, one_in: int) -> bool:
        """Whether one interval in so many turned out to hold one kink or two."""
        return bool(one_in * (self.count > 0).sum() > len(self.count))

    def list_kinks(self) -> Vector:
        """Every kink put down so far."""
        return np.sort(np.concatenate([self.t[self.count > 0, 0], self.t[self.count > 1, 1]]))

    def hear(self) -> None:
        """Raise the noise to the steepest piece: terms that cancel far out are rounded there."""
        louder = self.noise.hear(float(np.abs(self.slopes()[self.sure]).max(initial=0.0)))
        if louder is not self.noise:
            self.noise = louder
            self.count[self.count < 2] = -1

    def slopes(self) -> Matrix:
        """Slope of every piece."""
        return (self.F[:, 1] - self.F[:, 0]) / (self.ends[:, 1] - self.ends[:, 0])[:, None]

    def compare(self, i: Indices) -> _Between:
        """What the pieces say of some intervals."""
        slopes = self.slopes()
        a, b = self.ends[i, 1], self.ends[i + 1, 0]
        gap = (b - a)[:, None]
        J = slopes[i + 1] - slopes[i]
        E = self.F[i + 1, 0] - self.F[i, 1] - slopes[i] * gap
        rough = self.noise.at(self.ends)
        tilt = rough.sum(axis=1) / (self.ends[:, 1] - self.ends[:, 0])
        tilts = np.stack([tilt[i], tilt[i + 1]])
        reach = _SLACK * (rough[i, 1] + rough[i + 1, 0] + tilts * (b - a))
        with np.errstate(divide="ignore", invalid="ignore"):
            centroid = b - np.einsum("im,im->i", E, J) / np.einsum("im,im->i", J, J)
        return _Between(a, b, J, E, reach, centroid, tilts)

    def judge(self) -> _Between | None:
        """Put down what pieces tell of open intervals; what is said of those still open."""
        while True:
            todo = np.flatnonzero(self.count < 0)
            if not len(todo):
                return None
            between = self.compare(todo)
            same = self.find_same(between)
            if same.any():
                self.merge(todo[same])
                continue
            one = self.find_single_kinks(between)
            self.count[todo[one]] = 1
            self.t[todo[one], 0] = np.clip(between.centroid, between.a, between.b)[one]
            return between.keep(~one)

    def find_same(self, between: _Between) -> Mask:
        """Intervals whose pieces lie on one line, and tell that of each other's place."""
        gap = between.b - between.a
        ahead = np.abs(between.E).max(axis=1)
        back = np.abs(between.E - between.J * gap[:, None]).max(axis=1)
        near = (ahead <= between.reach[0]) & (back <= between.reach[1])
        rough = np.stack([self.noise.at(between.b), self.noise.at(between.a)])
        return near & ((between.reach / rough).max(axis=0) < _SHARP)

    def find_single_kinks(self, between: _Between) -> Mask:
        """Intervals whose pieces meet at one place inside."""
        t = between.centroid
        apart = np.abs(between.E - (between.b - t)[:, None] * between.J).max(axis=1)
        rough = self.noise.at(between.a) + self.noise.at(between.b)
        bar = rough + between.tilts[0] * (t - between.a) + between.tilts[1] * (between.b - t)
        jump = np.linalg.norm(between.J, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            blur = _SLACK * bar / jump
        room = between.b - between.a
        inside = (t >= between.a - blur) & (t <= between.b + blur) & (_CLEAR * blur < room)
        return inside & (apart <= _SLACK * bar)

    def merge(self, i: Indices) -> None:
        """Two pieces of one line become one, which is longer and so known better."""
        for at in i[::-1].tolist():
            self.ends[at, 1], self.F[at, 1] = self.ends[at + 1, 1], self.F[at + 1, 1]
            self.sure[at] = True
        self.remove_pieces(i + 1, i)

    def remove_pieces(self, pieces: Indices, intervals: Indices) -> None:
        """Forget pieces, and one interval for each."""
        self.ends = np.delete(self.ends, pieces, axis=0)
        self.F = np.delete(self.F, pieces, axis=0)
        self.sure = np.delete(self.sure, pieces)
        self.count = np.delete(self.count, intervals)
        self.t = np.delete(self.t, intervals, axis=0)
        self.missed = np.delete(self.missed, intervals)

    def mend_false_pieces(self) -> None:
        """Take out pieces across a kink: they meet both neighbours at their own samples."""
        start, window = self.ends[1:-1, 0], self.ends[1:-1, 1] - self.ends[1:-1, 0]
        last = np.where(self.count > 1, self.t[:, 1], self.t[:, 0])
        left = (self.count[:-1] > 0) & (last[:-1] > start - _CLIPPED * window)
        right = (self.count[1:] > 0) & (self.t[1:, 0] < start + (1 + _CLIPPED) * window)
        false = np.flatnonzero(left & right & ~self.sure[1:-1]) + 1
        false = false[np.diff(false, prepend=-1) > 1]
        gone: list[int] = []
        for p in false.tolist():
            count = self.count[p - 1 : p + 1].tolist()
            self.count[p - 1 : p + 1] = -1
            # A neighbour that meets it there has the sample on its own line.
            if count[0] == 1:
                self.ends[p - 1, 1], self.F[p - 1, 1] = self.ends[p, 0], self.F[p, 0]
            elif count[1] == 1:
                self.ends[p + 1, 0], self.F[p + 1, 0] = self.ends[p, 1], self.F[p, 1]
            else:
                self.turn_back(p)
                continue
            gone.append(p)
        self.remove_pieces(np.array(gone, np.intp), np.array(gone, np.intp))

    def turn_back(self, p: int) -> None:
        """Let a piece end where it began, on the side of the kink that it is known to begin on."""
        start, end = self.ends[p].tolist()
        before = max(2 * start - end, (start + float(self.t[p - 1, 0])) / 2)
        self.ends[p] = before, start
        self.F[p] = np.stack([self.ask(np.array([before]))[0], self.F[p, 0]])

    def probe(self, todo: Indices, between: _Between) -> None:
        """One sample in every open interval, and one beside it where a new piece begins."""
        at = self.choose_places(between, self.missed[todo])
        F = self.ask(at)
        beyond_left = F - self.F[todo, 1] - self.slopes()[todo] * (at - between.a)[:, None]
        beyond_right = F - self.F[todo + 1, 0] + self.slopes()[todo + 1] * (between.b - at)[:, None]
        rough = self.noise.at(at)
        bar = _SLACK * (rough + self.noise.at(between.a) + between.tilts[0] * (at - between.a))
        other = _SLACK * (rough + self.noise.at(between.b) + between.tilts[1] * (between.b - at))
        on_left = np.abs(beyond_left).max(axis=1) <= bar
        on_right = ~on_left & (np.abs(beyond_right).max(axis=1) <= other)
        for which, i, end in ((on_left, todo, 1), (on_right, todo + 1, 0)):
            self.ends[i[which], end], self.F[i[which], end] = at[which], F[which]
            self.sure[i[which]] = True
        new = ~(on_left | on_right)
        self.missed[todo] = ~new
        if self.planar:
            two, t = self.find_double_kinks(between, at, beyond_left, bar)
            two &= new
            self.count[todo[two]] = 2
            self.t[todo[two]] = t[two]
            new &= ~two
        room = np.minimum(at - between.a, between.b - at)
        if new.any():
            self.insert_pieces(todo[new], at[new], F[new], self.window * room[new])

    def choose_places(self, between: _Between, missed: Mask) -> Vector:
        """The centroid, away from the ends; the middle where that is or was no place between."""
        a, b = between.a, between.b
        middle = find_middle(a, b)
        low, high = np.arctan(a), np.arctan(b)
        # Far out angles do not tell places apart, and shares of the distance do.
        edge = _EDGE * np.minimum((high - low) * (1 + np.minimum(a * a, b * b)), b - a)
        if not (np.minimum(middle - a, b - middle) > 8 * EPS * (1 + np.abs(middle))).all():
            raise Unresolved
        # Slopes that do not differ tell no centroid, and jumps that oppose each other a wrong one.
        straight = np.abs(between.J).max(axis=1) <= _SLACK * between.tilts.sum(axis=0)
        told = ~straight & ~missed & (a < between.centroid) & (between.centroid < b)
        return np.clip(np.where(told, between.centroid, middle), a + edge, b - edge)

    def find_double_kinks(
        self, between: _Between, at: Vector, left: Matrix, bar: Vector
    ) -> tuple[Mask, Matrix]:
        """Intervals that hold two kinks, one on each side of a sample, and where they are."""
        E, J = between.E, between.J
        with np.errstate(all="ignore"):
            size_E, size_J = np.linalg.norm(E, axis=1), np.linalg.norm(J, axis=1)
            e, j = E / size_E[:, None], J / size_J[:, None]
            cosine = np.einsum("im,im->i", e, j)
            across = j - cosine[:, None] * e
            sine = np.linalg.norm(across, axis=1)
            across /= sine[:, None]
            by_across = np.einsum("im,im->i", left, across)
            beta = by_across / sine
            alpha = np.einsum("im,im->i", left, e) - beta * cosine
            rest = left - alpha[:, None] * e - beta[:, None] * j
            alpha, beta = alpha / size_E, beta / size_J
            second = between.b + beta / alpha
            first = (at - alpha * second) / (1 - alpha)
            allowed = bar + np.abs(alpha) * between.reach[0]
            allowed += np.abs(beta) * _SLACK * between.tilts.sum(axis=0)
            fits = np.abs(rest).max(axis=1) <= allowed
            clear = (sine > _APART) & (_CLEAR * allowed < np.linalg.norm(left, axis=1))
            ordered = (between.a <= first) & (first < at) & (at < second) & (second <= between.b)
        return fits & clear & ordered, np.column_stack([first, second])

    def insert_pieces(self, i: Indices, at: Vector, F: Matrix, window: Vector) -> None:
        """New pieces after others, each of a sample and one beside it."""
        beside = at + np.maximum(window, 64 * EPS * (1 + np.abs(at)))
        G = self.ask(beside)
        self.ends = np.insert(self.ends, i + 1, np.column_stack([at, beside]), axis=0)
        self.F = np.insert(self.F, i + 1, np.stack([F, G], axis=1), axis=0)
        self.sure = np.insert(self.sure, i + 1, np.zeros(len(i), dtype=np.bool_))
        self.count = np.insert(self.count, i + 1, -1)
        self.t = np.insert(self.t, i + 1, 0.0, axis=0)
        self.missed = np.insert(self.missed, i + 1, False)

    def refuse_smooth(self, between: _Between) -> None:
        """Look, each time that pieces have doubled, whether the function bends everywhere."""
        if len(self.ends) <= self.suspicious or self.has_closed(LINEAR):
            return
        self.suspicious *= 2
        if is_smooth(self.line, self.noise.at, between.a, between.b):
            raise Smooth

    def extend(self, i: int, t: float, F: Vector) -> bool:
        """Move the end of the outermost piece on the left (0) or right (1) in to a sample on it."""
        end = 1 - i
        near = float(self.ends[i, end])
        lower, upper = self.ends[i]
        rough = self.noise.at(np.array([near, t, lower, upper]))
        bar = rough[0] + rough[1] + (rough[2] + rough[3]) / (upper - lower) * abs(t - near)
        met = np.abs(self.F[i, end] + self.slopes()[i] * (t - near) - F).max() <= _SLACK * bar
        if met:
            self.ends[i, end], self.F[i, end], self.sure[i] = t, F, True
        return bool(met)

    def fit(self, t: Vector, places: Vector, values: Matrix) -> Bends:
        """The bends that fit all samples, those asked before included."""
        places = np.concatenate([places, *self.places])
        order = np.argsort(places, kind="stable")
        values = np.concatenate([values, *self.values])
        return refine_bends(self.line, self.noise, t, places[order], values[order])

    def reopen_planes(self) -> None:
        """Look again at intervals whose two kinks were told from one sample."""
        self.planar = False
        self.count[self.count > 1] = -1


def open_search(
    line: Line, noise: Noise, places: Vector, values: Matrix, *, most: int
) -> CentroidSearch:
    """The search from the rungs of the ladder: outer pieces reach in while rungs lie on them."""
    ends = np.array([places[:2], places[-2:]])
    F = np.stack([values[:2], values[-2:]])
    low, high = 2, len(places) - 3
    state = CentroidSearch(line, noise, most, values.shape[1] > 2, ends, F, np.zeros(2, np.bool_))
    while low <= high and state.extend(0, float(places[low]), values[low]):
        low += 1
    while low <= high and state.extend(1, float(places[high]), values[high]):
        high -= 1
    inner = slice(low, high + 1)
    if low <= high:
        at = places[inner]
        state.insert_pieces(np.zeros(len(at), np.intp), at, values[inner], _START * np.hypot(1, at))
    return state


def resolve_line_by_centroids(
    line: Line, noise: Noise, places: Vector, values: Matrix, *, most: int, doubt: float = DOUBT
) -> Bends:
    """Resolve a line whose answers have two numbers or more, from the rungs of the ladder."""
    state = open_search(line, noise, places, values, most=most)
    t = state.run()
    bends = state.fit(t, places, values)
    # Of three kinks two of which are parallel, one sample looks like one of two kinks.
    if (state.count > 1).any() and has_parallel_jumps(bends.jumps):
        state.reopen_planes()
        bends = state.fit(state.run(), places, values)
    return ask_closer(bends, doubt)
