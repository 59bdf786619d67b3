r"""How far each unit bends at points of a post-norm block, and how long h is there.

At a point the coefficients $a_j$ of all units, what the sphere's curvature adds and $\lambda_v =
\partial_v \log \rho$ are linear in second differences. Points lie on circles with one in common:
along each its tangent's $\lambda_v$ is the derivative of $\log \rho$, which is integrated as a
trigonometric sum. Then $a_{pj} = \rho_p c_j E''(s_j t_{pj} + \beta_j)$ is a curve per unit, and all
curves together settle $\rho$.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.far_tokens import SphereMap
from keyhole.learners.blocks.post_norm.direction_slices import list_across
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_reads import (
    ANGLE,
    Curves,
    Reads,
    draw_orthogonal,
    fit_curves,
)
from keyhole.learners.blocks.unit_slices import Split, measure_differences
from keyhole.models.last_token.even_parts import EVEN_PARTS, EvenPart

_CIRCLES = 4
_AROUND = 8  # points of a circle
_EQUATIONS = 1.6  # for an unknown
_STEPS = 30
_STRIDE = 2.0  # of log rho, in one step
_ANEW = 2
_ODD = 30.0  # what is left of a unit, beside that of others
_WIDE = 20.0  # of log rho, where a search starts


@dataclass(frozen=True, eq=False, slots=True)
class ScaledReads:
    """Reads, and what is known of the length of h.

    Args:
        reads: what was asked.
        bends: coefficients of all units (points x units).
        rates: derivatives of log rho (points x directions).
        logs: log rho beside the first point's.
    """

    reads: Reads
    bends: Matrix
    rates: Matrix
    logs: Vector


def count_circles(m: int) -> int:
    """Circles through one point of a subspace."""
    return min(_CIRCLES, m - 1)


def count_directions(dimension: int, m: int, hidden: int) -> int:
    """Directions along which second differences show so many units."""
    wanted = _EQUATIONS * (hidden + dimension - 1) / max(0.5, dimension - 1 - _EQUATIONS)
    return min(m - 1, max(count_circles(m), int(np.ceil(wanted))))


def count_read_queries(dimension: int, m: int, hidden: int) -> int:
    """What all reads cost."""
    points = 1 + count_circles(m) * (_AROUND - 1)
    return points * (2 * count_directions(dimension, m, hidden) + 1)


def measure_circles(
    sphere: SphereMap, split: Split, units: int, *, rng: np.random.Generator
) -> Reads:
    """Differences at the points of circles, along their tangents first."""
    R, m = sphere.radius, split.m
    circles, count = count_circles(m), count_directions(sphere.dimension, m, units)
    frame = linalg.qr(rng.normal(size=(m, circles + 1)))[0].T
    angles = 2 * np.pi * np.arange(1, _AROUND) / _AROUND
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    l = np.concatenate([frame[:1], *(cos * frame[0] + sin * e for e in frame[1:])])
    tangents = [frame[1:]]
    tangents += [t[None] for e in frame[1:] for t in cos * e - sin * frame[0]]
    v = np.array([_fill_up(one, t, count, rng) for one, t in zip(l, tangents, strict=True)])
    q = rng.normal(size=(1, split.outside.shape[1])) @ split.outside.T
    q = q[0] / float(linalg.norm(q))
    p: Matrix = R * (np.cos(ANGLE) * q + np.sin(ANGLE) * l @ split.inside.T)
    return Reads(l, v, q, p, *measure_differences(sphere, p, v @ split.inside.T))


def _fill_up(l: Vector, tangents: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """The tangents, and random directions orthogonal to l."""
    more = count - len(tangents)
    return np.concatenate([tangents, draw_orthogonal(l, more, rng)]) if more > 0 else tangents


def solve_scaled_reads(reads: Reads, w: Matrix, outer: Matrix, radius: float) -> ScaledReads:
    """Coefficients of all units, and the length of h by its derivatives along the circles."""
    solved = [
        _solve_point(value, first, second, (v @ w.T) ** 2, outer)
        for value, first, second, v in zip(
            reads.values, reads.first, reads.second, reads.v, strict=True
        )
    ]
    rates = np.array([found[1] for found in solved])
    logs = _integrate_circles(rates, radius * np.sin(ANGLE))
    return ScaledReads(reads, np.array([found[0] for found in solved]), rates, logs)


def _solve_point(
    value: Vector, first: Matrix, second: Matrix, squares: Matrix, outer: Matrix
) -> tuple[Vector, Vector]:
    """Coefficients of all units, and derivatives of log rho along every v."""
    N = list_across(value)
    count, across = len(squares), N.shape[1]
    units = np.einsum("vk,ko->vok", squares, outer @ N).reshape(-1, len(outer))
    curved = np.tile(np.eye(across), (count, 1))
    scaled = np.einsum("vx,vo->vox", np.eye(count), 2 * first @ N).reshape(-1, count)
    design = np.concatenate([units, curved, scaled], axis=1)
    solved = linalg.lstsq(design, (second @ N).ravel(), rcond=None)[0]
    return solved[: len(outer)], solved[-count:]


def _integrate_circles(rates: Matrix, speed: float) -> Vector:
    """Log rho at all points, beside the first, as sums of waves along each circle."""
    each = _AROUND - 1
    circles = (len(rates) - 1) // each
    logs = np.zeros(len(rates))
    waves = np.fft.fftfreq(_AROUND, 1 / _AROUND)
    waves[_AROUND // 2] = 0.0
    for c in range(circles):
        at = slice(1 + c * each, 1 + (c + 1) * each)
        along = speed * np.concatenate([rates[:1, c], rates[at, 0]])
        parts = np.fft.fft(along)
        parts = np.where(waves != 0, parts / np.where(waves != 0, 1j * waves, 1.0), 0.0)
        whole = np.fft.ifft(parts).real
        logs[at] = whole[1:] - whole[0]
    return np.clip(logs, -_WIDE, _WIDE)


def find_scaled_curves(
    seen: ScaledReads, w: Matrix, outer: Matrix, radius: float, kinds: tuple[str, ...]
) -> tuple[Curves, Vector]:
    """Units along L, and log rho at all points; the activation that explains them best."""
    t = radius * np.sin(ANGLE) * (w @ seen.reads.l.T)
    a = seen.bends.T
    fits = [_fit_kind(t, a, seen.logs, kind) for kind in kinds]
    # The median: a unit that was not found says nothing of the others.
    x, logs, left, best = min(fits, key=lambda fit: float(np.median(fit[2])))
    s, beta, c = x.T
    return Curves(s, beta, (c / s**2)[:, None] * outer, float(left.max()), best), logs


def _fit_kind(t: Matrix, a: Matrix, logs: Vector, kind: str) -> tuple[Matrix, Vector, Vector, str]:
    """Curves and log rho for one activation, and what is left of every unit."""
    even = EVEN_PARTS[kind]
    start = fit_curves(t, a / np.exp(logs), even)[:, :3]
    x, logs = _settle_curves(t, a, start, logs, even)
    for _ in range(_ANEW):
        x = begin_anew(t, a, x, logs, even)
        x, logs = _settle_curves(t, a, x, logs, even)
    return x, logs, _leave_each(t, a, x, logs, even), kind


def begin_anew(t: Matrix, a: Matrix, x: Matrix, logs: Vector, even: EvenPart) -> Matrix:
    """Units that ended in a wrong place, where log rho, known better since, shows a better one."""
    left = _leave_each(t, a, x, logs, even)
    odd = np.flatnonzero(left > _ODD * np.median(left))
    if len(odd) == 0:
        return x
    tried = fit_curves(t[odd], a[odd] / np.exp(logs), even)
    better = tried[:, 3] < left[odd]
    moved = x.copy()
    moved[odd[better]] = tried[better, :3]
    return moved


def _leave_each(t: Matrix, a: Matrix, x: Matrix, logs: Vector, even: EvenPart) -> Vector:
    left = linalg.norm(_leave(t, a, x, logs, even), axis=1)
    return left / np.maximum(linalg.norm(a, axis=1), 1e-300)


def _leave(t: Matrix, a: Matrix, x: Matrix, logs: Vector, even: EvenPart) -> Matrix:
    return a - x[:, 2:] * even.curve(x[:, :1] * t + x[:, 1:2])[0] * np.exp(logs)


def _settle_curves(
    t: Matrix, a: Matrix, x: Matrix, logs: Vector, even: EvenPart
) -> tuple[Matrix, Vector]:
    """Damped steps of all curves and log rho together, the first point's held."""
    left = _leave(t, a, x, logs, even)
    cost, damping = float(linalg.norm(left)), 1e-3
    for _ in range(_STEPS):
        by_unit, by_point = _slope_curves(t, x, logs, even)
        move_x, move_logs = _solve_arrow(by_unit, by_point, left, damping)
        trial_x, trial_logs = x + move_x, logs + np.clip(move_logs, -_STRIDE, _STRIDE)
        trial = _leave(t, a, trial_x, trial_logs, even)
        after = float(linalg.norm(trial))
        if after < cost:
            settled = after > 0.999 * cost
            x, logs, left, cost = trial_x, trial_logs, trial, after
            damping = max(damping * 0.2, 1e-12)
            if settled:
                break
        else:
            damping *= 10
            if damping > 1e3:
                break
    return x, logs


