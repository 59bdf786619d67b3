r"""Offsets of all units at once, from points that are far from every hyperplane.

Where every unit is saturated, $g(x) = \tfrac12 \sum_j D_j |n_j x - t_j| + P x + q$. With n, D and P
known and x = R u large the absolute values open, and what is left beside $\tfrac12 \sum_j D_j |n_j
x| + P x$ is

$$-\tfrac12 \sum_j D_j\, \mathrm{sign}(n_j u)\, t_j + q,$$

linear in (t, q): a few more than (k + m)/m points give all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyhole._arrays import Array, Indices, Matrix, Vector, rms
from keyhole.learners.networks.kinks import Ask
from keyhole.models import AbsAffine

RADII: Vector = np.asarray(4.0 ** np.arange(-4, 16), dtype=np.float64)  # where one ray is looked at
SHARE = 1.25  # points per unknown
_DRAWS = 256  # directions of which one far from all hyperplanes is taken
_PER_POINT = 64  # the same for each point
_CHUNK = 4096  # directions weighed at once
_STEADY = 1e-6  # a step of what is left, beside all its change, that is none
_ROUNDINGS = 30.0  # the same in units of rounding
_FARTHEST = 4  # steps that show errors alone
WEAKEST = 3e-3  # least singular value of the scaled design, else points are added
_MORE = 64  # how often two points are added, at most
_FARTHER = 6  # how often the points are moved out, at most


@dataclass(frozen=True, eq=False, slots=True)
class Saturated:
    """The network where all its units are saturated.

    Args:
        lines: n, t, D, P and q.
        reach: how far from a hyperplane its unit is saturated.
        left: what the answers have beside these lines, beside the change of what was fitted.
    """

    lines: AbsAffine
    reach: float
    left: float

    @property
    def n(self) -> Matrix:
        """Unit normals."""
        return self.lines.n

    @property
    def t(self) -> Vector:
        """Offsets."""
        return self.lines.t

    @property
    def D(self) -> Matrix:
        """Jumps."""
        return self.lines.D

    def points(self, x: Matrix) -> Matrix:
        """Answers if every unit were saturated."""
        return self.lines.points(x)

    def jumps(self, x: Vector, block: Indices) -> Matrix:
        """Jumps of a block, the same at every point."""
        return self.lines.D[block]

    def avoided(self, block: Indices) -> Matrix:
        """Normals of the other units."""
        return np.delete(self.lines.n, block, axis=0)


def count_offset_points(hidden: int, outputs: int) -> int:
    """Points that are asked for the offsets of so many units."""
    return int(np.ceil(SHARE * (hidden + outputs) / outputs)) + 2


def draw_directions(count: int, width: int, *, rng: np.random.Generator) -> Matrix:
    """Unit vectors."""
    u = rng.normal(size=(count, width))
    return u / np.linalg.norm(u, axis=1, keepdims=True)


def find_margins(n: Matrix, u: Matrix) -> Vector:
    """How far directions are from the nearest hyperplane through the origin."""
    margins = [
        np.abs(u[i : i + _CHUNK] @ n.T).min(axis=1, initial=1.0) for i in range(0, len(u), _CHUNK)
    ]
    return np.concatenate(margins)


def find_saturated_reach(ask: Ask, far: AbsAffine, *, rng: np.random.Generator) -> float:
    """How far from its hyperplane every unit is saturated, from one ray.

    What the target has beside its far form changes along the ray until all units are saturated, and
    from there on by the error of that form alone.
    """
    u = draw_directions(_DRAWS, far.width, rng=rng)
    margins = find_margins(far.n, u)
    best = int(np.argmax(margins))
    x = RADII[:, None] * u[best]
    left = ask(x) - far.points(x)
    return float(RADII[find_steady_step(RADII, left)] * margins[best])


def find_steady_step(radii: Vector, left: Matrix) -> int:
    """The first of some rows on a ray from which on they change by no more than errors do.

    Errors of what is known far away are all that is left at the largest radius, and grow as it;
    they go with the last step, and what the steps before it still have is rounding.
    """
    steps = np.diff(left, axis=0)
    outer = radii[1:]
    steps = steps - np.outer(outer / outer[-1], steps[-1])
    size = np.linalg.norm(steps, axis=1)
    rounding = outer * np.median(size[-_FARTHEST:-1] / outer[-_FARTHEST:-1])
    change = np.maximum.accumulate(np.linalg.norm(np.cumsum(steps, axis=0), axis=1))
    real = np.flatnonzero(size > np.maximum(_STEADY * change, _ROUNDINGS * rounding))
    return int(real[-1]) + 1 if len(real) else 0


def _build_offset_design(far: AbsAffine, u: Matrix) -> Matrix:
    """The normal matrix of (t, q) at saturated points along directions."""
    S = np.sign(u @ far.n.T)
    corner = -S.sum(axis=0)[:, None] * far.D / 2
    inner = (S.T @ S) * (far.D @ far.D.T) / 4
    return np.block([[inner, corner], [corner.T, len(u) * np.eye(far.outputs)]])


def choose_offset_directions(far: AbsAffine, *, rng: np.random.Generator) -> Matrix:
    """Directions far from all hyperplanes whose answers tell all offsets apart.

    The antipodes of two directions tell the constant from units that have one sign at all others.
    """
    count = count_offset_points(far.hidden, far.outputs)
    draws = draw_directions(_PER_POINT * count, far.width, rng=rng)
    draws = draws[np.argsort(-find_margins(far.n, draws))]
    fresh = drop_seen_cells(far.n, draws, np.zeros((0, far.width)))[: max(1, count - 2)]
    chosen = np.concatenate([fresh, -fresh[:2]])
    for _ in range(_MORE):
        weakest, confused = find_confused_unit(_build_offset_design(far, chosen), far.hidden)
        if weakest > WEAKEST:
            break
        chosen = np.concatenate([chosen, step_across(far.n, confused, rng=rng)])
    return chosen


def find_confused_unit(normal: Matrix, hidden: int) -> tuple[float, int]:
    """The least singular value of the design, its columns scaled to length 1, and whose it is."""
    from scipy.linalg import eigh

    scale = 1 / np.sqrt(np.maximum(np.diag(normal), 1e-300))
    least: Any = eigh(normal * scale * scale[:, None], subset_by_index=(0, 0), driver="evr")
    values, vectors = least
    confused = int(np.argmax(np.abs(vectors[:hidden, 0]))) if hidden else 0
    return max(float(values[0]), 0.0) ** 0.5, confused


def step_across(n: Matrix, unit: int, *, rng: np.random.Generator) -> Matrix:
    """Two directions that one hyperplane parts and no other does: they tell its offset alone."""
    draws = rng.normal(size=(_DRAWS, n.shape[1]))
    draws -= np.outer(draws @ n[unit], n[unit])
    draws /= np.maximum(np.linalg.norm(draws, axis=1, keepdims=True), 1e-300)
    margins = find_margins(np.delete(n, unit, axis=0), draws)
    best = int(np.argmax(margins))
    across = 0.5 * margins[best] * n[unit]
    pair = np.stack([draws[best] + across, draws[best] - across])
    return pair / np.linalg.norm(pair, axis=1, keepdims=True)


def drop_seen_cells(n: Matrix, u: Matrix, seen: Matrix) -> Matrix:
    """The first direction of every cell between hyperplanes; in one cell all tell the same."""
    if not len(n):
        return u
    cells = np.packbits(np.concatenate([seen, u]) @ n.T > 0, axis=1)
    first = np.unique(cells, axis=0, return_index=True)[1]
    return u[np.sort(first[first >= len(seen)]) - len(seen)]


def solve_offsets(ask: Ask, far: AbsAffine, gap: float, *, rng: np.random.Generator) -> Saturated:
    """All offsets and the constant part, from points where every unit is saturated.

    Args:
        ask: answers to points.
        far: normals, jumps and linear part; offsets and constant zero.
        gap: relative error of the far form.
        rng: source of directions.
    """
    reach = find_saturated_reach(ask, far, rng=rng)
    u = choose_offset_directions(far, rng=rng)
    R = 2 * reach / float(find_margins(far.n, u).min())
    best = Saturated(far, reach, np.inf)
    for _ in range(_FARTHER):
        lines = far.points(R * u)
        y = ask(R * u) - lines
        t, q = _solve_for_offsets(far, u, y)
        rest = rms(y - _predict_left(far, u, t, q))
        left = rest / max(rms(y), 1e-300)
        if left < best.left:
            best = Saturated(replace(far, t=t, q=q), reach, left)
        if rest <= max(_STEADY * rms(y), 3 * gap * rms(lines)):
            break
        R *= 4
        reach *= 4
    return replace(best, reach=reach)


def _predict_left(far: AbsAffine, u: Matrix, t: Vector, q: Vector) -> Matrix:
    return -(np.sign(u @ far.n.T) * t) @ far.D / 2 + q


def _solve_for_offsets(far: AbsAffine, u: Matrix, y: Matrix) -> tuple[Vector, Vector]:
    """Least squares in (t, q), once more for what rounding left."""
    S = np.sign(u @ far.n.T)
    normal = _build_offset_design(far, u)
    scale = 1 / np.sqrt(np.maximum(np.diag(normal), 1e-300))
    inverse = np.linalg.pinv(normal * scale * scale[:, None], rcond=1e-12, hermitian=True)
    found: Array = np.zeros(len(scale))
    for _ in range(2):
        left = y - _predict_left(far, u, found[: far.hidden], found[far.hidden :])
        pull = -np.einsum("ik,km,im->k", S, far.D, left, optimize=True) / 2
        right = np.concatenate([pull, left.sum(axis=0)])
        found = found + scale * (inverse @ (scale * right))
    return found[: far.hidden], found[far.hidden :]
