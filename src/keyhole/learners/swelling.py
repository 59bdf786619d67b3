"""Models whose parts are so large beside their answers that no gap tells anything.

A gap is measured beside what the parts of a model contribute before they cancel. Where a search
went wrong these may be a billion times the answers, and any answers would agree; where they are ten
thousand times as large, agreement to 1e-9 of them is five digits of the answers, and not exact.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import EPS
from keyhole.models import Model

_SWOLLEN = 1e4  # size of the parts beside the answers
_DRAWS = 32


def is_swollen(model: Model, length: float) -> bool:
    """Whether the parts of answers to pairs of tokens of a length dwarf the answers."""
    drawn = np.random.default_rng(0).normal(size=(_DRAWS, 2, model.width))
    X = length * drawn / np.sqrt(model.width)
    size = model.yardstick(X, EPS).size
    return bool(np.median(size) > _SWOLLEN * np.abs(model(X)).max())
