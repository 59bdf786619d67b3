r"""Scores between positions on a circle: equal within a radius, and less beyond.

Position i is the angle $2\pi i/L$, its keys the cosines and sines of multiples of it, and queries
weigh harmonic h by $a_h$: the score of positions i and j is $p(i - j) = \sum_h a_h \cos(2\pi h (i -
j)/L)$. Degree K + 1 suffices to be equal at distances 0 .. K and less beyond: $\prod_{t \le K}
(\cos(2\pi t/L) - x)$, read at $x = \cos(2\pi \delta/L)$, vanishes on the former and has one sign on
the latter. More harmonics give a wider margin, which a linear program finds.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from keyhole._arrays import Matrix, Vector, freeze_array
from keyhole.constructions.matching.waves import Whole, rotate_residues
from keyhole.constructions.shared.rounding import U, is_fixed, is_rounding
from keyhole.errors import DoesNotFit
from keyhole.models.numbers import NumberFormat

# Scores inside a window may be moved by rounding so much: weights then stay within a factor e^1/2.
UNEVEN = 0.25


class Window(NamedTuple):
    """Weights of harmonics, at most 1 in all by absolute value, and the margin they give."""

    weights: Vector
    margin: float


class Sharp(NamedTuple):
    """A window with the scale that leaves a given share of attention outside.

    Args:
        weights: of the harmonics, scaled.
        margin: before scaling.
        moved: the most that rounding moves a score, scaled.
        leak: attention outside, as a multiple of that on any position inside, rounding counted.
    """

    weights: Vector
    margin: float
    moved: float
    leak: float


def encode_positions(positions: Whole, length: int, harmonics: int) -> Matrix:
    """Cosines, then sines, of the first multiples of the positions' angles."""
    multiples = positions[:, None] * np.arange(1, harmonics + 1) % length
    return np.concatenate(rotate_residues(multiples, length), axis=-1)


