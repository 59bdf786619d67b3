r"""The last norm of a block, from nothing but answers.

With $o = s + g \circ n$, n what a LayerNorm leaves, $\sum_i (o_i - s_i)/g_i = 0$ and $\sum_i (o_i -
s_i)^2/g_i^2 = d$: answers lie on a plane and on an ellipsoid with axes along the coordinates, both
linear in few unknowns. Gain and shift are determined up to one sign of the gain.

An eps that shows makes $|n|^2 = d\,(1 - \tau)$, $\tau = d \epsilon/(|h|^2 + d \epsilon)$, h what
the norm is given: one more column once h is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.learners.blocks.solving import linalg

_MORE = 40  # answers beyond the unknowns
_FLAT = 1e-4  # what an eps lets answers leave of plane and ellipsoid
_ALONE = 30.0  # how much more they leave of any other
NO_NORM = (
    "Answers do not lie on one plane and one ellipsoid along the coordinates, as behind a last"
    " LayerNorm with a small eps."
)


@dataclass(frozen=True, eq=False, slots=True)
class OutputNorm:
    """Gain and shift of a last LayerNorm, and coordinates of what it is given.

    Args:
        gain: factors; up to one sign.
        shift: what is added to the products.
        basis: coordinates of vectors that sum to zero, one column each.
        eps: of the norm, beside what it is given as `refine_output_norm` was told; else 0.
        left: what answers leave of the plane and of the ellipsoid.
    """

    gain: Vector
    shift: Vector
    basis: Matrix
    eps: float = 0.0
    left: float = 0.0

    def read(self, answers: Matrix) -> Matrix:
        """Unit vectors along what the norm was given, by their coordinates."""
        n = ((answers - self.shift) / self.gain) @ self.basis
        return n / linalg.norm(n, axis=-1, keepdims=True)


def count_norm_queries(width: int) -> int:
    """Answers that show the norm."""
    return 2 * width + _MORE


def find_output_norm(answers: Matrix, basis: Matrix) -> OutputNorm | None:
    """The norm that answers went through; None where they lie near no plane and ellipsoid.

    Args:
        answers: at least as many as `count_norm_queries` says.
        basis: coordinates of vectors that sum to zero.
    """
    return _fit_norm(answers, basis, None, 0.0)


def refine_output_norm(norm: OutputNorm, answers: Matrix, given: Matrix) -> OutputNorm | None:
    """The same with the eps that answers show.

    Args:
        norm: the norm so far.
        answers: what it made.
        given: of these vectors, as far as they are known, but for one factor.
    """
    square = np.sum(given**2, axis=1) + len(norm.basis) * norm.eps
    found = _fit_norm(answers, norm.basis, 1.0 / square, norm.eps)
    if found is None:
        return None
    return replace(found, gain=np.sign(found.gain @ norm.gain) * found.gain)


def _fit_norm(
    answers: Matrix, basis: Matrix, taken: Vector | None, eps: float
) -> OutputNorm | None:
    middle, size = answers.mean(axis=0), answers.std(axis=0)
    if not (np.isfinite(size).all() and (size > 0).all()):
        return None
    # Centred and scaled, so that the unknowns are of one size.
    x = (answers - middle) / size
    ones = np.ones((len(x), 1))
    plane = _find_null(np.concatenate([x, ones], axis=1))
    if plane is None:
        return None
    columns = [x**2, x, ones]
    # What is one for all answers is the constant's own.
    if taken is not None:
        columns.append((taken / taken.mean() - 1.0)[:, None])
    # A plane times nothing is an ellipsoid too: one more row keeps it out.
    design = np.concatenate(columns, axis=1)
    kept_out = np.zeros((1, design.shape[1]))
    kept_out[0, x.shape[1] : 2 * x.shape[1] + 1] = len(x) * plane[0]
    bent = _find_null(np.concatenate([design, kept_out]))
    if bent is None:
        return None
    read = _read_norm(plane[0], bent[0], middle, size, None if taken is None else taken.mean())
    if read is None:
        return None
    return OutputNorm(*read[:2], basis, max(0.0, read[2]), max(plane[1], bent[1]))


def _find_null(design: Matrix) -> tuple[Vector, float] | None:
    """The one vector that a design all but sends to zero, and what it leaves."""
    _, s, Vt = linalg.svd(design, full_matrices=False)
    if s[-1] > _FLAT * s[0] or s[-2] < _ALONE * max(s[-1], 1e-9 * s[0]):
        return None
    return Vt[-1], float(s[-1] / s[0])


def _read_norm(
    plane: Vector, bent: Vector, middle: Vector, size: Vector, mean: float | None
) -> tuple[Vector, Vector, float] | None:
    """Gain, shift and eps."""
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
    radius = squares @ centre**2 - constant - added * offset
    # The ellipsoid reads scale (d - d^2 eps taken); the column has lost the mean of taken.
    lost = 0.0 if mean is None else float(bent[2 * d + 1])
    scale = (radius + lost) / d
    ratios = scale / squares
    if not (ratios > 0).all():
        return None
    side = np.sign(across) * np.sign(np.sum(np.sign(across)) or 1.0)
    eps = 0.0 if mean is None else lost / (scale * d**2 * mean)
    return side * np.sqrt(ratios) * size, middle + size * centre, eps
