r"""A soft cap on logits, $y = c \tanh(z / c)$, as some models have it: found, and undone.

Capped logits have no low rank, and $c\,\mathrm{artanh}(y / c)$ has one at the right c alone: what
stands behind the rank falls with $|c' - c|$ down to rounding, so that the sum of the logarithms of
singular values has a cusp there, which is looked for on a grid of $c / \max|y| - 1$ and closed in
on by golden section.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Array, Matrix

_OFFSETS = np.geomspace(1e-9, 300.0, 48)  # of caps above the largest answer, relative to it
_ROUNDS = 60
_GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
_MOST = 384  # rows and columns that are looked at
_FLOOR = 1e-13  # of the largest singular value; below it there is rounding
_DEEP = 3.0  # by how much a cusp lowers the mean logarithm behind the middle value, at least
_INSIDE = 1.0 - 1e-12  # what an answer beyond the cap is taken for


def undo_cap(answers: Array, cap: float) -> Array:
    """Logits before a soft cap."""
    return cap * np.arctanh(np.clip(answers / cap, -_INSIDE, _INSIDE))


def measure_steepness(answers: Array, cap: float) -> float:
    """By how much undoing a cap enlarges errors, in the root mean square."""
    inside = np.clip(answers / cap, -_INSIDE, _INSIDE)
    return float(np.sqrt(np.mean((1.0 - inside**2) ** -2)))


def find_cap(answers: Matrix) -> float | None:
    """The soft cap behind answers (prompts x vocabulary); None where they show none."""
    seen = answers[:_MOST, :_MOST]
    top = float(np.abs(seen).max())
    if top == 0.0:
        return None
    # The whole batch must lie inside the cap.
    lowest = float(np.abs(answers).max()) / top - 1.0
    offsets = lowest + _OFFSETS
    depths = [_measure_depth(seen, top * (1.0 + offset)) for offset in offsets]
    best = int(np.argmin(depths))
    if best in (0, len(offsets) - 1):
        return None
    logs = np.log(offsets)
    found = _close_in(seen, top, float(logs[best - 1]), float(logs[best + 1]))
    plain = min(depths[0], depths[-1])
    return found if _measure_depth(seen, found) < plain - _DEEP else None


def _close_in(seen: Matrix, top: float, low: float, high: float) -> float:
    def measure(log: float) -> float:
        return _measure_depth(seen, top * (1.0 + np.exp(log)))

    first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_first, at_second = measure(first), measure(second)
    for _ in range(_ROUNDS):
        if at_first < at_second:
            high, second, at_second = second, first, at_first
            first = high - _GOLDEN * (high - low)
            at_first = measure(first)
        else:
            low, first, at_first = first, second, at_second
            second = low + _GOLDEN * (high - low)
            at_second = measure(second)
    return top * (1.0 + float(np.exp((low + high) / 2.0)))


def _measure_depth(seen: Matrix, cap: float) -> float:
    """The mean logarithm of the smaller half of the singular values, over the largest."""
    logits = undo_cap(seen, cap)
    values = np.linalg.svd(logits - logits.mean(axis=0), compute_uv=False)[:-1]
    if not values[0] > 0.0:
        return 0.0
    smaller = values[len(values) // 2 :] / values[0]
    return float(np.log(np.maximum(smaller, _FLOOR)).mean())
