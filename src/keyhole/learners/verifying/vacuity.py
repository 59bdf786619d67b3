"""Examinations that could not fail.

A gap is explained by rounding in the parts of a model. Where these nearly cancel, that is more than
the answers themselves, and a model that is wrong altogether agrees with all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector

_SHARE = 8  # one answer in so many may be explained only so
_NOTHING = 1e-3  # of typical answers
_RIGHT = 1e-6  # of how an answer varies: a gap that says more than what explains it
_ROUNDED = 1e-12  # of an answer: a gap that is rounding however little it varies
_SUMMED = 32.0 * EPS  # of parts: what their sum is rounded by, however small their scores
_CLOSE = 1e-2  # of how an answer varies, which such a gap may be


class HeldAnswer(NamedTuple):
    """Of an answer the gap, up to what it is explained, the kind of its question, the answer, and
    what the parts of the model add up to before they cancel.
    """

    gap: float
    explained: float
    kind: str
    answer: Vector
    parts: float


def is_vacuous(rows: Sequence[HeldAnswer]) -> bool:
    """Whether too many gaps are explained only by what would explain any answer."""
    answers = np.array([row.answer for row in rows])
    if not answers.any():
        return False
    gap = np.array([row.gap for row in rows])
    explained = np.array([row.explained for row in rows])
    summed = _SUMMED * np.array([row.parts for row in rows])
    size = np.abs(answers).max(axis=1)
    # A constant says nothing of a model: answers are no larger than those of their kind vary.
    shown = np.minimum(size, _measure_variation(answers, [row.kind for row in rows]))
    typical = float(np.median(shown[shown > 0])) if shown.any() else 0.0
    # Answers that cancel to nothing, as where read-outs sum to zero, are explained rightly.
    least = np.maximum(shown, _NOTHING * typical)
    right = np.where(gap <= summed, _CLOSE, _RIGHT) * least
    wrong = (explained > 0.5 * least) & (gap > np.maximum(right, _ROUNDED * size))
    return bool(_SHARE * wrong.sum() > len(size))


def measure_gaps_beside_variation(rows: Sequence[HeldAnswer]) -> float:
    """The largest gap beside how answers of its kind vary; rounding of a constant aside."""
    if not rows:
        return 0.0
    gap = np.array([row.gap for row in rows])
    answers = np.array([row.answer for row in rows])
    varied = _measure_variation(answers, [row.kind for row in rows])
    size = np.abs(answers).max(axis=1)
    # What coarse answers hide is declared, and explained by nothing else.
    fine = np.array([row.explained for row in rows]) > 0
    shown = fine & (varied > 0) & (gap > _ROUNDED * size)
    return float((gap[shown] / varied[shown]).max(initial=0.0))


def _measure_variation(answers: Matrix, kinds: Sequence[str]) -> Vector:
    """How far answers to questions of one kind are from their middle, at most."""
    names = np.array(kinds)
    varied = np.zeros(len(answers))
    for name in set(kinds):
        of_kind = names == name
        group = answers[of_kind]
        varied[of_kind] = np.abs(group - np.median(group, axis=0)).max()
    return varied
