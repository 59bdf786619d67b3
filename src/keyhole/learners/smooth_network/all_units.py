r"""A network of smooth units from its values at points, stage by stage.

Far away it is a ReLU network without biases, whose normals, jumps and linear part are kept; then
come offsets (offsets), widths and kind (unit_widths), a fit of these alone (offset_fit), and of all
parameters only where that leaves too much (value_fit).
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector, rms
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.networks.kinks import Ask
from keyhole.learners.networks.lines import Phase, learn_network
from keyhole.learners.smooth_network.offset_fit import (
    count_fitted_points,
    fit_offsets_and_widths,
    measure_unit,
    place_points,
)
from keyhole.learners.smooth_network.offsets import solve_offsets
from keyhole.learners.smooth_network.unit_kinds import UNIT_KINDS, SmoothForm
from keyhole.learners.smooth_network.unit_widths import Readings, mend_widths, read_units
from keyhole.learners.smooth_network.value_fit import SEARCHED, fit_smooth_units
from keyhole.models import AbsAffine

KINDS = tuple(UNIT_KINDS)
_FAR = 2.0**40  # where smooth units are ReLU to the last digit
_FINE = 1e-12  # roundoff of float64, and no other format
_COARSE_FAR = 2.0**20  # the same in float32, whose numbers end at 3e38
_ENOUGH = 6e-10  # far away a relative error up to this is worth no further round
_ALIKE = 1e-6  # a larger one is none of such a network
_RADII = (1.0,)  # far away all radii are alike
_FITS = 1e-9  # relative residual of the right kind of unit
_LINE = 3e-10  # a relative residual near the units above this calls for a fit of everything
_SHARE = 1.35  # answers of that fit per parameter


@dataclass(frozen=True, eq=False, slots=True)
class LearnedUnits:
    """A network of smooth units as it was learned, not yet verified by anyone else.

    Args:
        far: the ReLU network that it is far away; None where it is none.
        form: the network; None where no unit showed a width.
        unread: units whose width was not read, and is the median where the fit left it.
        bars: standard error of each normal.
        left: relative residual near the units.
        spent: whether the budget ran out on the way.
    """

    far: AbsAffine | None
    form: SmoothForm | None = None
    unread: tuple[int, ...] = ()
    bars: Vector = field(default_factory=lambda: np.zeros(0))
    left: float = np.inf
    spent: bool = False


def count_fitted_answers(width: int, hidden: int, outputs: int) -> int:
    """Answers that a fit of all parameters takes."""
    freedom = hidden * (width + 1 + outputs) + outputs * (width + 1)
    return int(np.ceil(_SHARE * freedom / outputs)) + 8


def learn_smooth_units(
    ask: Ask,
    width: int,
    outputs: int,
    *,
    rng: np.random.Generator,
    roundoff: float = EPS,
    most: int = 2048,
    rounds: int = 4,
    kinds: tuple[str, ...] = KINDS,
    phase: Phase = lambda name: nullcontext(),
) -> LearnedUnits:
    """A network with one hidden layer of smooth units from its values at points.

    Args:
        ask: answers (batch, outputs) to points (batch, width).
        width: size of a point.
        outputs: numbers per answer.
        rng: source of every random choice.
        roundoff: relative rounding of answers.
        most: hidden units allowed for.
        rounds: lines tried far away, at most.
        kinds: of units that are tried.
        phase: books what is asked inside it under a name.
    """
    scale = _FAR if roundoff <= _FINE else _COARSE_FAR
    found = learn_network(
        lambda x: ask(scale * x) / scale,
        width,
        outputs,
        rng=rng,
        roundoff=roundoff,
        most=most,
        rounds=rounds,
        fine=_ENOUGH,
        radii=_RADII,
        phase=phase,
    )
    if found.spent:
        raise BudgetSpent("the budget ran out far away.")
    if found.model is None or found.gap > max(_ALIKE, 1e6 * roundoff):
        return LearnedUnits(None)
    # So far out offsets are rounding.
    far = replace(found.model, t=np.zeros(found.model.hidden), q=np.zeros(outputs))
    stages = _Stages(ask, far, found.bars, max(found.gap, roundoff), roundoff, kinds, phase, rng)
    try:
        return stages.run()
    except BudgetSpent:
        return LearnedUnits(far, spent=True)


@dataclass(slots=True)
class _Stages:
    """What follows once normals, jumps and linear part are known."""

    ask: Ask
    far: AbsAffine
    bars: Vector
    gap: float
    roundoff: float
    kinds: tuple[str, ...]
    phase: Phase
    rng: np.random.Generator

    def run(self) -> LearnedUnits:
        with self.phase("offsets"):
            found = solve_offsets(self.ask, self.far, self.gap, rng=self.rng)
        if not self.far.hidden:
            return LearnedUnits(self.far, SmoothForm(found.lines, np.zeros(0), self.kinds[0]))
        with self.phase("widths"):
            readings = read_units(self.ask, found, rng=self.rng)
        if not readings.read.any():
            return LearnedUnits(self.far)
        form, left = self.fit(found.lines, readings)
        form, left = self.polish(form, left)
        unread = tuple(int(j) for j in np.flatnonzero(~readings.read))
        return LearnedUnits(self.far, form, unread, self.bars, left)

    def fit(self, lines: AbsAffine, readings: Readings) -> tuple[SmoothForm, float]:
        """The kind of unit that fits answers near the units, the likeliest first."""
        likeliest = sorted(self.kinds, key=lambda kind: readings.widths(kind)[1])
        starts = [
            SmoothForm(lines, mend_widths(readings.widths(kind)[0], readings, lines.D), kind)
            for kind in likeliest
        ]
        x = place_points(starts[0], count_fitted_points(*lines.D.shape), rng=self.rng)
        with self.phase("fit"):
            y = self.ask(x)
        places = np.concatenate([x, readings.x])
        answers = np.concatenate([y, readings.y])
        fits: list[tuple[float, int, SmoothForm]] = []
        for i, start in enumerate(starts):
            form = fit_offsets_and_widths(start, places, answers, self.gap)
            left = measure_residual(form, x, y)
            fits.append((left, i, form))
            if left <= max(_FITS, 1e4 * self.roundoff):
                break
        left, _, form = min(fits)
        return form, left

    def polish(self, form: SmoothForm, left: float) -> tuple[SmoothForm, float]:
        """All parameters fitted to new answers, where what is left calls for it."""
        lines = form.lines
        if left <= _LINE or lines.n.size + lines.hidden > SEARCHED:
            return form, left
        count = count_fitted_answers(lines.width, *lines.D.shape)
        x = measure_unit(form) * self.rng.normal(size=(count, lines.width))
        # Half of the points lie where units are nearly straight, and tell their slopes.
        x[::2] *= 2.0
        with self.phase("fit"):
            y = self.ask(x)
        fitted, size = form, np.inf
        # A fit that breaks down leaves the network found so far.
        with suppress(np.linalg.LinAlgError, InvalidInput), np.errstate(all="ignore"):
            s = form.s
            model, size = fit_smooth_units(form.kind, s[:, None] * lines.n, -s * lines.t, x, y)
            fitted = model.normal_form()
        before = measure_residual(form, x, y)
        return (fitted, size) if size < before else (form, before)


def measure_residual(form: SmoothForm, x: Matrix, y: Matrix) -> float:
    """What a form leaves of answers, beside how they vary."""
    spread = rms(y - y.mean(axis=0))
    return rms(y - form.points(x)) / max(spread, 1e-300)
