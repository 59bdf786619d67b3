r"""Which vectors to probe with.

A query $[y + x_1; \dots; y + x_\rho; y]$ answers with $\sum_k \alpha_k V^\top x_k$ on top of what
$y$ alone gives, so its softmax shares can be read when $V^\top x_1, \dots, V^\top x_\rho$ are
independent. A design is a list of such groups, all read by ONE decoder, whose vectors span the
space to be measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Array, Float, Matrix, Vector, pin_one_thread

_WIDE = 256  # width from which building queries takes a share of the time worth saving
# Logits per query where answers are coarser than float64: more would each be too small a share.
_COARSE = 8
_CAN_SEE = 0.3  # least singular value at which a block of directions counts as seeing the read-out


@dataclass(frozen=True, eq=False, slots=True)
class Design:
    """Groups of probe vectors for a column m of unknowns, read as t = x . (basis m).

    Args:
        X: the vectors, group by group.
        decoder: turns V^T (sum_k alpha_k x_k) into the shares alpha, the same for every group.
        solve: turns readings, a row per column and an entry per vector, into columns m, as rows.
        sparse: where vector i has no entries but i and one that all share, that one.
    """

    X: Float[Array, "groups together width"]
    decoder: Float[Array, "together outputs"]
    solve: Callable[[Matrix], Matrix]
    sparse: int | None = None

    @property
    def vectors(self) -> int:
        """How many vectors there are in all groups."""
        return self.X.shape[0] * self.X.shape[1]


def _find_readable_directions(V: Matrix, most: int, cut: float) -> tuple[Matrix, Matrix]:
    """Orthonormal directions R that V sees well, and the map from V^T x to R^T x."""
    R, S, Z = np.linalg.svd(V, full_matrices=False)
    seen = max(1, min(most, int((cut * S[0] < S).sum())))
    return R[:, :seen], Z[:seen] / S[:seen, None]


def _build_tight_frame(R: Matrix) -> Matrix:
    """A tight frame F in groups, F^T F = I, with F R orthogonal and the same in every group.

    With B an orthogonal completion of R, padded with zero rows to whole groups, it is (H (x) I)
    B^T, H the reflection that maps e_1 to the constant unit vector.
    """
    size, together = R.shape
    groups = -(-size // together)
    F = np.zeros((groups * together, size))
    F[:size] = np.linalg.qr(R, mode="complete")[0].T
    if groups > 1:
        u = np.full(groups, 1.0 / np.sqrt(groups))
        u[0] -= 1.0
        blocks = F.reshape(groups, together, size)
        first = blocks.sum(axis=0) / np.sqrt(groups)  # the reflection gives the same, and cancels
        blocks -= (2.0 / (u @ u)) * u[:, None, None] * np.tensordot(u, blocks, 1)
        blocks[0] = first
    return F


def build_frame_design(V: Matrix, Q: Matrix | None = None, *, most: int, cut: float) -> Design:
    r"""Vectors that span span(Q), every group of which sees V alike.

    With R the directions of span(Q) that V sees and F a tight frame with $F^\top F = I$ and equal
    blocks F R, $X = F(a(I - RR^\top) + k RR^\top)$, which inverts in closed form. Half of the
    squared length of every vector sees V (for one output: a regular simplex tilted towards v),
    which reads best under rounding and under noise alike.

    Args:
        V: read-out.
        Q: orthonormal basis of the space to measure; the whole space when absent.
        most: at most so many vectors together.
        cut: directions V sees less than this share of its best are not used for reading.
    """
    with pin_one_thread():
        R, decoder = _find_readable_directions(V if Q is None else Q.T @ V, most, cut)
        return _build_tilted_design(_build_tight_frame(R), R, decoder, Q)


def _build_tilted_design(F: Matrix, R: Matrix, decoder: Matrix, Q: Matrix | None) -> Design:
    together = R.shape[1]
    groups = len(F) // together
    k = a = 1.0
    # Of one group V sees everything; of more, half of the squared length of every vector.
    if groups > 1:
        k = math.sqrt(groups * 0.5)
        a = math.sqrt(0.5 / (1.0 - 1.0 / groups))
    seen = F @ R
    X = a * F
    X += (k - a) * seen @ R.T

    # With s = seen^T t = k R^T m, what is left of t is a F m off R: no digits cancel.
    def solve(T: Matrix) -> Matrix:
        s = T @ seen
        return (T - s @ seen.T) @ X / a**2 + (s / k) @ R.T

    # For each group R^T X^T is k times the transpose of one block of `seen`, equal in all groups.
    block: Matrix = seen.reshape(groups, together, together).mean(axis=0)
    reader: Matrix = np.linalg.inv(k * block.T) @ decoder
    return Design((X if Q is None else X @ Q.T).reshape(groups, together, -1), reader, solve)


def build_pair_design(V: Matrix) -> Design:
    """Vectors of two entries, for one output: quick to ask, as few numbers differ by query.

    With p the entry of v that is largest, x_i = c_i (s_i e_i + e_p), s_i = sign(v_i v_p) and c_i =
    |v_p| / (|v_i| + |v_p|), so that x_i . v = v_p for all i; then m_p = t_p, m_i = s_i (t_i / c_i -
    m_p).
    """
    Z = np.linalg.svd(V, full_matrices=False)[2]
    v = V @ Z[0]
    p = int(np.abs(v).argmax())
    signs = np.where(v * v[p] < 0, -1.0, 1.0)
    c = abs(v[p]) / (np.abs(v) + abs(v[p]))
    X = np.diag(c * signs)
    X[:, p] += c

    def solve(T: Matrix) -> Matrix:
        m = T[:, p : p + 1]
        M = signs * (T / c - m)
        M[:, p] = T[:, p]
        return M

    return Design(X[:, None], Z[:1] / v[p], solve, sparse=p)


def build_outside_design(V: Matrix, Q: Matrix, *, most: int, cut: float) -> Design | None:
    r"""Vectors $q_i + P b_i$ with P orthogonal to Q, so that exactly rank many of them are needed.

    P is the part of V's directions R outside span(Q); $b_i$ makes $R^\top x = e_k$ in every group.
    It adds nothing to $x^\top W y$ when span(Q) is the range of W. None when V's directions lie too
    much inside and there is more than one group.
    """
    with pin_one_thread():
        R, decoder = _find_readable_directions(V, most, cut)
        inside = Q.T @ R
        P = R - Q @ inside
        rank, together = inside.shape
        # One group can be turned to suit V, and need not see it all from outside.
        if rank <= together:
            return _build_turned_design(Q, P, inside, decoder)
        if np.linalg.svd(P, compute_uv=False)[-1] < _CAN_SEE:
            return None
        groups = -(-rank // together)
        F = np.eye(groups * together, rank)
        wanted = np.tile(np.eye(together), (groups, 1)) - F @ inside
        X = F @ Q.T + np.linalg.solve(P.T @ P, wanted.T).T @ P.T
    return Design(X.reshape(groups, together, -1), decoder, lambda T: T[:, :rank])


def _build_turned_design(Q: Matrix, P: Matrix, inside: Matrix, decoder: Matrix) -> Design:
    r"""The same in one group, Q turned to V's directions: nothing is divided by what is outside.

    With $Q^\top R = U C Z^\top$ (C the cosines between both spaces) and $F = Z U^\top$, the vectors
    $X = F Q^\top + B P^\top$ see V as $F Q^\top R + B P^\top P = Z C Z^\top + B (I - Z C^2
    Z^\top)$, which is the identity for $B = I - Z \frac{C}{1 + C} Z^\top$, whose eigenvalues are
    between 1/2 and 1 wherever V looks.
    """
    U, C, Z = np.linalg.svd(inside, full_matrices=False)
    F = Z.T @ U.T
    X = F @ Q.T + P.T - (Z.T * (C / (1.0 + C))) @ Z @ P.T
    return Design(X[None], decoder, lambda T: T @ F)


def draw_scattered_design(V: Matrix, count: int, *, rng: np.random.Generator) -> Design:
    """Random dense vectors, which no entry of W escapes.

    They are (vhat + w) / sqrt 2 with w orthogonal to vhat, the direction that V sees best.
    """
    R, decoder = _find_readable_directions(V, 1, 1.0)
    w = rng.normal(size=(count, len(V)))
    w -= (w @ R) @ R.T
    X = (R.T + w / np.linalg.norm(w, axis=1, keepdims=True)) / math.sqrt(2.0)
    return Design(X[:, None], math.sqrt(2.0) * decoder, lambda T: T)


def build_lone_design(V: Matrix, x: Vector) -> Design:
    """A single vector, which V must see."""
    seen = V.T @ x
    return Design(x[None, None], (seen / (seen @ seen))[None], lambda T: T)


def choose_full_design(V: Matrix, *, roundoff: float) -> Design:
    """The design that measures whole columns: pairs of entries where one output allows it."""
    # Tilted frames read best under rounding; what pairs lose is affordable in float64 only.
    if V.shape[1] == 1 and len(V) >= _WIDE and roundoff <= EPS:
        return build_pair_design(V)
    most = V.shape[1] if roundoff <= EPS else _COARSE
    return build_frame_design(V, most=most, cut=roundoff**0.25)


def choose_span_design(V: Matrix, Q: Matrix, *, most: int, cut: float) -> Design:
    """The cheapest design that measures coordinates along Q of vectors known to lie in span(Q)."""
    design = build_outside_design(V, Q, most=most, cut=cut)
    if design is not None:
        return design
    inside = np.linalg.svd(Q.T @ _find_readable_directions(V, most, cut)[0], compute_uv=False)
    most = min(most, int((inside >= _CAN_SEE).sum()))
    return build_frame_design(V, Q, most=max(1, most), cut=cut)
