r"""Queries of many sets at once: closed forms first, a linear program only where they fall short.

1. Whitened least squares. With C the centred keys and $P = (C^\top C / N)^{-1}$, the query of
   least variance over all keys with score 1 on the set is $w = P C_y^\top (C_y P C_y^\top)^{-1} 1$:
   one system of q numbers a set.
2. The query of largest $g / |w|_2$ is a combination of the set's keys and of a few keys off it that
   touch the margin: the worst key is added, and those that pull the wrong way are left out, a fixed
   number of times.
3. The linear program of `exposing`, which misses no query there is.

A set is done as soon as its margin, for a query of largest entry 1, is `enough`. Every sum over
coordinates runs term by term, and systems are solved one by one, so that a set gets the same query,
bit by bit, whichever sets are asked beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keyhole._arrays import Array, Mask, Matrix, Vector
from keyhole.constructions.sparse_averages.exposing import LEAST, expose_by_max_margin

Sets = NDArray[np.int64]

# Keys off a set that are added before the linear program is asked.
STEPS = 24
# Of the size of keys; it keeps systems solvable where keys depend on each other.
RIDGE = 1e-9
# Of the margin, by which scores on a set may differ: the ridge leaves a millionth at most.
UNEVEN = 1e-6
# Scores held at a time: four megabytes.
ROOM = 2**19


class Directions(NamedTuple):
    """Queries before they are scaled, one row a set.

    Args:
        w: largest entry 1.
        margin: least score on the set minus the largest off it; not positive where a set is not
            singled out.
        programs: how many sets were left to the linear program.
    """

    w: Matrix
    margin: Vector
    programs: int


class _Keys(NamedTuple):
    """Keys with what every set needs of them."""

    keys: Matrix
    gram: Matrix
    whitened: Matrix
    whitened_gram: Matrix


def find_directions(keys: Matrix, sets: Sets, *, enough: float) -> Directions:
    """Queries for sets of one size, each as good as needed or the best there is.

    Args:
        keys: one row per position.
        sets: one row of positions per set, rising; none holds every position.
        enough: a margin with which a set is done.
    """
    held = _prepare_keys(keys)
    size = max(1, ROOM // len(keys))
    parts = [
        _find_block(held, sets[start : start + size], enough) for start in range(0, len(sets), size)
    ]
    w, margin, programs = zip(*parts, strict=True)
    return Directions(np.concatenate(w), np.concatenate(margin), sum(programs))


def _prepare_keys(keys: Matrix) -> _Keys:
    centred = keys - keys.mean(axis=0)
    spread = centred.T @ centred / len(keys)
    spread += 1e-6 * max(float(np.trace(spread)) / len(spread), 1e-300) * np.eye(len(spread))
    whitened: Matrix = np.asarray(np.linalg.solve(spread, centred.T), dtype=np.float64).T
    return _Keys(keys, keys @ keys.T, whitened, whitened @ centred.T)


def _find_block(held: _Keys, sets: Sets, enough: float) -> Directions:
    on = mark_members(sets, len(held.keys))
    w = _solve_whitened(held, sets)
    best_w, best_margin, worst = _judge_queries(held, sets, on, w)
    touching = worst[:, None]
    left = np.arange(len(sets))
    for _ in range(STEPS):
        short = best_margin[left] < enough
        left = left[short]
        touching = touching[short]
        if not len(left):
            break
        w = _solve_touching(held, sets[left], touching)
        found, margin, worst = _judge_queries(held, sets[left], on[left], w)
        better = margin > best_margin[left]
        best_w[left[better]] = found[better]
        best_margin[left[better]] = margin[better]
        touching = np.column_stack([touching, worst])
    left = np.flatnonzero(best_margin < enough)
    for k in left:
        found = expose_by_max_margin(held.keys, on[k])
        if found.margin > best_margin[k]:
            best_w[k], best_margin[k] = found
    return Directions(best_w, best_margin, len(left))


def mark_members(sets: Sets, length: int) -> Mask:
    """Whether a set holds a position."""
    on = np.zeros((len(sets), length), dtype=bool)
    np.put_along_axis(on, sets, True, axis=1)
    return on


def add_rows(coefficients: Matrix, rows: Matrix, chosen: Sets) -> Matrix:
    """Sums of chosen rows with coefficients, term by term."""
    total = np.zeros((len(chosen), rows.shape[1]))
    for k in range(chosen.shape[1]):
        total += coefficients[:, k, None] * rows[chosen[:, k]]
    return total


def _solve_whitened(held: _Keys, sets: Sets) -> Matrix:
    ones = np.ones(sets.shape)
    return add_rows(_solve_gram(held.whitened_gram, sets, ones), held.whitened, sets)


def _solve_gram(gram: Matrix, sets: Sets, scores: Matrix) -> Matrix:
    """Coefficients of the members that give them these scores."""
    inside = gram[sets[:, :, None], sets[:, None, :]]
    ridge = RIDGE * float(np.diagonal(gram).max()) * np.eye(sets.shape[1])
    found: Any = np.linalg.solve(inside + ridge, scores[..., None])
    return found[..., 0]


# The query of least norm with scores b on the set and b - 1 at keys that touch, b free: with Z both
# kinds of keys, [G_ZZ, 1; 1, 0] [coefficients; -b] = [0 or -1; 0]. A key that touches pushes scores
# down where its coefficient is negative; where it is not, the key is left out and the rest solved
# again.
def _solve_touching(held: _Keys, sets: Sets, touching: Sets) -> Matrix:
    chosen = np.column_stack([sets, touching])
    size = chosen.shape[1]
    system = np.ones((len(sets), size + 1, size + 1))
    ridge = RIDGE * float(np.diagonal(held.gram).max()) * np.eye(size)
    system[:, :size, :size] = held.gram[chosen[:, :, None], chosen[:, None, :]] + ridge
    system[:, size, size] = 0.0
    wanted = np.zeros((len(sets), size + 1))
    wanted[:, sets.shape[1] : size] = -1.0
    kept = np.ones((len(sets), size + 1), dtype=bool)
    coefficients = _solve_kept(system, wanted, kept)
    kept[:, sets.shape[1] : size] = coefficients[:, sets.shape[1] : size] < 0
    coefficients = _solve_kept(system, wanted, kept)
    return add_rows(coefficients[:, :size], held.keys, chosen)


def _solve_kept(system: Array, wanted: Matrix, kept: Mask) -> Matrix:
    """Solutions of the rows and columns that are kept; 0 elsewhere."""
    reduced = np.where(kept[:, :, None] & kept[:, None, :], system, 0.0)
    places = np.arange(int(system.shape[1]))
    reduced[:, places, places] += ~kept
    found: Any = np.linalg.solve(reduced, np.where(kept, wanted, 0.0)[..., None])
    return found[..., 0]


def _judge_queries(held: _Keys, sets: Sets, on: Mask, w: Matrix) -> tuple[Matrix, Vector, Sets]:
    """Queries with level scores and largest entry 1, their margins, and the worst key off each."""
    w = _level_queries(held, sets, w)
    size = np.abs(w).max(axis=1)
    w = w / np.where(size > 0, size, 1.0)[:, None]
    scores = score_keys(held.keys, w)
    off = np.where(on, -np.inf, scores)
    inside = np.where(on, scores, np.inf).min(axis=1)
    uneven = np.where(on, scores, -np.inf).max(axis=1) - inside
    margin: Vector = inside - off.max(axis=1)
    rounding = LEAST * np.abs(scores).max(axis=1)
    # Members whose keys depend on each other may not be levelled: such a query is none.
    good = (margin > rounding) & (uneven < UNEVEN * margin)
    return w, np.where(good, margin, np.minimum(margin, 0.0)), off.argmax(axis=1)


def _level_queries(held: _Keys, sets: Sets, w: Matrix) -> Matrix:
    """The nearest queries with equal scores on their sets; the ridge leaves them apart a little."""
    for _ in range(2):
        scores = np.stack(
            [_dot_rows(w, held.keys[sets[:, k]]) for k in range(sets.shape[1])], axis=1
        )
        total = np.zeros(len(sets))
        for k in range(sets.shape[1]):
            total += scores[:, k]
        uneven = scores - (total / sets.shape[1])[:, None]
        w = w - add_rows(_solve_gram(held.gram, sets, uneven), held.keys, sets)
    return w


def _dot_rows(a: Matrix, b: Matrix) -> Vector:
    total = np.zeros(len(a))
    for k in range(a.shape[1]):
        total += a[:, k] * b[:, k]
    return total


def score_keys(keys: Matrix, w: Matrix) -> Matrix:
    """Every query against every key, term by term."""
    scores = np.zeros((len(w), len(keys)))
    product = np.empty_like(scores)
    for k in range(keys.shape[1]):
        np.multiply(w[:, k, None], keys[:, k], out=product)
        scores += product
    return scores
