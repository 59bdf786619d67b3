"""Examinations that could not fail.

A gap is explained by rounding in the parts of a model. Where these nearly cancel, that is more than
the answers themselves, and a model that is wrong altogether agrees with all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_SHARE = 8  # one answer in so many may be explained only so
_NOTHING = 1e-3  # of typical answers
_RIGHT = 1e-6  # of an answer: a gap that says more than what explains it


def is_vacuous(rows: Sequence[tuple[float, float, float]]) -> bool:
    """Whether too many gaps are explained only by what would explain any answer.

    Args:
        rows: for each answer the gap, up to what it is explained, and the size of the answer.
    """
    gap, explained, size = np.array(rows).reshape(-1, 3).T
    if not size.any():
        return False
    # Answers that cancel to nothing, as where read-outs sum to zero, are explained rightly.
    least = np.maximum(size, _NOTHING * np.median(size[size > 0]))
    wrong = (explained > 0.5 * least) & (gap > _RIGHT * least)
    return bool(_SHARE * wrong.sum() > len(size))
