r"""Sequences of ordinary tokens: the attention of a post-norm block to the last digit.

$$u = P x_N + \omega b + \sum_h U_h W_h \sum_i \alpha_{hi} x_i, \qquad
\omega K = P + \sum_h U_h W_h$$

K and b, known up to the factor $\omega$, bind the sum of the value maps; the residual sets the
factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.post_norm.direction_fit import (
    Front,
    TokenMap,
    TokenModel,
    leave_directions,
)
from keyhole.learners.blocks.solving import join_parts, linalg, solve_scaled_steps, whiten
from keyhole.oracles.own_time import check_own_time

_STEPS = 12
_DAMPING = 1e-11
_SMALL = 1e-14
_NEARLY = 1e-11
_TOGETHER = 64  # sequences whose derivatives are formed at once


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


@dataclass(frozen=True, eq=False, slots=True)
class _Looked:
    """A front at sequences of one length: what it makes, and slopes of directions by that.

    Args:
        last: last tokens (sequences x width).
        mixed: what heads read.
        made: the same by their rows (sequences x heads x rank).
        moved: rows of heads times spreads (sequences x heads x rank x width).
        T: slopes of directions (sequences x outputs x dimension).
        left: what is left of directions.
    """

    last: Matrix
    mixed: _Mixed
    made: Array
    moved: Array
    T: Array
    left: Matrix


class AttentionFit:
    """Damped Gauss-Newton on sequences, of several lengths."""

    def __init__(
        self, model: TokenModel, known: TokenMap, asked: list[tuple[Array, Matrix]]
    ) -> None:
        self.model, self.known, self.asked = model, known, asked
        self.size = np.sqrt(sum(len(X) for X, _ in asked))

    def fit(self, held: WholeFront) -> tuple[WholeFront, float]:
        """The front, and what it leaves beside the answers."""
        seen = self._look(held)
        left = self._leave(held, seen)
        size, damping = self._measure(left), _DAMPING
        for _ in range(_STEPS):
            check_own_time()
            trial = _move(held, _WholeSlopes(self.known.front, held, seen).solve(left, damping))
            there = self._look(trial)
            rest = self._leave(trial, there)
            after = self._measure(rest)
            if after < size:
                gained = after < 0.5 * size
                held, seen, left, size = trial, there, rest, after
                damping = max(damping * 0.1, _DAMPING)
                if size < _SMALL or (not gained and size < self.model.excuse(_NEARLY)):
                    break
            else:
                if size < self.model.excuse(_NEARLY) or damping > 1.0:
                    break
                damping = max(damping * 30, 1e-8)
        return held, size

    def _measure(self, left: Vector) -> float:
        return float(linalg.norm(left)) / self.size

    def _look(self, held: WholeFront) -> list[_Looked]:
        """The front at all sequences."""
        return [self._look_at(held, X, phi) for X, phi in self.asked]

    def _look_at(self, held: WholeFront, X: Array, phi: Matrix) -> _Looked:
        mixed = _mix(held, X)
        made = np.einsum("hrc,phc->phr", held.W, mixed.mean)
        u = X[:, -1] @ self.model.basis + held.omega * self.known.front.b
        u = u + np.einsum("hdr,phr->pd", held.U, made)
        left, T = leave_directions(self.model.turn(self.known.behind, u), phi)
        return _Looked(X[:, -1], mixed, made, held.W @ mixed.spread, T, left)

    def _leave(self, held: WholeFront, seen: list[_Looked]) -> Vector:
        """What is left of K, then of all answers."""
        total = np.einsum("hdr,hrc->dc", held.U, held.W)
        bound = held.omega * self.known.front.K - self.model.basis.T - total
        return join_parts([bound, *(one.left for one in seen)])


class _WholeSlopes:
    """Derivatives by all maps of heads and by the factor, never formed but map by map."""

    def __init__(self, front: Front, held: WholeFront, seen: list[_Looked]) -> None:
        self.front, self.held, self.seen = front, held, seen
        self.shapes = [part.shape for part in _list_maps(held)]
        self.cuts = np.cumsum([int(np.prod(shape)) for shape in self.shapes])

    def solve(self, left: Vector, damping: float) -> Vector:
        """The damped step of all maps, then of the factor."""
        scales = [np.array([whiten(one) for one in part]) for part in self._multiply_maps()]

        def scale(x: Vector) -> Vector:
            parts = [s @ self._list_rows(p) for s, p in zip(scales, self._cut(x), strict=True)]
            return np.append(join_parts(parts), x[-1])

        def scale_back(x: Vector) -> Vector:
            parts = [
                s.swapaxes(1, 2) @ self._list_rows(p)
                for s, p in zip(scales, self._cut(x), strict=True)
            ]
            return np.append(join_parts(parts), x[-1])

        step = solve_scaled_steps(
            lambda x: self._multiply(scale(x)),
            lambda y: scale_back(self._multiply_back(y)),
            left,
            damping,
            unknowns=int(self.cuts[-1]) + 1,
        )
        return scale(step)

    def _cut(self, x: Vector) -> list[Array]:
        parts = np.split(x[:-1], self.cuts[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _list_rows(self, part: Array) -> Array:
        """A column for each head."""
        return part.reshape(len(part), -1, 1)

    def _multiply_maps(self) -> list[Array]:
        """Products of the derivatives by each map of each head with themselves."""
        heads = len(self.held.U)
        products = [np.zeros((heads, size, size)) for size in self._count_each()]
        for h in range(heads):
            for one, at in self._list_parts():
                for N, rows in zip(products, self._slope_head(one, h, at), strict=True):
                    flat = rows.reshape(-1, N.shape[-1])
                    N[h] += flat.T @ flat
        W, U = self.held.W, self.held.U
        products[0] += np.kron(np.eye(U.shape[1]), W @ W.swapaxes(1, 2))
        products[1] += np.kron(U.swapaxes(1, 2) @ U, np.eye(W.shape[2]))
        return products

    def _count_each(self) -> list[int]:
        return [int(np.prod(shape[1:])) for shape in self.shapes]

    def _list_parts(self) -> Iterator[tuple[_Looked, slice]]:
        """All sequences, a few at a time."""
        for one in self.seen:
            for first in range(0, len(one.T), _TOGETHER):
                check_own_time()
                yield one, slice(first, first + _TOGETHER)

    def _slope_head(self, seen: _Looked, h: int, at: slice) -> tuple[Array, ...]:
        """Derivatives of directions by each map of one head (sequences x outputs x ..)."""
        T, mixed, held = seen.T[at], seen.mixed, self.held
        pulled = T @ held.U[h]
        by_score = pulled @ seen.moved[at, h]
        by_q = by_score @ held.Wk[h].T
        return (
            np.einsum("pod,pr->podr", T, seen.made[at, h]),
            np.einsum("por,pc->porc", pulled, mixed.mean[at, h]),
            np.einsum("pok,pc->pokc", by_q, seen.last[at]),
            by_q,
            np.einsum("pk,poc->pokc", mixed.q[at, h], by_score),
        )

    def _multiply(self, x: Vector) -> Vector:
        (U, W, Wq, bq, Wk), omega = self._cut(x), x[-1]
        held, front = self.held, self.front
        total = np.einsum("hdr,hrc->dc", U, held.W) + np.einsum("hdr,hrc->dc", held.U, W)
        made = [total - omega * front.K]
        for one in self.seen:
            q = np.einsum("hrd,pd->phr", Wq, one.last) + bq
            keys = np.einsum("hrc,phr->phc", held.Wk, q) + np.einsum(
                "hrc,phr->phc", Wk, one.mixed.q
            )
            rows = (one.moved @ keys[..., None])[..., 0]
            rows += np.einsum("hrc,phc->phr", W, one.mixed.mean)
            u = np.einsum("hdr,phr->pd", U, one.made) + np.einsum("hdr,phr->pd", held.U, rows)
            made.append((one.T @ (u + omega * front.b)[..., None])[..., 0])
        return join_parts(made)

    def _multiply_back(self, y: Vector) -> Vector:
        held, front = self.held, self.front
        sizes = [front.K.size, *(one.left.size for one in self.seen)]
        bound, *rest = np.split(y, np.cumsum(sizes)[:-1])
        bound = bound.reshape(front.K.shape)
        U = np.einsum("dc,hrc->hdr", bound, held.W)
        W = np.einsum("dc,hdr->hrc", bound, held.U)
        Wq, bq, Wk = (np.zeros_like(part) for part in (held.Wq, held.bq, held.Wk))
        omega = -float(np.sum(bound * front.K))
        for one, left in zip(self.seen, rest, strict=True):
            u = (left.reshape(one.left.shape)[:, None] @ one.T)[:, 0]
            omega += float(np.sum(u @ front.b))
            U += np.einsum("pd,phr->hdr", u, one.made)
            rows = np.einsum("hdr,pd->phr", held.U, u)
            W += np.einsum("phr,phc->hrc", rows, one.mixed.mean)
            keys = (rows[:, :, None] @ one.moved)[:, :, 0]
            Wk += np.einsum("phr,phc->hrc", one.mixed.q, keys)
            q = np.einsum("hrc,phc->phr", held.Wk, keys)
            bq += q.sum(axis=0)
            Wq += np.einsum("phr,pd->hrd", q, one.last)
        return np.append(join_parts([U, W, Wq, bq, Wk]), omega)


def _list_maps(held: WholeFront) -> tuple[Array, ...]:
    return held.U, held.W, held.Wq, held.bq, held.Wk


def _mix(held: WholeFront, X: Array) -> _Mixed:
    q = np.einsum("hrd,pd->phr", held.Wq, X[:, -1]) + held.bq
    scores = np.einsum("phr,hrd,pnd->phn", q, held.Wk, X, optimize=True)
    scores -= scores.max(axis=2, keepdims=True)
    weights = np.exp(scores)
    weights /= weights.sum(axis=2, keepdims=True)
    mean = np.einsum("phn,pnd->phd", weights, X)
    second = np.einsum("phn,pnc,pnd->phcd", weights, X, X, optimize=True)
    return _Mixed(mean, second - mean[..., :, None] * mean[..., None, :], q)


def _move(held: WholeFront, step: Vector) -> WholeFront:
    maps = _list_maps(held)
    moves = np.split(step, np.cumsum([part.size for part in maps]))
    U, W, Wq, bq, Wk = (
        part + move.reshape(part.shape) for part, move in zip(maps, moves, strict=False)
    )
    return WholeFront(U, W, Wq, bq, Wk, held.omega + float(moves[-1][0]))
