r"""Networks with one hidden ReLU layer from value queries, hidden width unknown.

One line shows every hidden unit as a kink (pair_search, centroid_search); slopes across it give the
hyperplanes (jacobians); those poorly known are measured again at places of their own (polish). What
is then wrong or missing is what the target leaves beside the model, which is a small network again:
the next round works on that, along another line. The model is $g(x) = \tfrac12 \sum_j D_j |n_j x -
t_j| + P x + q$, which is what values determine.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector, pin_one_thread
from keyhole.errors import BudgetSpent
from keyhole.learners.networks.kinks import Ask, Smooth, Unresolved
from keyhole.learners.networks.rounds import (
    MISSING,
    Care,
    Given,
    Learning,
    Phase,
    measure_typical_distance,
)
from keyhole.models import AbsAffine

CHECKS = (1.0, 10.0, 1000.0)  # radii, in units of the typical distance of hyperplanes
FINE = 5e-10  # relative error of the function that needs no further round
_NEAR, _FAR = 1e-4, 1e6  # hyperplanes at other distances are measured at their own scale
_FARTHER = 1e12  # where they are looked for when none was met
_RESCALED = 2  # how often
_CARE = Care()


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
    care: Care = _CARE,
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
        care: how well a round measures before it is checked.
        radii: where it is checked, in units of the typical distance of hyperplanes.
        phase: books what is asked inside it under a name.

    Returns:
        The best model over the rounds, with its own check; verify it on fresh points.
    """
    fine = max(fine, 1e3 * roundoff)
    task = Given(ask, width, outputs, rng, phase, roundoff, most, rounds, fine, care, radii)
    best = _learn_scaled(task, 1.0)
    for _ in range(_RESCALED):
        scale = _choose_scale(best, fine)
        if scale is None:
            break
        other = _learn_scaled(task, scale)
        if not _gains_from(other, best, fine):
            break
        best = other
    return best


def _learn_scaled(task: Given, scale: float) -> Learned:
    """The network from answers to points of that scale."""

    def ask(y: Matrix) -> Matrix:
        return task.ask(scale * y)

    state = Learning(
        replace(task, ask=ask), _make_zero_model(task.width, task.outputs), np.zeros(0)
    )
    return _rescale_found(_learn_at_scale(state), scale)


def _make_zero_model(width: int, outputs: int) -> AbsAffine:
    """The network that answers 0."""
    shapes = (0, width), 0, (0, outputs), (outputs, width), outputs
    return AbsAffine(*map(np.zeros, shapes))


def _is_imprecise(found: Learned, fine: float) -> bool:
    """Whether a model has every hyperplane, and not closely enough."""
    return fine < found.gap <= MISSING


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


def _learn_at_scale(state: Learning) -> Learned:
    """The best model over the rounds, at one scale of points."""
    roundoff = state.task.roundoff
    best = Learned(None, np.zeros(0), np.inf, False, roundoff)
    for turn in range(state.task.rounds):
        try:
            with pin_one_thread(), np.errstate(all="ignore"):
                state.improve(turn, best.gap)
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
        with state.task.phase("check"):
            gap = state.check()
        # Precision that a fit of the whole did not gain, another will not.
        gains = best.gap > state.missing or gap < best.gap / 2 or not state.fitted
        if best.model is None or gap < best.gap:
            best = Learned(state.model, state.bars, gap, False, state.noise.share)
        if gap <= state.task.allow(state.model, turn) or not gains:
            break
        if turn == 0 and gap > state.missing and state.leads_deeper():
            return replace(best, deeper=True)
    return best
