r"""A network with one hidden ReLU layer inside a ball, peeled hyperplane by hyperplane.

The model starts as the affine piece round one point. What the target has beside it is zero round
every point where the model is *right*, and piecewise linear elsewhere. A chord from a right point a
to a wrong one meets hyperplanes that the model lacks: they are the kinks along it, and slopes
across it give their normals (kinks, gradients). A hyperplane is added as

$$D\,\max(\pm(n x - t), 0) = \tfrac12 D\,|n x - t| \pm \tfrac12 D\,(n x - t),$$

with the sign that leaves the model as it is round a. Hyperplanes that the chord does not meet may
be near it all the same, and a step that crosses one spoils two normals. So steps are short, and
every hyperplane is tried elsewhere on
itself: four points along its normal lie on one line if it is right. What fails is dropped, and met
again later.

Answers already given are kept. With every hyperplane added they show, without new queries, which
points are still wrong; new ones are drawn when none is. Half of them are uniform in the ball, half
on its surface.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Mask, Matrix, Vector, pin_one_thread
from keyhole.learners.networks.jacobians import Found, assemble_hyperplanes, survey_line
from keyhole.learners.networks.kinks import Ask, Line, Noise, Smooth, Unresolved
from keyhole.learners.networks.lines import Phase, measure_typical_distance
from keyhole.learners.networks.normal_form_fit import fit_parameters
from keyhole.learners.networks.pair_search import resolve_segment
from keyhole.learners.networks.parallel import join_hyperplanes
from keyhole.learners.networks.polish import Again, measure_both_sides, replace_hyperplanes
from keyhole.models import AbsAffine
from keyhole.oracles.own_time import check_own_time

_START = 3e-4  # length of steps round the first point, beside the radius
_STEP = 0.005  # of the mean distance between the kinks of a chord: the longest step across it
_LONGEST = 0.02  # of the radius
_WINDOW = 1e-4  # half the length on which a hyperplane is tried, beside the radius
# One that leaves more, beside the answers, is imprecise or was spoilt by a step across another.
_OFF = 1e-11
_MISSING = 1e-8  # larger errors, beside how answers vary, are missing hyperplanes
_ROUGH = 4.0  # what a hyperplane leaves anywhere, beside what it left where it was tried
_BATCH = 25  # points drawn at once while none is wrong
_AROUND = 4  # points asked round a wrong one
_MENDS = 2  # times that a hyperplane is measured again before it is dropped
_ROUGHEST = 3  # hyperplanes measured again where a chord shows nothing
_FAILURES = 24  # chords in a row that added nothing


def draw_in_ball(count: int, width: int, radius: float, *, rng: np.random.Generator) -> Matrix:
    """Points of a ball, uniform in it (even rows) and on its surface (odd rows)."""
    x = rng.normal(size=(count, width))
    x *= (1.0 - 1e-12) * radius / np.linalg.norm(x, axis=1, keepdims=True)
    x[::2] *= rng.random((len(x[::2]), 1)) ** (1.0 / width)
    return x


@dataclass(slots=True)
class Peeling:
    """One recovery in a ball under way.

    Args:
        target: answers to points of the ball.
        width: size of a point.
        radius: of the ball.
        roundoff: relative rounding of answers.
        most: hyperplanes allowed for.
        phase: books what is asked inside it under a name.
        rng: source of every random choice.
        model: what is known so far.
        bars: how far off each hyperplane was where it was tried.
    """

    target: Ask
    width: int
    radius: float
    roundoff: float
    most: int
    phase: Phase
    rng: np.random.Generator
    model: AbsAffine = field(init=False)
    bars: Vector = field(init=False)
    share: float = field(init=False)
    # Points asked, with answers y; chords start only at those in `firm`.
    x: Matrix = field(init=False)
    y: Matrix = field(init=False)
    firm: Mask = field(init=False)
    asked: list[tuple[Matrix, Matrix]] = field(
        default_factory=list[tuple[Matrix, Matrix]], init=False
    )
    step: float = field(default=0.0, init=False)  # how far it is safe to go into the unknown

    def ask(self, x: Matrix) -> Matrix:
        """Answers to points; all are kept for the fit at the end."""
        y = self.target(x.copy())
        self.asked.append((x, y))
        return y

    def begin(self) -> None:
        """The affine piece round one point, and how much answers are rounded.

        Raises:
            Unresolved: no point was found round which answers are affine.
        """
        with self.phase("start"):
            for attempt in range(6):
                x = draw_in_ball(1, self.width, 0.98 * self.radius, rng=self.rng)[0]
                if self._tangent(x, _START * self.radius * 8.0**-attempt):
                    return
        raise Unresolved

    def _tangent(self, x: Vector, h: float) -> bool:
        """Start with the affine map through d + 1 points; whether two others lie on it."""
        d = self.width
        V: Matrix = np.linalg.qr(self.rng.normal(size=(d, d)))[0]
        beside = h * self.rng.normal(size=(2, d)) / np.sqrt(d)
        line = np.outer(1e-7 * self.radius * np.arange(7.0), V[0])
        steps = np.concatenate([line, h * V, beside])
        values = self.ask(x + steps.astype(np.float64))
        at, across, others = values[0], values[7 : 7 + d], values[7 + d :]
        P: Matrix = ((across - at) / h).T @ V
        m = len(at)
        size = float(np.abs(values).max())
        # A line so short bends nowhere: what its second differences show is rounding.
        rough = float(np.abs(np.diff(values[:7], 2, axis=0)).max())
        self.share = max(4 * self.roundoff, rough / (size or 1.0))
        self.model = AbsAffine(np.zeros((0, d)), np.zeros(0), np.zeros((0, m)), P, at - P @ x)
        self.bars = np.zeros(0)
        self.x = x[None]
        self.y = values[:1]
        self.firm = np.ones(1, dtype=np.bool_)
        terms = size + float(np.abs(P).sum(axis=1).max()) * self.radius
        allowed = 16 * np.sqrt(d) * self.share * terms
        return bool(np.abs(others - self.model.points(x + beside)).max() <= allowed + 1e-300)

    @property
    def level(self) -> float:
        """Typical size of the terms of an answer, which its rounding goes by."""
        terms = np.abs(self.x @ self.model.n.T - self.model.t) @ np.abs(self.model.D) / 2
        affine = np.abs(self.x @ self.model.P.T) + np.abs(self.model.q)
        return float((terms + affine + np.abs(self.y)).max())

    @property
    def spread(self) -> float:
        """How much answers vary over the ball."""
        return float(np.abs(self.y - self.y.mean(axis=0)).max())

    @property
    def noise(self) -> Noise:
        """Rounding of what the model leaves, and what imprecise hyperplanes leave of themselves."""
        rough = float((self.bars * np.linalg.norm(self.model.D, axis=1)).max(initial=0.0))
        return Noise(max(self.share, _ROUGH * rough / (self.level or 1.0)), self.level, 0.0)

    @property
    def missing(self) -> float:
        """Errors above this are missing hyperplanes."""
        return max(_MISSING * self.spread, 200 * self.share * self.level)

    def left(self, x: Matrix) -> Matrix:
        """What the target has beside the model."""
        return self.ask(x) - self.model.points(x)

    def errors(self) -> Vector:
        """How far the model is off at every point kept."""
        return np.abs(self.y - self.model.points(self.x)).max(axis=1)

    def keep(self, x: Matrix, y: Matrix) -> None:
        """Keep points with their answers."""
        self.x = np.concatenate([self.x, x])
        self.y = np.concatenate([self.y, y])
        self.firm = np.concatenate([self.firm, np.ones(len(x), dtype=np.bool_)])

    def search(self, calm: int) -> bool:
        """Peel until so many new points in a row are right; whether that came to pass."""
        quiet = failures = 0
        with pin_one_thread(), np.errstate(all="ignore"):
            for _ in range(64 + 4 * self.most):
                check_own_time()
                errors = self.errors()
                if errors.max() > self.missing:
                    quiet = 0
                    failures = 0 if self._peel(errors) else failures + 1
                    if failures > _FAILURES or self.model.hidden > self.most:
                        return False
                elif quiet >= calm:
                    return True
                else:
                    quiet += self._draw(1 if quiet == 0 else _BATCH)
        return False

    def _draw(self, count: int) -> int:
        with self.phase("search"):
            x = draw_in_ball(count, self.width, self.radius, rng=self.rng)
            # The first chord goes through the centre, where it meets the most hyperplanes.
            if len(self.x) == 1:
                x = -self.x * self.radius * (1.0 - 1e-12) / np.linalg.norm(self.x)
            self.keep(x, self.ask(x))
        return count

    def _peel(self, errors: Vector) -> bool:
        """One chord from a right point to the worst one; whether a hyperplane was added."""
        right = np.flatnonzero((errors <= self.missing) & self.firm)
        end = int(np.argmax(errors))
        if not len(right):
            self._around(end)
            return False
        start = int(right[np.argmax(np.linalg.norm(self.x[right] - self.x[end], axis=1))])
        try:
            found = self._chord(self.x[start], self.x[end])
        except Smooth:
            raise
        except Unresolved:
            found = None
        good = (
            np.zeros(0, dtype=np.bool_)
            if found is None
            else self._try_hyperplanes(found, self.x[start])
        )
        if found is not None and good.any():
            self.model, self.bars = self._with(found, good, self.x[start])
            return True
        # A start that led nowhere may be wrong itself, but for the first, which was confirmed.
        self.firm[start] = start == 0
        self._around(end)
        self._smooth_out()
        return False

    def _around(self, i: int) -> None:
        """Ask round a wrong point: a chord that barely passes a hyperplane does not show it."""
        steps = self.rng.normal(size=(_AROUND, self.width))
        x = self.x[i] + 0.1 * self.radius * steps / np.sqrt(self.width)
        x *= np.minimum(1.0, (1.0 - 1e-12) * self.radius / np.linalg.norm(x, axis=1, keepdims=True))
        with self.phase("search"):
            self.keep(x, self.ask(x))

    def _chord(self, start: Vector, end: Vector) -> Found | None:
        """Hyperplanes of what is left along a chord; None where its start is not right either."""
        line = Line(self.left, start, end - start)
        R = self.radius
        length = float(np.linalg.norm(end - start))
        with self.phase("kinks"):
            bends = resolve_segment(line, self.noise, most=self.most)
        if not len(bends.t) or np.abs(bends.slopes[0]).max() > 100 * bends.bars[0] + self.missing:
            return None

        # x = (1 - c) start + c end has |x|^2 <= R^2 - c (1 - c) length^2, so that steps h length
        # across stay inside when 2 h R + h^2 length <= c (1 - c) length.
        def longest(c: Vector) -> Vector:
            return np.minimum(self.step / length, 0.3 * c * (1 - c) * length / R)

        # As many unknown hyperplanes pass by as the chord meets on such a length.
        self.step = min(_STEP * length / (1 + len(bends.t)), _LONGEST * R)

        with self.phase("slopes"):
            return assemble_hyperplanes(survey_line(bends, rng=self.rng, longest=longest, level=1))

    def _with(self, found: Found, good: Mask, start: Vector) -> tuple[AbsAffine, Vector]:
        """The model with hyperplanes added that leave it as it is round the start of a chord."""
        n, t, D = found.n[good], found.t[good], found.D[good]
        side = np.sign(n @ start - t)
        P: Matrix = -(D * side[:, None]).T @ n / 2
        q: Vector = (side * t) @ D / 2
        added = Found(n, t, D, P, q, found.bars[good], found.where[good], start)
        reach = measure_typical_distance(self.model)
        return join_hyperplanes(self.model, self.bars, added, reach=reach)

    def _try_hyperplanes(self, found: Found, start: Vector) -> Mask:
        """Which hyperplanes are right where each is tried; others are measured again first."""
        off = np.full(len(found.t), np.inf)
        todo = np.arange(len(off))
        for turn in range(_MENDS + 1):
            for j in todo.tolist() if turn else list[int]():
                with self.phase("mend"):
                    self._mend(found, j, start, near=bool(off[j] < 0.1 * _WINDOW * self.radius))
            size = np.linalg.norm(found.D, axis=1)
            meets = np.abs(found.t) < 0.999 * self.radius
            whole, _ = self._with(found, meets, start)
            off[~meets] = np.inf
            todo = todo[meets[todo]]
            with self.phase("try"):
                off[todo] = self._offline(whole, found.n[todo], found.t[todo]) / size[todo]
            rounding = (_OFF + 50 * self.share) * self.level / size
            allowed = np.minimum(rounding, 0.01 * _WINDOW * self.radius)
            todo = np.flatnonzero(off > allowed)
            if not len(todo):
                break
        found.bars[:] = off
        good = np.ones(len(off), dtype=np.bool_)
        good[todo] = False
        return good

    def _mend(self, found: Found, j: int, start: Vector, *, near: bool) -> None:
        """Measure a hyperplane again, elsewhere on itself if nearly right, else on the chord."""
        others = np.arange(len(found.t)) != j
        rest, _ = self._with(found, others, start)
        if near:
            p = self.places(found.n[j : j + 1], found.t[j : j + 1])[0]
            step = self.step
        else:
            p = found.where[j]
            apart = np.linalg.norm(found.where[others] - p, axis=1)
            step = min(self.step, 0.1 * float(apart.min(initial=np.inf)))
        new = self._again(rest, p, found.n[j], step)
        if new is not None:
            found.n[j], found.t[j], found.D[j] = new.n, new.t, new.D

    def _again(self, rest: AbsAffine, p: Vector, n: Vector, h: float) -> Again | None:
        """A hyperplane near p from slopes on both its sides, the rest of the model taken off."""
        h = min(h, (self.radius - float(np.linalg.norm(p))) / 2.5)
        new = measure_both_sides(lambda x: self.ask(x) - rest.points(x), p, n, h, self.rng)
        known = np.isfinite(new.n).all() and np.isfinite(new.t) and np.linalg.norm(new.D) > 0
        return new if known else None

    def _smooth_out(self) -> None:
        """Measure the roughest hyperplanes again: what they leave hides the kinks of others."""
        rough = self.bars * np.linalg.norm(self.model.D, axis=1)
        for j in np.argsort(-rough)[:_ROUGHEST]:
            model = self.model
            one = slice(int(j), int(j) + 1)
            gone = model.D * (np.arange(model.hidden) != j)[:, None]
            rest = AbsAffine(model.n, model.t, gone, model.P, model.q)
            with self.phase("mend"):
                p = self.places(model.n[one], model.t[one])[0]
                new = self._again(rest, p, model.n[j], self.step)
            if new is None or not abs(new.n @ model.n[j]) > 0.999:
                continue
            better = replace_hyperplanes(model, {int(j): new}, self.x[0])
            with self.phase("try"):
                left = self._offline(better, new.n[None], np.array([new.t]))[0]
                off = float(left / np.linalg.norm(new.D))
            if off < self.bars[j]:
                self.model = better
                self.bars[j] = off

    def refit(self) -> None:
        """Fit all parameters to all answers that the model explains, where that leaves less."""
        x, y = (np.concatenate(part) for part in zip(*self.asked, strict=True))
        clear = np.abs(y - self.model.points(x)).max(axis=1) <= 100 * self.missing
        self.model = fit_parameters(self.model, x[clear], y[clear], steps=1)[0]

    def _offline(self, model: AbsAffine, n: Matrix, t: Vector) -> Vector:
        """How far the inner two of four points across a hyperplane are off the outer two's line."""
        p = self.places(n, t)
        h = np.array([-2.0, -1.0, 1.0, 2.0])[:, None, None] * _WINDOW * self.radius
        x = (p + h * n).reshape(-1, self.width)
        left = (self.ask(x) - model.points(x)).reshape(4, len(n), -1)
        before = left[1] - (3 * left[0] + left[3]) / 4
        after = left[2] - (left[0] + 3 * left[3]) / 4
        return np.abs(np.stack([before, after])).max(axis=(0, 2))

    def places(self, n: Matrix, t: Vector) -> Matrix:
        """One random point of every hyperplane, half way from its centre out of the ball."""
        v = self.rng.normal(size=n.shape)
        v -= (v * n).sum(axis=1, keepdims=True) * n
        v /= np.linalg.norm(v, axis=1, keepdims=True) + 1e-300
        return t[:, None] * n + 0.5 * np.sqrt(np.maximum(self.radius**2 - t**2, 0.0))[:, None] * v
