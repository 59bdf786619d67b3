r"""Two scores of two heads from two answers of one output, for many pairs of heads at once.

At $x = s\,p_h + t\,p_g$, where read-outs of all other heads vanish and $V_g p_h = V_h p_g = 0$,
with $A_h = V_h p_h$ and the scores $k_h, k_g$ along $p_h, p_g$ known, a pair answers
$$s A_h\,\sigma(s k_h + t u) + t A_g\,\sigma(s v + t k_g),$$
u the score of head h along $p_g$ and v that of head g along $p_h$. Answers at (1, 1) and (1, -1)
are two equations for u and v. To first order they hold only u + v, so that two roots are common.
One unknown is eliminated by the first equation on a grid, every sign change of the second is
refined by Gauss-Newton steps, and the same with the other unknown eliminated. Where several roots
are left, or one is poorly determined, a further answer chooses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Indices, Mask, Matrix, Stack, Vector
from keyhole.learners.joint_heads.soft_pairs import invert_shares, take_shares

Weights = tuple[float, float]
FIRST: tuple[Weights, ...] = ((1.0, 1.0), (1.0, -1.0))
FURTHER: tuple[Weights, ...] = ((2.0, 0.7), (0.5, -2.0), (-1.3, 0.4), (1.7, -0.6))
_GRID = np.linspace(-9.0, 9.0, 361)
_STEPS = 12
_LONGEST = 2.0  # step of a score
_ROOT = 1e-9  # of A_h + A_g: a misfit that is rounding after refinement
_SAME = 1e-5  # roots closer than this are one
_FLAT = 1.0 / 200.0  # least singular value of slopes of the shares that tells a root


@dataclass(frozen=True, eq=False, slots=True)
class Crossings:
    """Pairs of heads, each at one last token, before their crossed scores are known.

    Args:
        readouts: A_h and A_g, one row per pair.
        known: k_h and k_g.
    """

    readouts: Matrix
    known: Matrix

    def take(self, which: Indices) -> Crossings:
        """Some of them, in the given order."""
        return Crossings(self.readouts[which], self.known[which])

    @property
    def sizes(self) -> Vector:
        """Largest answers."""
        return np.abs(self.readouts).sum(axis=1)

    def predict(self, weights: Weights, scores: Stack) -> Matrix:
        """Answers at s p_h + t p_g for scores (u, v), pairs by choices by two."""
        s, t = weights
        first, second = self._sum_scores(weights, scores)
        A, B = self.readouts.T[:, :, None]
        return s * A * take_shares(first) + t * B * take_shares(second)

    def differentiate(self, weights: Weights, scores: Stack) -> Stack:
        """Derivatives of these answers by u and v."""
        s, t = weights
        A, B = self.readouts.T[:, :, None]
        first, second = (take_shares(a) for a in self._sum_scores(weights, scores))
        parts = (A * first * (1.0 - first), B * second * (1.0 - second))
        return s * t * np.stack(parts, axis=2)

    def _sum_scores(self, weights: Weights, scores: Stack) -> tuple[Matrix, Matrix]:
        s, t = weights
        k, m = self.known.T[:, :, None]
        return s * k + t * scores[:, :, 0], s * scores[:, :, 1] + t * m


def find_crossed_scores(
    crossings: Crossings, asked: tuple[Weights, ...], answers: Matrix
) -> list[Matrix]:
    """For every pair of heads all (u, v), as rows, that explain its answers.

    Args:
        crossings: what is known.
        asked: weights of every answer, the first two those of FIRST.
        answers: sums of shares of read-outs, pairs by weights.
    """
    which, starts = _list_starts(crossings, answers)
    roots, right = _refine_roots(crossings.take(which), asked, answers[which], starts)
    return [
        _drop_repeated(roots[right & (which == case)]) for case in range(len(crossings.readouts))
    ]


def are_determined(crossings: Crossings, asked: tuple[Weights, ...], roots: Matrix) -> Mask:
    """Whether answers tell u and v of every pair, and not their sum alone."""
    slopes = _differentiate_all(crossings, asked, roots) / crossings.readouts[:, None]
    return np.linalg.svd(slopes, compute_uv=False)[:, -1] >= _FLAT


def _list_starts(crossings: Crossings, answers: Matrix) -> tuple[Indices, Matrix]:
    """Pairs of heads and (u, v) next to roots of the second equation along the first."""
    A, B = crossings.readouts.T[:, :, None]
    k, m = crossings.known.T[:, :, None]
    grid = np.broadcast_to(_GRID, (len(answers), len(_GRID)))
    v = invert_shares((answers[:, :1] - A * take_shares(k + grid)) / B) - m
    u = invert_shares((answers[:, :1] - B * take_shares(m + grid)) / A) - k
    found = [
        _find_near_roots(crossings, np.stack(pair, axis=2), answers[:, 1:2])
        for pair in ((grid, v), (u, grid))
    ]
    which, starts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return which, starts


def _find_near_roots(
    crossings: Crossings, scores: Stack, answers: Matrix
) -> tuple[Indices, Matrix]:
    """Where the misfit of the second answer changes its sign, or comes nearest to zero."""
    misfit = crossings.predict(FIRST[1], scores) - answers
    near = np.where(np.isfinite(misfit), np.abs(misfit), np.inf)
    with np.errstate(invalid="ignore"):
        turns = misfit[:, :-1] * misfit[:, 1:] <= 0.0
    lowest = (near[:, 1:-1] <= near[:, :-2]) & (near[:, 1:-1] <= near[:, 2:])
    lowest &= np.isfinite(near[:, 1:-1])
    turns[:, 1:] |= lowest
    # Two roots may lie between neighbours with no change of sign: steps from both sides find both.
    turns[:, :-1] |= lowest
    turns[:, 2:] |= lowest[:, :-1]
    which, at = np.nonzero(turns & np.isfinite(near[:, :-1]))
    return which, scores[which, at]


def _differentiate_all(crossings: Crossings, asked: tuple[Weights, ...], roots: Matrix) -> Stack:
    """Derivatives of all answers at one choice of scores each: pairs by weights by two."""
    parts = [crossings.differentiate(weights, roots[:, None])[:, 0] for weights in asked]
    return np.stack(parts, axis=1)


def _measure_misfits(
    crossings: Crossings, asked: tuple[Weights, ...], answers: Matrix, roots: Matrix
) -> Matrix:
    parts = [crossings.predict(weights, roots[:, None])[:, 0] for weights in asked]
    return answers - np.stack(parts, axis=1)


def _refine_roots(
    crossings: Crossings, asked: tuple[Weights, ...], answers: Matrix, starts: Matrix
) -> tuple[Matrix, Mask]:
    """Where Gauss-Newton steps lead, and whether that is a root."""
    roots = starts
    for _ in range(_STEPS):
        left = _measure_misfits(crossings, asked, answers, roots)
        inverse = np.linalg.pinv(_differentiate_all(crossings, asked, roots), rcond=1e-12)
        steps = np.einsum("nij,nj->ni", inverse, left)
        roots = roots + np.clip(steps, -_LONGEST, _LONGEST)
    left = _measure_misfits(crossings, asked, answers, roots)
    return roots, np.abs(left).max(axis=1) <= _ROOT * crossings.sizes


def _drop_repeated(roots: Matrix) -> Matrix:
    """Roots that are not those before them."""
    kept: list[Vector] = []
    for root in roots:
        if all(np.abs(root - other).max() > _SAME for other in kept):
            kept.append(root)
    return np.array(kept).reshape(-1, 2)
