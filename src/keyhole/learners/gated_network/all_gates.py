"""A gated network from its values at points, stage by stage.

Half a circle far away shows every unit (gate_kinks), steps across it give gates and factors
(across), saturated points their offsets (gate_offsets), places near many gates their widths and
kind (smooth_network.unit_widths); a fit of all parameters to new answers ends it (whole_fit).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector, pin_one_thread, rms
from keyhole.errors import BudgetSpent
from keyhole.learners.gated_network.across import TELLING, find_units
from keyhole.learners.gated_network.gate_kinks import Circle, resolve_circle
from keyhole.learners.gated_network.gate_offsets import (
    SaturatedGates,
    count_pairs,
    solve_gate_offsets,
)
from keyhole.learners.gated_network.gated_form import GatedForm
from keyhole.learners.gated_network.single_kinks import resolve_singly
from keyhole.learners.gated_network.whole_fit import estimate_gate_bars, fit_form
from keyhole.learners.networks.kinks import Ask, Unresolved
from keyhole.learners.networks.lines import Phase
from keyhole.learners.smooth_network.unit_kinds import UNIT_KINDS
from keyhole.learners.smooth_network.unit_widths import (
    Readings,
    count_blocks,
    mend_widths,
    read_units,
)
from keyhole.models.last_token.gated import gated_freedom

KINDS = tuple(UNIT_KINDS)
_FAR = 2.0**40  # where gates are saturated to the last digit
_PRECISE_FAR = 1e-5  # relative error far away, from which on another circle is looked at
_ALIKE = 1e-4  # from a larger one the fit may not find its way
_CHECKED = 6  # points of that check
_SHARE = 1.15  # answers of the fit per parameter
_STEPS = 12
_ITERATIONS = 600
_FITS = 1e-9  # relative residual of the right kind of gate
_PRECISE, _STALLED = 1e-12, 1e-3  # relative residuals between these call for more answers
_POLISHED = 3  # how often


@dataclass(frozen=True, eq=False, slots=True)
class LearnedGates:
    """A gated network as it was learned, not yet verified by anyone else.

    Args:
        form: the network; None where none was found.
        hidden: units found far away.
        unread: gates whose width was not read.
        bars: standard error of the normal of each gate.
        spent: whether the budget ran out on the way.
    """

    form: GatedForm | None = None
    hidden: int = 0
    unread: tuple[int, ...] = ()
    bars: Vector = field(default_factory=lambda: np.zeros(0))
    spent: bool = False


def count_fitted_answers(width: int, hidden: int, outputs: int) -> int:
    """Answers that the fit takes."""
    freedom = gated_freedom(width, hidden=hidden, outputs=outputs)
    return int(np.ceil(_SHARE * freedom / outputs)) + 6


def count_new_answers(width: int, hidden: int, outputs: int) -> int:
    """Those of them that are asked for the fit: offsets and widths have some already."""
    told = count_pairs(hidden, outputs) + count_blocks(width, hidden, outputs) // 2
    return count_fitted_answers(width, hidden, outputs) - told


def learn_gated_units(
    ask: Ask,
    width: int,
    outputs: int,
    *,
    rng: np.random.Generator,
    roundoff: float = EPS,
    most: int = 2048,
    rounds: int = 3,
    kinds: tuple[str, ...] = KINDS,
    phase: Phase = lambda name: nullcontext(),
) -> LearnedGates:
    """A gated network from its values at points.

    Args:
        ask: answers (batch, outputs) to points (batch, width).
        width: size of a point, two at least.
        outputs: numbers per answer.
        rng: source of every random choice.
        roundoff: relative rounding of answers.
        most: hidden units allowed for.
        rounds: circles tried, at most.
        kinds: of gates that are tried.
        phase: books what is asked inside it under a name.
    """
    if width < 3:
        return LearnedGates()
    stages = _Stages(ask, width, outputs, roundoff, most, kinds, phase, rng)
    far: GatedForm | None = None
    gap = np.inf
    for _ in range(rounds):
        try:
            with pin_one_thread(), np.errstate(all="ignore"):
                seen, error = stages.look_far()
        except (Unresolved, np.linalg.LinAlgError):
            continue
        if error < gap:
            far, gap = seen, error
        if gap <= max(_PRECISE_FAR, 1e6 * roundoff):
            break
    if far is None or gap > max(_ALIKE, 1e6 * roundoff):
        return LearnedGates()
    try:
        with pin_one_thread(), np.errstate(all="ignore"):
            return stages.look_near(far, gap)
    except BudgetSpent:
        return LearnedGates(hidden=far.hidden, spent=True)
    except np.linalg.LinAlgError:
        return LearnedGates(hidden=far.hidden)


@dataclass(slots=True)
class _Stages:
    """One recovery under way."""

    ask: Ask
    width: int
    outputs: int
    roundoff: float
    most: int
    kinds: tuple[str, ...]
    phase: Phase
    rng: np.random.Generator

    def ask_far(self, x: Matrix) -> Matrix:
        """Answers far away, where they are homogeneous of degree two."""
        return self.ask(_FAR * x) / _FAR**2

    def look_far(self) -> tuple[GatedForm, float]:
        """Gates, factors and weights, and their relative error on a few more points."""
        plane = np.linalg.qr(self.rng.normal(size=(self.width, 2)))[0].T
        with self.phase("kinks"):
            circle = Circle(self.ask_far, plane[0], plane[1])
            resolve = resolve_circle if self.outputs >= TELLING else resolve_singly
            kinks = resolve(circle, most=self.most, roundoff=self.roundoff)
        with self.phase("slopes"):
            far = find_units(kinks, rng=self.rng)
        x = self.rng.normal(size=(_CHECKED, self.width)) / self.width**0.5
        with self.phase("check"):
            y = self.ask_far(x)
        spread = float(np.abs(y - y.mean(axis=0)).max())
        return far, float(np.abs(far.points(x) - y).max()) / max(spread, 1e-300)

    def look_near(self, far: GatedForm, gap: float) -> LearnedGates:
        """Offsets, widths and kind, then everything fitted to new answers."""
        with self.phase("offsets"):
            found = solve_gate_offsets(self.ask, far, gap, rng=self.rng)
        if not far.hidden:
            return LearnedGates(replace(found.form, kind=self.kinds[0]))
        with self.phase("widths"):
            readings = read_units(self.ask, found, rng=self.rng)
        if not readings.read.any():
            return LearnedGates(hidden=far.hidden)
        form, bars = self.fit(found, readings)
        unread = tuple(int(j) for j in np.flatnonzero(~readings.read))
        return LearnedGates(form, far.hidden, unread, bars)

    def fit(self, found: SaturatedGates, readings: Readings) -> tuple[GatedForm, Vector]:
        """The kind of gate that fits answers near the gates, the likeliest first, and its bars."""
        likeliest = sorted(self.kinds, key=lambda kind: readings.widths(kind)[1])
        starts = [
            replace(
                found.form, s=mend_widths(readings.widths(kind)[0], readings, found.D), kind=kind
            )
            for kind in likeliest
        ]
        # Answers that told offsets and widths tell the rest as well as any.
        told = np.concatenate([found.x, readings.x]), np.concatenate([found.y, readings.y])
        count = count_new_answers(self.width, *found.D.shape)
        unit = measure_unit(starts[0])
        x, y = self.ask_near(unit, count, told)
        fits: list[tuple[float, int, GatedForm]] = []
        for i, start in enumerate(starts):
            form = _fit_answers(start, x, y)
            fits.append((_measure_left(form, x, y), i, form))
            if fits[-1][0] <= max(_FITS, 1e4 * self.roundoff):
                break
        left, _, form = min(fits)
        form, x, y = self.polish(form, left, unit, x, y)
        return form, estimate_gate_bars(form, x, y, _weigh_answers(y), rng=self.rng)

    def ask_near(
        self, unit: float, count: int, told: tuple[Matrix, Matrix]
    ) -> tuple[Matrix, Matrix]:
        """Points and answers with new ones about the gates."""
        x = unit * self.rng.normal(size=(count, self.width))
        # Half of the points lie where gates are nearly saturated, and tell their slopes.
        x[::2] *= 2.0
        with self.phase("fit"):
            return np.concatenate([told[0], x]), np.concatenate([told[1], self.ask(x)])

    def polish(
        self, form: GatedForm, left: float, unit: float, x: Matrix, y: Matrix
    ) -> tuple[GatedForm, Matrix, Matrix]:
        """The form fitted to a few more answers, where so few had hardly any say in a part."""
        for _ in range(_POLISHED):
            # What more answers cannot mend is not a matter of how many there are.
            if not _PRECISE + 1e3 * self.roundoff < left < _STALLED:
                break
            x, y = self.ask_near(unit, len(x) // 5, (x, y))
            form = _fit_answers(form, x, y)
            left = _measure_left(form, x, y)
        return form, x, y


def _fit_answers(form: GatedForm, x: Matrix, y: Matrix) -> GatedForm:
    """The form fitted to answers, of which those far out count no more than others."""
    return fit_form(form, x, y, weight=_weigh_answers(y), steps=_STEPS, iterations=_ITERATIONS)


def _weigh_answers(y: Matrix) -> Vector:
    """Weights with which answers far out count no more than those near the gates."""
    size = np.sqrt((y**2).mean(axis=1))
    return 1 / np.maximum(size, max(float(np.median(size)), 1e-300))


def _measure_left(form: GatedForm, x: Matrix, y: Matrix) -> float:
    """What a form leaves of answers, beside them."""
    weight = _weigh_answers(y)[:, None]
    return rms(weight * (y - form.points(x))) / max(rms(weight * y), 1e-300)


def measure_unit(form: GatedForm) -> float:
    """The typical distance and width of gates; 1 where there are none."""
    return float(np.median(np.hypot(form.t, 1 / form.s))) if form.hidden else 1.0
