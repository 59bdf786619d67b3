r"""The output projection up to a rotation, from the ellipsoid that a last norm puts answers on.

Behind an RMSNorm or a LayerNorm answers are $y = c + M u$ with $|u| = 1$ and $M = \sqrt{h} W_U
\mathrm{diag}(g)$, so that their coordinates z in the space of the answers obey $z^T S z + b^T z =
1$: r(r+1)/2 + r unknowns, one equation per prompt. $M M^T$ follows; M itself only up to a rotation
from the right. What eps adds to the mean square inside the norm moves answers off the ellipsoid by
about eps over the mean square, which bounds the accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Vector, rms
from keyhole.learners.logits.spectra import Spectrum

LARGEST_RANK = 64  # 2,144 unknowns; the system grows with the fourth power
# Equations per unknown; below it errors are blown up.
_SPARE = 1.15
_HELD_OUT = 16  # prompts that the fit does not see
FITS = 0.05  # residual on held-out prompts up to which answers lie on an ellipsoid


@dataclass(frozen=True, eq=False, slots=True)
class Ellipsoid:
    """The ellipsoid of answers.

    Args:
        factor: M, vocabulary x rank: answers are the centre + M u with |u| = 1, up to M O.
        centre: of the ellipsoid.
        residual: of the equation on prompts that were held out, relative to its right side.
    """

    factor: Matrix
    centre: Vector
    residual: float


def count_projection_prompts(rank: int) -> int:
    """How many prompts fit and check an ellipsoid."""
    return int(np.ceil(_SPARE * count_unknowns(rank))) + _HELD_OUT


def count_unknowns(rank: int) -> int:
    """Numbers that an ellipsoid with a centre has."""
    return rank * (rank + 1) // 2 + rank


def fit_ellipsoid(spectrum: Spectrum) -> Ellipsoid | None:
    r"""The ellipsoid that the answers of a spectrum lie on; None where they do not.

    $$z^T S z + b^T z = 1, \qquad m = -S^{-1} b / 2, \qquad (z - m)^T S (z - m) = 1 + m^T S m$$
    """
    scale = spectrum.coordinates.std(axis=0)
    points = spectrum.coordinates / scale
    kept = len(points) - _HELD_OUT
    # Prompts that were answered alike are one: fewer than there are unknowns fit anything.
    if kept <= count_unknowns(points.shape[1]):
        return None
    equations = _list_products(points)
    solved = np.linalg.lstsq(equations[:kept], np.ones(kept), rcond=None)[0].astype(np.float64)
    S, b = _split_unknowns(solved, points.shape[1])
    powers, axes = np.linalg.eigh(S)
    residual = rms(equations[kept:] @ solved - 1.0)
    # Only an ellipsoid has a norm behind it: a hyperboloid fits what no norm made.
    if powers[0] <= 0.0 or residual > FITS:
        return None
    middle = -np.linalg.solve(S, b) / 2.0
    level = 1.0 + middle @ S @ middle
    half_axes = axes * np.sqrt(level / powers)
    return Ellipsoid(
        factor=spectrum.basis.T @ (scale[:, None] * half_axes),
        centre=spectrum.mean + (scale * middle) @ spectrum.basis,
        residual=residual,
    )


def _list_products(points: Matrix) -> Matrix:
    """One row per point: products of coordinates, each pair once, then the coordinates."""
    rows, columns = np.triu_indices(points.shape[1])
    return np.concatenate([points[:, rows] * points[:, columns], points], axis=1)


def _split_unknowns(solved: Vector, rank: int) -> tuple[Matrix, Vector]:
    S = np.zeros((rank, rank))
    rows, columns = np.triu_indices(rank)
    S[rows, columns] = solved[: len(rows)]
    return (S + S.T) / 2.0, solved[len(rows) :]
