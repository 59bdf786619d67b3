"""Telling heads that share values apart: tries with last tokens of several sizes."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import EPS
from keyhole.learners.positions.grouped.kernel_try import (
    BATCH,
    TURNS,
    KernelTry,
    SharedSplit,
    SplitLimits,
    find_row_space,
)
from keyhole.learners.positions.head_split import NormedScores, Unsplit
from keyhole.learners.positions.placed import Asking, LinearPart
from keyhole.learners.positions.position_kind import are_scores_normed

_LENGTH = 8
_SIZE = 0.95  # of y, a share of the radius of the ball
_PAIR_SIZES = (0.95, 0.95, 0.95, 0.95, 0.4, 0.4, 0.1)  # large scores saturate
_RETRIES = 4


class Unshared(Unsplit):
    """Tokens without a value did not tell heads apart."""


def has_kernel(linear: LinearPart, roundoff: float) -> bool:
    """Whether some tokens have no value, as where heads share value maps.

    Shared maps leave half of the outputs at most; trained layers may not read a few inputs at all.
    """
    share = SplitLimits.of(roundoff).rank
    left = len(find_row_space(linear.M, share))
    return 0 < left < min(linear.M.shape) and left <= len(linear.M) // 2


def split_by_kernel(
    asking: Asking,
    linear: LinearPart,
    *,
    longest: int | None,
    cap: float | None = None,
    roundoff: float = EPS,
    last: float | None = None,
    rng: np.random.Generator,
) -> SharedSplit:
    """Rows of every head, from tokens without a value.

    Args:
        asking: the target in coordinates of the ball.
        linear: what lone tokens are answered.
        longest: the longest sequence that may be asked.
        cap: of the scores.
        roundoff: of the answers.
        last: size of last tokens, a share of the radius of the ball; several when None.
        rng: source of the tokens.

    Raises:
        Unshared: no try told heads apart that explain their answers.
        NormedScores: the first did not, and queries and keys are normed.
    """
    limits = SplitLimits.of(roundoff)

    def begin(length: int, size: float) -> KernelTry:
        return KernelTry(asking, linear, length, size if last is None else last, limits, cap, rng)

    found = begin(choose_length(longest), _SIZE).run()
    if found is not None:
        return found
    # Further tries tell normed queries and keys no better.
    if are_scores_normed(asking, rng=rng):
        raise NormedScores
    # Biases of keys part weights the less the fewer places there are.
    tries = [begin(2, size) for size in _PAIR_SIZES]
    for one in sorted(tries, key=KernelTry.see, reverse=True)[:_RETRIES]:
        found = one.run()
        if found is not None:
            return found
    raise Unshared


def choose_length(longest: int | None) -> int:
    """Tokens of a question, fewer where no more may be asked."""
    return _LENGTH if longest is None else max(2, min(_LENGTH, longest))


def count_split_questions(outputs: int, heads: int) -> int:
    """What one try asks where the heads fill the outputs."""
    points = (heads // BATCH + 1) * BATCH
    return points + 4 * (heads + 1) + (outputs // heads) * (heads + 1)


def limit_split_questions(width: int, outputs: int) -> int:
    """The most that all tries ask, however many heads there are."""
    heads = min(width, outputs)
    see = heads + BATCH
    finish = 4 * TURNS * (heads + 1) + outputs + heads
    return (1 + len(_PAIR_SIZES)) * see + (1 + _RETRIES) * finish
