r"""Offsets of gates and factors, from points that are far from every gate.

Where all gates are saturated, a unit that is active is $C_j (n_j x - t_j)(b_j x - e_j)$. Beside
what is known far away the answers have

$$\sum_{j\ \text{active}} C_j \big( -t_j\, b_j x - e_j\, n_j x + t_j e_j \big) + c,$$

linear in (t, e, c) but for the products, which a few repetitions take care of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Indices, Matrix, Vector, rms
from keyhole.learners.gated_network.gated_form import GatedForm
from keyhole.learners.networks.kinks import Ask
from keyhole.learners.smooth_network.offset_fit import build_shared_equations
from keyhole.learners.smooth_network.offsets import (
    RADII,
    WEAKEST,
    draw_directions,
    drop_seen_cells,
    find_confused_unit,
    find_margins,
    find_steady_step,
)

RAY = RADII[::2]  # where one ray is looked at
_SHARE = 1.3  # pairs of points per unknown over outputs
_DRAWS = 256
_PER_PAIR = 64
_MORE = 12  # how often points are added, at most
_PRODUCTS = 8  # repetitions for the products
_OUTSIDE = 4.0  # where points lie at first, beside where every gate seems saturated
_FARTHER = 5  # how often they are moved out
_STEADY = 1e-6


@dataclass(frozen=True, eq=False, slots=True)
class SaturatedGates:
    """A gated network where its gates are saturated.

    Args:
        form: all but widths and kind.
        reach: how far from its hyperplane every gate is saturated.
        x: every point asked, gates saturated or not.
        y: answers there.
    """

    form: GatedForm
    reach: float
    x: Matrix
    y: Matrix

    @property
    def n(self) -> Matrix:
        """Unit normals of the gates."""
        return self.form.n

    @property
    def t(self) -> Vector:
        """Offsets of the gates."""
        return self.form.t

    @property
    def D(self) -> Matrix:
        """Output weights."""
        return self.form.C

    def points(self, x: Matrix) -> Matrix:
        """Answers if every gate were saturated."""
        return self.form.points(x)

    def jumps(self, x: Vector, block: Indices) -> Matrix:
        """What gates of a block add at a point, for each unit of distance."""
        return self.form.C[block] * (self.form.b[block] @ x - self.form.e[block])[:, None]

    def avoided(self, block: Indices) -> Matrix:
        """Normals of the other gates, and factors of the block: where they vanish nothing shows."""
        return np.concatenate([np.delete(self.form.n, block, axis=0), self.form.b[block]])


def count_pairs(hidden: int, outputs: int) -> int:
    """Pairs of points that are asked for the offsets of so many units."""
    return int(np.ceil(_SHARE * (2 * hidden + outputs) / outputs)) + 1


def find_gate_reach(ask: Ask, far: GatedForm, *, rng: np.random.Generator) -> float:
    """How far from its hyperplane every gate is saturated, from one ray.

    Beside its far form a saturated network is affine along a ray: slopes no longer change.
    """
    u = draw_directions(_DRAWS, far.n.shape[1], rng=rng)
    margins = find_margins(far.n, u)
    best = int(np.argmax(margins))
    x = RAY[:, None] * u[best]
    left = ask(x) - far.points(x)
    slopes = np.diff(left, axis=0) / np.diff(RAY)[:, None]
    return float(RAY[find_steady_step(RAY[1:], slopes)] * margins[best])


def _build_rows(far: GatedForm, x: Matrix) -> Matrix:
    """Columns of t and e at saturated points."""
    active = (np.sign(x @ far.n.T) + far.sigma) / 2
    return np.hstack([-active * (x @ far.b.T), -active * (x @ far.n.T)])


def choose_pairs(far: GatedForm, *, rng: np.random.Generator) -> Matrix:
    """Directions with their antipodes, far from all gates, that tell all offsets apart."""
    k, m = far.C.shape
    both = np.concatenate([far.C, far.C])
    count = count_pairs(k, m)
    chosen = np.zeros((0, far.n.shape[1]))
    for _ in range(_MORE):
        draws = draw_directions(_PER_PAIR * count, far.n.shape[1], rng=rng)
        draws = draws[np.argsort(-find_margins(far.n, draws))]
        fresh = drop_seen_cells(far.n, draws, chosen)[:count]
        chosen = np.concatenate([chosen, fresh, -fresh])
        left = np.zeros((len(chosen), m))
        normal, _ = build_shared_equations(
            _build_rows(far, chosen), both, left, np.ones(len(chosen))
        )
        if find_confused_unit(normal, len(far.n))[0] > WEAKEST:
            break
        count = max(2, count // 4)
    return chosen


def solve_gate_offsets(
    ask: Ask, far: GatedForm, gap: float, *, rng: np.random.Generator
) -> SaturatedGates:
    """Offsets of gates and factors, and the constant.

    Args:
        ask: answers to points.
        far: what is known far away.
        gap: its relative error.
        rng: source of directions.
    """
    reach = find_gate_reach(ask, far, rng=rng)
    u = choose_pairs(far, rng=rng)
    R = _OUTSIDE * reach / float(find_margins(far.n, u).min())
    best, form = np.inf, far
    asked: list[Matrix] = []
    answers: list[Matrix] = []
    for _ in range(_FARTHER):
        x = R * u
        y = ask(x)
        asked.append(x)
        answers.append(y)
        solved, rest = _solve_for_offsets(far, x, y)
        size = rms(y - far.points(x))
        if rest / max(size, 1e-300) < best:
            best, form = rest / max(size, 1e-300), solved
        if rest <= max(_STEADY * size, 3 * gap * rms(y)):
            break
        R *= 4
        reach *= 4
    return SaturatedGates(form, reach, np.concatenate(asked), np.concatenate(answers))


def _solve_for_offsets(far: GatedForm, x: Matrix, y: Matrix) -> tuple[GatedForm, float]:
    """Least squares in (t, e, c), repeated for the products t e."""
    k = far.hidden
    E = _build_rows(far, x)
    both = np.concatenate([far.C, far.C])
    active = (np.sign(x @ far.n.T) + far.sigma) / 2
    left = y - far.points(x)
    normal, _ = build_shared_equations(E, both, left, np.ones(len(x)))
    scale = 1 / np.sqrt(np.maximum(np.diag(normal), 1e-300))
    inverse = np.linalg.pinv(normal * scale * scale[:, None], rcond=1e-13, hermitian=True)
    z = np.zeros(len(scale))
    for _ in range(_PRODUCTS):
        products = active * (z[:k] * z[k : 2 * k])
        beside = left - products @ far.C - (E * z[: 2 * k]) @ both - z[2 * k :]
        _, pull = build_shared_equations(E, both, beside, np.ones(len(x)))
        z = z + scale * (inverse @ (scale * pull))
    form = replace(far, t=z[:k], e=z[k : 2 * k], c=z[2 * k :])
    return form, rms(y - form.points(x))