# Formats differ in what they do to a window, not in the window.
@lru_cache(maxsize=512)
def find_window(length: int, radius: int, harmonics: int) -> Window:
    r"""The widest margin of scores equal within a radius on a circle of so many positions.

    $$\max g \quad \text{s.t.} \quad p(\delta) = b\ (\delta \le K),
    \quad p(\delta) \le b - g\ (\delta > K), \quad |a|_1 \le 1$$
    """
    beyond = range(radius + 1, length // 2 + 1)
    if not beyond:
        return Window(freeze_array(np.zeros(harmonics)), 1.0)
    cosines = encode_positions(np.arange(length // 2 + 1), length, harmonics)[:, :harmonics]
    inside = cosines[: radius + 1]
    outside = cosines[radius + 1 :]
    weights = np.ones(1)
    # One harmonic of one position leaves nothing to choose.
    if radius or harmonics > 1:
        weights = _level_weights(_solve_window_program(inside, outside), inside)
    margin = float((inside @ weights).min() - (outside @ weights).max())
    return Window(freeze_array(weights), margin)


# The score falls by g or more from distance K to K + 1, and harmonic h of weight a_h gives at most
# |a_h| times what its own cosine falls by.
def bound_window_margin(length: int, radius: int, harmonics: int) -> float:
    """No weights of so many harmonics have a wider margin."""
    if radius >= length // 2:
        return 1.0
    ends = np.array([radius, radius + 1])
    cosines = encode_positions(ends, length, harmonics)[:, :harmonics]
    return float(np.abs(cosines[0] - cosines[1]).max())


# A linear program is exact to 1e-7 only: weights of that size are none, and the others are moved,
# as little as can be, until the scores inside are equal.
def _level_weights(weights: Vector, inside: Matrix) -> Vector:
    steps = (inside[1:] - inside[0]) * (np.abs(weights) > 1e-6)
    weights = weights * (np.abs(weights) > 1e-6)
    for _ in range(2):
        weights = weights - np.asarray(
            np.linalg.lstsq(steps, steps @ weights, rcond=None)[0], dtype=np.float64
        )
    return np.asarray(weights / (float(np.abs(weights).sum()) or 1.0), dtype=np.float64)


def _solve_window_program(inside: Matrix, outside: Matrix) -> Vector:
    """Variables: positive and negative parts of the weights, then b, then g."""
    from scipy.optimize import linprog

    size = inside.shape[1]
    equal = np.column_stack([inside, -inside, -np.ones(len(inside)), np.zeros(len(inside))])
    below = np.column_stack([outside, -outside, -np.ones(len(outside)), np.ones(len(outside))])
    norm = np.concatenate([np.ones(2 * size), [0.0, 0.0]])
    limits = np.concatenate([np.zeros(len(outside)), [1.0]])
    bounds = [(0.0, None)] * (2 * size) + [(None, None)] * 2
    cost = np.concatenate([np.zeros(2 * size + 1), [-1.0]])
    found: Any = linprog(
        cost, np.vstack([below, norm]), limits, equal, np.zeros(len(inside)), bounds, method="highs"
    )
    if found.x is None:
        return np.zeros(int(size))
    return np.asarray(found.x[:size] - found.x[size : 2 * size], dtype=np.float64)


# Floats round the two positions' codes, the weight, the query and the score; fixed point codes and
# query; float64 each factor and each sum.
def bound_position_rounding(form: NumberFormat, harmonics: int) -> float:
    """The most that rounding moves a score whose weights add up to 1."""
    own = (2 * harmonics + 12) * U
    if not is_rounding(form):
        return own
    half = form.spacing / 2
    return own + (2.1 * math.sqrt(2) * half if is_fixed(form) else 5.05 * half)


def sharpen_window(
    length: int, radius: int, harmonics: int, *, tokens: int, share: float, form: NumberFormat
) -> Sharp:
    r"""The scale at which any position outside gets at most `share` of what one inside gets.

    With scores moved by at most rho each, $\mathrm{leak} \le n e^{-c (g - 2 \rho)}$ for n tokens
    outside.
    """
    return _scale_window(find_window(length, radius, harmonics), radius, tokens, share, form)


def _scale_window(
    found: Window, radius: int, tokens: int, share: float, form: NumberFormat
) -> Sharp:
    rho = bound_position_rounding(form, len(found.weights))
    left = found.margin - 2 * rho
    if found.margin <= 0:
        return Sharp(found.weights, found.margin, math.inf, math.inf)
    scale = max(1.0, math.log(tokens / share)) / (left if left > 0 else found.margin)
    leak = 0.0
    # So few tokens lie inside one window, and none is outside.
    if tokens > radius + 1:
        leak = tokens * math.exp(min(-scale * left, 20.0)) * (1 - 1e-12)
    return Sharp(scale * found.weights, found.margin, scale * rho, leak)


def find_fewest_harmonics(
    length: int,
    radius: int,
    *,
    tokens: int,
    share: float,
    form: NumberFormat,
    most: int | None,
    uneven: float = UNEVEN,
) -> Sharp:
    """The fewest harmonics that rounding leaves sharp and even; the most where none suffice.

    Args:
        length: positions of the circle.
        radius: of the window.
        tokens: of the sequence.
        share: the most that any position outside may get of what one inside gets.
        form: the number format.
        most: harmonics.
        uneven: the most that rounding may move scores inside.

    Raises:
        DoesNotFit: not even the equal scores have enough harmonics.
    """
    full = length // 2
    limit = full if most is None else min(most, full)
    least = min(radius + 1, full)
    if limit < least:
        raise DoesNotFit(
            f"windows of radius {radius} need key width {2 * least}; asked for {2 * limit}."
        )

    def suffices(sharp: Sharp) -> bool:
        return sharp.leak <= share and (radius == 0 or sharp.moved <= uneven)

    def has_hope(harmonics: int) -> bool:
        widest = bound_window_margin(length, radius, harmonics)
        best = Window(np.zeros(harmonics), widest)
        return suffices(_scale_window(best, radius, tokens, share, form))

    counts = _list_rising_counts(max(1, least), max(1, limit))
    # A linear program is solved only where the widest margin there could be would do.
    first, *more = [count for count in counts if has_hope(count)] or counts[-1:]
    found = sharpen_window(length, radius, first, tokens=tokens, share=share, form=form)
    for harmonics in more:
        if suffices(found):
            break
        found = sharpen_window(length, radius, harmonics, tokens=tokens, share=share, form=form)
    return found


def _list_rising_counts(least: int, most: int) -> list[int]:
    """Numbers that grow by about a quarter, the ends included."""
    numbers = [least]
    while numbers[-1] < most:
        numbers.append(min(most, max(numbers[-1] + 1, numbers[-1] * 5 // 4)))
    return numbers