def _slope_curves(t: Matrix, x: Matrix, logs: Vector, even: EvenPart) -> tuple[Array, Matrix]:
    """Derivatives by s, beta and c (units x points x 3), and by log rho (units x points)."""
    shape, slope = even.curve(x[:, :1] * t + x[:, 1:2])
    scale = np.exp(logs)
    by_unit = np.stack([x[:, 2:] * slope * t, x[:, 2:] * slope, shape], axis=2)
    return by_unit * scale[:, None], x[:, 2:] * shape * scale


def _solve_arrow(
    by_unit: Array, by_point: Matrix, left: Matrix, damping: float
) -> tuple[Matrix, Vector]:
    """The damped step: units are eliminated one by one, log rho is solved for."""
    H = by_unit.swapaxes(1, 2) @ by_unit
    diagonal = np.einsum("kii->ki", H)
    H = H + (damping * diagonal + 1e-300)[:, :, None] * np.eye(3)
    g = (by_unit.swapaxes(1, 2) @ left[..., None])[..., 0]
    cross = by_unit.swapaxes(1, 2) * by_point[:, None, :]
    solved = linalg.solve(H, np.concatenate([cross, g[..., None]], axis=2))
    weights = np.sum(by_point**2, axis=0)
    S = np.diag(weights * (1 + damping)) - np.einsum("kip,kiq->pq", cross, solved[..., :-1])
    rest = np.sum(by_point * left, axis=0) - np.einsum("kip,ki->p", cross, solved[..., -1])
    moved = np.zeros(len(weights))
    moved[1:] = linalg.lstsq(S[1:, 1:], rest[1:], rcond=None)[0]
    return solved[..., -1] - solved[..., :-1] @ moved, moved
