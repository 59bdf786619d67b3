r"""Scores of all heads of a sum with one output, from tokens that few heads read.

With read-outs $V_1, \dots, V_H \in \mathbb{R}^d$ known and independent, let $p_h$ be the unit
vectors with $V_g \cdot p_h = 0$ for $g \ne h$, and $n_i$ an orthonormal basis of what no head
reads. A pair $[a y + b x; a y]$ at $x = p_h$ or $p_h + n_i$ is read by head h alone: one answer
gives one score $b\,x^\top w_h$, $w_h = a W_h y + h_h$, in closed form. What is left are the scores
of head h along $p_g$. With them head h is read beside head g alone, at $p_h + p_g + n$ where n
turns head g away (turned_pairs.py). So one vector $w_h$ of all heads takes H d answers. Where no n
does that, both heads are read at once (crossed_scores.py), and some further answers choose between
roots.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from keyhole._arrays import Indices, Matrix, Stack, Vector, pin_one_thread, rms
from keyhole.learners.joint_heads.crossed_scores import (
    FIRST,
    FURTHER,
    Crossings,
    Weights,
    are_determined,
    find_crossed_scores,
)
from keyhole.learners.joint_heads.hard_pairs import Dependent, Unseparated
from keyhole.learners.joint_heads.score_lengths import TARGET, Lengths, ScoreSizes
from keyhole.learners.joint_heads.soft_pairs import SoftPairs, invert_shares
from keyhole.learners.joint_heads.turned_pairs import choose_turns, solve_turned_scores

_LARGEST = 5.0  # a score beyond which a token is asked again, shorter
_ROUNDS = 12  # of asking again
_SHORTER = 0.25  # the next length of tokens of two heads that could not be read
_SEEN = 1e-3  # of a read-out: what the token of its own must show of it
_CONDITION = 300.0  # of the solve for coordinates along a range
_CHOICES = 60  # random tokens to choose from
_OVER = 1e-9  # of the read-outs: an answer where none should be


@dataclass(slots=True)
class DualTokens:
    """Vectors a W_h y + h_h of all heads of a sum with one output.

    Args:
        pairs: how to ask.
        V: read-outs, one per row.
        idle: read-out of a head with W = 0; zeros where there is none.
    """

    pairs: SoftPairs
    V: Matrix
    idle: Vector
    lengths: Lengths = field(default=Lengths(0.0, 1.0), init=False)
    own: Matrix = field(init=False)
    unread: Matrix = field(init=False)
    values: Vector = field(init=False)

    @property
    def coarse(self) -> bool:
        """Whether answers are coarser than float64."""
        return self.pairs.lone.coarse

    def __post_init__(self) -> None:
        with pin_one_thread():
            inverse = np.asarray(np.linalg.pinv(self.V), dtype=np.float64).T
            self.unread = np.linalg.svd(self.V)[2][len(self.V) :]
        sizes = np.linalg.norm(inverse, axis=1, keepdims=True)
        # A read-out that is nothing beside the others has no inverse.
        self.own = np.divide(inverse, sizes, out=np.zeros_like(inverse), where=sizes > 0)
        self.values = np.einsum("hd,hd->h", self.V, self.own)
        if not (self.values > _SEEN * np.linalg.norm(self.V, axis=1)).all():
            raise Dependent("The read-outs of the heads depend on each other.")

    @property
    def heads(self) -> int:
        """How many heads there are, but one with W = 0."""
        return len(self.V)

    def guess_sizes(self, sizes: ScoreSizes, rng: np.random.Generator) -> ScoreSizes:
        """Sizes of scores from one random token of each head, at lengths for the given ones."""
        few = self.draw_tokens(1, rng)
        bias = np.zeros((self.heads, 1))
        if sizes.bias > 0.0:
            self.lengths = Lengths(0.0, TARGET / sizes.bias)
            bias = self.measure_along(np.zeros((1, self.V.shape[1])), few)[0]
        self.lengths = ScoreSizes(sizes.column, rms(bias)).choose_lengths()
        y = rng.normal(size=(1, self.V.shape[1]))
        scores = self.measure_along(y / np.linalg.norm(y), few)[0] - bias
        # Tokens p + n are longer than a unit vector by the root of two.
        column, still = (rms(part) / np.sqrt(2.0) for part in (scores / self.lengths.a, bias))
        return ScoreSizes(float(column), float(still))

    def _draw_tokens(self, h: int, count: int, rng: np.random.Generator) -> Matrix:
        """Random tokens that head h reads alone."""
        many = len(self.unread)
        spread = rng.normal(size=(count, many)) / np.sqrt(max(1, many))
        return self.own[h] + spread @ self.unread

    def check_unread(self, over: float = _OVER) -> None:
        """Ask along what no head reads, where nothing should answer but that share of V.

        Raises:
            Unseparated: something is answered: a head was missed.
        """
        if len(self.unread) == 0:
            return
        x = self.unread.sum(axis=0) / np.sqrt(len(self.unread))
        seen = self._ask(x[None], self.own[:1], np.full(1, self.lengths.b))
        if np.abs(seen).max() > max(over, _OVER) * np.abs(self.V).max():
            raise Unseparated("A head was missed on the half circle.")

    def _ask(self, x: Matrix, y: Matrix, b: Vector) -> Vector:
        """The sum of shares of read-outs for pairs of rows, that of a plain mean taken away."""
        g = self.pairs.ask_pairs(x, self.lengths.a * y, b)[:, 0]
        return g - x @ self.idle / 2

    def measure_columns(self, Y: Matrix) -> Stack:
        """Vectors a W_h y + h_h: rows of Y by heads by width."""
        alone = np.stack([self._list_own_tokens(h) for h in range(self.heads)])
        forms = self.measure_along(Y, alone)
        forms[:, :, 1:] -= forms[:, :, :1]
        crossed = self._measure_crossed(Y, forms)
        known = np.concatenate([crossed, forms[:, :, 1:]], axis=2)
        basis = np.concatenate([self.own, self.unread])
        with pin_one_thread():
            return known @ np.linalg.inv(basis).T

    def _list_own_tokens(self, h: int) -> Matrix:
        """Tokens that head h reads alone."""
        return self.own[h] + np.concatenate([0.0 * self.own[:1], self.unread])

    def measure_along(self, Y: Matrix, few: Stack) -> Stack:
        """Forms of these vectors along tokens that each head reads alone."""
        rows, (heads, many, width) = len(Y), few.shape
        x = np.broadcast_to(few, (rows, heads, many, width)).reshape(-1, width)
        y = np.repeat(Y, heads * many, axis=0)
        values = np.tile(np.repeat(self.values, many), rows)
        return self._read_alone(x, y, values).reshape(rows, heads, many)

    def _read_alone(self, x: Matrix, y: Matrix, values: Vector) -> Vector:
        """Forms of pairs that one head reads, whose read-out of x is given."""
        forms = np.zeros(len(x))
        b = np.full(len(x), self.lengths.b)
        left = np.arange(len(x))
        for _ in range(_ROUNDS):
            shares = self._ask(x[left], y[left], b[left]) / values[left]
            logits = invert_shares(shares)
            good = np.abs(logits) <= _LARGEST
            forms[left[good]] = logits[good] / b[left[good]]
            left, large = left[~good], np.abs(logits[~good])
            if len(left) == 0:
                return forms
            b[left] *= np.minimum(TARGET / np.where(np.isfinite(large), large, 16.0), 0.5)
        raise Unseparated("Shares of a head lie outside 0 and 1 at every length.")

    def _measure_crossed(self, Y: Matrix, forms: Stack) -> Stack:
        """Scores of every head along the own tokens of all: rows by heads by heads."""
        own = forms[:, :, 0]
        crossed = np.zeros((len(Y), self.heads, self.heads))
        every = np.arange(self.heads)
        crossed[:, every, every] = own
        pairs = np.array(list(combinations(range(self.heads), 2)), dtype=np.intp).reshape(-1, 2)
        rows = np.repeat(np.arange(len(Y)), len(pairs))
        h, g = np.tile(pairs, (len(Y), 1)).T
        solved = self._solve_turned(Y[rows], h, g, forms[rows])
        left = np.flatnonzero(~np.isfinite(solved).all(axis=1))
        if len(left):
            solved[left] = self._solve_crossings(Y[rows[left]], h[left], g[left], own[rows[left]])
        crossed[rows, h, g], crossed[rows, g, h] = solved.T
        return crossed

    def _solve_turned(self, y: Matrix, h: Indices, g: Indices, forms: Stack) -> Matrix:
        """Crossed forms of pairs of heads; not a number where neither head can be turned away."""
        every = np.arange(len(y))[:, None]
        both = np.stack([h, g], axis=1)
        known = forms[every, both]
        readouts = self.values[both]
        found = np.full((len(y), 2), np.nan)
        b = np.full(len(y), self.lengths.b)
        left = every[:, 0]
        for _ in range(_ROUNDS):
            lengths = b[left, None]
            turns = choose_turns(lengths[:, None] * known[left, :, 1:], lengths * known[left, :, 0])
            left, turns = left[turns.usable], turns.take(turns.usable)
            if len(left) == 0:
                break
            x = (self.own[h[left]] + self.own[g[left]])[:, None] + turns.tokens @ self.unread
            answers = self._ask(
                x.reshape(-1, y.shape[1]), np.repeat(y[left], 2, axis=0), np.repeat(b[left], 2)
            )
            solved = solve_turned_scores(readouts[left], turns.scores, answers.reshape(-1, 2))
            good = np.abs(solved).max(axis=1) <= _LARGEST
            found[left[good]] = solved[good] / b[left[good], None]
            left = left[~good]
            b[left] *= _SHORTER
        return found

    def _solve_crossings(self, y: Matrix, h: Indices, g: Indices, own: Matrix) -> Matrix:
        """Crossed forms of pairs of heads, asking further where roots are left open.

        Raises:
            Unseparated: all that may be asked leaves a pair open.
        """
        b = self.lengths.b
        every = np.arange(len(y))
        crossings = Crossings(
            np.stack([self.values[h], self.values[g]], axis=1),
            b * np.stack([own[every, h], own[every, g]], axis=1),
        )

        def ask(which: Indices, weights: Weights) -> Vector:
            x = weights[0] * self.own[h[which]] + weights[1] * self.own[g[which]]
            return self._ask(x, y[which], np.full(len(which), b))

        asked = FIRST
        left = every
        answers = np.stack([ask(every, weights) for weights in FIRST], axis=1)
        found = np.zeros((len(y), 2))
        for further in (*FURTHER, None):
            roots = find_crossed_scores(crossings.take(left), asked, answers)
            single = np.array([len(choices) == 1 for choices in roots])
            found[left[single]] = np.array([r[0] for r in roots if len(r) == 1]).reshape(-1, 2)
            clear = are_determined(crossings.take(left), asked, found[left])
            # What is asked last need only leave one root: fresh queries judge how sharp it is.
            open_still = ~single if further is None else ~(single & clear)
            if not open_still.any():
                return found / b
            if further is None:
                break
            left, answers = left[open_still], answers[open_still]
            answers = np.concatenate([answers, ask(left, further)[:, None]], axis=1)
            asked = (*asked, further)
        raise Unseparated("Scores of two heads were not told apart.")

    def draw_tokens(self, count: int, rng: np.random.Generator) -> Stack:
        """Random tokens that each head reads alone."""
        return np.stack([self._draw_tokens(h, count, rng) for h in range(self.heads)])

    def choose_few_tokens(self, ranges: list[Matrix], rng: np.random.Generator) -> Stack | None:
        """Few tokens that each head reads alone, along its range; None where none tell it."""
        rank = max(1, *(Q.shape[1] for Q in ranges))
        if rank > len(self.unread) + 1:
            return None
        drawn = [self._draw_own_tokens(h, Q, rank, rng) for h, Q in enumerate(ranges)]
        return np.stack([X for _, X in drawn]) if all(c <= _CONDITION for c, _ in drawn) else None

    def _draw_own_tokens(
        self, h: int, Q: Matrix, count: int, rng: np.random.Generator
    ) -> tuple[float, Matrix]:
        """Random tokens that head h reads alone, and the condition of the solve along its range."""
        tokens = [self._draw_tokens(h, count, rng) for _ in range(_CHOICES)]
        conditions = [float(np.linalg.cond(X @ Q)) if Q.shape[1] else 1.0 for X in tokens]
        best = int(np.argmin(conditions))
        return conditions[best], tokens[best]
