r"""Scores of all heads from the same answers, column by column.

With the read-outs known, one answer to a group of tokens (see token_groups.py) gives all shares by
one solve, hence $b\,x_k^\top(a W_h y + h_h) = \log(\alpha_{hk}/\alpha_{h,\mathrm{last}})$ for every
head. Lengths are chosen so that these have a root mean square of 0.9: accuracy falls fast beyond.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from keyhole._arrays import Array, Indices, Mask, Matrix, Sequences, Stack, Vector, pin_one_thread
from keyhole.learners.joint_heads.balanced_tokens import (
    balance_groups,
    cut_evenly,
    measure_condition,
)
from keyhole.learners.joint_heads.hard_pairs import LoneTokens, Unseparated
from keyhole.learners.joint_heads.score_lengths import Lengths
from keyhole.learners.joint_heads.token_groups import (
    Group,
    TokenGroups,
    list_reading_blocks,
    make_group,
)
from keyhole.oracles import Oracle

_LARGEST = 5.0  # a score difference beyond which tokens are asked again, shorter
_COARSE_LARGEST = 3.5  # the same where answers are coarse: few digits are left of a small share
_AIM = 0.7  # of that, the largest they should have
_BEYOND = 64.0  # what stands for one that is not to be read
_FIRST = 3  # last tokens that tell how long x may be
_ROUNDS = 12  # of asking again
_MANY = 2.0**14  # roundings of coarse answers that no shares explain, as read-outs are off
_MISFIT = 1e-6  # of an answer: what no shares explain
_BATCH = 1 << 21  # numbers per call
_CONDITION = 2e4  # of the solves for shares and for coordinates along a range, together
_COARSE_CONDITION = 500.0  # the same where answers are coarse
_STEPS = 100  # of descent


@dataclass(slots=True)
class JointScores:
    """Forms x . (a W_h y + h_h) of all heads.

    Args:
        oracle: the black box.
        lone: what lone tokens told.
        tokens: groups of tokens x.
        V: read-outs of all heads but one with W = 0.
        idle: read-out of a head with W = 0; None where there is none.
        misfit: of an answer, what no shares may explain.
    """

    oracle: Oracle
    lone: LoneTokens
    tokens: TokenGroups
    V: Stack
    idle: Matrix | None
    misfit: float = _MISFIT
    lengths: Lengths = field(default=Lengths(0.0, 1.0), init=False)
    steepest: tuple[float, float] = field(default=(0.0, 0.0), init=False)

    @property
    def coarse(self) -> bool:
        """Whether answers are coarser than float64."""
        return self.lone.coarse

    @property
    def largest(self) -> float:
        """The largest score difference that is read."""
        return _COARSE_LARGEST if self.coarse else _LARGEST

    @property
    def heads(self) -> int:
        """How many heads there are, but one with W = 0."""
        return len(self.V)

    def renew(self, V: Stack) -> None:
        """Read answers by other read-outs, as if nothing had been asked yet."""
        self.V = V
        groups = tuple(make_group(V, group.X) for group in self.tokens.groups)
        self.tokens = replace(self.tokens, groups=groups, blocks=list_reading_blocks(V)[1])
        self.steepest = (0.0, 0.0)

    def measure_columns(self, Y: Matrix) -> Stack:
        """Vectors a W_h y + h_h: rows of Y by heads by width."""
        return self._measure(Y, self.tokens.groups) @ self.tokens.basis

    def measure_along(self, Y: Matrix, few: Stack) -> Stack:
        """Forms of these vectors along few tokens, the same for all heads."""
        cut = cut_evenly(few[0], self.tokens.most)
        return self._measure(Y, tuple(make_group(self.V, X) for X in cut))

    def draw_tokens(self, count: int, rng: np.random.Generator) -> Stack:
        """The first groups of the basis, which are balanced already."""
        most = self.tokens.most
        X = self.tokens.basis[: -(-count // most) * most]
        return np.broadcast_to(X, (self.heads, *X.shape))

    def choose_few_tokens(self, ranges: list[Matrix], rng: np.random.Generator) -> Stack | None:
        """Few tokens that tell coordinates along all ranges: heads, tokens, width.

        None where they would be asked in no fewer groups than the whole basis.
        """
        most, blocks = self.tokens.most, self.tokens.blocks
        rank = max(1, *(Q.shape[1] for Q in ranges))
        along = [Q[None] for Q in ranges if Q.shape[1]]
        for count in range(-(-rank // most), len(self.tokens.groups)):
            # The first tokens of the basis are balanced already.
            start = self.tokens.basis[: max(rank, count * most - most // 4)]
            X = balance_groups(start, most, blocks, along, _STEPS)
            condition = max(measure_condition(part, [self.V]) for part in cut_evenly(X, most))
            most_lost = _COARSE_CONDITION if self.coarse else _CONDITION
            if condition * measure_condition(X, along) <= most_lost:
                return np.broadcast_to(X, (self.heads, *X.shape))
        return None

    def _measure(self, Y: Matrix, groups: tuple[Group, ...]) -> Stack:
        """Forms along last tokens a y for the rows y of Y: rows by heads by tokens x.

        Args:
            Y: directions of last tokens; one of zeros shows the score biases alone.
            groups: of tokens x, none larger than those before.
        """
        sizes = sorted({len(group.X) for group in groups}, reverse=True)
        equal = [[group for group in groups if len(group.X) == size] for size in sizes]
        with pin_one_thread():
            return np.concatenate([self._measure_groups(same, Y) for same in equal], axis=2)

    def _measure_groups(self, groups: list[Group], Y: Matrix) -> Stack:
        """The same of groups of one size, which are asked together."""
        size, width = groups[0].X.shape
        of, row = (part.ravel() for part in np.indices((len(groups), len(Y))))
        # Where nothing is known of how steep scores are the first few tell it for all others.
        first = 0 if self.steepest[0] == self.lengths.a else min(_FIRST, len(Y))
        many = max(1, _BATCH // ((size + 1) * width))
        cuts = sorted({0, *range(first, len(of), many), len(of)})
        parts = [
            self._fill(groups, of[start:end], Y[row[start:end]]) for start, end in pairwise(cuts)
        ]
        forms = np.concatenate(parts).reshape(len(groups), len(Y), self.heads, size)
        return forms.transpose(1, 2, 0, 3).reshape(len(Y), self.heads, -1)

    def _fill(self, groups: list[Group], of: Indices, Y: Matrix) -> Stack:
        """Forms along the tokens of one group for each row of Y."""
        forms = np.zeros((len(Y), self.heads, len(groups[0].X)))
        b = np.full(len(Y), self._choose_length())
        left = np.arange(len(Y))
        for _ in range(_ROUNDS):
            if len(left) == 0:
                return forms
            logits = self._ask(groups, of[left], self.lengths.a * Y[left], b[left])
            largest = np.abs(logits).max(axis=(1, 2))
            good = largest <= self.largest
            done = left[good]
            forms[done] = logits[good] / b[done, None, None]
            self._note_steepest(largest / b[left])
            left = left[~good]
            # A share outside 0 and 1 is no measure of how much too long the tokens were.
            shrink = (
                _AIM * self.largest / np.where(np.isfinite(largest[~good]), largest[~good], _BEYOND)
            )
            b[left] = self._settle(b[left] * shrink)
        raise Unseparated("Shares of the heads lie outside 0 and 1 at every length.")

    def _choose_length(self) -> float:
        """The length of x given, or one at which the steepest score seen is still read."""
        a, steepest = self.steepest
        if a != self.lengths.a or steepest * self.lengths.b <= _AIM * self.largest:
            return self.lengths.b
        return float(self._settle(np.full(1, _AIM * self.largest / steepest))[0])

    def _settle(self, lengths: Vector) -> Vector:
        """Lengths; of coarse answers the next half powers of two, alike when read anew."""
        return 2.0 ** (np.floor(2.0 * np.log2(lengths)) / 2.0) if self.coarse else lengths

    def _note_steepest(self, slopes: Vector) -> None:
        """Largest scores per length of x at the present length of y, as far as they were read."""
        a, steepest = self.steepest
        seen = slopes[np.isfinite(slopes)].max(initial=0.0)
        self.steepest = self.lengths.a, max(float(seen), steepest if a == self.lengths.a else 0.0)

    def _ask(self, groups: list[Group], of: Indices, y: Matrix, b: Vector) -> Stack:
        """Score differences of every head and token; not finite where a share is none."""
        alone = self.lone.answer(y)
        X = np.stack([group.X for group in groups])
        E = self.oracle.ask(_build_sequences(X[of], y, b)) - alone
        if self.idle is not None:
            mean = X.sum(axis=1)[of] / (X.shape[1] + 1)
            E -= b[:, None] * (mean @ self.idle)
        E /= b[:, None]
        size = np.abs(alone).max(axis=1) / b
        logits = np.zeros((len(y), self.heads, X.shape[1]))
        for at in range(len(groups)):
            mine: Mask = of == at
            logits[mine] = self._solve(groups[at], E[mine], size[mine])
        return logits

    def _solve(self, group: Group, E: Matrix, size: Vector) -> Stack:
        """Score differences from answers per length of x.

        Args:
            group: tokens x.
            E: answers past those of the last tokens alone.
            size: of these.
        """
        shares = E @ group.reader
        misfit = np.abs(E - shares @ group.rows).max(axis=1)
        most = self.lone.allow(self.misfit, _MANY)
        if (misfit > most * (np.abs(group.rows).max() + size)).any():
            raise Unseparated("An answer has a part that no shares of these heads explain.")
        return read_share_logits(shares.reshape(len(E), self.heads, len(group.X)))


def _build_sequences(X: Stack, y: Matrix, b: Vector) -> Sequences:
    x = b[:, None, None] * X
    return np.concatenate([x, np.zeros_like(x[:, :1])], axis=1) + y[:, None]


def read_share_logits(shares: Array) -> Array:
    """Logs of shares over that of the last token, which has the rest."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logits = np.log(shares / (1.0 - shares.sum(axis=-1, keepdims=True)))
    return np.where(np.isfinite(logits), logits, np.inf)
