r"""Exact truth for small cases: the fewest dimensions in which every set of q keys is a face.

A query that gives all of y the same score and everything else less exists iff the keys of y are
exactly those on a face of the polytope of all keys. With real keys that takes min(2q, N - 1)
dimensions: neighbourly polytopes, as cyclic ones are, and simplices. With keys that are signs, or
numbers of p bits, it may take more; here it is found by search (keyhole/sign-faces).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.errors import InvalidInput

_THIN = 1e-7  # of a margin: keys are small whole numbers, whose margins are far larger
LIMIT = 20_000  # sets of keys that a search looks at


# Maximise g over w in [-1, 1]^m, b, g with <u_j, w> = b on y and <u_j, w> <= b - g elsewhere.
def find_face(keys: Matrix, y: Iterable[int]) -> tuple[float, Vector]:
    """The margin by which keys are told from the others, 0 for no face, and the query for it."""
    on = sorted(y)
    off = sorted(set(range(len(keys))) - set(on))
    if not off:
        return float("inf"), 0.0 * keys[0]
    width = keys.shape[1]
    equal = np.hstack([keys[on], np.full((len(on), 1), -1.0), np.zeros((len(on), 1))])
    below = np.hstack([keys[off], np.full((len(off), 1), -1.0), np.ones((len(off), 1))])
    limits = [(-1.0, 1.0)] * width + [(None, None), (0.0, None)]
    cost = np.append(np.zeros(width + 1), -1.0)
    from scipy.optimize import linprog  # slow to import

    solved: Any = linprog(
        cost, below, np.zeros(len(off)), equal, np.zeros(len(on)), limits, method="highs"
    )
    query: Vector = np.asarray(solved.x[:width], dtype=np.float64)
    return float(max(0.0, -solved.fun)), query


def is_neighbourly(keys: Matrix, q: int) -> bool:
    """Whether every q of the keys are exactly the keys on a face."""
    return all(
        find_face(keys, y)[0] > _THIN for y in combinations(range(len(keys)), min(q, len(keys)))
    )


@dataclass(frozen=True, slots=True)
class Largest:
    """The most keys of a kind in so many dimensions.

    Args:
        keys: the keys found, one per row.
        proven: whether the search saw everything, so that there are no more.
        looked: sets of keys it looked at.
    """

    keys: Matrix
    proven: bool
    looked: int


class _FaceSearch:
    """Keys added one by one; subsets inherit the property, so that a failure ends a branch."""

    def __init__(self, points: Matrix, q: int, limit: int, wanted: int) -> None:
        self.points = points
        self.q = q
        self.limit = limit
        self.wanted = wanted
        self.best: tuple[int, ...] = ()
        self.looked = 0
        self.queries: dict[tuple[int, ...], Vector] = {}

    def run(self, chosen: tuple[int, ...], rest: Iterable[int]) -> bool:
        """Look at all sets with these keys and some of the rest; whether everything was seen."""
        return self._grow(chosen, rest)

    def _grow(self, chosen: tuple[int, ...], rest: Iterable[int]) -> bool:
        if len(chosen) > len(self.best):
            self.best = chosen
        if len(self.best) >= self.wanted:
            return True
        if self.looked >= self.limit:
            return False
        fits: list[int] = []
        for point in rest:
            if self.looked >= self.limit:
                return False
            self.looked += 1
            if self._good((*chosen, point)):
                fits.append(point)
        seen = True
        for k, point in enumerate(fits):
            if len(chosen) + len(fits) - k <= len(self.best):
                break
            seen &= self._grow((*chosen, point), fits[k + 1 :])
        return seen

    def _good(self, chosen: tuple[int, ...]) -> bool:
        """Whether every q of the chosen are a face; queries found before are tried first."""
        return all(self._told(y, chosen) for y in combinations(chosen, min(self.q, len(chosen))))

    def _told(self, y: tuple[int, ...], chosen: tuple[int, ...]) -> bool:
        off = self.points[[j for j in chosen if j not in y]] - self.points[y[0]]
        held = self.queries.get(y)
        if held is not None and (off @ held < -_THIN).all():
            return True
        query = _find_separating_direction(self.points[list(y)] - self.points[y[0]], off)
        if query is not None:
            self.queries[y] = query
        return query is not None


# A set is a face iff its affine hull misses the hull of the other keys. With the differences inside
# the set projected out, the others P_j must not have 0 in their hull: least squares over mu >= 0 of
# (sum mu_j P_j, sum mu_j) against (0, 1) leaves a residual (w, r) with <P_j, w> + r <= 0 and r > 0,
# unless it leaves none.
def _find_separating_direction(inside: Matrix, off: Matrix) -> Vector | None:
    """A direction that is 0 inside a set and negative towards all others; None if none is."""
    if not len(off):
        return 0.0 * inside[0]
    _, sizes, directions = np.linalg.svd(inside, full_matrices=True)
    free = directions[int((sizes > _THIN).sum()) :]
    A = np.vstack([free @ off.T, np.ones(len(off))])
    target = np.append(np.zeros(len(free)), 1.0)
    from scipy.optimize import nnls  # slow to import

    weights, left = nnls(A, target)
    if left <= _THIN:
        return None
    query: Vector = np.asarray(free.T @ (target - A @ weights)[:-1], dtype=np.float64)
    return query / float(np.abs(query).max())


def list_grid_keys(dimension: int, bits: int) -> Matrix:
    """All keys whose entries are numbers of so many bits; signs for one bit."""
    levels = np.linspace(-1.0, 1.0, 2**bits)
    return np.array(list(product(levels, repeat=dimension)))


def find_most_keys(
    dimension: int, q: int, *, bits: int = 1, limit: int = LIMIT, wanted: int = 1 << 30
) -> Largest:
    """The most keys of p-bit entries of which every q are a face.

    Of signs, reflections and exchanges of coordinates take two nearest keys to (-1, .., -1) and to
    the key that differs from it in its last k coordinates, so that only keys k or more apart from
    these two need be tried.

    Args:
        dimension: m0.
        q: size of the sets.
        bits: p; 1 for signs.
        limit: sets of keys to look at.
        wanted: stop when so many were found.
    """
    if min(dimension, q, bits) < 1:
        raise InvalidInput(
            f"dimension, q and bits are whole numbers >= 1; got {dimension}, {q} and {bits}."
        )
    points = list_grid_keys(dimension, bits)
    search = _FaceSearch(points, q, limit, wanted)
    if bits == 1:
        starts = _list_nearest_pairs(dimension)
    else:
        starts = (((k,), range(k + 1, len(points))) for k in range(len(points)))
    seen = [search.run(*start) for start in starts]
    return Largest(
        points[list(search.best)], all(seen) and len(search.best) < wanted, search.looked
    )


def _list_nearest_pairs(dimension: int) -> Iterable[tuple[tuple[int, ...], list[int]]]:
    """Two keys k signs apart, with the keys no nearer to either, for every k."""
    for k in range(1, dimension + 1):
        # The bits of a number are the signs of a key, and bits that differ are signs apart.
        second = 2**k - 1
        apart = ((j, min(j.bit_count(), (j ^ second).bit_count())) for j in range(1, 2**dimension))
        yield (0, second), [j for j, least in apart if least >= k]


@dataclass(frozen=True, slots=True)
class Least:
    """The least dimension for N keys of a kind, between what was ruled out and what was found.

    Args:
        dimension: the least that was found; None where none was within the range.
        exact: whether all smaller ones were ruled out.
        real: the least for real keys, min(2q, N - 1).
    """

    dimension: int | None
    exact: bool
    real: int


def find_least_dimension(
    length: int, q: int, *, bits: int = 1, most: int = 8, limit: int = LIMIT
) -> Least:
    """The least dimension in which N keys of p-bit entries have every q of them as a face.

    Dimensions below the real answer, or with fewer than N keys at all, need no search; one-hot keys
    end it at N.
    """
    real = min(2 * q, length - 1)
    exact = True
    for dimension in range(max(1, real), min(most, length) + 1):
        if 2 ** (bits * dimension) < length:
            continue
        found = find_most_keys(dimension, q, bits=bits, limit=limit, wanted=length)
        if len(found.keys) >= length:
            return Least(dimension, exact, real)
        exact &= found.proven
    return Least(None, exact, real)
