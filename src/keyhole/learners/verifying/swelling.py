"""Models whose parts are so large beside how answers vary that no gap tells anything.

A gap is measured beside what the parts of a model contribute before they cancel. Where a search
went wrong these may be a billion times the answers, and any answers would agree; where they are a
thousand times as large, agreement to 1e-9 of them is six digits of what varies, and not exact.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import EPS
from keyhole.learners.verifying.examination import EXACT, ROUNDINGS, Examination
from keyhole.models import Model, OneLayer

_SWOLLEN = 1e3  # size of the parts beside how answers vary
_ROUNDINGS = 1e3  # answers that vary by no more are constant
_DRAWS = 32


def is_swollen(model: Model, length: float, seen: Examination | None = None) -> bool:
    """Whether the parts of answers to pairs of tokens of a length dwarf how answers vary.

    Args:
        model: what agreed with fresh answers.
        length: of the tokens at which it bends.
        seen: what these answers showed: gaps that are not small beside how answers vary, or that
            only the last digits of the largest entries explain, which may not dwarf it either.
    """
    examined = None if seen is None else seen.examined
    # Scores magnify rounding, which says nothing of the parts.
    scored = isinstance(model, OneLayer)
    if not scored and examined is not None and examined.beside > _SWOLLEN * EXACT:
        return True
    unresolved = seen is not None and seen.unresolved
    drawn = np.random.default_rng(0).normal(size=(_DRAWS, 2, model.width))
    X = length * drawn / np.sqrt(model.width)
    by = model.yardstick(X, EPS)
    answers = model(X)
    least = np.abs(answers - answers.mean(axis=0)).max()
    # Where all units are idle answers vary by rounding, and only they themselves can be compared.
    if least <= _ROUNDINGS * by.rounding.max():
        least = np.abs(answers).max()
    digits = ROUNDINGS * by.coarse / EXACT if unresolved else np.zeros(_DRAWS)
    return bool(np.median(np.maximum(by.size, digits)) > _SWOLLEN * least)
