r"""A basis in which the two values of a token tell pairs of tokens apart.

The weights of (a, b) and (b, a) are told apart by $v^1_a v^2_b - v^1_b v^2_a$, which is
$\det(v^1, v^2)$ in their plane times $\sin(\phi_b - \phi_a)$, $\phi_i$ the direction of token i in
that plane. Directions $\phi_i = \phi_0 + \pi i/d$ are as far apart as d of them can be, and since
$\sum_i e^{2 i \phi_i} = 0$ their cosines and sines are two orthogonal columns: others complete them
to an orthogonal matrix.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Vector

_STARTS = 60  # first directions tried


def spread_tokens(first: Vector, second: Vector, *, rng: np.random.Generator) -> Matrix:
    """Orthonormal tokens, one per row, with directions in the plane of two value vectors spread.

    Args:
        first: a value vector.
        second: another; where both are parallel, the plane is theirs and one more direction.
        rng: source of the other coordinates.
    """
    d = len(first)
    other = rng.normal(size=(d, d))
    if d < 3:
        return np.linalg.qr(other)[0]
    plane = np.linalg.qr(np.column_stack([first, second, other]))[0][:, :d]
    shares = np.array([_measure_least(plane, first, second, start) for start in _list_starts(d)])
    start = _list_starts(d)[int(np.argmax(shares))]
    angles = start + np.pi * np.arange(d) / d
    columns = np.column_stack([np.cos(angles), np.sin(angles), other[:, : d - 2]])
    return np.linalg.qr(columns)[0] @ plane.T


def _list_starts(d: int) -> Vector:
    return np.pi / d * (np.arange(_STARTS) + 0.5) / _STARTS


def _measure_least(plane: Matrix, first: Vector, second: Vector, start: float) -> float:
    """The least product of both values over the tokens, whose own weights it shows."""
    angles = start + np.pi * np.arange(len(first)) / len(first)
    inside = np.column_stack([np.cos(angles), np.sin(angles)]) @ plane[:, :2].T
    return float(np.abs((inside @ first) * (inside @ second)).min())
