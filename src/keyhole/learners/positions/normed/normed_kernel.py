r"""Telling heads apart that share values, where queries and keys have a norm of their own.

Scores $a_h^\top n/\rho(n)$ are odd in n, and nearly $a_h^\top n/\sqrt\epsilon$ where tokens are
small. Of a token v + z, z without a value, half of what is answered to it less that to -v + z is

$$\sum_h A_h v\, w_h(z), \qquad w_h(z) = \sigma(\beta_h + a_h^\top z/\rho(z)) + O(|v|^2/\epsilon),$$

so that slopes and second differences at z = 0 tell heads apart as they do without norms. Rows are
sharpened by what is exact at every z: the odds of z and -z are one as far above those of 0 as the
other is below.
"""

from __future__ import annotations

import math

import numpy as np

from keyhole.learners.positions.grouped.kernel_split import (
    Unshared,
    choose_length,
    count_split_questions,
)
from keyhole.learners.positions.grouped.kernel_try import KernelTry, SharedSplit, SplitLimits
from keyhole.learners.positions.placed import Asking, LinearPart
from keyhole.learners.positions.question_design import choose_head_eps
from keyhole.models import Wiring

# Of the root of eps, which sizes of keys need not be alike in.
_UNITS = (1.0, 1.0, 0.1, 10.0)
_STEP = 3e-3  # of a unit
_VALUE = 1e-4
_LAST = 0.1  # of the radius: values that vanish are rounding of the last token's size
_RANK = 1e-7  # so small values are seen to fewer digits
_APART = 3e-3
_LEFT = 1e-6


def split_normed_by_kernel(
    asking: Asking,
    linear: LinearPart,
    wiring: Wiring,
    *,
    longest: int | None,
    rng: np.random.Generator,
) -> SharedSplit:
    """Rows of every head.

    Args:
        asking: the target in coordinates of the ball.
        linear: what lone tokens are answered.
        wiring: whose eps tells roughly that of the norms of queries and keys.
        longest: the longest sequence that may be asked.
        rng: source of the tokens.

    Raises:
        Unshared: no try told heads apart, or lone tokens have a constant answer: keys of zero
            tokens may be biases then.
    """
    for unit in () if linear.biased else _UNITS:
        move = unit * math.sqrt(choose_head_eps(wiring))
        limits = SplitLimits(
            _RANK, _STEP * move, _APART, _LEFT, normed=True, value=_VALUE * move, move=move
        )
        length = choose_length(longest)
        found = KernelTry(asking, linear, length, _LAST, limits, None, rng).run()
        if found is not None:
            return found
    raise Unshared


def count_normed_split(outputs: int, heads: int) -> int:
    """What one try asks where the heads fill the outputs: everything for v and for -v."""
    return 2 * count_split_questions(outputs, heads)
