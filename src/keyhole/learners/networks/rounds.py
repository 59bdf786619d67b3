r"""Rounds of a recovery: hyperplanes of one line, measured more closely where that is due, checked.

What a round leaves wrong or missing is what the target has beside the model, which is a small
network again: the next round works on that, along another line.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Stack, Vector
from keyhole.learners.networks.bend_fit import DOUBT
from keyhole.learners.networks.centroid_search import resolve_line_by_centroids
from keyhole.learners.networks.deeper import has_deeper_bends
from keyhole.learners.networks.jacobians import assemble_hyperplanes, survey_line
from keyhole.learners.networks.kinks import Ask, Bends, Line, Noise, Unresolved, measure_line_noise
from keyhole.learners.networks.pair_search import resolve_line_by_pairs
from keyhole.learners.networks.parallel import (
    find_parallel_groups,
    join_hyperplanes,
    share_normals,
)
from keyhole.learners.networks.polish import (
    SHARP,
    Again,
    remeasure_hyperplane,
    replace_hyperplanes,
    sharpen_jumps,
)
from keyhole.learners.networks.whole_polish import (
    find_narrow_ridges,
    fit_hyperplanes,
    is_worth_fitting,
    place_polishing_points,
)
from keyhole.models import AbsAffine

Phase = Callable[[str], AbstractContextManager[None]]
_FARTHEST = 3.0  # standard deviations that hundreds of answers vary by
MISSING = 1e-7  # a larger error: hyperplanes are missing or wrong, and not only imprecise
_RIDGED = 1e-5  # the same where hyperplanes are parallel: narrow ridges magnify errors
_MAGNIFIED, _UNFITTED = 1e-6, 1e-2  # over the width of the narrowest, at most that
_HELPED = 0.1  # of an error: what a fit of all hyperplanes leaves where none is missing
_PAIRS = 2  # of opposite points at every radius: not both are where a unit is idle
_WIDE = 512  # hidden units from which on a network is held to be finer
_POLISHED = 0.07  # queries for polishing, as a share of those asked before
_BARRED = 0.03  # of what bars say together: the error, at least
_AIMED = 0.35  # of the error that is fine: what others than those measured again may leave
_URGENT, _FEW = 1e-6, 2  # of such errors a few are measured again whatever their share
WORTH = 1e-12  # a hyperplane is measured again when its error may matter more than this


def measure_typical_distance(model: AbsAffine) -> float:
    """Typical distance of hyperplanes from the origin; 1 where that is nothing."""
    middle = float(np.median(np.abs(model.t))) if model.hidden else 0.0
    return middle if middle > 1e-10 else 1.0


@dataclass(frozen=True, slots=True)
class Care:
    """How well a round measures before it is checked.

    Args:
        doubt: error of a slope of the line, in roundings, that takes one more sample.
        sharp: error of a jump, beside all of them, that is measured again.
        worth: the same for a normal.
        strict: the error, as a share of what is fine, from which networks that are wide or have
            parallel hyperplanes are fitted as a whole: a few points show too little of theirs.
    """

    doubt: float = DOUBT
    sharp: float = SHARP
    worth: float = WORTH
    strict: float = 1.0


# Errors that the check shows to do no harm are left; it is where it shows them that more is asked.
FRUGAL = Care(2 * DOUBT, 4 * SHARP, worth=1e-8, strict=0.1)


@dataclass(frozen=True, slots=True)
class Given:
    """What is asked of a recovery, whatever the scale; see `learn_network`."""

    ask: Ask
    width: int
    outputs: int
    rng: np.random.Generator
    phase: Phase
    roundoff: float
    most: int
    rounds: int
    fine: float
    care: Care
    radii: tuple[float, ...]

    def allow(self, model: AbsAffine, turn: int) -> float:
        """The error that needs no further round."""
        wide = model.hidden >= _WIDE
        ridged = bool(find_parallel_groups(model.n)) and is_worth_fitting(model)
        return self.fine * (self.care.strict if turn == 0 and (wide or ridged) else 1.0)


@dataclass(slots=True)
class Learning:
    """One recovery under way: the model, errors of its normals, where its affine part is best.

    `astray` is a point at which the model was last seen to be wrong; `joined` says that hyperplanes
    of several lines are, and the affine part not measured since.
    """

    task: Given
    model: AbsAffine
    bars: Vector
    noise: Noise = field(default_factory=lambda: Noise(EPS, 1.0, 1.0))
    anchor: Vector | None = None
    where: Matrix | None = None
    astray: Vector | None = None
    asked: int = 0
    refined: bool = False
    fitted: bool = False
    joined: bool = False

    @property
    def rng(self) -> np.random.Generator:
        """The source of every random choice."""
        return self.task.rng

    @property
    def width(self) -> int:
        """Size of a point."""
        return self.task.width

    @property
    def missing(self) -> float:
        """The error from which hyperplanes are missing, and not only imprecise."""
        if find_parallel_groups(self.model.n):
            return _RIDGED
        # Among a thousand hyperplanes some are so poorly known that they look like missing ones.
        return max(MISSING, min(_RIDGED, float(np.linalg.norm(self.weigh_bars()))))

    def whole(self, x: Matrix) -> Matrix:
        """What the target answers."""
        if not np.isfinite(x).all():
            raise Unresolved
        self.asked += len(x)
        return self.task.ask(x)

    def left(self, x: Matrix) -> Matrix:
        """What the target has beside the model."""
        return self.whole(x) - self.model.points(x)

    def improve(self, turn: int, gap: float) -> None:
        """Another line while something large is missing, then only more precision."""
        if turn > 0 and self._may_be_imprecise(gap) and self._fit_ridges(gap):
            return
        if turn == 0 or gap > self.missing:
            self.add_line(0.0 if self.anchor is None else 1e-11)
            with self.task.phase("polish"):
                self.polish(int(_POLISHED * self.asked / self.price), self.task.care.worth)
        else:
            with self.task.phase("polish"):
                self.refine(gap)

    def _may_be_imprecise(self, gap: float) -> bool:
        """Whether narrow ridges may magnify errors to one that looks like a missing hyperplane."""
        if self.fitted or gap <= self.missing or not is_worth_fitting(self.model):
            return False
        radius = measure_typical_distance(self.model)
        widths = [high - low for _, low, high in find_narrow_ridges(self.model, radius)]
        narrowest = max(min(widths, default=radius) / radius, 1e-300)
        return gap <= min(_MAGNIFIED / narrowest, _UNFITTED)

    def _fit_ridges(self, gap: float) -> bool:
        """Fit all hyperplanes together; whether that leaves far less, and no other line is due."""
        before = self.model
        with self.task.phase("polish"):
            self.fit()
        with self.task.phase("check"):
            helped = self.check() <= _HELPED * gap
        if not helped:
            self.model = before
        return helped

    def add_line(self, coarse: float) -> None:
        """Find what the model lacks along one more line, and add it."""
        line = self._draw_line()
        with self.task.phase("kinks"):
            bends = self._bends(line, coarse)
        with self.task.phase("slopes"):
            surveyed = survey_line(bends, rng=self.rng)
        found = assemble_hyperplanes(surveyed)
        radius = measure_typical_distance(found.model())
        # Runs of bends leave some jumps poorly known, where pairs do not.
        if self.task.outputs > 2:
            with self.task.phase("polish"):
                found = sharpen_jumps(
                    surveyed, found, radius=radius, sharp=self.task.care.sharp, rng=self.rng
                )
                radius = measure_typical_distance(found.model())
        bars = found.bars * (1.0 + np.linalg.norm(found.where, axis=1) / (radius * self.width**0.5))
        reach = measure_typical_distance(self.model)
        found = replace(found, bars=bars)
        self.model, self.bars = join_hyperplanes(self.model, self.bars, found, reach=reach)
        self.joined = self.anchor is not None
        if self.anchor is None:
            self.anchor = found.anchor
            self.noise = bends.noise
            self.where = found.where

    def _draw_line(self) -> Line:
        if self.astray is not None:
            # Two hyperplanes taken for one leave nothing outside the wedge between them: a line
            # that does not meet it shows nothing either.
            along = self.rng.normal(size=self.width)
            along *= np.linalg.norm(self.astray) / np.linalg.norm(along)
            return Line(self.left, self.astray, along)
        # Gaussian weights put hyperplanes at a distance of about 1, the usual start of training at
        # 1 / sqrt(width). On a line near the origin an error of a normal counts little in its
        # offset; kinks of both are spread well enough.
        lengths = self.width ** np.array([[-0.5], [-0.125]])
        return Line(self.left, *(lengths * self.rng.normal(size=(2, self.width))))

    def _bends(self, line: Line, coarse: float) -> Bends:
        hidden = self._sizes if self.anchor is not None else None
        roundoff = max(self.task.roundoff, coarse)
        noise, places, values = measure_line_noise(line, roundoff=roundoff, hidden=hidden)
        if self.task.outputs > 1:
            return resolve_line_by_centroids(
                line, noise, places, values, most=self.task.most, doubt=self.task.care.doubt
            )
        return resolve_line_by_pairs(line, noise, places, values, most=self.task.most)

    def _sizes(self, x: Matrix) -> Matrix:
        return self.model.terms(x)[:, None]

    @property
    def price(self) -> int:
        """Queries that measure one hyperplane again."""
        return 2 * self.width + 2

    def weigh_bars(self) -> Vector:
        """How much the errors of the normals matter, beside all jumps."""
        size = np.linalg.norm(self.model.D, axis=1)
        return size * self.bars / max(float(np.linalg.norm(size)), 1e-300)

    def polish(self, most: int, worth: float) -> None:
        """Measure again so many hyperplanes, at most: those whose errors matter most."""
        radius = measure_typical_distance(self.model)
        effect = self.weigh_bars()
        worst = np.argsort(-effect)[: max(most, min(_FEW, int((effect > _URGENT).sum())))]
        changes: dict[int, Again] = {}
        for j in (int(j) for j in worst if effect[j] > worth):
            new = remeasure_hyperplane(self.whole, self.model, j, radius=radius, rng=self.rng)
            bar = self._bar(new, radius)
            if bar < self.bars[j] and abs(new.n @ self.model.n[j]) > 0.99:
                changes[j] = new
                self.bars[j] = bar
        if changes and self.anchor is not None:
            self.model = replace_hyperplanes(self.model, changes, self.anchor)

    def refine(self, gap: float) -> None:
        """Measure more hyperplanes again, and fit all of them where that was done before."""
        again = self.task.outputs < 3 and not self.refined
        fits = not again and is_worth_fitting(self.model)
        if self.joined and not fits:
            self.level()
            return
        self.refined = True
        if not fits:
            self.fitted = not again
            few = int(_POLISHED * self.asked / self.price)
            if again and self.model.hidden < _WIDE:
                self.polish(few, WORTH)
            else:
                self.polish(self._count_imprecise(gap, few), WORTH)
                self.level()
        else:
            self.fit()

    def level(self) -> None:
        """Measure the affine part: a wrong hyperplane that was taken back leaves its own behind."""
        self.joined = False
        d = self.width
        x = measure_typical_distance(self.model) * self.rng.normal(size=(2 * d + 2, d))
        more = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), self.left(x))[0].T
        model = self.model
        self.model = replace(model, P=model.P + more[:, :-1], q=model.q + more[:, -1])

    def _count_imprecise(self, gap: float, few: int) -> int:
        """How many hyperplanes to measure again until the errors of the others are small enough.

        Bars are too cautious all alike, and the error seen tells by how much. A few points may miss
        the largest.

        Args:
            gap: the error seen.
            few: how many where bars do not explain it, so that they do not tell which either.
        """
        squares = np.sort(self.weigh_bars() ** 2)
        if squares.sum() < gap**2:
            return few
        error = max(gap, _BARRED * float(squares.sum()) ** 0.5)
        aim = _AIMED * self.task.allow(self.model, 0) / error
        return int((np.cumsum(squares) > aim**2 * squares.sum()).sum())

    def fit(self) -> None:
        """Fit all hyperplanes to new answers."""
        self.fitted = True
        x = place_polishing_points(self.model, measure_typical_distance(self.model), rng=self.rng)
        self.model = fit_hyperplanes(self.model, x, self.whole(x))

    def _bar(self, new: Again, radius: float) -> float:
        """Standard error of a normal measured again, as far as it matters near the origin."""
        far = float(np.linalg.norm(new.at)) / self.width**0.5
        rough = self.noise.share * (self.noise.level + self.noise.slope * far)
        # Nothing, where there is no such hyperplane.
        shown = max(new.step * float(np.linalg.norm(new.D)), 1e-300)
        return 2 * rough * self.width**0.5 / shown * (1.0 + far / radius)

    def check(self) -> float:
        """Relative error on a few points at every radius."""
        radius = measure_typical_distance(self.model)
        shape = (len(self.task.radii), _PAIRS, self.width)
        x = radius * np.array(self.task.radii)[:, None, None] * self.rng.normal(size=shape)
        x = np.concatenate([x, -x], axis=1)
        answers = self.whole(x.reshape(-1, self.width)).reshape(*x.shape[:2], -1)
        gaps = self._gaps(self.model, x, answers)
        shared = share_normals(self.model, self.bars)
        if shared is not None:
            closer = self._gaps(shared, x, answers)
            if closer.max() <= gaps.max():
                self.model, gaps = shared, closer
        wrong = np.argwhere(gaps.max(axis=1) > MISSING)
        self.astray = x[wrong[0, 0], int(np.argmax(gaps[wrong[0, 0]]))] if len(wrong) else None
        return float(gaps.max())

    def leads_deeper(self) -> bool:
        """Whether the hyperplanes of the first line do not go on."""
        if self.where is None or len(self.where) != self.model.hidden:
            return False
        radius = measure_typical_distance(self.model)
        with self.task.phase("check"):
            return has_deeper_bends(self.whole, self.model, self.where, radius=radius, rng=self.rng)

    def _gaps(self, model: AbsAffine, x: Stack, answers: Stack) -> Matrix:
        """What a model misses at points of every radius, beside how answers vary there."""
        missed = np.abs(answers - model.points(x.reshape(-1, self.width)).reshape(answers.shape))
        missed = missed.max(axis=2)
        rounding = 64 * self.task.roundoff * np.abs(answers).max(axis=(1, 2))
        varied = answers - answers.mean(axis=1, keepdims=True)
        deviation = np.sqrt(np.square(varied).mean(axis=(1, 2)))
        spread: Vector = np.asarray(_FARTHEST * deviation + rounding, dtype=np.float64)
        # Answers that are all zero vary by nothing: what is left then is all of it.
        spread = np.where(spread > 0, spread, missed.max(axis=1))
        return missed / np.where(spread > 0, spread, 1.0)[:, None]
