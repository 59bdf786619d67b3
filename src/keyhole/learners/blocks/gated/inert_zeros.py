r"""Whether zero tokens do nothing but take weight, as before one layer without biases.

Between a token w and a huge last one stand m zeros: of one layer w adds about $\sum_h A_h w/m$, so
that four times the zeros leave a fourth. In front of a second layer zeros are no longer zero, but
what the first made of w, and a norm makes that large.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Array
from keyhole.learners.blocks.far_tokens import FarTokens
from keyhole.learners.blocks.solving import linalg

ZEROS = (63, 255)  # between the token and the last one
LENGTH = ZEROS[-1] + 2
_SIZE = 0.2  # of the radius: scores of the token are small
_TRIES = 3
_RATIO = (2.5, 6.0)  # between what the token adds


def zeros_are_inert(asking: FarTokens, *, rng: np.random.Generator) -> bool:
    """Whether some last token shows that zeros before it do nothing but take weight."""
    return any(_are_inert_at(asking, rng) for _ in range(_TRIES))


def count_zero_queries() -> int:
    """What is asked where the first last token shows it."""
    return 2 * len(ZEROS)


def bound_zero_queries() -> int:
    """The most that is asked."""
    return _TRIES * count_zero_queries()


def _are_inert_at(asking: FarTokens, rng: np.random.Generator) -> bool:
    w = asking.draw_inside(size=_SIZE, rng=rng)
    y = asking.draw_on_sphere(1, rng)
    near, far = (_measure_added(asking, w, y, zeros) for zeros in ZEROS)
    least, most = _RATIO
    return bool(least * far < near < most * far)


def _measure_added(asking: FarTokens, w: Array, y: Array, zeros: int) -> float:
    """How much the answer moves where w stands before so many zeros."""
    n = np.zeros((2, zeros + 1, asking.dimension))
    n[0, 0] = w
    added, still = asking.ask_behind(n, np.repeat(y, 2, axis=0))
    return float(linalg.norm(added - still))
