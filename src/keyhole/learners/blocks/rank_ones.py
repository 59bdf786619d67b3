r"""All matrices $w w^\top$ in a space of symmetric ones.

$w \mapsto P(w w^\top) w$, P the projection on the space, climbs $|P(w w^\top)|^2$, which is 1 where
$w w^\top$ lies in the space and less elsewhere. What was found is taken out of the space, so that
later climbs end elsewhere; what climbs near a matrix of what is left is near one of the whole
space, where Gauss-Newton steps on $|(1 - P) w w^\top|^2$ end.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_slices import flatten_symmetric, unflatten_symmetric
from keyhole.oracles.own_time import check_own_time

_CLIMBS = 20  # steps of one climb
_SHARPENED = 10  # and of what ends it
_USUAL = 0.95
_TOGETHER = 320  # climbs in one round
_MORE = 3  # times as many where they start from anywhere
_ROUNDS = 40
_THERE = 1e-6  # of what lies outside of the space
_HELD = 1 << 24  # slopes at once
_RIDGE = 1e-14  # of what is solved for, where nothing shows it
_SAME = 0.05  # of the sine between two that are one


def find_rank_ones(basis: Matrix, m: int, count: int, *, rng: np.random.Generator) -> Matrix | None:
    """So many unit vectors w with $w w^T$ in the span of the rows; None where they hide."""
    found = np.zeros((0, m))
    outside, fresh = unflatten_symmetric(_complete(basis), m), True
    for _ in range(_ROUNDS):
        each = min(_TOGETHER, count - len(found) + 24)
        # What is left of few leads to few places: where nothing new came, from anywhere.
        w = _climb_apart(basis, found, each, rng) if fresh else _draw_any(m, _MORE * each, rng)
        w = _sharpen(outside, w)
        misses = _measure_outside(basis, w)
        order = np.argsort(misses)
        before, found = len(found), _add_new(found, w[order[misses[order] < _THERE]])
        fresh = len(found) > before
        if len(found) >= count:
            break
    return _sharpen(outside, found) if len(found) == count else None


def _climb_apart(basis: Matrix, found: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Climbs in what is orthogonal to all that was found."""
    left = _complete(_lift(found) @ basis.T) @ basis
    return _climb(left, _draw_starts(left, found.shape[1], count, rng))


def _draw_starts(basis: Matrix, m: int, count: int, rng: np.random.Generator) -> Matrix:
    """Leading eigenvectors of random matrices of the space."""
    drawn = unflatten_symmetric(rng.normal(size=(count, len(basis))) @ basis, m)
    values, vectors = linalg.eigh(drawn)
    at = np.argmax(np.abs(values), axis=1)
    return vectors[np.arange(count), :, at]


def _draw_any(m: int, count: int, rng: np.random.Generator) -> Matrix:
    w = rng.normal(size=(count, m))
    return w / linalg.norm(w, axis=1, keepdims=True)


def _climb(basis: Matrix, w: Matrix) -> Matrix:
    # A random matrix has this share in the space: without it what is more than that shows sooner.
    usual = _USUAL * basis.shape[0] / basis.shape[1]
    for _ in range(_CLIMBS):
        check_own_time()
        shares = _lift(w) @ basis.T
        moved = np.einsum("bij,bj->bi", unflatten_symmetric(shares @ basis, w.shape[1]), w)
        moved -= usual * w
        w = moved / linalg.norm(moved, axis=1, keepdims=True)
    return w


def _measure_outside(basis: Matrix, w: Matrix) -> Array:
    """What of $w w^T$ lies outside of the space, squared."""
    return 1.0 - np.sum((_lift(w) @ basis.T) ** 2, axis=1)


def _lift(w: Matrix) -> Matrix:
    return flatten_symmetric(np.einsum("bi,bj->bij", w, w))


def _sharpen(outside: Array, w: Matrix) -> Matrix:
    """Gauss-Newton steps orthogonal to w."""
    for _ in range(_SHARPENED):
        w = np.concatenate([_step_inside(outside, part) for part in _cut(w, outside)])
    return w


def _complete(rows: Matrix) -> Matrix:
    """Orthonormal rows orthogonal to all of these."""
    return linalg.qr(rows.T, mode="complete")[0][:, len(rows) :].T


def _cut(w: Matrix, outside: Array) -> list[Matrix]:
    """So few at a time that their slopes are held."""
    each = outside.size // w.shape[1]
    return np.array_split(w, 1 + len(w) * each // _HELD)


def _step_inside(outside: Array, w: Matrix) -> Matrix:
    check_own_time()
    J = np.tensordot(w, outside, (1, 1)).reshape(len(w), *outside.shape[::2])
    slope = (J.swapaxes(1, 2) @ np.einsum("bki,bi->bk", J, w)[..., None])[..., 0]
    # The step is orthogonal to w, along which nothing is left to solve.
    along = w[:, :, None] * w[:, None, :]
    across = np.eye(w.shape[1]) - along
    N = across @ (2 * J.swapaxes(1, 2) @ J) @ across
    size = np.einsum("bii->b", N)[:, None, None]
    step = linalg.solve(N + size * (along + _RIDGE * np.eye(w.shape[1])), slope[..., None])
    w = w - np.clip((across @ step)[..., 0], -0.3, 0.3)
    return w / linalg.norm(w, axis=1, keepdims=True)


def _add_new(found: Matrix, w: Matrix) -> Matrix:
    kept = list(found)
    for one in w:
        if not kept or np.abs(np.array(kept) @ one).max() < 1.0 - _SAME**2 / 2:
            kept.append(one)
    return np.array(kept).reshape(-1, w.shape[1])
