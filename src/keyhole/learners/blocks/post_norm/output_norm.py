r"""The last norm of a block, from nothing but answers.

With $o = s + g \circ n$, n what a LayerNorm leaves, $\sum_i (o_i - s_i)/g_i = 0$ and $\sum_i (o_i -
s_i)^2/g_i^2 = d$: answers lie on a plane and on an ellipsoid with axes along the coordinates, both
linear in few unknowns. Gain and shift are determined up to one sign of the gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.learners.blocks.solving import linalg

_MORE = 40  # answers beyond the unknowns
_FLAT = 1e-8  # what answers leave of plane and ellipsoid
_ALONE = 1e-6  # what they leave of no second plane or ellipsoid


@dataclass(frozen=True, eq=False, slots=True)
class OutputNorm:
    """Gain and shift of a last LayerNorm, and coordinates of what it is given.

    Args:
        gain: factors; up to one sign.
        shift: what is added to the products.
        basis: coordinates of vectors that sum to zero, one column each.
    """

    gain: Vector
    shift: Vector
    basis: Matrix

    def read(self, answers: Matrix) -> Matrix:
        """Unit vectors along what the norm was given, by their coordinates."""
        n = ((answers - self.shift) / self.gain) @ self.basis
        return n / linalg.norm(n, axis=-1, keepdims=True)


def count_norm_queries(width: int) -> int:
    """Answers that show the norm."""
    return 2 * width + _MORE


def find_output_norm(answers: Matrix, basis: Matrix) -> OutputNorm | None:
    """The norm that answers went through; None where they lie on no plane and ellipsoid.

    Args:
        answers: at least as many as `count_norm_queries` says.
        basis: coordinates of vectors that sum to zero.
    """
    middle, size = answers.mean(axis=0), answers.std(axis=0)
    if not (np.isfinite(size).all() and (size > 0).all()):
        return None
    # Centred and scaled, so that the unknowns are of one size.
    x = (answers - middle) / size
    ones = np.ones((len(x), 1))
    plane = _find_null(np.concatenate([x, ones], axis=1))
    if plane is None:
        return None
    # A plane times nothing is an ellipsoid too: one more row keeps it out.
    kept_out = np.concatenate([np.zeros(x.shape[1]), plane])[None]
    bent = _find_null(np.concatenate([np.concatenate([x**2, x, ones], axis=1), len(x) * kept_out]))
    return None if bent is None else _read_norm(plane, bent, middle, size, basis)


def _find_null(design: Matrix) -> Vector | None:
    """The one vector that a design sends to zero."""
    _, s, Vt = linalg.svd(design, full_matrices=False)
    if s[-1] > _FLAT * s[0] or s[-2] < _ALONE * s[0]:
        return None
    return Vt[-1]


def _read_norm(
    plane: Vector, bent: Vector, middle: Vector, size: Vector, basis: Matrix
) -> OutputNorm | None:
    d = len(middle)
    across, offset = plane[:d], plane[d]
    squares, lines, constant = bent[:d], bent[d : 2 * d], bent[2 * d]
    if not ((squares > 0).all() or (squares < 0).all()):
        return None
    # The centre of the ellipsoid is known up to the plane's normal; it lies on the plane.
    centre = -lines / (2 * squares)
    along = across / squares
    centre = centre - along * (across @ centre + offset) / (across @ along)
    added = (-2 * squares * centre - lines) @ across / (across @ across)
    scale = (squares @ centre**2 - constant - added * offset) / d
    ratios = scale / squares
    if not (ratios > 0).all():
        return None
    side = np.sign(across) * np.sign(np.sum(np.sign(across)) or 1.0)
    return OutputNorm(side * np.sqrt(ratios) * size, middle + size * centre, basis)
