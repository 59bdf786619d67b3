r"""Hyperplanes that do not go on, as those of a second hidden layer do not.

A unit of the only hidden layer bends the answers along a whole hyperplane: at any point p of it,
off all others, $F(p + h n) - 2 F(p) + F(p - h n) = h D$. What a unit of a second hidden layer bends
them along turns where it meets a hyperplane of the first, so that it is where it was found and not
where it ought to be far away. One of the first layer goes on, but how much it bends changes there.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Indices, Matrix, Vector
from keyhole.learners.networks.kinks import Ask
from keyhole.learners.networks.polish import find_clean_point
from keyhole.models import AbsAffine

_LOOKED_AT = 8  # of the strongest hyperplanes
_ENOUGH = 2  # of these that do not go on
_CLOSE, _WIDE = 1e-3, 0.3  # steps across, as shares of the room to the next hyperplane
_ASIDE = 30.0  # how far from where it was met a hyperplane is looked at, in such small steps
_THERE, _GONE = 0.1, 0.1  # of the bend, by which it may be off, and be left
_CHANGED = 0.2  # of the bend, by which it is another


def has_deeper_bends(
    ask: Ask, model: AbsAffine, where: Matrix, *, radius: float, rng: np.random.Generator
) -> bool:
    """Whether hyperplanes are where they were met, and are not where they lead.

    Args:
        ask: answers to points.
        model: hyperplanes of one line.
        where: the points at which the line met them.
        radius: typical distance of hyperplanes.
        rng: source of points.
    """
    strongest = np.argsort(-np.linalg.norm(model.D, axis=1))[:_LOOKED_AT]
    if len(strongest) < _ENOUGH:
        return False
    n, D = model.n[strongest], model.D[strongest]
    clean = [find_clean_point(model, int(j), radius=radius, rng=rng) for j in strongest]
    far = np.array([at for at, _ in clean])
    room = np.array([size for _, size in clean])
    met, step = _step_aside(model, strongest, where[strongest], rng=rng)
    points = [(met, step), (far, _CLOSE * room), (far, _WIDE * room)]
    bends = _measure_bends(ask, n, points)
    size = np.linalg.norm(D, axis=1)
    met, close, wide = (bend / h[:, None] for bend, (_, h) in zip(bends, points, strict=True))
    there, close_left, wide_left = (
        np.linalg.norm(jump, axis=1) / size for jump in (met - D, close, wide)
    )
    gone = (close_left < _GONE) & (wide_left < _GONE)
    changed = _measure_gap_from_shares(close, D) / size > _CHANGED
    return int(((there < _THERE) & (gone | changed)).sum()) >= _ENOUGH


def _measure_gap_from_shares(jumps: Matrix, D: Matrix) -> Vector:
    """How far jumps are from all that a point beside a hyperplane with jump D can show, 0 to D."""
    share = np.clip(np.einsum("km,km->k", jumps, D) / np.einsum("km,km->k", D, D), 0.0, 1.0)
    return np.linalg.norm(jumps - share[:, None] * D, axis=1)


def _step_aside(
    model: AbsAffine, which: Indices, where: Matrix, *, rng: np.random.Generator
) -> tuple[Matrix, Vector]:
    """Points of hyperplanes near those where they were met, and small steps across there."""
    n = model.n[which]
    apart = np.abs(where @ model.n.T - model.t)
    apart[np.arange(len(which)), which] = np.inf
    step = _CLOSE * apart.min(axis=1)
    aside = rng.normal(size=where.shape)
    aside -= (aside * n).sum(axis=1, keepdims=True) * n
    aside /= np.linalg.norm(aside, axis=1, keepdims=True) + 1e-300
    return where + _ASIDE * step[:, None] * aside, step


def _measure_bends(ask: Ask, n: Matrix, points: list[tuple[Matrix, Vector]]) -> list[Matrix]:
    """Second differences along normals at points."""
    offsets = np.array([-1.0, 0.0, 1.0])[:, None, None]
    x = [at + offsets * h[:, None] * n for at, h in points]
    values = ask(np.concatenate([part.reshape(-1, n.shape[1]) for part in x]))
    values = values.reshape(len(points), 3, len(n), -1)
    return [part[0] - 2 * part[1] + part[2] for part in values]
