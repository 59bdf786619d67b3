r"""Two rounds for all heads: columns until no rank grows, then coordinates along their ranges.

As for one head: with $Q_h$ an orthonormal basis of the range of $M_h$, $M_h = Q_h Q_h^\top M_h$.
The vectors x of round two are common to all heads, half as many again as the largest rank, so that
the least-squares solve for the coordinates along every $Q_h$ is well conditioned.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, pin_one_thread
from keyhole.learners.layer.joint_scores import Scores

_ALONG = 1.5  # vectors per rank in round two


def measure_enough_columns(scores: Scores, *, cut: float) -> None:
    """Round one: measure whole columns until those of every head are dependent, or none is left.

    The first look comes after as many columns as there are heads, the second where every head would
    have the rank of the largest read-out, as in a layer whose queries, keys and values have one
    size.
    """
    n = len(scores.directions.Y)
    heads = len(scores.spaces.bases)
    size = max(basis.shape[1] for basis in scores.spaces.bases)
    spare = 2 + scores.readout.biased
    wanted = max(scores.known, min(n, heads + spare))
    while True:
        scores.measure(wanted - scores.known)
        ranks = [_find_column_range(C, cut).shape[1] for C in scores.columns()]
        if scores.known == n or max(ranks) < scores.known:
            return
        wanted = size + spare
        if scores.known >= wanted:
            wanted = scores.known + max(2, scores.known // 8)
        wanted = min(n, wanted)


def measure_few_columns(scores: Scores) -> None:
    """Whole columns along twice as many directions as heads: enough to route, however coarse."""
    spare = 2 + scores.readout.biased
    wanted = min(len(scores.directions.Y), 2 * len(scores.spaces.bases) + spare)
    scores.measure(max(0, wanted - scores.known))


def complete_score_matrices(scores: Scores, *, cut: float) -> tuple[list[Matrix], list[int]]:
    """Round two: M_h of all heads, and their ranks."""
    n = len(scores.directions.Y)
    ranges = [_find_column_range(C, cut) for C in scores.columns()]
    many = _ALONG * max(Q.shape[1] for Q in ranges)
    along = min(scores.groups, int(np.ceil(many / scores.together)))
    # Where every group is asked anyway, whole columns cost no more and need no solve.
    if along == scores.groups:
        scores.measure(n - scores.known)
        ranges = [_find_column_range(C, cut) for C in scores.columns()]
    scores.along(along)
    columns = scores.columns()
    T = np.concatenate([scores.forms(at)[scores.known :] for at in range(along)], axis=2)
    X = scores.basis[: T.shape[2]]
    with pin_one_thread():
        found = [
            _assemble_score_matrix(scores, Q, C, T[:, at], X)
            for at, (Q, C) in enumerate(zip(ranges, columns, strict=True))
        ]
    return found, [Q.shape[1] for Q in ranges]


def _assemble_score_matrix(scores: Scores, Q: Matrix, C: Matrix, T: Matrix, X: Matrix) -> Matrix:
    """M = Q G from the columns C measured in full and the forms T of the others along X."""
    G = Q.T @ C
    if len(T):
        G = np.concatenate([G, np.linalg.lstsq(X @ Q, T.T, rcond=None)[0]], axis=1)
    return Q @ (G @ scores.directions.O)


def _find_column_range(C: Matrix, cut: float) -> Matrix:
    """An orthonormal basis of the columns of C to the given relative cut."""
    with pin_one_thread():
        U, S, _ = np.linalg.svd(C, full_matrices=False)
    return U[:, : int((cut * S[0] < S).sum())]


def split_score_bias(scores: Scores, M: Matrix) -> tuple[Matrix, Vector | None]:
    """(W, h) of one head from its M."""
    d = len(M)
    if M.shape[1] == d:
        return M / scores.sy, None
    return M[:, :-1] * (np.sqrt(d) / scores.sy), M[:, -1]


def assemble_partial_matrices(scores: Scores) -> list[Matrix]:
    """M_h as far as whole columns tell: zero on directions not measured."""
    if scores.known == 0:
        nothing = np.zeros((len(scores.basis), scores.directions.O.shape[1]))
        return [nothing] * len(scores.spaces.bases)
    columns: Stack = scores.columns()
    return [C @ scores.directions.O[: scores.known] for C in columns]
