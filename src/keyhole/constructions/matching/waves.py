r"""Whole numbers modulo M as angles, and how far apart sums of them are kept.

A number x becomes $e^{2\pi i f x / M}$ for every frequency f. Sums multiply these, so the mean over
frequencies of the cosine of a sum's angle is 1 where the sum is 0 modulo M, and less by the
shortfall of its residue r elsewhere:

$$\mathrm{short}(r) = \frac{1}{k} \sum_f 2 \sin^2(\pi f r / M),
\qquad \mathrm{gap} = \min_{r \ne 0} \mathrm{short}(r)$$

One frequency has the gap $2 \sin^2(\pi/M)$. With k of them the gap is about $M^{-2/k}$: powers of
a base b read the digits of r / M, and where $M \le (b + 1) b^{k-1}$ they keep a gap of at least
$\frac{2}{k} \sin^2 \frac{\pi}{b + 1}$, whatever M is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from keyhole._arrays import Array, Sequences, Stack, Vector
from keyhole.errors import DoesNotFit
from keyhole.tasks.base import round_to_whole

Whole = NDArray[np.int64]

# Of a modulus with several frequencies: products of two residues are exact.
LARGEST = 2**31
# Residues at a time.
CHUNK = 2**18
# Residues looked at while frequencies are drawn, about.
SCANNED = 3 * 10**7
LEAST_DRAWS = 8
# Of a modulus all of whose residues are looked at within milliseconds.
MOMENT = 2**20
MOST_DRAWS = 200


# Every angle is a multiple of pi / (2M), and whole numbers fold it into the first eighth of the
# circle. Numbers that are opposite modulo M get exactly opposite sines and equal cosines, the four
# quarters get exact zeros, and the error of an angle is at most 4 units of rounding.
def rotate_residues(residues: Whole, modulus: int) -> tuple[Array, Array]:
    """Cosine and sine of 2 pi r / M for whole numbers r from 0 to M - 1."""
    below = 2 * residues > modulus
    # In units of pi / M, up to M.
    angle = 2 * np.where(below, modulus - residues, residues)
    left = 2 * angle > modulus
    angle = np.where(left, modulus - angle, angle)
    steep = 4 * angle > modulus
    small = np.pi * np.where(steep, modulus - 2 * angle, 2 * angle) / (2 * modulus)
    cos = np.where(steep, np.sin(small), np.cos(small))
    sin = np.where(steep, np.cos(small), np.sin(small))
    return np.where(left, -cos, cos), np.where(below, -sin, sin)


def evaluate_waves(x: Whole, modulus: int, frequencies: Vector) -> tuple[Array, Array]:
    """Cosines and sines of whole numbers x at every frequency, on a new last axis."""
    return rotate_residues(x[..., None] * round_to_whole(frequencies) % modulus, modulus)


@dataclass(frozen=True, eq=False, slots=True)
class Wavy:
    """What token maps to angles have in common.

    Args:
        modulus: M, how many angles there are.
        frequencies: whole numbers.
    """

    modulus: int
    frequencies: Vector

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """The modulus."""
        return {"modulus": self.modulus}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """The frequencies."""
        return {"frequencies": self.frequencies}


@dataclass(frozen=True, eq=False, slots=True)
class Angles(Wavy):
    """Tokens as cosines and sines, then a 1, then a 0 that only the blank token fills."""

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "angles"

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        cos, sin = evaluate_waves(
            round_to_whole(X[..., 0]) % self.modulus, self.modulus, self.frequencies
        )
        real = np.ones((*X.shape[:2], 1))
        return np.concatenate([cos, sin, real, np.zeros_like(real)], axis=-1)


@dataclass(frozen=True, eq=False, slots=True)
class Frequencies:
    """Frequencies and the gap they were seen to keep over all residues.

    Args:
        modulus: M.
        values: the frequencies; the first is 1.
        gap: least shortfall of a residue that is not 0.
        nearest: residues that fall short least, up to their sign; none where no residue was
            looked at.
    """

    modulus: int
    values: Vector
    gap: float
    nearest: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many."""
        return len(self.values)


