r"""All matrices $w w^\top$ in a space of symmetric ones.

$w \mapsto P(w w^\top) w$, P the projection on the space, climbs $|P(w w^\top)|^2$, which is 1 where
$w w^\top$ lies in the space and less elsewhere. Gauss-Newton steps on $|(1 - P) w w^\top|^2$ end
the climb. What was found is taken out of the space, so that later climbs start elsewhere.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_slices import flatten_symmetric, unflatten_symmetric
from keyhole.oracles.own_time import check_own_time

_CLIMBS = 60  # steps of one climb
_ROUNDS = 40
_THERE = 1e-6  # of what lies outside of the space
_SAME = 0.05  # of the sine between two that are one


def find_rank_ones(basis: Matrix, m: int, count: int, *, rng: np.random.Generator) -> Matrix | None:
    """So many unit vectors w with $w w^T$ in the span of the rows; None where they hide."""
    space = unflatten_symmetric(basis, m)
    found = np.zeros((0, m))
    for _ in range(_ROUNDS):
        check_own_time()
        each = count - len(found) + 24
        # Either kind of start alone misses some.
        starts = [_draw_starts(space, known, each, rng) for known in (found, found[:0])]
        w = np.concatenate(starts)
        w = _climb(space, w, _CLIMBS)
        w = _sharpen(basis, w)
        outside = _measure_outside(basis, w)
        order = np.argsort(outside)
        found = _add_new(found, w[order[outside[order] < _THERE]])
        if len(found) >= count:
            break
    return found if len(found) == count else None


def _draw_starts(space: Array, found: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Leading eigenvectors of random matrices of the space, what was found taken out."""
    m = space.shape[-1]
    drawn = rng.normal(size=(count, len(space))) @ space.reshape(len(space), -1)
    if len(found):
        known = linalg.qr(np.einsum("ki,kj->kij", found, found).reshape(len(found), -1).T)[0]
        drawn -= (drawn @ known) @ known.T
    values, vectors = linalg.eigh(drawn.reshape(-1, m, m))
    at = np.argmax(np.abs(values), axis=1)
    return vectors[np.arange(count), :, at]


def _climb(space: Array, w: Matrix, steps: int) -> Matrix:
    flat = space.reshape(len(space), -1)
    for _ in range(steps):
        check_own_time()
        shares = np.einsum("bi,bj->bij", w, w).reshape(len(w), -1) @ flat.T
        moved = np.einsum("bij,bj->bi", (shares @ flat).reshape(-1, *space.shape[1:]), w)
        w = moved / linalg.norm(moved, axis=1, keepdims=True)
    return w


def _measure_outside(basis: Matrix, w: Matrix) -> Array:
    """What of $w w^T$ lies outside of the space, squared."""
    return 1.0 - np.sum((_lift(w) @ basis.T) ** 2, axis=1)


def _lift(w: Matrix) -> Matrix:
    return flatten_symmetric(np.einsum("bi,bj->bij", w, w))


def _sharpen(basis: Matrix, w: Matrix, steps: int = 6) -> Matrix:
    """Gauss-Newton steps orthogonal to w."""
    m = w.shape[1]
    _, _, Vt = linalg.svd(basis, full_matrices=True)
    outside = unflatten_symmetric(Vt[len(basis) :], m)
    for _ in range(steps):
        check_own_time()
        J = np.einsum("kij,bj->bki", outside, w)
        left = np.einsum("bki,bi->bk", J, w)
        tangent = np.eye(m) - w[:, :, None] * w[:, None, :]
        step = linalg.pinv(2 * J @ tangent, rcond=1e-8) @ left[..., None]
        w = w - np.clip(step[..., 0], -0.3, 0.3)
        w = w / linalg.norm(w, axis=1, keepdims=True)
    return w


def _add_new(found: Matrix, w: Matrix) -> Matrix:
    kept = list(found)
    for one in w:
        if not kept or np.abs(np.array(kept) @ one).max() < 1.0 - _SAME**2 / 2:
            kept.append(one)
    return np.array(kept).reshape(-1, w.shape[1])
