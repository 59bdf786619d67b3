r"""Heads from a pencil: where $J - \lambda M$ loses rank.

All tokens but one are y, that one is $y + \delta$: for tokens equal but for displacement

$$F - b - M y = \sum_h A_h \delta\, \sigma(\beta_h + a_h^\top \delta)$$

for every size of $\delta$. To first order it is $J\delta$ with $J = \sum_h \alpha_h A_h$, so that
the left null space of $J - \alpha_h M$ is what reads head h alone. Without positions all weights of
equal tokens are equal; there the earlier token is $x + \delta$, $A_h \delta$ is $A_h(x - y +
\delta)$ above, and the null space loses the one direction that sees $A_h(x - y)$.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.oracles.own_time import check_own_time

_LEAST_RATIO = 3.0  # of the gap between clusters to their width
_SHARE = 0.1  # of the largest such ratio
_SHARP = 1e-9  # widths below are rounding
_NEAR = 1e-8  # of answers to moves: what is left below this falls fast, or is rounding
_READ = 1e-6  # of the largest singular value: less is what differences leave
_REAL = 1e-2  # imaginary parts of eigenvalues that differences leave


@dataclass(frozen=True, eq=False, slots=True)
class Clusters:
    """Weights of heads that a pencil shows.

    Args:
        weights: one per head.
        rank: size of a head.
        ratio: the least gap of their logarithms to the width of the widest cluster.
        covered: how many eigenvalues lie in the clusters.
    """

    weights: Vector
    rank: int
    ratio: float
    covered: int


def find_clusters(J: Matrix, M: Matrix, *, lost: int) -> Clusters | None:
    """The weights of the heads, as multiple eigenvalues of a pencil.

    Args:
        J: derivative of answers by a token.
        M: derivative of answers by all tokens at once.
        lost: by how much less than the rank of a head eigenvalues are multiple.
    """
    outputs = len(M)
    U, s, Vt = np.linalg.svd(M, full_matrices=False)
    # Inputs that trained layers hardly read tell no weights: the pencil is taken of the others.
    read = s > _READ * s[0]
    values = np.linalg.eigvals(U[:, read].T @ J @ Vt[read].T / s[read])
    real = values.real[np.abs(values.imag) < _REAL]
    logs = np.sort(np.log(real[(real > 0) & (real < 1)]))
    missing = outputs - int(read.sum()) + lost
    found = [
        clusters
        for heads in range(2, outputs + 1)
        if outputs % heads == 0 and outputs // heads - missing >= 2
        for clusters in _cluster_values(logs, heads, outputs // heads, missing)
    ]
    # Two clusters together, and the eigenvalues of no head between them, are wide ones.
    sharp = max([_LEAST_RATIO, *(_SHARE * clusters.ratio for clusters in found)])
    sure = [clusters for clusters in found if clusters.ratio >= sharp]
    # Parts of clusters are clusters too: what explains most eigenvalues is meant.
    return max(sure, key=lambda clusters: (clusters.covered, clusters.ratio), default=None)


def _cluster_values(logs: Vector, heads: int, rank: int, missing: int) -> list[Clusters]:
    """Ways to see so many clusters of one size, by how far apart neighbours may be."""
    found: list[Clusters] = []
    size = rank - missing
    gaps = np.diff(logs)
    for apart in gaps:
        groups = np.split(logs, np.flatnonzero(gaps > apart) + 1)
        # Single eigenvalues of no head may lie beside a cluster.
        whole = [_take_tightest(g, size) for g in groups if size <= len(g) < 2 * size]
        if len(whole) == heads:
            middles = np.array([group.mean() for group in whole])
            width = max(float(np.ptp(group)) for group in whole)
            ratio = float(np.diff(middles).min()) / max(width, _SHARP)
            found.append(Clusters(np.exp(middles), rank, ratio, heads * size))
    return found


def _take_tightest(group: Vector, size: int) -> Vector:
    """The neighbours in a sorted group that lie closest together."""
    spans = group[size - 1 :] - group[: len(group) - size + 1]
    start = int(np.argmin(spans))
    return group[start : start + size]


def find_left_null_space(matrix: Matrix, count: int) -> Matrix:
    """Rows that a matrix sends nearest to zero."""
    return np.linalg.svd(matrix.T)[2][-count:]


@dataclass(frozen=True, eq=False, slots=True)
class Moves:
    """Answers to moves of one token.

    Args:
        delta: the moves.
        answers: less what is answered without the token.
        scored: what scores are linear in, where that is not the moves.
    """

    delta: Matrix
    answers: Matrix
    scored: Matrix | None = None

    @property
    def scale(self) -> Matrix:
        """Sizes of the answers."""
        return np.linalg.norm(self.answers, axis=1, keepdims=True)

    @property
    def features(self) -> Matrix:
        """What scores are linear in."""
        return self.delta if self.scored is None else self.scored


@dataclass(frozen=True, eq=False, slots=True)
class Separated:
    """One head read apart: its rows V, weight and slope, and what is left."""

    V: Matrix
    beta: float
    slope: Vector
    left: float


def sharpen_head(
    moves: Moves,
    M: Matrix,
    *,
    rank: int,
    beta: float,
    slope: Vector,
    steps: int = 8,
    cap: float | None = None,
) -> Separated:
    r"""Gauss-Newton on weight and slope; the rows V are eliminated (variable projection).

    $V_h [F_k - M \delta_k \sigma(\beta + a^\top \delta_k)] = 0$ holds for the rows of one head:
    of the matrix in brackets rank many singular values vanish. A cap acts on $a^\top \delta$.
    """
    fit = _MoveFit(moves, M, rank, cap)
    current = fit.decompose(beta, slope)
    for _ in range(steps):
        check_own_time()
        step = fit.choose_step(beta, slope, *current)
        cost = fit.measure(current[1])
        for share in 0.4 ** np.arange(8):
            moved = fit.decompose(beta + share * step[0], slope + share * step[1:])
            if fit.measure(moved[1]) < cost:
                break
        else:
            break
        beta, slope, current = beta + share * step[0], slope + share * step[1:], moved
        left = fit.measure(moved[1])
        # Far from the end steps may be slow at first; near it a slow one is rounding.
        if left < 1e-14 or (left > 0.9 * cost and left < _NEAR):
            break
    return Separated(current[2][-rank:], beta, slope, fit.measure(current[1]))


def limit_scores(scores: Vector, cap: float | None) -> tuple[Vector, Vector]:
    """Scores, capped where there is a cap, and its slope there."""
    if cap is None:
        return scores, np.ones_like(scores)
    bent = np.tanh(scores / cap)
    return cap * bent, 1.0 - bent**2


@dataclass(frozen=True, eq=False, slots=True)
class _MoveFit:
    moves: Moves
    M: Matrix
    rank: int
    cap: float | None

    def _limit(self, slope: Vector) -> tuple[Vector, Vector]:
        return limit_scores(self.moves.features @ slope, self.cap)

    def _weigh(self, beta: float, slope: Vector) -> Vector:
        return 0.5 * (1.0 + np.tanh(0.5 * (beta + self._limit(slope)[0])))

    def decompose(self, beta: float, slope: Vector) -> tuple[Matrix, Vector, Matrix]:
        """Singular values and vectors of what the head leaves."""
        seen = (self.moves.delta @ self.M.T) * self._weigh(beta, slope)[:, None]
        left = (self.moves.answers - seen) / self.moves.scale
        return np.linalg.svd(left, full_matrices=False)

    def measure(self, values: Vector) -> float:
        """What is left of the equations of the head."""
        return float(np.linalg.norm(values[-self.rank :]))

    def choose_step(self, beta: float, slope: Vector, U: Matrix, s: Vector, Vt: Matrix) -> Vector:
        """A Gauss-Newton step in weight and slope."""
        weights = self._weigh(beta, slope)
        rows = (self.moves.delta @ self.M.T) @ Vt[-self.rank :].T / self.moves.scale
        by_score = -(weights * (1.0 - weights))[:, None] * rows
        bent = self._limit(slope)[1][:, None]
        features = np.column_stack([np.ones(len(weights)), bent * self.moves.features])
        J = (by_score[:, :, None] * features[:, None, :]).reshape(len(weights), -1)
        fixed = U[:, : -self.rank]
        J = (J - fixed @ (fixed.T @ J)).reshape(-1, features.shape[1])
        scale = np.linalg.norm(J, axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        left = (U[:, -self.rank :] * s[-self.rank :]).ravel()
        return -np.linalg.lstsq(J / scale, left, rcond=1e-13)[0] / scale
