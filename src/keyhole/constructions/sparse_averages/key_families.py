"""Families of keys, one row per position: signs, points of cyclic polytopes, coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.errors import DoesNotFit
from keyhole.tasks import SparseAverage

# Rows of signs drawn for every key, of which the one least alike to the others is taken.
CANDIDATES = 128
# Positions beyond which one row is drawn for every key.
FEW_KEYS = 512

# Of a width, one row per position.
Keys = Callable[[SparseAverage, int, np.random.Generator], Matrix]


def draw_sign_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """Random distinct rows of +1 and -1; equal ones are drawn again.

    Raises:
        DoesNotFit: so many distinct rows of that width do not exist.
    """
    if width < 63 and 2**width < task.length:
        raise DoesNotFit(
            f"{task.length} distinct rows of signs need a width of"
            f" {(task.length - 1).bit_length()}."
        )
    keys = _draw_signs(task.length, width, rng)
    for _ in range(64):
        again = np.setdiff1d(np.arange(task.length), np.unique(keys, axis=0, return_index=True)[1])
        if not len(again):
            return keys
        keys[again] = _draw_signs(len(again), width, rng)
    # Nearly all rows are taken: deal them out.
    order = rng.permutation(2**width)[: task.length]
    return np.where((order[:, None] >> np.arange(width)) & 1, 1.0, -1.0)


def _draw_signs(count: int, width: int, rng: np.random.Generator) -> Matrix:
    return np.where(rng.integers(2, size=(count, width)), 1.0, -1.0)


def draw_spread_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """Distinct rows of signs, each replaced in turn by the least alike of many candidates.

    Raises:
        DoesNotFit: so many distinct rows of that width do not exist.
    """
    keys = draw_sign_keys(task, width, rng)
    if task.length <= FEW_KEYS:
        for place in range(task.length):
            keys[place] = draw_spread_key(keys, place, rng)
    return keys


# The sum of fourth powers of products punishes near and nearly opposite rows, and hardly notices
# others.
def draw_spread_key(keys: Matrix, place: int, rng: np.random.Generator) -> Vector:
    """Of many rows of signs the one least alike to all keys but the one it takes the place of."""
    others = np.delete(keys, place, axis=0)
    candidates = np.vstack([_draw_signs(CANDIDATES, keys.shape[1], rng), keys[place]])
    products = candidates @ others.T
    taken = (products == keys.shape[1]).any(axis=1)
    likeness = np.where(taken, np.inf, (products**4).sum(axis=1))
    return candidates[int(likeness.argmin())]


# By Hoeffding two rows of m random signs have |<u, u'>| >= mu m with a chance of 2 e^{-mu^2 m / 2},
# and there are N (N - 1) / 2 pairs: where m mu^2 / 2 > ln(N (N - 1)) some draw keeps all below mu,
# and every second one does a little above. With mu = 2 / (5q - 2) the least-squares query of q keys
# scores at most 2/3 elsewhere.
def count_incoherent_width(task: SparseAverage) -> int:
    """A width at which random signs are little alike: about 6 q^2 of ln N squared pairs."""
    pairs = max(2.0, task.length * (task.length - 1.0))
    return math.ceil(2.0 * math.log(2.0 * pairs) / coherence_wanted(task) ** 2)


def coherence_wanted(task: SparseAverage) -> float:
    """The largest likeness of two keys with which every set of q is singled out by 1/3."""
    return 2.0 / (5.0 * task.q - 2.0)


def draw_incoherent_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """Random rows of signs; wide enough, no two are alike.

    Raises:
        DoesNotFit: so many distinct rows of that width do not exist.
    """
    return draw_sign_keys(task, width, rng)


def build_circle_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """Cosines and sines of the multiples of evenly spaced angles: vertices of a cyclic polytope."""
    multiples = np.outer(np.arange(task.length), np.arange(1, width // 2 + 1)) % task.length
    angles = 2.0 * np.pi * multiples / task.length
    return np.column_stack([np.cos(angles), np.sin(angles)])


def build_moment_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """Powers of evenly spaced points of [-1, 1]: vertices of a cyclic polytope."""
    return np.linspace(-1.0, 1.0, task.length)[:, None] ** np.arange(1, width + 1)


def build_one_hot_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """A coordinate for every position; their size shares the sharpness with the queries."""
    return 3.0 * np.eye(task.length)


def build_zero_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """Keys that tell nobody apart, for sets that hold everybody."""
    return np.zeros((task.length, 1))
