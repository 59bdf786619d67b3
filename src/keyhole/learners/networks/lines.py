r"""Networks with one hidden ReLU layer from value queries, hidden width unknown.

One line shows every hidden unit as a kink (pair_search, centroid_search); slopes across it give the
hyperplanes (jacobians); those poorly known are measured again at places of their own (polish). What
is then wrong or missing is what the target leaves beside the model, which is a small network again:
the next round works on that, along another line. The model is $g(x) = \tfrac12 \sum_j D_j |n_j x -
t_j| + P x + q$, which is what values determine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Stack, Vector, pin_one_thread
from keyhole.errors import BudgetSpent
from keyhole.learners.networks.centroid_search import resolve_line_by_centroids
from keyhole.learners.networks.deeper import has_deeper_bends
from keyhole.learners.networks.jacobians import assemble_hyperplanes, survey_line
from keyhole.learners.networks.kinks import (
    Ask,
    Bends,
    Line,
    Noise,
    Smooth,
    Unresolved,
    measure_line_noise,
)
from keyhole.learners.networks.pair_search import resolve_line_by_pairs
from keyhole.learners.networks.parallel import (
    find_parallel_groups,
    join_hyperplanes,
    share_normals,
)
from keyhole.learners.networks.polish import (
    Again,
    remeasure_hyperplane,
    replace_hyperplanes,
    sharpen_jumps,
)
from keyhole.learners.networks.whole_polish import (
    fit_hyperplanes,
    is_worth_fitting,
    place_polishing_points,
)
from keyhole.models import AbsAffine

Phase = Callable[[str], AbstractContextManager[None]]
CHECKS = (1.0, 10.0, 1000.0)  # radii, in units of the typical distance of hyperplanes
_MISSING = 1e-7  # a larger error: hyperplanes are missing or wrong, and not only imprecise
_RIDGED = 1e-5  # the same where hyperplanes are parallel: narrow ridges magnify errors
_PER_RADIUS = 6  # of fewer all may be where every unit is idle
FINE = 5e-10  # relative error of the function that needs no further round
_POLISHED = 0.07  # queries for polishing, as a share of those asked before
_WORTH = 1e-12  # a hyperplane is measured again when its error matters more than this
_NEAR, _FAR = 1e-4, 1e6  # hyperplanes at other distances are measured at their own scale
_FARTHER = 1e12  # where they are looked for when none was met
_RESCALED = 2  # how often


@dataclass(frozen=True, eq=False, slots=True)
class Learned:
    """A network as it was learned, not yet verified by anyone else.

    Args:
        model: the normal form; None when nothing could be resolved.
        bars: standard error of each normal.
        gap: relative error on the points of the last check.
        crowded: whether a line bent more often than the hidden units allowed for.
        roundoff: relative rounding of answers that was met.
        spent: whether the budget ran out on the way.
        smooth: whether a line bent everywhere.
        deeper: whether hyperplanes were seen not to go on.
    """

    model: AbsAffine | None
    bars: Vector
    gap: float
    crowded: bool
    roundoff: float
    spent: bool = False
    smooth: bool = False
    deeper: bool = False


def measure_typical_distance(model: AbsAffine) -> float:
    """Typical distance of hyperplanes from the origin; 1 where that is nothing."""
    middle = float(np.median(np.abs(model.t))) if model.hidden else 0.0
    return middle if middle > 1e-10 else 1.0


@dataclass(slots=True)
class _Learning:
    """One recovery under way: the model, errors of its normals, where its affine part is best.

    `astray` is a point at which the model was last seen to be wrong.
    """

    ask: Ask
    width: int
    outputs: int
    roundoff: float
    most: int
    phase: Phase
    rng: np.random.Generator
    radii: tuple[float, ...]
    model: AbsAffine
    bars: Vector
    noise: Noise = field(default_factory=lambda: Noise(EPS, 1.0, 1.0))
    anchor: Vector | None = None
    where: Matrix | None = None
    astray: Vector | None = None
    asked: int = 0

    @property
    def missing(self) -> float:
        """The error from which hyperplanes are missing, and not only imprecise."""
        return _RIDGED if find_parallel_groups(self.model.n) else _MISSING

    def whole(self, x: Matrix) -> Matrix:
        """What the target answers."""
        if not np.isfinite(x).all():
            raise Unresolved
        self.asked += len(x)
        return self.ask(x)

    def left(self, x: Matrix) -> Matrix:
        """What the target has beside the model."""
        return self.whole(x) - self.model.points(x)

    def round(self, coarse: float) -> None:
        """Find what the model lacks along one more line, and add it."""
        line = self._draw_line()
        with self.phase("kinks"):
            bends = self._bends(line, coarse)
        with self.phase("slopes"):
            surveyed = survey_line(bends, rng=self.rng)
        found = assemble_hyperplanes(surveyed)
        radius = measure_typical_distance(found.model())
        # Runs of bends leave some jumps poorly known, where pairs do not.
        if self.outputs > 2:
            with self.phase("polish"):
                found = sharpen_jumps(surveyed, found, radius=radius, rng=self.rng)
                radius = measure_typical_distance(found.model())
        bars = found.bars * (1.0 + np.linalg.norm(found.where, axis=1) / (radius * self.width**0.5))
        reach = measure_typical_distance(self.model)
        found = replace(found, bars=bars)
        self.model, self.bars = join_hyperplanes(self.model, self.bars, found, reach=reach)
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
        roundoff = max(self.roundoff, coarse)
        noise, places, values = measure_line_noise(line, roundoff=roundoff, hidden=hidden)
        if self.outputs > 1:
            return resolve_line_by_centroids(line, noise, places, values, most=self.most)
        return resolve_line_by_pairs(line, noise, places, values, most=self.most)

    def _sizes(self, x: Matrix) -> Matrix:
        return self.model.terms(x)[:, None]

    def polish(self, share: float) -> None:
        """Measure again the hyperplanes whose errors matter most, with a share of the queries."""
        radius = measure_typical_distance(self.model)
        size = np.linalg.norm(self.model.D, axis=1)
        effect = size * self.bars
        worst = np.argsort(-effect)[: int(share * self.asked / (2 * self.width + 2))]
        changes: dict[int, Again] = {}
        for j in (int(j) for j in worst if effect[j] > _WORTH * np.linalg.norm(size)):
            new = remeasure_hyperplane(self.whole, self.model, j, radius=radius, rng=self.rng)
            bar = self._bar(new, radius)
            if bar < self.bars[j] and abs(new.n @ self.model.n[j]) > 0.99:
                changes[j] = new
                self.bars[j] = bar
        if changes and self.anchor is not None:
            self.model = replace_hyperplanes(self.model, changes, self.anchor)

    def fit(self) -> None:
        """Fit all hyperplanes to new answers."""
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
        shape = (len(self.radii), _PER_RADIUS, self.width)
        x = radius * np.array(self.radii)[:, None, None] * self.rng.normal(size=shape)
        answers = self.whole(x.reshape(-1, self.width)).reshape(*shape[:2], -1)
        gaps = self._gaps(self.model, x, answers)
        shared = share_normals(self.model, self.bars)
        if shared is not None:
            closer = self._gaps(shared, x, answers)
            if closer.max() <= gaps.max():
                self.model, gaps = shared, closer
        wrong = np.argwhere(gaps.max(axis=1) > _MISSING)
        self.astray = x[wrong[0, 0], int(np.argmax(gaps[wrong[0, 0]]))] if len(wrong) else None
        return float(gaps.max())

    def leads_deeper(self) -> bool:
        """Whether the hyperplanes of the first line do not go on."""
        if self.where is None or len(self.where) != self.model.hidden:
            return False
        radius = measure_typical_distance(self.model)
        with self.phase("check"):
            return has_deeper_bends(self.whole, self.model, self.where, radius=radius, rng=self.rng)

    def _gaps(self, model: AbsAffine, x: Stack, answers: Stack) -> Matrix:
        """What a model misses at points of every radius, beside how answers vary there."""
        missed = np.abs(answers - model.points(x.reshape(-1, self.width)).reshape(answers.shape))
        missed = missed.max(axis=2)
        rounding = 64 * self.roundoff * np.abs(answers).max(axis=(1, 2))
        varied = np.abs(answers - answers.mean(axis=1, keepdims=True)).max(axis=(1, 2))
        spread: Vector = np.asarray(varied + rounding, dtype=np.float64)
        # Answers that are all zero vary by nothing: what is left then is all of it.
        spread = np.where(spread > 0, spread, missed.max(axis=1))
        return missed / np.where(spread > 0, spread, 1.0)[:, None]


def learn_network(
    ask: Ask,
    width: int,
    outputs: int,
    *,
    rng: np.random.Generator,
    roundoff: float = EPS,
    most: int = 2048,
    rounds: int = 4,
    fine: float = FINE,
    radii: tuple[float, ...] = CHECKS,
    phase: Phase = lambda name: nullcontext(),
) -> Learned:
    """A network with one hidden ReLU layer from its values at points.

    Args:
        ask: answers (batch, outputs) to points (batch, width).
        width: size of a point.
        outputs: numbers per answer.
        rng: source of every random choice.
        roundoff: relative rounding of answers.
        most: hidden units allowed for.
        rounds: lines tried, at most.
        fine: relative error of the function that needs no further round.
        radii: where it is checked, in units of the typical distance of hyperplanes.
        phase: books what is asked inside it under a name.

    Returns:
        The best model over the rounds, with its own check; verify it on fresh points.
    """
    task = _Given(ask, width, outputs, roundoff, most, rounds, max(fine, 1e3 * roundoff), radii)
    best = _learn_scaled(task, 1.0, phase, rng)
    for _ in range(_RESCALED):
        scale = _choose_scale(best, task.fine)
        if scale is None:
            break
        other = _learn_scaled(task, scale, phase, rng)
        if not _gains_from(other, best, task.fine):
            break
        best = other
    return best


@dataclass(frozen=True, slots=True)
class _Given:
    """What is asked of a recovery, whatever the scale; see `learn_network`."""

    ask: Ask
    width: int
    outputs: int
    roundoff: float
    most: int
    rounds: int
    fine: float
    radii: tuple[float, ...]


def _learn_scaled(task: _Given, scale: float, phase: Phase, rng: np.random.Generator) -> Learned:
    """The network from answers to points of that scale."""
    state = _Learning(
        lambda y: task.ask(scale * y),
        task.width,
        task.outputs,
        task.roundoff,
        task.most,
        phase,
        rng,
        task.radii,
        _make_zero_model(task.width, task.outputs),
        np.zeros(0),
    )
    return _rescale_found(_learn_at_scale(state, task.rounds, task.fine), scale)


def _make_zero_model(width: int, outputs: int) -> AbsAffine:
    """The network that answers 0."""
    shapes = (0, width), 0, (0, outputs), (outputs, width), outputs
    return AbsAffine(*map(np.zeros, shapes))


def _is_imprecise(found: Learned, fine: float) -> bool:
    """Whether a model has every hyperplane, and not closely enough."""
    return fine < found.gap <= _MISSING


def _choose_scale(best: Learned, fine: float) -> float | None:
    """Another scale that may give precision, or hyperplanes; None where there is none."""
    if best.model is None or best.spent or best.smooth or best.deeper:
        return None
    if not best.model.hidden:
        return _FARTHER
    scale = min(measure_typical_distance(best.model), _FARTHER)
    return None if _NEAR < scale < _FAR and not _is_imprecise(best, fine) else scale


def _gains_from(other: Learned, best: Learned, fine: float) -> bool:
    """Whether another scale gained what it was tried for: precision, or hyperplanes."""
    if other.model is None or best.model is None:
        return False
    if _is_imprecise(best, fine):
        return other.gap <= best.gap
    return other.model.hidden >= max(1, best.model.hidden)


def _rescale_found(found: Learned, scale: float) -> Learned:
    """What was found of g where it was learned from g(scale y)."""
    if (model := found.model) is None or scale == 1.0:
        return found
    scaled = model.n, scale * model.t, model.D / scale, model.P / scale, model.q
    return replace(found, model=AbsAffine(*scaled))


def _learn_at_scale(state: _Learning, rounds: int, fine: float) -> Learned:
    """The best model over the rounds, at one scale of points."""
    roundoff = state.roundoff
    best = Learned(None, np.zeros(0), np.inf, False, roundoff)
    for turn in range(rounds):
        try:
            with pin_one_thread(), np.errstate(all="ignore"):
                _improve_model(state, turn, best.gap)
        except (Unresolved, np.linalg.LinAlgError) as unresolved:
            best = replace(best, crowded=True, smooth=isinstance(unresolved, Smooth))
            if turn > 0 or best.smooth:
                return best
            # A unit that barely acts, say, beside a kink: another line may meet it elsewhere.
            continue
        except BudgetSpent:
            if state.anchor is None:
                raise
            return Learned(state.model, state.bars, best.gap, False, roundoff, spent=True)
        with state.phase("check"):
            gap = state.check()
        # Precision that one round of measuring again did not gain, another will not.
        gains = best.gap > state.missing or gap < best.gap / 2
        if best.model is None or gap < best.gap:
            best = Learned(state.model, state.bars, gap, False, state.noise.share)
        if gap <= fine or not gains:
            break
        if turn == 0 and gap > state.missing and state.leads_deeper():
            return replace(best, deeper=True)
    return best


def _improve_model(state: _Learning, turn: int, gap: float) -> None:
    """Another line while something large is missing, then only more precision."""
    if turn == 0 or gap > state.missing:
        state.round(0.0 if state.anchor is None else 1e-11)
        with state.phase("polish"):
            state.polish(_POLISHED)
        return
    with state.phase("polish"):
        if is_worth_fitting(state.model):
            state.fit()
        else:
            state.polish(2 * _POLISHED)
