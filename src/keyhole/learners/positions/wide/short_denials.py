r"""What short sequences deny of heads whose scores are products of queries and keys.

A zero last token scores all tokens alike: the answer is M times their mean. Equal tokens are
answered as one. And where one token t v stands among zeros before a last token s y, to first
order in s

$$F = \tfrac1N M (t v + s y) + \tfrac sN \Big(1 - \tfrac1N\Big)\,t^2 \sum_h (v^\top W_h y)\,A_h v,$$

so that the odd part in s less that of y alone is linear in y and grows as the square of t. Ten
questions of a few tokens thus spare thousands of long ones where scores are normed, gated, biased
or no softmax is behind them.

Any function of such products passes, a cap too. Once the maps $A_h$ are known, weights of tokens
v, v/2 and v/4 are read at one last token: differences of their scores must be as 2 to 1.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Array, Stack, Vector
from keyhole.learners.positions.placed import Asking, LinearPart
from keyhole.learners.positions.wide.joint_reading import count_read_tokens, read_joint_scores

SHORT_QUESTIONS = 10
_LENGTH = 8
_PART = 0.6  # of the radius
_STEP = 1e-3  # of the last token
_EXACT = 1e-8  # of an answer, which an identity may miss
_FIRST_ORDER = 1e-3  # the same to first order
_FLAT = 1e-6  # of what the last token is worth: less than that is no score
_WIDE = 0.95  # of the radius, where scores are large
_PLACES = 8  # last tokens at which scores are read
PLAIN_QUESTIONS = 3 * _PLACES
_READ = 1e5  # times what maps miss: what scores that are read with them may miss
_READ_EXACTLY, _READ_ROUGHLY = 1e-3, 3e-2  # the least and the most of it


def deny_wide_heads(asking: Asking, linear: LinearPart, *, rng: np.random.Generator) -> bool:
    """Whether ten short sequences are answered as by no such heads."""
    v, first, second = asking.ball.draw(3, size=_PART, rng=rng)
    place = int(rng.integers(_LENGTH - 1))
    last = np.stack([first, first, second, first + second])
    sizes = np.array([1.0, 0.5, 1.0, 1.0])

    spread = np.zeros((2, _LENGTH, len(v)))
    spread[0, :-1] = asking.ball.draw(_LENGTH - 1, size=_PART, rng=rng)
    spread[1] = first
    pairs = np.zeros((2, len(last), _LENGTH, len(v)))
    pairs[:, :, place] = sizes[:, None] * v
    pairs[0, :, -1], pairs[1, :, -1] = _STEP * last, -_STEP * last
    answers = asking.ask(np.concatenate([spread, pairs.reshape(-1, _LENGTH, len(v))]))

    whole, moved = answers[:2] - linear.constant, answers[2:].reshape(2, len(last), -1)
    if _differ(whole, spread.mean(axis=1) @ linear.M.T, _EXACT):
        return True
    own: Array = last @ linear.M.T / _LENGTH
    odd = (moved[0] - moved[1]) / (2.0 * _STEP) - own
    return _bends(odd, float(np.linalg.norm(own)))


def deny_plain_scores(
    A: Stack, missed: float, asking: Asking, linear: LinearPart, *, rng: np.random.Generator
) -> bool:
    """Whether scores of shorter tokens are no smaller shares of one score.

    Args:
        A: maps of all heads, roughly.
        missed: of M, by all maps together.
        asking: the target in coordinates of the ball.
        linear: what lone tokens are answered.
        rng: source of the tokens.
    """
    heads, outputs, D = A.shape
    tokens = count_read_tokens(outputs, heads, D)
    v = asking.ball.draw(_PLACES, tokens, size=_WIDE, rng=rng)
    y = asking.ball.draw(_PLACES, 1, size=_WIDE, rng=rng)
    sizes = (1.0, 0.5, 0.25)
    n = np.concatenate([np.concatenate([t * v, y], axis=1) for t in sizes])
    at = np.tile(np.arange(tokens, -1, -1, dtype=np.intp), (len(n), 1))
    placed = asking.ask_placed(n, at, max(_LENGTH, tokens + 1), linear.constant)
    reads = read_joint_scores(A, placed)
    values = np.stack([read.values.reshape(3, _PLACES, tokens) for read in reads])
    weights = np.stack([read.weights.reshape(3, _PLACES, tokens) for read in reads]).min(axis=1)
    wide = weights * (values[:, 0] - values[:, 1])
    narrow = weights * (values[:, 1] - values[:, 2])
    return _differ(2.0 * narrow, wide, float(np.clip(_READ * missed, _READ_EXACTLY, _READ_ROUGHLY)))


def _bends(odd: Array, own: float) -> bool:
    """Whether what scores add is not linear in the last token, or no square of the earlier one."""
    one, half, other, both = odd
    if float(np.linalg.norm(odd)) <= _FLAT * own:
        return False
    return _differ(4.0 * half, one, _FIRST_ORDER) or _differ(one + other, both, _FIRST_ORDER)


def _differ(seen: Array | Vector, expected: Array | Vector, share: float) -> bool:
    size = max(float(np.linalg.norm(seen)), float(np.linalg.norm(expected)))
    return float(np.linalg.norm(seen - expected)) > share * size
