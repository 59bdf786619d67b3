r"""The value maps of all heads, whatever network is behind them.

At one base sequence $n_1, n_2, n_3, y$ the derivatives by the tokens are

$$J_i = \sum_h U_h [\alpha_{hi} W_h + \alpha_{hi} W_h (n_i - \bar n_h) q_h^\top],$$

$\bar n_h$ the mean of the tokens by their weights. Where $\lambda = \alpha_{h1}/\alpha_{h2}$ all of
head h but one direction drops out of $J_1 - \lambda J_2$: $\lambda$ is a multiple eigenvalue of the
pencil, and the left null space reads head h alone. Three pencils give all rows $V_h$ that do. Of
$B_i = V_h J_i$, $B_1 - \lambda B_2 = \alpha_1 W (n_1 - n_2) q^\top$ shows the direction of q; its
length, $\alpha_1 W$ along it and $\alpha_1$ itself follow from linear equations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Indices, Matrix, Vector
from keyhole.learners.blocks.far_tokens import FarTokens
from keyhole.learners.blocks.solving import linalg

_STEP = 1e-3  # of the radius, of a difference
_SIZE = 0.75  # of the radius, of the base tokens
_PAIRS = ((0, 1), (0, 2), (1, 2))
_TOLERANCES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)  # of eigenvalues that are one
_REAL = 1e-2  # imaginary parts of eigenvalues that differences leave
_APART = 1e-5  # least singular value of all rows together
_EXPLAINED = 3e-3  # what the base sequence itself may leave


@dataclass(frozen=True, eq=False, slots=True)
class ValueMaps:
    """What heads make of values.

    Args:
        V: rows that read a head out of an answer (heads x rank x outputs).
        U: what answers are made of (heads x outputs x rank), so that V U = 1.
        W: value maps (heads x rank x dimension).
        left: what the base sequence does not explain.
    """

    V: Array
    U: Array
    W: Array
    left: float

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.V)

    @property
    def rank(self) -> int:
        """Size of a head."""
        return self.V.shape[1]

    @property
    def total(self) -> Matrix:
        """What a lone token is worth."""
        return np.einsum("hor,hrd->od", self.U, self.W)


@dataclass(frozen=True, eq=False, slots=True)
class _Base:
    n: Matrix
    y: Vector
    J: Array
    moved: Vector


def count_value_queries(dimension: int) -> int:
    """What one try asks."""
    return 6 * dimension + 2


@dataclass(frozen=True, slots=True)
class TriedValues:
    """What one base sequence showed.

    Args:
        maps: the value maps; None where heads were not told apart.
        clustered: the share of eigenvalues that are met again, in the clearest pencil: a half or
            more where heads of four numbers add up, next to nothing where they do not.
    """

    maps: ValueMaps | None
    clustered: float


def find_value_maps(asking: FarTokens, *, rng: np.random.Generator) -> TriedValues:
    """The value maps from one base sequence."""
    base = _measure_slopes(asking, rng)
    for tolerance in _TOLERANCES:
        found = _read_at(base, tolerance)
        if found is not None and found.left < _EXPLAINED:
            return TriedValues(found, 1.0)
    return TriedValues(None, _measure_clusters(base))


def _measure_clusters(base: _Base) -> float:
    sizes = [
        sum(size for _, size in _cluster_pencil(base.J[i], base.J[j], _TOLERANCES[-1]))
        for i, j in _PAIRS
    ]
    return max(sizes) / base.J.shape[1]


def _measure_slopes(asking: FarTokens, rng: np.random.Generator) -> _Base:
    D = asking.dimension
    n = asking.draw_inside(3, size=_SIZE, rng=rng)
    y = asking.draw_on_sphere(1, rng)
    step = _STEP * asking.radius
    moves = np.zeros((3, D, 3, D))
    for i in range(3):
        moves[i, np.arange(D), i, np.arange(D)] = step
    moves = moves.reshape(-1, 3, D)
    X = np.concatenate([n + moves, n - moves, n[None]])
    answers = asking.ask_behind(X, np.repeat(y, len(X), axis=0))
    lone = asking.ask_lone(y)[0]
    up, down = np.split(answers[:-1], 2)
    J = ((up - down) / (2 * step)).reshape(3, D, -1).transpose(0, 2, 1)
    return _Base(n, y[0], J, answers[-1] - lone)


def _read_at(base: _Base, tolerance: float) -> ValueMaps | None:
    outputs = base.J.shape[1]
    clusters = [_cluster_pencil(base.J[i], base.J[j], tolerance) for i, j in _PAIRS]
    counts = {len(found) for found in clusters}
    if len(counts) != 1:
        return None
    heads = counts.pop()
    if heads < 1 or outputs % heads or outputs // heads < 4:
        return None
    rank = outputs // heads
    sizes = {size for found in clusters for _, size in found}
    if not sizes <= {rank - 2, rank - 1}:
        return None
    ratios = [np.array([value for value, _ in found]) for found in clusters]
    return _read_heads(base, ratios, rank)


def _cluster_pencil(J: Matrix, K: Matrix, tolerance: float) -> list[tuple[float, int]]:
    """Multiple eigenvalues of a pencil, and how often each is met."""
    values = linalg.eigvals(linalg.pinv(K) @ J)
    real = values.real[(np.abs(values.imag) < _REAL * np.abs(values)) & (values.real > 0)]
    logs = np.sort(np.log(real))
    groups = np.split(logs, np.flatnonzero(np.diff(logs) > tolerance) + 1)
    return [(float(np.exp(np.median(g))), len(g)) for g in groups if len(g) >= 2]


def _find_null_rows(matrix: Matrix, count: int) -> Matrix:
    """Rows that a matrix sends nearest to zero."""
    U = linalg.svd(matrix, full_matrices=True)[0]
    return U[:, -count:].T


def _read_heads(base: _Base, ratios: list[Vector], rank: int) -> ValueMaps | None:
    rows = [
        [_find_null_rows(base.J[i] - value * base.J[j], rank - 1) for value in found]
        for (i, j), found in zip(_PAIRS, ratios, strict=True)
    ]
    V: list[Matrix] = []
    lambdas: list[Vector] = []
    orders = [np.arange(len(rows[0])), *(_match_rows(rows[0], other) for other in rows[1:])]
    for h in range(len(rows[0])):
        at = [int(order[h]) for order in orders]
        union = np.concatenate([found[k] for found, k in zip(rows, at, strict=True)])
        V.append(linalg.svd(union)[2][:rank])
        lambdas.append(np.array([found[k] for found, k in zip(ratios, at, strict=True)]))
    stacked = np.concatenate(V)
    if linalg.svd(stacked, compute_uv=False)[-1] < _APART:
        return None
    U = linalg.inv(stacked).reshape(len(stacked), len(V), rank).transpose(1, 0, 2)
    maps = [_read_head(base, v, value) for v, value in zip(V, lambdas, strict=True)]
    if any(found is None for found in maps):
        return None
    W = np.array([found[0] for found in maps if found is not None])
    left = max(found[1] for found in maps if found is not None)
    return ValueMaps(np.array(V), U, W, left)


def _match_rows(first: list[Matrix], second: list[Matrix]) -> Indices:
    """For every head of one pencil the head of another whose rows lie in the same block."""
    from scipy.optimize import linear_sum_assignment

    overlap = np.array([[np.sum((a @ b.T) ** 2) for b in second] for a in first])
    return linear_sum_assignment(-overlap)[1]


def _read_head(base: _Base, V: Matrix, ratios: Vector) -> tuple[Matrix, float] | None:
    """The value map of a head, and what it leaves of the base sequence."""
    B = V @ base.J
    off = [B[0] - ratio * B[j] for ratio, j in zip(ratios[:2], (1, 2), strict=True)]
    qhat = linalg.svd(np.concatenate(off))[2][0]
    flat = B[0] - np.outer(B[0] @ qhat, qhat)
    rank = len(V)
    rows: list[Matrix] = []
    sums: list[Vector] = []
    for part, j in zip(off, (1, 2), strict=True):
        apart = base.n[0] - base.n[j]
        rows.append(np.column_stack([part @ qhat, -(apart @ qhat) * np.eye(rank)]))
        sums.append(flat @ apart)
    solved = linalg.lstsq(np.concatenate(rows), np.concatenate(sums), rcond=None)[0]
    kappa, c = solved[0], solved[1:]
    if kappa == 0:
        return None
    W = flat + np.outer(c, qhat)
    z = V @ base.moved
    wanted = c + W @ (base.n[0] - base.y) / kappa - B[0] @ qhat
    first = float(z @ wanted / (z @ z)) * kappa
    alphas = np.array([first, first / ratios[0], first / ratios[1]])
    if not ((alphas > 0).all() and alphas.sum() < 1):
        return None
    predicted = (W / first) @ (alphas @ (base.n - base.y))
    return W / first, float(linalg.norm(predicted - z) / linalg.norm(z))
