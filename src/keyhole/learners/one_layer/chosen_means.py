r"""Sequences whose heads see chosen tokens: every head h of a layer looks at $x_h$ alone.

In $[x_1; \dots; x_H; y]$ head h looks at $x_h$ to more digits than there are where

$$(x_h - x_g)^\top W_h\, y \ge 45 \quad (g \ne h), \qquad (x_h - y)^\top W_h\, y \ge 45 .$$

With y = s u the first grow as s, and of the second $-s^2 u^\top W_h u$ does as its square: any u
that has the signs right, and $u^\top W_h u < 0$ where the x are not long, will do with a large s.
So u is drawn until one has, without asking.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.learners.networks.kinks import Unresolved

_LOOK = 45.0  # score by which a head looks at its own token, and away from others
_DRAWN = 2**4  # directions of y for every one that has the signs of all scores right
_MOST = 2**15
_TURNS = 8  # of drawing twice as many for rows where none had
_LONGER = 2.0 ** np.arange(0, 24, 2)  # lengths that are tried, beside what other tokens call for
_HELD = 2**21  # scores that are held at once


def choose_last_tokens(W: Stack, tokens: Stack, *, rng: np.random.Generator) -> Matrix:
    """Last tokens beside which head h looks at the h-th token of every row.

    Args:
        W: scores, one matrix per head.
        tokens: rows of as many tokens as there are heads.
        rng: source of the directions that are tried.

    Raises:
        Unresolved: no direction that was drawn has all signs right.
    """
    last = np.zeros((len(tokens), W.shape[1]))
    # Nothing need be looked away from where every token is zero.
    todo = np.flatnonzero(tokens.reshape(len(tokens), -1).any(axis=1))
    for turn in range(_TURNS):
        count = min(_MOST, _DRAWN * 2 ** (len(W) ** 2 + turn))
        each = max(1, _HELD // (len(W) ** 2 * count))
        for some in np.split(todo, range(each, len(todo), each)):
            last[some] = _try_directions(W, tokens[some], count, rng)
        todo = todo[~last[todo].any(axis=1)]
        if not len(todo):
            return last
    raise Unresolved


def _try_directions(W: Stack, tokens: Stack, count: int, rng: np.random.Generator) -> Matrix:
    """The shortest last token of each row along random directions; zero where none will do."""
    u: Matrix = rng.normal(size=(count, W.shape[1]))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    seen: Stack = np.einsum("hde,ce->hdc", W, u)
    own: Matrix = np.einsum("cd,hdc->hc", u, seen)
    scores = np.einsum("ngd,hdc->nghc", tokens, seen)
    mine: Stack = np.einsum("nhhc->nhc", scores)
    same = (tokens[:, :, None] == tokens[:, None]).all(axis=3)
    # Tokens that are one need not be told apart.
    ahead = np.where(same[..., None], np.inf, mine[:, None] - scores).min(axis=(1, 2))
    length = _find_lengths(ahead, mine, own)
    best = np.argmin(length, axis=1)
    chosen = length[np.arange(len(tokens)), best]
    return np.where(np.isfinite(chosen), chosen, 0.0)[:, None] * u[best]


def _find_lengths(ahead: Matrix, mine: Stack, own: Matrix) -> Matrix:
    """How long y has to be along each direction, by row; infinite where no length will do.

    Args:
        ahead: by how much heads score their own tokens above the others, at least, for length 1.
        mine: what heads score their own tokens, for length 1.
        own: what they score y itself, for length 1.
    """
    least = np.full(ahead.shape, np.inf)
    np.divide(_LOOK, ahead, out=least, where=ahead > 0)
    # Where all tokens are one any length parts them.
    start = np.where(np.isposinf(ahead), 1.0, np.where(np.isfinite(least), least, 0.0))
    length = np.full(ahead.shape, np.inf)
    for factor in _LONGER[::-1]:
        s: Matrix = factor * start
        away = (s[:, None] * mine - s[:, None] ** 2 * own).min(axis=1) >= _LOOK
        length = np.where(away & (s > 0), s, length)
    return length
