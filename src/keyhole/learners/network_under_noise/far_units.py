r"""A ReLU network from answers with absolute errors, where tokens may be of any length.

An error that does not grow with the answers vanishes beside long tokens. Asked points of size S the
network is, over S, one whose hyperplanes pass the origin, with errors of $\sigma/S$: normals, jumps
and the linear part come out to rounding (relu). Offsets and the constant stay behind errors. Near
its hyperplane, far from all others, a unit shows two lines that meet at $t_j$, give or take
$\sigma/|D_j|$; then all offsets and the constant are fitted to answers at the scale of the offsets,
where $g$ changes by $-\tfrac12 D_j s_{ij}\,\delta t_j$ and by $\delta q$, linear but for changes of
side.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from keyhole._arrays import Matrix, Vector, pin_one_thread, rms
from keyhole.learners.networks.kinks import Ask
from keyhole.models import AbsAffine
from keyhole.oracles.own_time import check_own_time

_FIRST = 2.0**20  # how far from a hyperplane its lines are first read
_REACH = 2.0**12  # how far along the hyperplane, beside that
_LOOKS = 4  # how often, each time nearer or farther
_DRAWS = 64  # places to choose from
_STEPS = 20  # of a fit of the offsets alone


def _choose_far_place(units: AbsAffine, j: int, rng: np.random.Generator) -> Vector:
    """A point of size 1 on hyperplane j through the origin, far from the others."""
    draws = rng.normal(size=(_DRAWS, units.width))
    draws -= np.outer(draws @ units.n[j], units.n[j])
    draws /= np.linalg.norm(draws, axis=1, keepdims=True) + 1e-300
    others = np.abs(draws @ np.delete(units.n, j, axis=0).T)
    return draws[int(np.argmax(others.min(axis=1, initial=np.inf)))]


def find_offsets(ask: Ask, units: AbsAffine, *, repeats: int, rng: np.random.Generator) -> Vector:
    """Where the two lines of every unit meet along its normal: its offset."""
    if not units.hidden:
        return np.zeros(0)
    with pin_one_thread():
        places = np.array([_choose_far_place(units, j, rng) for j in range(units.hidden)])
    t = np.zeros(units.hidden)
    scale = _FIRST
    for look in range(_LOOKS):
        t = _meet_lines(ask, units, places * scale * _REACH, t if look else 0 * t, scale, repeats)
        largest = float(np.abs(t).max(initial=0.0))
        # Beyond the points asked the lines were not those of both sides: look from farther away.
        if largest > scale / 4:
            t = 0 * t
            scale *= 2.0**20
        elif look and largest > scale / 64:
            break
        else:
            scale = max(16 * largest, 1e-30)
    return t


def _meet_lines(
    ask: Ask, units: AbsAffine, places: Matrix, t: Vector, h: float, repeats: int
) -> Vector:
    """Two points on either side of every hyperplane, and where the lines through them meet."""
    r = np.tile(np.array([-2.0, -1.0, 1.0, 2.0]) * h, (repeats, 1)).ravel()
    x = places[:, None] + (t[:, None] + r)[..., None] * units.n[:, None]
    answers = ask(x.reshape(-1, units.width)).reshape(units.hidden, repeats, 4, -1).mean(axis=1)
    D = units.D
    size = np.maximum((D * D).sum(axis=1), 1e-300)
    # In these units jumps have slope 1.
    y = np.einsum("jrm,jm->jr", answers - answers[:, :1], D) / size[:, None]
    left = y[:, 1] - y[:, 0]
    right = y[:, 3] - y[:, 2]
    # a + left r/h and b + right r/h meet where b - a + (right - left) r/h = 0; right - left is h.
    a = y[:, 1] + left
    b = y[:, 2] - right
    return t + (a - b)


def settle_offsets(units: AbsAffine, x: Matrix, y: Matrix) -> tuple[AbsAffine, Matrix]:
    """Offsets and constant that leave least at points, and their covariance at variance 1."""
    left = rms(y - units.points(x))
    with pin_one_thread():
        for _ in range(_STEPS):
            check_own_time()
            rest = (y - units.points(x)).ravel()
            solved = np.linalg.lstsq(differentiate_by_offsets(units, x), rest, rcond=None)[0]
            step = np.asarray(solved, dtype=np.float64)
            # A whole step may carry hyperplanes across points, where the slopes no longer hold.
            trials = [_move_offsets(units, share * step) for share in (1.0, 0.5, 0.25)]
            after = [rms(y - trial.points(x)) for trial in trials]
            best = int(np.argmin(after))
            if not after[best] < left:
                break
            units, left = trials[best], after[best]
        A = differentiate_by_offsets(units, x)
        return units, np.asarray(np.linalg.pinv(A.T @ A), dtype=np.float64)


def _move_offsets(units: AbsAffine, step: Vector) -> AbsAffine:
    k = units.hidden
    return replace(units, t=units.t + step[:k], q=units.q + step[k:])


def differentiate_by_offsets(units: AbsAffine, x: Matrix) -> Matrix:
    """Derivatives of all outputs at points, one row each, by the offsets and the constants."""
    k, m = units.hidden, units.outputs
    slope = -np.sign(x @ units.n.T - units.t)[..., None] * units.D / 2  # point, unit, output
    by_offset = slope.transpose(0, 2, 1).reshape(len(x) * m, k)
    return np.hstack([by_offset, np.tile(np.eye(m), (len(x), 1))])
