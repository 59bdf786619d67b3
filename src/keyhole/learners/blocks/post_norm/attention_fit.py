r"""Sequences of ordinary tokens: the attention of a post-norm block to the last digit.

$$u = P x_N + \omega b + \sum_h U_h W_h \sum_i \alpha_{hi} x_i, \qquad
\omega K = P + \sum_h U_h W_h$$

K and b, known up to the factor $\omega$, bind the sum of the value maps; the residual sets the
factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.lone_fit import solve_scaled
from keyhole.learners.blocks.post_norm.direction_fit import TokenMap, TokenModel, leave_directions
from keyhole.learners.blocks.solving import linalg
from keyhole.oracles.own_time import check_own_time

_STEPS = 12
_DAMPING = 1e-11
_SMALL = 1e-14
_NEARLY = 1e-11


@dataclass(frozen=True, eq=False, slots=True)
class WholeFront:
    """All that stands before the first norm.

    Args:
        U: columns of the value maps (heads x dimension x rank).
        W: their rows (heads x rank x width).
        Wq: queries (heads x score rank x width).
        bq: query biases.
        Wk: keys.
        omega: the factor of K and b.
    """

    U: Array
    W: Array
    Wq: Array
    bq: Matrix
    Wk: Array
    omega: float


@dataclass(frozen=True, eq=False, slots=True)
class _Mixed:
    """Heads at sequences of one length: means of tokens, their spread, and queries."""

    mean: Array
    spread: Array
    q: Array


def count_attention_numbers(width: int, heads: int, rank: int) -> int:
    """Numbers of the attention that answers of a post-norm block determine."""
    D = width - 1
    return heads * (rank * (D + width) + rank * (2 * width + 1) - 2 * rank**2)


class AttentionFit:
    """Damped Gauss-Newton on sequences, of several lengths."""

    def __init__(
        self, model: TokenModel, known: TokenMap, asked: list[tuple[Array, Matrix]]
    ) -> None:
        self.model, self.known, self.asked = model, known, asked
        self.size = np.sqrt(sum(len(X) for X, _ in asked))

    def fit(self, held: WholeFront) -> tuple[WholeFront, float]:
        """The front, and what it leaves beside the answers."""
        left, J = self._leave(held, slopes=True)
        size, damping = self._measure(left), _DAMPING
        for _ in range(_STEPS):
            check_own_time()
            trial = _move(held, self._solve(J, left, damping))
            after = self._measure(self._leave(trial, slopes=False)[0])
            if after < size:
                gained = after < 0.5 * size
                held, size = trial, after
                damping = max(damping * 0.1, _DAMPING)
                if size < _SMALL or (size < _NEARLY and not gained):
                    break
                left, J = self._leave(held, slopes=True)
            else:
                if size < _NEARLY or damping > 1.0:
                    break
                damping = max(damping * 30, 1e-8)
        return held, size

    def _measure(self, left: Vector) -> float:
        return float(linalg.norm(left)) / self.size

    def _solve(self, J: Matrix, left: Vector, damping: float) -> Vector:
        """A damped step, once more on what it leaves: damping takes a share of weak directions."""
        N = J.T @ J
        step = solve_scaled(N.copy(), J.T @ left, damping)
        return step + solve_scaled(N, J.T @ (left - J @ step), damping)

    def _leave(self, held: WholeFront, *, slopes: bool) -> tuple[Vector, Matrix]:
        """What is left of all answers and of K, and slopes by all unknowns."""
        K = self.known.front.K
        total = np.einsum("hdr,hrc->dc", held.U, held.W)
        bound = held.omega * K - self.model.basis.T - total
        left = [bound.ravel()]
        J = [self._slope_bound(held)] if slopes else []
        for X, phi in self.asked:
            seen, by_front = self._leave_sequences(held, X, phi, slopes=slopes)
            left.append(seen.ravel())
            J.append(by_front)
        return np.concatenate(left), np.concatenate(J) if slopes else np.zeros((0, 0))

    def _slope_bound(self, held: WholeFront) -> Matrix:
        """Slopes of what the sum of value maps makes of K, its sign as a prediction's."""
        D, width = self.known.front.K.shape
        rows = D * width
        by_U = np.einsum("de,hrc->dcher", np.eye(D), held.W).reshape(rows, -1)
        by_W = np.einsum("hdr,ce->dchre", held.U, np.eye(width)).reshape(rows, -1)
        scores = np.zeros((rows, held.Wq.size + held.bq.size + held.Wk.size))
        return np.concatenate([by_U, by_W, scores, -self.known.front.K.reshape(rows, 1)], axis=1)

    def _leave_sequences(
        self, held: WholeFront, X: Array, phi: Matrix, *, slopes: bool
    ) -> tuple[Matrix, Matrix]:
        mixed = _mix(held, X)
        b = self.known.front.b
        made = np.einsum("hrc,phc->phr", held.W, mixed.mean)
        u = X[:, -1] @ self.model.basis + held.omega * b
        u = u + np.einsum("hdr,phr->pd", held.U, made)
        left, T = leave_directions(self.model.turn(self.known.behind, u), phi)
        if not slopes:
            return left, np.zeros((0, 0))
        parts = _slope_front(held, mixed, X[:, -1], made, T)
        parts.append((T @ b)[..., None])
        return left, np.concatenate(parts, axis=2).reshape(left.size, -1)


def _mix(held: WholeFront, X: Array) -> _Mixed:
    q = np.einsum("hrd,pd->phr", held.Wq, X[:, -1]) + held.bq
    scores = np.einsum("phr,hrd,pnd->phn", q, held.Wk, X, optimize=True)
    scores -= scores.max(axis=2, keepdims=True)
    weights = np.exp(scores)
    weights /= weights.sum(axis=2, keepdims=True)
    mean = np.einsum("phn,pnd->phd", weights, X)
    second = np.einsum("phn,pnc,pnd->phcd", weights, X, X, optimize=True)
    return _Mixed(mean, second - mean[..., :, None] * mean[..., None, :], q)


def _slope_front(
    held: WholeFront, mixed: _Mixed, last: Matrix, made: Array, T: Array
) -> list[Array]:
    """Slopes of directions by U, W, Wq, bq and Wk (p x o x parameters each)."""
    count, outputs = T.shape[:2]
    pulled = np.einsum("pod,hdr->pohr", T, held.U, optimize=True)
    by_U = np.einsum("pod,phr->pohdr", T, made, optimize=True)
    by_W = np.einsum("pohr,phc->pohrc", pulled, mixed.mean, optimize=True)
    moved = np.einsum("hrc,phcd->phrd", held.W, mixed.spread, optimize=True)
    by_score = np.einsum("pohr,phrd->pohd", pulled, moved, optimize=True)
    by_q = np.einsum("pohd,hkd->pohk", by_score, held.Wk, optimize=True)
    by_Wq = np.einsum("pohk,pc->pohkc", by_q, last, optimize=True)
    by_Wk = np.einsum("phk,pohc->pohkc", mixed.q, by_score, optimize=True)
    return [part.reshape(count, outputs, -1) for part in (by_U, by_W, by_Wq, by_q, by_Wk)]


def _move(held: WholeFront, step: Vector) -> WholeFront:
    parts = (held.U, held.W, held.Wq, held.bq, held.Wk)
    cuts = np.cumsum([part.size for part in parts])
    moves = np.split(step, cuts)
    U, W, Wq, bq, Wk = (
        part + move.reshape(part.shape) for part, move in zip(parts, moves, strict=False)
    )
    return WholeFront(U, W, Wq, bq, Wk, held.omega + float(moves[-1][0]))
