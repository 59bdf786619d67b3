r"""T as a sum of few products $q_e \otimes k^1_e \otimes k^2_e$, from few of its entries.

For the first token $y_1$ of a basis grow $U = \{e_1 .. e_r\}$ until $T(y_1, U + e, U + e)$ is
singular. With $T(y_1, e, u)$ and $T(y_1, u, e)$ for all other e, and one more matrix
$T(y_2, U, U)$, the eigenvectors P of $T(y_2, U, U)\,T(y_1, U, U)^{-1}$ are the $k^1_e$ on U up to
factors, its eigenvalues $q_e(y_2)$ where $q_e(y_1) = 1$; then $K_2 = P^{-1} T(y_1, U, \cdot)$ and
$K_1 = T(y_1, \cdot, U) K_{2,U}^{-1}$. Every other y is left with r unknowns $q_e(y)$.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from keyhole._arrays import Array, Indices, Matrix, Vector
from keyhole.learners.third_order.score_table import ScoreTable
from keyhole.oracles.own_time import check_own_time

_COMPLEX = 1e-6  # imaginary parts of eigenvalues, beside their size, that are not rounding
_STEPS = 8
_FIT = 1e3  # times the ratio of singular matrices: what is left of entries of no such sum


@dataclass(frozen=True, eq=False, slots=True)
class Products:
    """Columns of the queries and of both keys, on the tokens of a basis."""

    Q: Matrix
    K1: Matrix
    K2: Matrix

    def expand(self) -> Array:
        """T on the basis."""
        return np.einsum("ye,ae,be->yab", self.Q, self.K1, self.K2)


def find_products(table: ScoreTable, singular: float) -> Products | None:
    """T as a sum of r < d products, from about r(3d - 2) of its entries; None where it is none.

    Args:
        table: what is known of T; it is filled as far as is needed.
        singular: ratio of singular values below which a matrix is.

    Raises:
        Unreadable: a weight was not read.
    """
    rank = _grow_block(table, singular)
    if rank is None:
        return None
    d = len(table.tokens)
    inside = list(range(rank))
    table.measure([(e, 0) for e in range(rank, d)])
    table.measure([(u, e, 0) for e in range(rank, d) for u in inside if u != 0])
    if rank == 0:
        return Products(np.zeros((d, 0)), np.zeros((d, 0)), np.zeros((d, 0)))
    if rank > 1:
        table.measure_block(1, inside)
    keys = _find_keys(table, rank)
    if keys is None:
        return None
    found = _find_queries(table, *keys)
    return None if found is None else _polish_products(found, table.T, _FIT * singular)


def _grow_block(table: ScoreTable, singular: float) -> int | None:
    """The least r with T(y_1, U + e, U + e) singular for r + 1 tokens; None where it is d."""
    for size in range(1, len(table.tokens) + 1):
        table.measure_block(0, range(size))
        block = table.T[0, :size, :size]
        values = np.linalg.svd(block, compute_uv=False)
        if values[-1] <= singular * max(values[0], 1e-3):
            return size - 1
    return None


def _find_keys(table: ScoreTable, rank: int) -> tuple[Matrix, Matrix] | None:
    U = slice(0, rank)
    first: Matrix = table.T[0]
    P: Matrix
    if rank == 1:
        P = np.ones((1, 1))
    else:
        # Dependent keys leave a singular matrix, mirrored ones complex eigenvalues.
        inverse: Matrix = np.asarray(np.linalg.inv(first[U, U]), dtype=np.float64)
        turned = table.T[1, U, U] @ inverse
        values, vectors = map(np.asarray, np.linalg.eig(turned))
        if np.abs(np.imag(values)).max() > _COMPLEX * np.abs(values).max():
            return None
        P = np.real(vectors)
        if np.linalg.cond(P) > 1.0 / _COMPLEX:
            return None
    K2 = _solve(P, first[U, :]).T
    K1 = _solve(K2[U], first[:, U].T).T
    return K1, K2


def _solve(A: Matrix, B: Matrix) -> Matrix:
    return np.asarray(np.linalg.solve(A, B), dtype=np.float64)


def _find_queries(table: ScoreTable, K1: Matrix, K2: Matrix) -> Products | None:
    d, rank = K1.shape
    side = int(np.ceil(np.sqrt(rank)))
    blocks = {
        y: list(range(rank)) if y < min(rank, 2) else _choose_block(K1, K2, y, side)
        for y in range(d)
    }
    for y, block in blocks.items():
        table.measure_block(y, block)
    Q = np.ones((d, rank))
    for y, block in blocks.items():
        if y > 0:
            rows = _multiply_keys(K1, K2, block)
            Q[y] = np.linalg.lstsq(rows, table.T[y][np.ix_(block, block)].ravel(), rcond=None)[0]
    return Products(Q, K1, K2)


def _multiply_keys(K1: Matrix, K2: Matrix, block: list[int]) -> Matrix:
    return (K1[block][:, None] * K2[block][None]).reshape(len(block) ** 2, -1)


def _choose_block(K1: Matrix, K2: Matrix, y: int, side: int) -> list[int]:
    """The token y and further ones of which pairs tell all q_e(y) apart best."""
    others = [token for token in range(len(K1)) if token != y]
    tried = [[y, *more] for more in combinations(others, side - 1)][:200]

    def measure(block: list[int]) -> float:
        return float(np.linalg.svd(_multiply_keys(K1, K2, block), compute_uv=False)[-1])

    return max(tried, key=measure)


def _polish_products(start: Products, T: Array, left_over: float) -> Products | None:
    """Gauss-Newton steps on every entry that was measured."""
    y, a, b = np.nonzero(~np.isnan(T))
    entries = T[y, a, b]
    Q: Matrix = start.Q
    K1: Matrix = start.K1
    K2: Matrix = start.K2
    d, rank = Q.shape
    rows = np.arange(len(y))[:, None]
    columns: Indices = np.arange(int(rank), dtype=np.intp)[None]
    for _ in range(_STEPS):
        check_own_time()
        left: Vector = entries - np.sum(Q[y] * K1[a] * K2[b], axis=1)
        slopes = np.zeros((len(y), 3, d, rank))
        slopes[rows, 0, y[:, None], columns] = K1[a] * K2[b]
        slopes[rows, 1, a[:, None], columns] = Q[y] * K2[b]
        slopes[rows, 2, b[:, None], columns] = Q[y] * K1[a]
        table: Matrix = slopes.reshape(len(y), 3 * d * rank)
        step = np.asarray(np.linalg.lstsq(table, left, rcond=1e-10)[0], dtype=np.float64)
        dQ, dK1, dK2 = np.split(step.reshape(3 * d, rank), 3)
        Q, K1, K2 = Q + dQ, K1 + dK1, K2 + dK2
    rest: Vector = entries - np.sum(Q[y] * K1[a] * K2[b], axis=1)
    if np.abs(rest).max(initial=0.0) > left_over * max(
        1.0, float(np.abs(entries).max(initial=0.0))
    ):
        return None
    return Products(Q, K1, K2)
