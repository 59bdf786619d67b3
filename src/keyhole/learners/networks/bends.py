r"""Whether a function of one number bends everywhere, as no piecewise linear one does.

The second difference $f(t - h) - 2 f(t) + f(t + h)$ of a smooth function is $h^2 f''(t)$, so that
half the step leaves a quarter of it. A piecewise linear function gives zero where it has no kink in
between; one kink leaves more than a quarter or, at the next halving, nothing; and with many the
quarter comes out only by chance.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keyhole._arrays import Array, Matrix, Vector

SUSPICIOUS = 128  # intervals of one line, from which on it is worth asking
_PLACES = 8
_STEPS = np.array([1.0, 0.5, 0.25])
_QUARTER = 0.05  # how far from a quarter, relatively
_AGREEING = 3  # places at least that look smooth, and half of those that tell
_CLEAR = 50.0  # roundings that a second difference is larger than


def is_smooth(
    ask: Callable[[Vector], Matrix], rounding: Callable[[Array], Array], a: Vector, b: Vector
) -> bool:
    """Whether the function is smooth inside most of a few short open intervals, 7 queries each.

    Args:
        ask: answers at places of the line.
        rounding: how far off an answer may be there.
        a: left ends of the open intervals.
        b: right ends.
    """
    chosen = np.argsort(b - a)[np.geomspace(1, max(1, len(a) // 2), _PLACES).astype(np.intp) - 1]
    middle = (a[chosen] + b[chosen]) / 2
    h = (b[chosen] - a[chosen]) / 2
    offsets = np.concatenate([-_STEPS, [0.0], _STEPS[::-1]])
    t: Matrix = middle[:, None] + h[:, None] * offsets
    values = ask(t.ravel()).reshape(len(chosen), len(offsets), -1)
    second = np.linalg.norm(values[:, :3] + values[:, :3:-1] - 2 * values[:, 3:4], axis=2)
    clear = second[:, -1] > _CLEAR * rounding(t).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        quarter = np.abs(4.0 * second[:, 1:] / second[:, :-1] - 1.0).max(axis=1) < _QUARTER
    agreeing = int((clear & quarter).sum())
    return len(a) > _PLACES and agreeing >= _AGREEING and 2 * agreeing >= int(clear.sum())
