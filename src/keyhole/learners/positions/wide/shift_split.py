r"""Telling heads apart whose sizes add up to more than the outputs, by shifts of the last token.

In a long sequence of m zero tokens, one token v before the last, y, has small weights. Less what is
answered without v,

$$m\,(F - F_0) \to \sum_h A_h v\, e^{u_h^\top y}, \qquad u_h = W_h(1)^\top v,$$

the error a series in 1/m that three lengths extrapolate. Answers at some y and at y + w are C E and
C diag(e^{u_h w}) E with columns $c_h = A_h v$ of C: the eigenvectors of one over the other, and
$\log E$, linear in y, tells their sizes. As many v as there are coordinates tell all $A_h$.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyhole._arrays import Float, Matrix, Stack, Vector
from keyhole.learners.positions.grouped.sharing import solve_least_squares
from keyhole.learners.positions.head_split import Unsplit
from keyhole.learners.positions.placed import Asking, LinearPart
from keyhole.learners.positions.wide.short_denials import (
    PLAIN_QUESTIONS,
    SHORT_QUESTIONS,
    deny_plain_scores,
    deny_wide_heads,
)

_Complex = np.ndarray[Any, np.dtype[np.complex128]]
_LONGEST = 4096
_SHORTEST = 256
_AT_ONCE = 1 << 25  # pairs of tokens in a call: what weighs them all holds a number for each
_HALVINGS = 3
_MOST_HEADS = 8
_SPARE = 2  # last tokens beyond one per head
_DIMENSIONS = 3  # that last tokens differ in
_TRIES = (0.4, 0.7, 0.25)  # sizes of all vectors: of small ones extrapolation leaves less
_PART = 0.6  # of the radius: the last tokens, and the v that others lie around
_AROUND = 0.45
_SHIFT = 0.6
_RANK = 1e-4  # of the largest singular value: less is what extrapolation leaves
_GAP = 1e3  # between the values of a head and what is left of it; less, and heads were mixed up
_SUM = 1e-3  # of M, which the maps of all heads together may miss
_MIXED = 1e-6  # the same where heads were only mixed up: their sum is none the worse
_SUM_AT_ONE = 0.02  # of what M makes of one v: that much shows another kind of target


@dataclass(frozen=True, eq=False, slots=True)
class WideSplit:
    """Maps of all heads, roughly.

    Args:
        A: heads x outputs x dimension.
        rank: how large a head is.
        drop: what shows that.
        missed: of M, by all maps together.
    """

    A: Stack
    rank: int
    drop: float
    missed: float


@dataclass(frozen=True, eq=False, slots=True)
class _Seen:
    """What one v shows: columns $A_h v$ and coordinates of $u_h$, a row for each head."""

    made: Float[np.ndarray, "heads outputs"]
    slopes: Float[np.ndarray, "heads coordinates"]


def limit_wide_questions(D: int) -> int:
    """The most that all tries ask."""
    last = 2 * (_MOST_HEADS + _SPARE)
    return SHORT_QUESTIONS + len(_TRIES) * (_HALVINGS * last * (D + 4) + PLAIN_QUESTIONS)


class WideSearch:
    """Maps of all heads, looked for once: they do not depend on the size of other tokens."""

    def __init__(self) -> None:
        self._found: WideSplit | None = None
        self._over = False

    def find(
        self, asking: Asking, linear: LinearPart, *, longest: int | None, rng: np.random.Generator
    ) -> WideSplit:
        """As `split_by_shifts`, which is asked nothing twice.

        Raises:
            Unsplit: no try showed such maps, now or before.
        """
        if not self._over:
            self._over = True
            self._found = split_by_shifts(asking, linear, longest=longest, rng=rng)
        if self._found is None:
            raise Unsplit
        return self._found


def split_by_shifts(
    asking: Asking, linear: LinearPart, *, longest: int | None, rng: np.random.Generator
) -> WideSplit:
    """Maps of all heads, roughly.

    Args:
        asking: the target in coordinates of the ball; zero tokens must score 0.
        linear: what lone tokens are answered.
        longest: the longest sequence that may be asked.
        rng: source of the tokens.

    Raises:
        Unsplit: sequences are too short, short ones are not answered as by any such heads, or no
            try showed maps that add up to M.
    """
    most = _LONGEST if longest is None else min(longest, _LONGEST)
    if most < _SHORTEST or deny_wide_heads(asking, linear, rng=rng):
        raise Unsplit
    full: WideSplit | None = None
    for share in _TRIES:
        lengths = [most >> k for k in range(_HALVINGS)]
        found = _ShiftTry(asking, linear, lengths, share, rng).run()
        if found is None:
            continue
        # Heads that were mixed up for one v have no plain scores either.
        if deny_plain_scores(found.A, found.missed, asking, linear, rng=rng):
            if found.missed > _MIXED:
                break
            continue
        if found.drop > _GAP:
            return found
        full = full or found
    if full is None:
        raise Unsplit
    # Where no try shows a drop there is none: heads are as large as the outputs or a token.
    return replace(full, rank=min(full.A.shape[1:]))


class _ShiftTry:
    """One plane of last tokens, and all that is asked at it."""

    def __init__(
        self,
        asking: Asking,
        linear: LinearPart,
        lengths: list[int],
        share: float,
        rng: np.random.Generator,
    ) -> None:
        self.asking = asking
        self.linear = linear
        self.lengths = lengths
        self.rng = rng
        self.D = asking.ball.dimension
        self.share = share
        self.radius = share * float(np.sqrt(self.D))
        self.plane = np.linalg.qr(rng.normal(size=(self.D, _DIMENSIONS)))[0].T
        self.shift = self._draw_coordinates(1)[0] * _SHIFT / _PART

    def _draw_coordinates(self, count: int) -> Matrix:
        drawn = self.rng.normal(size=(count, _DIMENSIONS))
        return _PART * self.radius * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    def run(self) -> WideSplit | None:
        """Maps of all heads, None where they do not add up."""
        centre = self.asking.ball.draw(size=self.share * _PART, rng=self.rng)
        at = self._draw_coordinates(_MOST_HEADS + _SPARE)
        # Of answers without v those at the first last tokens serve every v.
        asked = self._ask_without(at)
        first = self._see_heads(centre, at, asked, None)
        if first is None or self._misses_sum(centre, first):
            return None
        kept = len(first.made) + _SPARE
        without = [np.concatenate([y[:kept], y[len(at) : len(at) + kept]]) for y in asked]
        at = at[:kept]
        frame = np.linalg.qr(self.rng.normal(size=(self.D, self.D)))[0]
        tokens = centre + _AROUND * self.radius * frame
        matched: list[_Seen] = []
        for v in tokens:
            seen = self._see_heads(v, at, without, len(first.made))
            # All of them are needed, and long sequences are dear to ask.
            if seen is None or self._misses_sum(v, seen):
                return None
            matched.append(_order_heads(seen, first))
        known = np.concatenate([centre[None], tokens])
        made = np.stack([first.made, *[one.made for one in matched]])
        heads = range(made.shape[1])
        return self._judge(np.stack([solve_least_squares(known, made[:, h]).T for h in heads]))

    def _misses_sum(self, v: Vector, seen: _Seen) -> bool:
        """Whether what the heads make of v is far from what a lone v is answered."""
        expected = self.linear.M @ v
        missed = float(np.linalg.norm(seen.made.sum(axis=0) - expected))
        return missed > _SUM_AT_ONE * float(np.linalg.norm(expected))

    def _judge(self, A: Stack) -> WideSplit | None:
        missed = float(np.linalg.norm(A.sum(axis=0) - self.linear.M))
        whole = float(np.linalg.norm(self.linear.M))
        if missed > _SUM * whole:
            return None
        values = np.linalg.svd(A, compute_uv=False)
        drops = (values[:, :-1] / np.maximum(values[:, 1:], 1e-300)).min(axis=0)
        sure = drops > _GAP
        rank = int(np.argmax(sure) if sure.any() else np.argmax(drops)) + 1
        return WideSplit(A, rank, float(drops[rank - 1]), missed / whole)

    def _ask_without(self, at: Matrix) -> list[Matrix]:
        """Answers without v, for every length."""
        return self._ask(np.zeros(self.D), at)

    def _ask(self, v: Vector, at: Matrix) -> list[Matrix]:
        half = 0.5 * self.shift
        last = np.concatenate([at - half, at + half]) @ self.plane
        answers: list[Matrix] = []
        for length in self.lengths:
            X = np.zeros((len(last), length, self.D))
            X[:, -1], X[:, -2] = last, v
            each = max(1, _AT_ONCE // length**2)
            parts = [self.asking.ask(X[i : i + each]) for i in range(0, len(X), each)]
            answers.append(np.concatenate(parts))
        return answers

    def _see_heads(
        self, v: Vector, at: Matrix, without: list[Matrix], heads: int | None
    ) -> _Seen | None:
        """What every head makes of v, None where the pencil does not tell."""
        less = [
            length * (with_v - bare)
            for length, with_v, bare in zip(self.lengths, self._ask(v, at), without, strict=True)
        ]
        limit = (8.0 * less[0] - 6.0 * less[1] + less[2]) / 3.0
        plain, shifted = limit[: len(at)].T, limit[len(at) :].T
        U, s, _ = np.linalg.svd(plain, full_matrices=False)
        count = int((s > _RANK * s[0]).sum()) if heads is None else heads
        if count >= len(at):
            return None
        space = U[:, :count]
        plain, shifted = space.T @ plain, space.T @ shifted
        values, vectors = _find_pairs(shifted @ np.linalg.pinv(plain))
        if np.abs(values.imag).max() > 0 or values.real.min() <= 0:
            return None
        scales = np.linalg.solve(vectors.real, plain)
        signs = np.sign(scales.sum(axis=1))[:, None]
        if (scales * signs).min() <= 0:
            return None
        line = np.column_stack([np.ones(len(at)), at - 0.5 * self.shift])
        found = solve_least_squares(line, np.log(scales * signs).T)
        sizes = np.exp(found[0])[:, None] * signs
        return _Seen((space @ vectors.real).T * sizes, found[1:].T)


def _find_pairs(matrix: Matrix) -> tuple[_Complex, _Complex]:
    """Eigenvalues, and eigenvectors in columns."""
    found: Any = np.linalg.eig(matrix)
    return np.asarray(found[0], dtype=np.complex128), np.asarray(found[1], dtype=np.complex128)


def _order_heads(seen: _Seen, first: _Seen) -> _Seen:
    """The heads in the order of the first v: near in direction, and in how they change with y."""
    from scipy.optimize import linear_sum_assignment

    def point(rows: Matrix) -> Matrix:
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    size = float(np.linalg.norm(first.slopes, axis=1).mean())
    apart = np.linalg.norm(first.slopes[:, None] - seen.slopes, axis=2) / size
    cost: Any = 1.0 - point(first.made) @ point(seen.made).T + apart
    order: Any = linear_sum_assignment(cost)
    return _Seen(seen.made[order[1]], seen.slopes[order[1]])
