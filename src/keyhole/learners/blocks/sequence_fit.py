r"""Sequences of ordinary tokens: the attention of a block to the last digit, its network known.

What a wrong attention leaves of an answer is $(1 + G) \delta r$, G the slope of the known network
at what it is given: $\delta r = (1 + G)^{-1}$ of that is linear in the errors of the maps, as in a
layer alone. That the value maps add up to the known M are more equations, which cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.lone_fit import LoneMap, SecondNorm
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.positions.ball import NormBall
from keyhole.models.last_token.even_parts import EVEN_PARTS
from keyhole.models.layers.norms import normalise
from keyhole.oracles.own_time import check_own_time

_STEPS = 14
_DAMPING = 1e-10
_SMALL = 3e-14


@dataclass(frozen=True, eq=False, slots=True)
class Heads:
    """Maps of all heads, by coordinates behind the norm."""

    U: Array
    W: Array
    Wq: Array
    bq: Array
    Wk: Array


@dataclass(frozen=True, eq=False, slots=True)
class _Mixed:
    """Heads at sequences: weights, means of tokens, and what a score moves."""

    mean: Array
    spread: Array
    q: Array


class SequenceFit:
    """Damped Gauss-Newton on sequences."""

    def __init__(self, ball: NormBall, known: LoneMap, X: Array, answers: Matrix) -> None:
        self.ball, self.known = ball, known
        self.width = len(ball.basis)
        self.n = normalise(X, "layer", ball.eps) @ ball.basis
        self.last = X[:, -1]
        self.answers = answers
        self.size = float(linalg.norm(answers - self.last))

    def fit(self, heads: Heads) -> tuple[Heads, float]:
        """The heads, and what they leave beside the answers."""
        left, mixed, G = self._leave(heads)
        size = self._measure(left)
        damping = _DAMPING
        for _ in range(_STEPS):
            check_own_time()
            trial = self._step(heads, left, mixed, G, damping)
            moved = self._leave(trial)
            after = self._measure(moved[0])
            if after < size:
                gained = after < 0.5 * size
                heads, size = trial, after
                left, mixed, G = moved
                damping = max(damping * 0.1, _DAMPING)
                if size < _SMALL or (size < 1e-11 and not gained):
                    break
            else:
                if size < 1e-11 or damping > 1.0:
                    break
                damping = max(damping * 30, 1e-7)
        return heads, size

    def _measure(self, left: Matrix) -> float:
        return float(linalg.norm(left)) / self.size

    def _mix(self, heads: Heads) -> _Mixed:
        q = np.einsum("hrd,pd->phr", heads.Wq, self.n[:, -1]) + heads.bq
        scores = np.einsum("phr,hrd,pnd->phn", q, heads.Wk, self.n, optimize=True)
        scores -= scores.max(axis=2, keepdims=True)
        weights = np.exp(scores)
        weights /= weights.sum(axis=2, keepdims=True)
        mean = np.einsum("phn,pnd->phd", weights, self.n)
        second = np.einsum("phn,pnc,pnd->phcd", weights, self.n, self.n, optimize=True)
        return _Mixed(mean, second - mean[..., :, None] * mean[..., None, :], q)

    def _leave(self, heads: Heads) -> tuple[Matrix, _Mixed, Array]:
        """What the heads leave of the answers, how they mix, and 1 + G."""
        known, basis = self.known, self.ball.basis
        mixed = self._mix(heads)
        attended = np.einsum("hor,hrd,phd->po", heads.U, heads.W, mixed.mean, optimize=True)
        r = (self.last + attended) @ basis + known.b
        norm = SecondNorm.at(r, self.width, self.ball.eps)
        z = norm.nu @ known.w.T + known.beta
        E, slope = EVEN_PARTS[known.activation].bend(z)
        made = self.last + attended + known.T + (z / 2 + E) @ known.D
        rows = np.einsum("pk,ko,ka->poa", slope + 0.5, known.D, known.w, optimize=True)
        G = norm.turn_back(rows, self.width) @ basis.T
        return self.answers - made, mixed, G + np.eye(self.width)

    def _step(self, heads: Heads, left: Matrix, mixed: _Mixed, G: Array, damping: float) -> Heads:
        rest = linalg.solve(G, left[..., None])[..., 0]
        attended = np.einsum("hor,hrd,phd->po", heads.U, heads.W, mixed.mean, optimize=True)
        wanted = np.concatenate([attended + rest, self.known.M.T])
        design = self._list_made(heads, mixed)
        Q = linalg.qr(design)[0]
        off = wanted - Q @ (Q.T @ wanted)
        V = linalg.pinv(
            self._solve_outputs(design, wanted, heads).transpose(1, 0, 2).reshape(self.width, -1)
        )
        V = V.reshape(len(heads.U), -1, self.width)
        moved = [
            _move_head(heads, mixed, self.n[:, -1], h, Q, off @ V[h].T, damping)
            for h in range(len(heads.U))
        ]
        W, Wq, bq, Wk = (np.array(part) for part in zip(*moved, strict=True))
        trial = Heads(heads.U, W, Wq, bq, Wk)
        design = self._list_made(trial, self._mix(trial))
        return Heads(self._solve_outputs(design, wanted, heads), W, Wq, bq, Wk)

    def _list_made(self, heads: Heads, mixed: _Mixed) -> Matrix:
        """What all heads make of the sequences, then of lone tokens along each coordinate."""
        made = np.einsum("hrd,phd->phr", heads.W, mixed.mean).reshape(len(self.n), -1)
        return np.concatenate([made, heads.W.reshape(-1, self.n.shape[2]).T])

    def _solve_outputs(self, design: Matrix, wanted: Matrix, heads: Heads) -> Array:
        solved = linalg.lstsq(design, wanted, rcond=None)[0]
        return solved.reshape(len(heads.U), -1, self.width).transpose(0, 2, 1)


def _move_head(
    heads: Heads, mixed: _Mixed, last: Matrix, h: int, Q: Matrix, wanted: Matrix, damping: float
) -> tuple[Matrix, Matrix, Vector, Matrix]:
    """A step of the maps of one head, read apart from the others."""
    J = _slope_made(heads, mixed, last, h)
    J -= np.tensordot(Q, np.tensordot(Q.T, J, 1), 1)
    J = J.reshape(-1, J.shape[2])
    scale = np.sqrt(np.maximum((J**2).sum(axis=0), 1e-300))
    J /= scale
    N = J.T @ J
    N[np.diag_indices_from(N)] += damping
    step = linalg.solve(N, J.T @ wanted.ravel())
    # Once more on what is left: the damping takes a share of weak directions.
    step += linalg.solve(N, J.T @ (wanted.ravel() - J @ step))
    rank, dim = heads.W[h].shape
    values, queries, keys = np.split(step / scale, np.cumsum([rank * dim, rank * (dim + 1)]))
    queries = queries.reshape(rank, dim + 1)
    return (
        heads.W[h] + values.reshape(rank, dim),
        heads.Wq[h] + queries[:, :-1],
        heads.bq[h] + queries[:, -1],
        heads.Wk[h] + keys.reshape(rank, dim),
    )


def _slope_made(heads: Heads, mixed: _Mixed, last: Matrix, h: int) -> Array:
    """Derivatives of what one head makes of sequences and of lone tokens by its maps."""
    W = heads.W[h]
    rank, dim = W.shape
    mean = np.concatenate([mixed.mean[:, h], np.eye(dim)])
    by_W = np.einsum("rx,pd->prxd", np.eye(rank), mean).reshape(len(mean), rank, -1)
    moved = np.einsum("rc,pcd->prd", W, mixed.spread[:, h])
    ones = np.column_stack([last, np.ones(len(last))])
    by_q = np.einsum("prk,pd->prkd", moved @ heads.Wk[h].T, ones).reshape(len(last), rank, -1)
    by_k = np.einsum("pk,prd->prkd", mixed.q[:, h], moved).reshape(len(last), rank, -1)
    # A lone token has no scores.
    scores = np.concatenate([by_q, by_k], axis=2)
    scores = np.concatenate([scores, np.zeros((dim, *scores.shape[1:]))])
    return np.concatenate([by_W, scores], axis=2)
