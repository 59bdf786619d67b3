r"""Rows of third-order attention from sums of pairs, and from products of matrices.

Scores that depend on $x_i + x_{j_1} + x_{j_2}$ modulo M only: pairs enter through how many of them
have each sum, and every row is a correlation of that count with the weights of the residues. Scores
$a_{ij} + b_{jk} + c_{ki}$: the exponentials factor, and the sum over j is a matrix product (the
Strassen form).

Both shift all scores by one number before they exponentiate, and a row whose own scores lie far
below that number would be lost: 0/0. So every row proves that what was left out or lost is less
than e^-40 of it; a row that cannot is done again from its true maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keyhole._arrays import EPS, Array, Mask, Matrix, Vector
from keyhole.errors import InvalidInput
from keyhole.models.tensor import ROOM, Partial

Whole = NDArray[np.int64]
Kernel = Callable[[Whole], Array]

# Residues of largest score that every row looks up.
WINDOW = 64
# What is left out of a row is less than e^-40 of it.
LEFT_OUT = 40.0
# Largest relative error accepted from a Fourier transform.
CORRELATED = 1e-11
# A sum of products above it has lost nothing to underflow.
TINY = 1e-290


def require_finite(scores: Matrix) -> Matrix:
    """The scores, if none of them overflowed."""
    if not np.isfinite(scores).all():
        raise InvalidInput(
            "scores go beyond the largest float64; scale the tokens or the weights down."
        )
    return scores


@dataclass(frozen=True, eq=False, slots=True)
class _Sums:
    """Which sums pairs of tokens have, how many pairs each, and what these are worth together."""

    present: Whole  # sorted
    found: Matrix  # number and worth of the pairs, for every sum present

    @classmethod
    def of(
        cls, x: Whole, first: Matrix, second: Matrix, modulus: int, wanted: Whole | None = None
    ) -> _Sums:
        """Sums of all pairs, or at least those among the wanted ones."""
        # A table of marks costs M bytes, which pays only for many pairs.
        marks = _mark_residues(wanted, modulus) if len(x) ** 2 > 2**16 else None
        blocks = _list_pair_sums(x, modulus, marks)
        # More pairs than residues: a table of all sums is smaller than a list of pairs.
        if marks is None and modulus <= len(x) ** 2:
            table = np.zeros((modulus, 1 + first.shape[1]))
            for j, k, sums in blocks:
                table += bin_pairs(sums, first[j], second[k], modulus)
            present = np.flatnonzero(table[:, 0])
            return cls(present, table[present])
        j, k, sums = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        present, place = np.unique(sums, return_inverse=True)
        return cls(present, bin_pairs(place, first[j], second[k], len(present)))

    def at(self, residues: Whole) -> Array:
        """Number and worth of the pairs with these sums, along a last axis."""
        if not len(self.present):
            return np.zeros((*residues.shape, self.found.shape[1]))
        place = np.minimum(np.searchsorted(self.present, residues), len(self.present) - 1)
        return self.found[place] * (self.present[place] == residues)[..., None]


def _mark_residues(wanted: Whole | None, modulus: int) -> Mask | None:
    if wanted is None or not 4 * wanted.size < modulus < 2**28:
        return None
    marks = np.zeros(modulus, dtype=np.bool_)
    marks[wanted] = True
    return marks


def _list_pair_sums(
    x: Whole, modulus: int, marks: Mask | None
) -> Iterator[tuple[Whole, Whole, Whole]]:
    """Pairs (j, k) and their sums, some j at a time; only marked sums where there are marks."""
    step = max(1, ROOM // len(x))
    for start in range(0, len(x), step):
        sums = x[start : start + step, None] + x
        # Cheaper than the remainder, since both summands are below M.
        sums -= modulus * (sums >= modulus)
        j, k = np.nonzero(np.ones(sums.shape, dtype=np.bool_) if marks is None else marks[sums])
        yield j + start, k, sums[j, k]


def bin_pairs(places: Whole, first: Matrix, second: Matrix, size: int) -> Matrix:
    """Number and worth of pairs by place."""
    binned = np.empty((size, 1 + first.shape[1]))
    binned[:, 0] = np.bincount(places, minlength=size)
    for column, (v, w) in enumerate(zip(first.T, second.T, strict=True), start=1):
        binned[:, column] = np.bincount(places, v * w, minlength=size)
    return binned


def _find_highest(numbers: Vector, count: int) -> Whole:
    """Places of the largest numbers; the largest of every stretch first, which is quicker."""
    if len(numbers) > 1024 * count:
        stretches = np.maximum.reduceat(numbers, np.arange(0, len(numbers), 512))
        places = np.flatnonzero(numbers >= np.partition(stretches, len(stretches) - count)[-count])
    else:
        places = np.arange(len(numbers))
    return places[np.argpartition(numbers[places], len(places) - count)[-count:]]


# A row needs only residues whose score is near its largest. The WINDOW residues of largest score
# are looked up first: if the largest of them that some pair attains, or what stands beside, exceeds
# every score outside the window by ln N^2 + 40, nothing outside counts. Other rows are a
# correlation, e^kappa with the counts, by Fourier transform; its error is about eps log2(M)
# |e^kappa| |counts|, which must be small beside the row's own sum. What is left is summed over the
# residues that pairs attain, each row from its own maximum.
class CircleRows:
    """Rows of one sequence after another under one kernel.

    Args:
        score: the kernel, a score for every residue.
        modulus: M.
        length: tokens of a sequence.
        window: residues of largest score; found by looking at all where absent.
    """

    def __init__(
        self, score: Kernel, modulus: int, length: int, window: Whole | None = None
    ) -> None:
        self.score = score
        self.modulus = modulus
        self.margin = 2 * np.log(length) + LEFT_OUT
        if window is None:
            self.window = _find_highest(score(np.arange(modulus)), min(WINDOW, modulus))
        else:
            self.window = window
        self.near = score(self.window)
        self.outside = self.near.min() if len(self.window) < modulus else -np.inf

    def rows(self, x: Whole, first: Matrix, second: Matrix, beside: Partial | None) -> Matrix:
        """Averages of all rows of a sequence, together with the pairs that stand beside."""
        floor = np.full(len(x), -np.inf) if beside is None else beside.top
        means = np.empty((len(x), first.shape[1]))
        left = np.arange(len(x))
        near = (self.window - x[:, None]) % self.modulus
        for attempt, wanted in (
            (self._in_window, near),
            (self._by_transform, None),
            (self._one_by_one, None),
        ):
            sums = _Sums.of(x, first, second, self.modulus, wanted)
            part, sure = attempt(sums, x[left], floor[left])
            rest = None if beside is None else _select_rows(beside, left[sure])
            means[left[sure]] = _join_and_average(_select_rows(part, sure), rest)
            left = left[~sure]
            if not len(left):
                break
        return means

    def _in_window(self, sums: _Sums, x: Whole, floor: Vector) -> tuple[Partial, Mask]:
        found = sums.at((self.window - x[:, None]) % self.modulus)
        top = np.maximum(np.where(found[..., 0] > 0, self.near, -np.inf).max(axis=1), floor)
        sure = (top > -np.inf) & (self.outside <= top - self.margin)
        # A row that is not sure gets weights 0 here, and is done by the next attempt.
        top = np.where(sure, top, np.inf)
        # Above 0 only where no pair is.
        weights = np.exp(np.minimum(self.near - top[:, None], 0.0))
        return sum_terms(top, weights, found), sure

    def _by_transform(self, sums: _Sums, x: Whole, floor: Vector) -> tuple[Partial, Mask]:
        M = self.modulus
        # One by one is quicker: no row is answered here.
        if M * np.log2(M) > len(x) * len(sums.present):
            nothing = np.zeros((len(x), sums.found.shape[1] - 1))
            return Partial(floor, floor, nothing), np.zeros(len(x), dtype=np.bool_)
        scores = self.score(np.arange(M))
        top = scores.max()
        weights = np.exp(scores - top)
        spectrum = np.fft.rfft(weights) * np.fft.rfft(sums.at(np.arange(M)).T, axis=1).conj()
        rows = np.fft.irfft(spectrum, M, axis=1)[:, x].T
        error = 4 * EPS * np.log2(M) * np.linalg.norm(weights) * np.linalg.norm(sums.found[:, 0])
        part = Partial(np.full(len(x), top), rows[:, 0], rows[:, 1:])
        return part, rows[:, 0] * CORRELATED > error

    def _one_by_one(self, sums: _Sums, x: Whole, floor: Vector) -> tuple[Partial, Mask]:
        parts = [self._row(sums, row) for row in x.tolist()]
        stacked = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("top", "total", "weighted")
        )
        return Partial(*stacked), np.ones(len(x), dtype=np.bool_)

    def _row(self, sums: _Sums, row: int) -> Partial:
        scores = self.score((row + sums.present) % self.modulus)[None]
        top = scores.max(axis=1)
        return sum_terms(top, np.exp(scores - top), sums.found)


def sum_terms(top: Vector, weights: Matrix, found: Array) -> Partial:
    """The average over terms, each with its number and its worth, the same for all rows or not."""
    rows = np.einsum(
        "nr,nrc->nc", weights, np.broadcast_to(found, (len(weights), *found.shape[-2:]))
    )
    return Partial(top, rows[:, 0], rows[:, 1:])


def _select_rows(part: Partial, chosen: Any) -> Partial:
    return Partial(part.top[chosen], part.total[chosen], part.weighted[chosen])


def _join_and_average(part: Partial, beside: Partial | None) -> Matrix:
    return (part if beside is None else part.join(beside)).mean


# With b*_j = max_k b_jk and a*_i = max_j (a_ij + b*_j), the matrix product P_ik = sum_j e^{a_ij +
# b*_j - a*_i} e^{b_jk - b*_j} has entries at most N, and row i is a softmax over k of a*_i + ln
# P_ik + c_ki. An entry above TINY has lost nothing to underflow. One below is at most 2 TINY, and
# its row stands if even that is e^-(ln N + 40) of the row. Where it is not, as at large scales, the
# row is summed over its N^2 pairs from its true maximum.
def average_sides(
    a: Matrix, b: Matrix, c: Matrix, first: Matrix, second: Matrix, beside: Partial | None
) -> Matrix:
    """Averages of all rows with scores a_ij + b_jk + c_ki, with the pairs that stand beside."""
    floor = np.full(len(a), -np.inf) if beside is None else beside.top
    with np.errstate(over="ignore", invalid="ignore"):
        base, left, right = _factor_sides(a, b, c)
    P = left @ right
    kept = P > TINY
    top = np.where(kept, np.log(np.where(kept, P, 1.0)) + base, -np.inf).max(axis=1)
    top = np.maximum(top, floor)
    lost = np.where(kept, -np.inf, np.log(2 * TINY) + base).max(axis=1)
    sure = (top > -np.inf) & (lost <= top - np.log(len(a)) - LEFT_OUT)
    means = np.empty((len(a), first.shape[1]))
    if sure.any():
        factor = np.exp(np.where(kept[sure], base[sure] - top[sure, None], -np.inf))
        part = _contract_pairs(top[sure], left[sure], right, factor, first, second)
        rest = None if beside is None else _select_rows(beside, sure)
        means[sure] = _join_and_average(part, rest)
    for i in np.flatnonzero(~sure):
        part = _sum_from_maximum(a[i], b, c[:, i], first, second)
        rest = None if beside is None else _select_rows(beside, slice(i, i + 1))
        means[i] = _join_and_average(part, rest)[0]
    return means


def _factor_sides(a: Matrix, b: Matrix, c: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """a*_i + c_ki, and the two factors of P."""
    above = b.max(axis=1)
    highest = (a + above).max(axis=1)
    base = require_finite(highest[:, None] + c.T)
    return base, np.exp(a + above - highest[:, None]), np.exp(b - above[:, None])


def _contract_pairs(
    top: Vector, left: Matrix, right: Matrix, factor: Matrix, first: Matrix, second: Matrix
) -> Partial:
    total = ((left @ right) * factor).sum(axis=1)
    weighted = [
        np.einsum("ik,ik,k->i", (left * v) @ right, factor, w)
        for v, w in zip(first.T, second.T, strict=True)
    ]
    return Partial(top, total, np.stack(weighted, axis=1))


def _sum_from_maximum(a: Vector, b: Matrix, c: Vector, first: Matrix, second: Matrix) -> Partial:
    """One row from its true maximum, over the pairs whose weight is not 0."""
    scores = require_finite(a[:, None] + b + c)
    top = scores.max(keepdims=True)[0]
    # exp(-746) is 0 in float64.
    j, k = np.nonzero(scores > top - 746.0)
    weights = np.exp(scores[j, k] - top)
    return Partial(top, weights.sum(keepdims=True), (weights @ (first[j] * second[k]))[None])
