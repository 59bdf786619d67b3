"""Examinations that could not fail.

A gap is explained by rounding in the parts of a model. Where these nearly cancel, that is more than
the answers themselves, and a model that is wrong altogether agrees with all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keyhole._arrays import Matrix

_SHARE = 8  # one answer in so many may be explained only so
_NOTHING = 1e-3  # of typical answers
_RIGHT = 1e-6  # of how an answer varies: a gap that says more than what explains it
_ROUNDED = 1e-12  # of an answer: a gap that is rounding however little it varies


def is_vacuous(rows: Sequence[tuple[float, float]], answers: Matrix) -> bool:
    """Whether too many gaps are explained only by what would explain any answer.

    An answer is as large as it is far from the middle one: a constant says nothing of a model.

    Args:
        rows: for each answer the gap, and up to what it is explained.
        answers: the answers.
    """
    if not answers.any():
        return False
    gap, explained = np.array(rows).reshape(-1, 2).T
    size = np.abs(answers).max(axis=1)
    varied = np.abs(answers - np.median(answers, axis=0)).max(axis=1)
    typical = np.median(varied[varied > 0]) if varied.any() else 0.0
    # Answers that cancel to nothing, as where read-outs sum to zero, are explained rightly.
    least = np.maximum(varied, _NOTHING * typical)
    wrong = (explained > 0.5 * least) & (gap > np.maximum(_RIGHT * least, _ROUNDED * size))
    return bool(_SHARE * wrong.sum() > len(size))
