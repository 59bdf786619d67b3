r"""Whether two models share their output projection, from the spaces of their answers.

Whatever is trained before a projection that is kept changes no space; whatever trains it moves the
space. Spaces are compared by principal angles: the largest sine tells equal spaces apart from moved
ones, and the mean of squared cosines, r/V by chance, moved ones from unrelated ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole.learners.logits.spectra import Spectrum

_ERRORS = 4.0  # angles up to so many times the errors of both spaces are no difference
_ROUNDING = 1e-9  # and below this nothing can be told of two models that each round
# Errors that explain a larger angle leave equal and moved spaces alike.
_TELLING = 0.3
# Standard deviations above chance from which two spaces have something in common.
_CHANCE = 6.0

SHARED = "SHARED"
MOVED = "MOVED"
UNRELATED = "UNRELATED"


@dataclass(frozen=True, slots=True)
class Signature:
    """Two output projections compared.

    Args:
        finding: SHARED, MOVED or UNRELATED.
        angle: sine of the largest principal angle.
        allowed: what errors of the answers explain.
        overlap: mean of squared cosines; 1 for equal spaces, rank / vocabulary by chance.
        chance: that share.
    """

    finding: str
    angle: float
    allowed: float
    overlap: float
    chance: float


def compare_spaces(first: Spectrum, second: Spectrum) -> Signature | None:
    """The signature of two models of one vocabulary; None where the errors do not tell."""
    if first.rank is None or second.rank is None:
        return None
    vocabulary = first.basis.shape[1]
    cosines = np.linalg.svd(first.basis @ second.basis.T, compute_uv=False)
    angle = 1.0 if first.rank != second.rank else _measure_largest_angle(first, second)
    overlap = float(np.mean(cosines**2))
    chance = max(first.rank, second.rank) / vocabulary
    allowed = _ERRORS * (first.error + second.error) + _ROUNDING
    deviation = np.sqrt(2.0) * (1.0 - chance) / vocabulary
    finding = SHARED if angle <= allowed else MOVED
    if overlap <= chance + _CHANCE * deviation:
        finding = UNRELATED
    elif allowed > _TELLING:
        return None
    return Signature(finding, angle, allowed, overlap, chance)


def _measure_largest_angle(first: Spectrum, second: Spectrum) -> float:
    """Its sine; 1 - cos^2 would lose half the digits of a small one."""
    outside = second.basis - second.basis @ first.basis.T @ first.basis
    return float(np.linalg.norm(outside, 2))
