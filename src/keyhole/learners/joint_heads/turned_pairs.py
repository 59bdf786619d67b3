r"""Two scores of two heads, each from an answer in which the other head is hard.

At $x = p_h + p_g + n$, n read by no head, a pair answers $A_h\,\sigma(\kappa_h + u) +
A_g\,\sigma(\kappa_g + v)$ with u the score of head h along $p_g$, v that of head g along $p_h$, and
$\kappa$ what is known: the scores along $p_h + n$ and along $p_g + n$. Scores along n are known for
all n, so n is chosen: one answer at $\kappa = (-K, 0)$ shows v alone up to $e^{-K}$, one at
$(0, -K)$ shows u. Substituting one into the other converges in a few steps, to the only root.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Mask, Matrix, Stack
from keyhole.learners.joint_heads.soft_pairs import invert_shares, take_shares

_AWAY = -9.0  # score of the head that is turned away
_NEAR = 1.0  # what a choice of n may miss of the scores wanted
_LONGEST = 16.0  # n, over the tokens p: errors of known scores grow with it
_STEPS = 40
_SETTLED = 1e-13  # a change of scores that is rounding


@dataclass(frozen=True, eq=False, slots=True)
class Turns:
    """Tokens n that turn one of two heads away, the first head first.

    Args:
        tokens: coordinates of n, pairs of heads by two by coordinates.
        scores: kappa of both heads at both, pairs by two tokens by two heads.
    """

    tokens: Stack
    scores: Stack

    @property
    def usable(self) -> Mask:
        """Where such tokens exist: not for heads whose scores along n are proportional."""
        missed = np.abs(self.scores - _AWAY * np.eye(2)).max(axis=(1, 2))
        lengths = np.linalg.norm(self.tokens, axis=2).max(axis=1)
        return (missed <= _NEAR) & (lengths <= _LONGEST)

    def take(self, which: Mask) -> Turns:
        """Some of them."""
        return Turns(self.tokens[which], self.scores[which])


def choose_turns(along: Stack, own: Matrix) -> Turns:
    """The shortest tokens that turn heads away.

    Args:
        along: scores of both heads along the coordinates of n, pairs by two by coordinates.
        own: scores of both along their own tokens.
    """
    gram = along @ along.swapaxes(1, 2)
    # Where scores along n are proportional the solve is left to fail: what it misses is seen.
    size = np.trace(gram, axis1=1, axis2=2)[:, None, None]
    eased = gram + np.maximum(1e-14 * size, np.finfo(float).tiny) * np.eye(2)
    wanted = _AWAY * np.eye(2) - own[:, None]
    shares = np.asarray(np.linalg.solve(eased, wanted.swapaxes(1, 2)), dtype=np.float64)
    tokens = shares.swapaxes(1, 2) @ along
    return Turns(tokens, own[:, None] + tokens @ along.swapaxes(1, 2))


def solve_turned_scores(readouts: Matrix, scores: Stack, answers: Matrix) -> Matrix:
    """(u, v) of every pair of heads, not a number where none is found.

    Args:
        readouts: A_h and A_g.
        scores: kappa, as in `Turns`.
        answers: at both tokens.
    """
    A, B = readouts.T
    found = np.zeros_like(readouts)
    change = np.full(len(found), np.inf)
    for _ in range(_STEPS):
        before = found
        first = A * take_shares(scores[:, 0, 0] + before[:, 0])
        v = invert_shares((answers[:, 0] - first) / B) - scores[:, 0, 1]
        second = B * take_shares(scores[:, 1, 1] + v)
        u = invert_shares((answers[:, 1] - second) / A) - scores[:, 1, 0]
        found = np.stack([u, v], axis=1)
        change = np.abs(found - before).max(axis=1)
        if not (change > _SETTLED).any():
            break
    return np.where((change <= 8.0 * _SETTLED)[:, None], found, np.nan)