def scan_residues(
    modulus: int, frequencies: Vector, below: float
) -> Iterator[tuple[Whole, Vector]]:
    r"""Residues up to M / 2 whose shortfall is below a limit, with it; all are scanned.

    The first frequency is 1, so its share alone, $2 \sin^2(\pi r/M) / k$, leaves out all but the
    smallest residues; the others are left out as soon as their shares so far add up to the limit.
    """
    k = len(frequencies)
    reach = modulus * math.acos(max(-1.0, 1.0 - k * below)) / (2 * math.pi)
    last = min(modulus // 2, int(reach * (1 + 1e-12)) + 1)
    for start in range(1, last + 1, CHUNK):
        residues = np.arange(start, min(start + CHUNK, last + 1))
        total = np.zeros(len(residues))
        for f in round_to_whole(frequencies):
            turned = f * residues % modulus
            nearest = np.minimum(turned, modulus - turned)
            total = total + 2.0 * np.sin(np.pi * nearest / modulus) ** 2 / k
            kept = total < below
            residues = residues[kept]
            total = total[kept]
        if len(residues):
            yield residues, total


def use_single_frequency(modulus: int) -> Frequencies:
    """The single frequency 1, whose gap needs no scan."""
    return Frequencies(modulus, np.ones(1), 2.0 * math.sin(math.pi / modulus) ** 2, (1,))


# Let t >= 1/M be the distance of r/M from the whole numbers, and i the first power with b^i t at
# least 1/(b + 1): i <= k - 1, as b^(k-1) (b + 1) >= M. Where i > 0 the power before it was below
# 1/(b + 1), so that b^i t < b/(b + 1). Either way b^i t is 1/(b + 1) away from every whole number,
# and its term alone is 2 sin^2(pi/(b + 1)) or more.
def use_digits(modulus: int, count: int) -> Frequencies:
    r"""Powers of a base: k frequencies whose gap is proved for every residue, without a scan.

    $$\mathrm{gap} \ge \frac{2}{k} \sin^2 \frac{\pi}{b + 1}, \qquad M \le (b + 1) b^{k-1}$$

    Raises:
        DoesNotFit: products of residues would not be exact.
    """
    _check_products(modulus, count)
    base = max(1, int(modulus ** (1.0 / count)) - 2)
    while (base + 1) * base ** (count - 1) < modulus:
        base += 1
    values = np.array([float(base**power % modulus) for power in range(count)])
    gap = 2.0 / count * math.sin(math.pi / (base + 1)) ** 2
    return Frequencies(modulus, values, gap * (1 - 1e-12), ())


@lru_cache(maxsize=64)
def find_digits(modulus: int, count: int) -> Frequencies:
    """Powers of a base with the gap they keep: measured where that takes a moment, else proved."""
    found = use_digits(modulus, count)
    return measure_frequencies(modulus, found.values) if modulus <= MOMENT else found


def _check_products(modulus: int, count: int) -> None:
    if modulus > LARGEST and count > 1:
        raise DoesNotFit(
            "several frequencies need a modulus up to 2^31, so that their products are exact; got"
            f" {modulus}."
        )


def measure_frequencies(modulus: int, values: Vector) -> Frequencies:
    """Frequencies with their gap over all residues."""
    below = estimate_typical_gap(modulus, len(values))
    # Ends: every shortfall is below 2.1.
    while True:
        found = list(scan_residues(modulus, values, below))
        if found:
            residues, short = (np.concatenate(parts) for parts in zip(*found, strict=True))
            order = np.argsort(short, kind="stable")
            nearest = tuple(int(r) for r in residues[order[:16]])
            return Frequencies(modulus, values, float(short[order[0]]) * (1 - 1e-12), nearest)
        below *= 2.0


def estimate_typical_gap(modulus: int, count: int) -> float:
    """About the gap of random frequencies: a ball of that radius holds one residue out of M."""
    volume = math.pi ** (count / 2) / math.gamma(count / 2 + 1)
    return min(2.1, (2 * math.pi) ** 2 / (2 * count) * (volume * modulus) ** (-2.0 / count))


def draw_frequencies(
    modulus: int, count: int, *, wanted: float, rng: np.random.Generator
) -> Frequencies:
    """The first good enough draw of so many frequencies, 1 among them; else the best of many.

    Raises:
        DoesNotFit: products of residues would not be exact.
    """
    best = find_digits(modulus, count)
    typical = estimate_typical_gap(modulus, count)
    scan = max(1, int(modulus * math.sqrt(2 * count * typical) / math.pi))
    for _ in range(min(MOST_DRAWS, max(LEAST_DRAWS, SCANNED // scan))):
        if best.gap >= wanted:
            break
        drawn = rng.integers(1, max(2, modulus), size=count - 1).astype(np.float64)
        values = np.concatenate([[1.0], drawn])
        # One residue below the best gap so far rules a draw out.
        if not any(True for _ in scan_residues(modulus, values, best.gap)):
            best = measure_frequencies(modulus, values)
    return best
