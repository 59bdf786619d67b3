r"""Offsets and widths of all units fitted to answers near them, all else known.

With n, D and P held, $g(x) = \sum_j D_j (\tfrac12|r_j| - \lambda(s_j|r_j|)/s_j) + P x + q$ changes
by

$$\delta g = \sum_j D_j \big( -\mathrm{sign}(r_j) (\tfrac12 - \lambda'(u_j))\, \delta t_j
  + (\lambda(u_j)/s_j - \lambda'(u_j) |r_j|)\, \delta \log s_j \big) + \delta q, \qquad
  u_j = s_j |r_j|,$$

2k + m numbers. The normal matrix is $(E^\top E)_{ab}\, (D D^\top)_{ab}$ with E the scalar factors
above, one row per point: its cost does not grow with the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector, pin_one_thread, rms
from keyhole.learners.fitting import Damping, run_damped_steps, solve_damped_equations
from keyhole.learners.smooth_network.unit_kinds import UNIT_KINDS, SmoothForm

_STEPS = 16
_DAMPING = Damping(1e-13, lambda now: max(now / 10, 1e-15), lambda now: 1e3 * now)
_STALLED = 0.9  # a step that leaves more than this share ends the fit
_STIFFEST = 1.0
_LOG_STEP = 0.7  # of log s, at most
_WIDTHS_STEP = 1.5  # of t, at most, in widths


@dataclass(frozen=True, eq=False, slots=True)
class _Fitted:
    """A form, what it leaves and the weighted size of that."""

    form: SmoothForm
    left: Matrix
    size: float


def count_fitted_points(hidden: int, outputs: int) -> int:
    """Points near units that are asked for the fit."""
    share = 1.5 if outputs < 3 else 2.5
    return int(np.ceil(share * (2 * hidden + outputs) / outputs)) + 2


def place_points(form: SmoothForm, count: int, *, rng: np.random.Generator) -> Matrix:
    """The origin and points about the units, half of them within 1.5 widths of one hyperplane."""
    lines = form.lines
    unit = measure_unit(form)
    x = unit * rng.normal(size=(count, lines.width))
    x[::2] *= 2.0
    if lines.hidden:
        moved = np.arange(count) % 4 < 2
        j = np.resize(rng.permutation(lines.hidden), int(moved.sum()))
        aim = lines.t[j] + rng.uniform(-1.5, 1.5, size=len(j)) / form.s[j]
        n = lines.n[j]
        x[moved] += (aim - np.einsum("ij,ij->i", x[moved], n))[:, None] * n
    # Wide tokens are all about as long, and tell little of the origin.
    x[-1] = 0.0
    return x


def measure_unit(form: SmoothForm) -> float:
    """The typical distance and width of units; 1 where there are none."""
    if not form.lines.hidden:
        return 1.0
    return float(np.median(np.hypot(form.lines.t, 1 / form.s)))


def fit_offsets_and_widths(form: SmoothForm, x: Matrix, y: Matrix, gap: float) -> SmoothForm:
    """The best form met from here.

    Args:
        form: where to start.
        x: points.
        y: answers there.
        gap: relative error of n, D and P, which rounds answers far out.
    """
    # What n, D and P make of their error grows with the distance.
    size = np.linalg.norm(form.lines.D) + np.linalg.norm(form.lines.P)
    rough = max(gap, EPS) * size * np.linalg.norm(x, axis=1) + 1e-14 * rms(y) + 1e-300
    weight = rough.min() / rough

    def linearise(here: _Fitted) -> Callable[[float], _Fitted | None]:
        H, pull = _build_normal_equations(here, x, weight)
        return lambda damping: _take_step(here, H, pull, damping, x, y, weight)

    def is_settled(before: float, after: float, damping: float) -> bool:
        return _STALLED * before < after < before or before == 0.0 or damping > _STIFFEST

    with pin_one_thread(), np.errstate(all="ignore"):
        start = _weigh(form, x, y, weight)
        best = run_damped_steps(start, linearise, _DAMPING, is_settled=is_settled, steps=_STEPS)
    return best.form


def _weigh(form: SmoothForm, x: Matrix, y: Matrix, weight: Vector) -> _Fitted:
    left = y - form.points(x)
    return _Fitted(form, left, rms(left * weight[:, None]))


def _build_normal_equations(here: _Fitted, x: Matrix, weight: Vector) -> tuple[Matrix, Vector]:
    lines = here.form.lines
    kind = UNIT_KINDS[here.form.kind]
    r = x @ lines.n.T - lines.t
    apart = np.abs(r)
    u = apart * here.form.s
    slope = kind.slope(u)
    by_t = -np.sign(r) * (0.5 - slope)
    by_log_s = kind.lacks(u) / here.form.s - slope * apart
    E = np.hstack([by_t, by_log_s])
    return build_shared_equations(E, np.concatenate([lines.D, lines.D]), here.left, weight)


def build_shared_equations(
    E: Matrix, D: Matrix, left: Matrix, weight: Vector
) -> tuple[Matrix, Vector]:
    r"""Normal equations of $\sum_a E_{ia} D_a z_a + c = \text{left}_i$ in (z, c).

    Args:
        E: one row per point, one column per unknown.
        D: one row per unknown: what it moves answers along.
        left: answers, one row per point.
        weight: of each point.
    """
    E = E * weight[:, None]
    left = left * weight[:, None]
    corner = (E * weight[:, None]).sum(axis=0)[:, None] * D
    constant = (weight**2).sum() * np.eye(D.shape[1])
    H = np.block([[(E.T @ E) * (D @ D.T), corner], [corner.T, constant]])
    pull = np.einsum("ia,am,im->a", E, D, left, optimize=True)
    return H, np.concatenate([pull, (left * weight[:, None]).sum(axis=0)])


def _take_step(
    here: _Fitted,
    H: Matrix,
    pull: Vector,
    damping: float,
    x: Matrix,
    y: Matrix,
    weight: Vector,
) -> _Fitted | None:
    form = here.form
    k = form.lines.hidden
    try:
        step = solve_damped_equations(H, pull, damping)
    except (np.linalg.LinAlgError, ValueError):
        return None
    if not np.isfinite(step).all():
        return None
    # One weak unit would run away and overflow.
    reach = _WIDTHS_STEP / form.s
    t = form.lines.t + np.clip(step[:k], -reach, reach)
    s = form.s * np.exp(np.clip(step[k : 2 * k], -_LOG_STEP, _LOG_STEP))
    lines = replace(form.lines, t=t, q=form.lines.q + step[2 * k :])
    return _weigh(replace(form, lines=lines, s=s), x, y, weight)
