r"""How far each unit bends at points where its direction is known.

With the directions $\hat w_j$ on L known the coefficients $a_{pj} = c_j E''(z_{pj})$ of all units
at a new point are linear in a few second differences. At $p = R(\cos\phi\, q + \sin\phi\, l)$, q
fixed outside of L and l in it, $z_{pj} = s_j t_{pj} + \beta'_j$ with $t_{pj} = R \sin\phi\, \hat
w_j l$ known: each unit is a curve with three unknowns. What is linear in the rest follows from
first differences at the same points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.far_tokens import FarTokens
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_slices import Slices, flatten_symmetric, measure_differences
from keyhole.models.last_token.even_parts import EVEN_PARTS, EvenPart, Pair
from keyhole.oracles.own_time import check_own_time

ANGLE = 0.9
READ_POINTS = 24
_EQUATIONS = 1.6  # for an unknown coefficient
LENGTHS: Vector = np.geomspace(0.1, 8.0, 30)  # of weights, beside the largest argument

Shape = Callable[[Array], Pair]


@dataclass(frozen=True, eq=False, slots=True)
class Reads:
    """First and second differences at points that share one direction outside of L.

    Args:
        l: directions inside of L, by its coordinates (points x m).
        v: directions of the differences, by those coordinates (points x directions x m).
        q: the direction outside of L.
        p: the points.
        values: answers at the points.
        first: differences (points x directions x outputs).
        second: (points x directions x outputs).
    """

    l: Matrix
    v: Array
    q: Vector
    p: Matrix
    values: Matrix
    first: Array
    second: Array


def count_directions(outputs: int, hidden: int) -> int:
    """Directions along which second differences show so many units."""
    return int(np.ceil(_EQUATIONS * (hidden + outputs) / outputs))


def count_read_queries(outputs: int, hidden: int, points: int = READ_POINTS) -> int:
    """What all reads cost."""
    return points * (2 * count_directions(outputs, hidden) + 1)


def measure_reads(
    asking: FarTokens, slices: Slices, *, points: int = READ_POINTS, rng: np.random.Generator
) -> Reads:
    """Differences at random points."""
    split, R = slices.split, asking.radius
    m = split.m
    count = min(count_directions(asking.outputs, slices.units), m - 1)
    l = rng.normal(size=(points, m))
    l /= linalg.norm(l, axis=1, keepdims=True)
    q = rng.normal(size=(1, split.outside.shape[1])) @ split.outside.T
    q = q[0] / float(linalg.norm(q))
    v = np.array([draw_orthogonal(one, count, rng) for one in l])
    p: Matrix = R * (np.cos(ANGLE) * q + np.sin(ANGLE) * l @ split.inside.T)
    return Reads(l, v, q, p, *measure_differences(asking, p, v @ split.inside.T))


def draw_orthogonal(l: Vector, count: int, rng: np.random.Generator) -> Matrix:
    """So many random directions orthogonal to l."""
    drawn = rng.normal(size=(len(l), count))
    drawn -= np.outer(l, l @ drawn)
    v = drawn / linalg.norm(drawn, axis=0)
    return v.T


@dataclass(frozen=True, eq=False, slots=True)
class Curves:
    """What units are along L.

    Args:
        s: lengths of their weights on L.
        beta: their arguments where l is 0.
        D: what they add to answers (units x outputs).
        left: what the worst of them does not explain, beside its largest value.
        activation: of the units.
    """

    s: Vector
    beta: Vector
    D: Matrix
    left: float
    activation: str


def find_output_directions(slices: Slices, w: Matrix) -> Matrix:
    """The direction in which every unit moves answers (units x outputs)."""
    m = slices.split.m
    known = np.concatenate(
        [
            flatten_symmetric(np.einsum("ki,kj->kij", w, w)),
            flatten_symmetric(np.eye(m))[None],
        ]
    )
    shares = slices.parts @ linalg.pinv(known)
    per_unit = shares[..., :-1].transpose(2, 0, 1)
    return linalg.svd(per_unit, full_matrices=False)[2][:, 0]


def find_curves(
    reads: Reads, w: Matrix, outer: Matrix, radius: float, kinds: tuple[str, ...]
) -> Curves:
    """Lengths, offsets and sizes of the units from their coefficients at all points.

    Of the activations in question the one is taken that explains them best.
    """
    pairs = zip(reads.v, reads.second, strict=True)
    a = np.array([_solve_coefficients(v, second, w, outer) for v, second in pairs]).T
    t = radius * np.sin(ANGLE) * (w @ reads.l.T)
    fits = {kind: fit_curves(t, a, EVEN_PARTS[kind]) for kind in kinds}
    # The median: a unit that was not found says nothing of the others.
    best = min(fits, key=lambda kind: float(np.median(fits[kind][:, 3])))
    s, beta, c, left = fits[best].T
    return Curves(s, beta, (c / s**2)[:, None] * outer, float(left.max()), best)


def _solve_coefficients(v: Matrix, second: Matrix, w: Matrix, outer: Matrix) -> Vector:
    """The a of one point: $sum_j a_j D_j (w_j v)^2$ and a vector that is one for all v."""
    squares = (v @ w.T) ** 2
    rows = np.einsum("vk,ko->vok", squares, outer).reshape(-1, len(w))
    curved = np.tile(np.eye(outer.shape[1]), (len(v), 1))
    solved = linalg.lstsq(np.column_stack([rows, curved]), second.ravel(), rcond=None)[0]
    return solved[: len(w)]


def fit_curves(t: Matrix, a: Matrix, even: EvenPart) -> Matrix:
    r"""Per unit $a_p = c E''(s t_p + \beta)$: s, beta, c and what is left.

    The best of a grid, then damped steps.
    """
    return fit_shapes(t, a, even.curve, LENGTHS)


def fit_shapes(t: Matrix, a: Matrix, shape: Shape, lengths: Vector) -> Matrix:
    r"""Per unit $a_p = c\,\phi(s t_p + \beta)$: s, beta, c and what is left.

    Args:
        t: where (units x points).
        a: what was read there.
        shape: $\phi$ and its slope.
        lengths: values of s to begin with, beside the largest t.
    """
    lengths = lengths / np.abs(t).max()
    offsets = np.linspace(-4.5, 4.5, 46)
    s, beta = np.repeat(lengths, len(offsets)), np.tile(offsets, len(lengths))
    return np.array([_fit_curve(tj, aj, s, beta, shape) for tj, aj in zip(t, a, strict=True)])


def _fit_curve(t: Vector, a: Vector, s: Vector, beta: Vector, curve: Shape) -> Vector:
    check_own_time()
    shape = curve(s[:, None] * t + beta[:, None])[0]
    along = (shape @ a) / np.maximum(np.sum(shape**2, axis=1), 1e-300)
    left = linalg.norm(a - along[:, None] * shape, axis=1)
    starts = np.argsort(left)[:8]
    x, left = _descend(t, a, np.column_stack([s, beta, along])[starts], curve)
    at = int(np.argmin(left))
    return np.append(x[at], left[at] / (linalg.norm(a) or 1.0))


def _descend(
    t: Vector, a: Vector, x: Matrix, curve: Shape, steps: int = 40
) -> tuple[Matrix, Vector]:
    """Damped Gauss-Newton steps from several starts at once."""
    damping = np.full(len(x), 1e-3)
    left = _leave(t, a, x, curve)
    cost: Vector = linalg.norm(left, axis=1)
    for _ in range(steps):
        shape, slope = curve(x[:, :1] * t + x[:, 1:2])
        J = np.stack([x[:, 2:] * slope * t, x[:, 2:] * slope, shape], axis=2)
        H = J.swapaxes(1, 2) @ J
        diagonal = np.einsum("bii->bi", H)
        H = H + (damping[:, None] * diagonal + 1e-300)[:, :, None] * np.eye(3)
        trial = x + linalg.solve(H, J.swapaxes(1, 2) @ left[..., None])[..., 0]
        moved = _leave(t, a, trial, curve)
        after: Vector = linalg.norm(moved, axis=1)
        better = after < cost
        x = np.where(better[:, None], trial, x)
        left = np.where(better[:, None], moved, left)
        cost = np.where(better, after, cost)
        damping = np.where(better, damping * 0.2, damping * 5.0)
    return x, cost


def _leave(t: Vector, a: Vector, x: Matrix, curve: Shape) -> Matrix:
    return a - x[:, 2:] * curve(x[:, :1] * t + x[:, 1:2])[0]
