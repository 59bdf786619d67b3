r"""Hyperplanes measured again, each at a place of its own.

On the line that found it a hyperplane may have had close neighbours, so that steps were short and
its normal is poorly known. But a hyperplane is large: elsewhere on it there are points p far from
all others. There, steps across and along it may be long. With slopes on both sides

$$g_+(x) - g_-(x) = D\,(n x - t), \qquad \nabla g_+ - \nabla g_- = D\, n^\top,$$

which gives D, n and t at once from 2d + 2 queries.

With several outputs the Jacobians of the line are good and its jumps are not: the slope between two
close kinks is known to rounding over their distance, and a wrong jump spoils all normals of its
block. Four queries on the normal through such a point p, two on either side, give D as the change
of slope, and t; the blocks are then solved again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Indices, Mask, Matrix, Vector
from keyhole.learners.networks.jacobians import Found, Survey, assemble_hyperplanes
from keyhole.learners.networks.kinks import Ask
from keyhole.models import AbsAffine
from keyhole.oracles.own_time import check_own_time

_TRIES = 192  # places of a hyperplane, the best of which is climbed from
_CLIMBS = 24
SHARP = 1.5e-10  # jumps known less well, beside those of the network, are measured again
_PAIRS, _BLUNT = 4, 8  # at most four jumps and one in eight: close kinks come in pairs


def find_clean_point(
    model: AbsAffine, j: int, *, radius: float, rng: np.random.Generator
) -> tuple[Vector, float]:
    """A point of hyperplane j far from all others for its distance from 0, and how far."""
    n = model.n[j]
    others = np.arange(model.hidden) != j
    x = rng.normal(size=(_TRIES, model.width))
    x *= (radius * 3.0 ** rng.integers(-1, 3, size=_TRIES))[:, None]
    x -= np.outer(x @ n - float(model.t[j]), n)
    margin = _measure_plane_margins(model, others, x)
    best: Vector = x[int(np.argmax(margin / _measure_reach(x, radius)))]
    return _climb_margin(model, others, best, n, radius)


def _measure_reach(x: Matrix, radius: float) -> Vector:
    return radius + np.linalg.norm(x, axis=1)


def _measure_plane_margins(model: AbsAffine, others: Mask, x: Matrix) -> Vector:
    """Distance from the nearest of the other hyperplanes."""
    return np.abs(x @ model.n[others].T - model.t[others]).min(axis=1, initial=1e300)


def _climb_margin(
    model: AbsAffine, others: Mask, x: Vector, n: Vector, radius: float
) -> tuple[Vector, float]:
    """Step away from the nearest hyperplane, within hyperplane n, as long as that helps."""
    N, T = model.n[others], model.t[others]
    if not len(N):
        return x, float(_measure_reach(x[None], radius)[0])
    margin = float(np.abs(N @ x - T).min())
    for _ in range(_CLIMBS):
        check_own_time()
        offset = N @ x - T
        near = int(np.argmin(np.abs(offset)))
        away = np.sign(offset[near]) * (N[near] - (N[near] @ n) * n)
        trial: Matrix = x + (margin * np.array([0.3, 1.0, 3.0]))[:, None] * away
        margins = np.abs(trial @ N.T - T).min(axis=1)
        gain = margins / _measure_reach(trial, radius)
        if gain.max() <= margin / _measure_reach(x[None], radius)[0]:
            break
        best = int(np.argmax(gain))
        x, margin = trial[best], float(margins[best])
    return x, min(margin, float(_measure_reach(x[None], radius)[0]))


@dataclass(frozen=True, eq=False, slots=True)
class Again:
    """One hyperplane as measured again: normal, offset, jump, where, and by how long steps."""

    n: Vector
    t: float
    D: Vector
    at: Vector
    step: float


def remeasure_hyperplane(
    ask: Ask, model: AbsAffine, j: int, *, radius: float, rng: np.random.Generator
) -> Again:
    """Hyperplane j from 2d + 2 queries far from all others, whose errors do not matter there."""
    p, room = find_clean_point(model, j, radius=radius, rng=rng)
    return measure_both_sides(ask, p, model.n[j], room / 3, rng)


def replace_hyperplanes(
    model: AbsAffine, changes: Mapping[int, Again], anchor: Vector
) -> AbsAffine:
    """The model with some hyperplanes exchanged, and otherwise as it was round the anchor."""
    n, t, D = model.n.copy(), model.t.copy(), model.D.copy()
    for j, new in changes.items():
        n[j], t[j], D[j] = new.n, new.t, new.D
    bent = AbsAffine(n, t, D, np.zeros_like(model.P), np.zeros_like(model.q))
    P = model.jacobian(anchor) - bent.jacobian(anchor)
    q = (model.points(anchor[None]) - bent.points(anchor[None]))[0] - P @ anchor
    return AbsAffine(n, t, D, P, q)


def sharpen_jumps(
    survey: Survey,
    found: Found,
    *,
    radius: float,
    sharp: float = SHARP,
    rng: np.random.Generator,
) -> Found:
    """The hyperplanes of a survey, their worst jumps measured again by four queries each."""
    chosen, error = _find_blunt_jumps(survey, found, sharp)
    model = found.model()
    line = survey.bends.line
    spots = [find_clean_point(model, int(j), radius=radius, rng=rng) for j in chosen]
    # Beside its near double a hyperplane has room nowhere, and is known better than it would be.
    wider = [
        room * size > 2.2 * survey.bends.noise.near(0.0)
        for (_, room), size in zip(spots, error, strict=True)
    ]
    chosen = chosen[wider]
    if not len(chosen):
        return found
    spots = [spot for spot, better in zip(spots, wider, strict=True) if better]
    p = np.array([at for at, _ in spots])
    h = np.array([room for _, room in spots]) / 2.2
    D, gap = _measure_jumps_across(line.ask, p, model.n[chosen], h)
    jumps = survey.jumps.copy()
    jumps[chosen] = D * (model.n[chosen] @ line.along)[:, None]
    own = survey.own.copy()
    own[chosen] = True
    better = replace(survey, jumps=jumps, own=own)
    n = assemble_hyperplanes(better).n[chosen]
    t = survey.bends.t.copy()
    t[chosen] = (np.einsum("kd,kd->k", n, p - line.start) - gap) / (n @ line.along)
    return assemble_hyperplanes(replace(better, bends=replace(survey.bends, t=t)))


def _find_blunt_jumps(survey: Survey, found: Found, sharp: float) -> tuple[Indices, Vector]:
    """The kinks whose jumps are known worst, for their size across, and how well they are known."""
    bars = survey.bends.bars
    size = np.linalg.norm(found.D, axis=1)
    error = np.hypot(bars[1:], bars[:-1]) * size / np.linalg.norm(survey.jumps, axis=1)
    worst = np.argsort(-error)[: _PAIRS + len(error) // _BLUNT]
    chosen = np.sort(worst[error[worst] * len(size) > sharp * size.sum()])
    return chosen, error[chosen]


def _measure_jumps_across(ask: Ask, p: Matrix, n: Matrix, h: Vector) -> tuple[Matrix, Vector]:
    """Jumps of slope along normals at points of hyperplanes, and how far beyond these they are."""
    ahead = np.array([-2.0, -0.25, 0.25, 2.0])[:, None] * h  # four places by points
    values = ask((p + ahead[..., None] * n).reshape(-1, p.shape[1])).reshape(4, len(p), -1)
    left, right = (values[[1, 3]] - values[[0, 2]]) / (1.75 * h[:, None])
    D = right - left
    apart = (values[2] - right * ahead[2][:, None]) - (values[1] - left * ahead[1][:, None])
    return D, np.einsum("km,km->k", apart, D) / np.einsum("km,km->k", D, D)


def measure_both_sides(ask: Ask, p: Vector, n: Vector, h: float, rng: np.random.Generator) -> Again:
    """Slopes on both sides of the hyperplane through p, and what they say of it."""
    d = len(p)
    Q = np.linalg.qr(np.column_stack([n, rng.normal(size=(d, d - 1))]))[0].T
    Q[0] = n
    base = p + np.outer([h, -h], n)
    steps = np.stack([Q * h, Q * h * np.where(np.arange(d) == 0, -1.0, 1.0)[:, None]])
    values = ask(np.concatenate([base, (base[:, None] + steps).reshape(-1, d)]))
    at = values[:2]
    beyond = values[2:].reshape(2, d, -1)
    slopes = (beyond - at[:, None]) / h
    slopes[1, 0] *= -1.0
    change = (slopes[0] - slopes[1]).T  # outputs, directions: D n^T in the basis Q
    U, S, Z = np.linalg.svd(change, full_matrices=False)
    sign = 1.0 if Z[0, 0] >= 0 else -1.0
    D = U[:, 0] * S[0] * sign
    normal = Q.T @ (Z[0] * sign)
    # Both sides continued to p differ by D (n p - t).
    gap = (at[0] - h * slopes[0, 0]) - (at[1] + h * slopes[1, 0])
    return Again(normal, float(normal @ p - gap @ D / max(D @ D, 1e-300)), D, p, h)
