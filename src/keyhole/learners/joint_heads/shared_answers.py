r"""Scores of all heads from the same answers, column by column.

With the read-outs known, one answer to a group of tokens (see token_groups.py) gives all shares by
one solve, hence $b\,x_k^\top(a W_h y + h_h) = \log(\alpha_{hk}/\alpha_{h,\mathrm{last}})$ for every
head. Lengths are chosen so that these have a root mean square of 0.9: accuracy falls fast beyond.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Array, Matrix, Sequences, Stack, Vector, pin_one_thread
from keyhole.learners.joint_heads.hard_pairs import LoneTokens, Unseparated
from keyhole.learners.joint_heads.score_lengths import TARGET, Lengths
from keyhole.learners.joint_heads.token_groups import (
    Group,
    TokenGroups,
    make_group,
    measure_condition,
)
from keyhole.oracles import Counted

_LARGEST = 5.0  # a score difference beyond which tokens are asked again, shorter
_ROUNDS = 12  # of asking again
_MISFIT = 1e-6  # of an answer: what no shares explain
_BATCH = 1 << 21  # numbers per call
_CONDITION = 2.5e3  # of the solves for shares and for coordinates along a range, together
_CHOICES = 60  # random tokens to choose from


@dataclass(slots=True)
class JointScores:
    """Forms x . (a W_h y + h_h) of all heads.

    Args:
        oracle: the black box, counting.
        lone: what lone tokens told.
        tokens: groups of tokens x.
        V: read-outs of all heads but one with W = 0.
        idle: read-out of a head with W = 0; None where there is none.
        misfit: of an answer, what no shares may explain.
    """

    oracle: Counted
    lone: LoneTokens
    tokens: TokenGroups
    V: Stack
    idle: Matrix | None
    misfit: float = _MISFIT
    lengths: Lengths = field(default=Lengths(0.0, 1.0), init=False)

    @property
    def heads(self) -> int:
        """How many heads there are, but one with W = 0."""
        return len(self.V)

    def measure_columns(self, Y: Matrix) -> Stack:
        """Vectors a W_h y + h_h: rows of Y by heads by width."""
        return self._measure(Y, self.tokens.groups) @ self.tokens.basis

    def measure_along(self, Y: Matrix, few: Stack) -> Stack:
        """Forms of these vectors along few tokens, the same for all heads."""
        size = len(self.tokens.groups[0].X)
        cut = [few[0, at : at + size] for at in range(0, few.shape[1], size)]
        return self._measure(Y, tuple(make_group(self.V, X) for X in cut))

    def choose_few_tokens(self, ranges: list[Matrix], rng: np.random.Generator) -> Stack | None:
        """Few tokens, drawn anew, that tell coordinates along all ranges: heads, tokens, width.

        None where they would be asked in no fewer groups than the whole basis.
        """
        groups = self.tokens.groups
        size = len(groups[0].X)
        rank = max(Q.shape[1] for Q in ranges)
        for count in range(max(1, -(-rank // size)), len(groups)):
            drawn = [_draw_few_tokens(self.V.shape[1], count * size, rng) for _ in range(_CHOICES)]
            # Groups of the basis were chosen well, and one head among many may be unlucky.
            for _ in range(_CHOICES):
                picked: list[int] = rng.permutation(len(groups) - 1)[:count].tolist()
                drawn.append(np.concatenate([groups[at].X for at in picked]))
            conditions = [self._measure_conditions(ranges, X, size) for X in drawn]
            if min(conditions) <= _CONDITION:
                X = drawn[int(np.argmin(conditions))]
                return np.broadcast_to(X, (self.heads, *X.shape))
        return None

    def _measure_conditions(self, ranges: list[Matrix], X: Matrix, size: int) -> float:
        """Worst condition of the solves for coordinates, times that of those for shares."""
        cut = [X[at : at + size] for at in range(0, len(X), size)]
        along = max(float(np.linalg.cond(X @ Q)) for Q in ranges if Q.shape[1])
        if along > _CONDITION:
            return along
        return along * max(measure_condition(self.V, part) for part in cut)

    def _measure(self, Y: Matrix, groups: tuple[Group, ...]) -> Stack:
        """Forms along last tokens a y for the rows y of Y: rows by heads by tokens x.

        Args:
            Y: directions of last tokens; one of zeros shows the score biases alone.
            groups: of tokens x.
        """
        with pin_one_thread():
            return np.concatenate([self._measure_group(group, Y) for group in groups], axis=2)

    def _measure_group(self, group: Group, Y: Matrix) -> Stack:
        many = max(1, _BATCH // ((len(group.X) + 1) * Y.shape[1]))
        parts = [self._read(group, Y[at : at + many]) for at in range(0, len(Y), many)]
        return np.concatenate(parts)

    def _read(self, group: Group, Y: Matrix) -> Stack:
        forms = np.zeros((len(Y), self.heads, len(group.X)))
        b = np.full(len(Y), self.lengths.b)
        left = np.arange(len(Y))
        for _ in range(_ROUNDS):
            logits = self._ask(group, self.lengths.a * Y[left], b[left])
            largest = np.abs(logits).max(axis=(1, 2))
            good = largest <= _LARGEST
            done = left[good]
            forms[done] = logits[good] / b[done, None, None]
            left = left[~good]
            if len(left) == 0:
                return forms
            # A share outside 0 and 1 is no measure of how much too long the tokens were.
            shrink = TARGET / np.where(np.isfinite(largest[~good]), largest[~good], 16.0)
            b[left] *= np.minimum(shrink, 0.5)
        raise Unseparated("Shares of the heads lie outside 0 and 1 at every length.")

    def _ask(self, group: Group, y: Matrix, b: Vector) -> Stack:
        """Score differences of every head and token; not finite where a share is none."""
        E = self.oracle.ask(_build_sequences(group, y, b)) - self.lone.answer(y)
        if self.idle is not None:
            mean = group.X.sum(axis=0) / (len(group.X) + 1)
            E -= b[:, None] * (mean @ self.idle)
        shares = E @ group.reader / b[:, None]
        misfit = np.abs(E - (b[:, None] * shares) @ group.rows).max(axis=1)
        size = b * np.abs(group.rows).max() + np.abs(self.lone.answer(y)).max(axis=1)
        if (misfit > self.misfit * size).any():
            raise Unseparated("An answer has a part that no shares of these heads explain.")
        return read_share_logits(shares.reshape(len(y), self.heads, len(group.X)))


def _draw_few_tokens(width: int, count: int, rng: np.random.Generator) -> Matrix:
    """Random orthonormal tokens."""
    return np.linalg.qr(rng.normal(size=(width, min(width, count))))[0].T


def _build_sequences(group: Group, y: Matrix, b: Vector) -> Sequences:
    x = b[:, None, None] * group.X
    return np.concatenate([x, np.zeros_like(x[:, :1])], axis=1) + y[:, None]


def read_share_logits(shares: Array) -> Array:
    """Logs of shares over that of the last token, which has the rest."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logits = np.log(shares / (1.0 - shares.sum(axis=-1, keepdims=True)))
    return np.where(np.isfinite(logits), logits, np.inf)
