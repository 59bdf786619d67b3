r"""How far number formats move scores, and the scale and blank that keep labels right.

A unit scores every tuple of tokens by scale x (1 - shortfall) and the blank token by something in
between. Let rho be the most that rounding moves a score, in units of the scale. Where a tuple fits,
its score is at least low = scale (1 - rho); where none does, at most high = scale (1 - gap + rho).
With the blank score in between,

$$\text{matched} \ge \frac{1}
{1 + e^{\mathrm{blank} - \mathrm{low}} + \mathrm{mixed}\, e^{-\mathrm{low}}},
\qquad \text{unmatched} \le n\, e^{\mathrm{high} - \mathrm{blank}}$$

for n tuples, and mixed ones, of tokens and blanks, that score 0 with value 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from keyhole._arrays import Stack
from keyhole.constructions.shared.base import Evaluate
from keyhole.models.numbers import NumberFormat, evaluate
from keyhole.models.stack import Layer

# Of float64, in which everything is added up.
U = 2.0**-53
# Error of an angle, in radians: see `rotate_residues`.
ANGLE = 4 * U


def is_fixed(form: NumberFormat) -> bool:
    """Whether numbers are evenly spaced."""
    return form.name.startswith("fixed")


def is_rounding(form: NumberFormat) -> bool:
    """Whether the format rounds more than float64 arithmetic does."""
    return form.name not in ("f64", "exact")


def choose_evaluation(form: NumberFormat) -> Evaluate | None:
    """How layers are evaluated: fixed point as [SHT23] counts bits, others as machines round."""
    if not is_rounding(form):
        return None

    def rounded(layer: Layer, tokens: Stack) -> Stack:
        return evaluate(cast(Any, layer), tokens, form, inner=not is_fixed(form))

    return rounded


# A token is a complex number of modulus 1 for each frequency, and a score the real part of a
# product of `order` of them, averaged. Rounding each to the format moves it by at most e (u for
# floats, sqrt(2) h for spacing 2h), the product by (1 + e)^order - 1. Floats also round, once each,
# the product of the keys, where there are several, and the score; the terms of one score add up to
# at most 2^{order/2 - 1} in modulus. Scales are powers of two and round nothing. Float64 itself
# rounds each of the factors and each of the sums. An angle wrong by tau moves the cosine of a sum
# that falls short by s by at most order tau sqrt(2 s): see `narrow_gap`.
def bound_moved_score(form: NumberFormat, order: int, terms: int) -> float:
    """The most that rounding moves a score, in units of the scale.

    Args:
        form: the number format.
        order: numbers that meet in one term of a score.
        terms: terms of a score.
    """
    spread = 2.0 ** (order / 2 - 1)
    own = (order + spread * (order - 1 + terms)) * U * 1.01
    if not is_rounding(form):
        return own
    half = form.spacing / 2
    if is_fixed(form):
        return (1 + math.sqrt(2) * half) ** order - 1 + own
    # Order 2 has one key a term: there is no product of keys to round.
    products = spread * half if order > 2 else 0.0
    return ((1 + half) ** order - 1 + products + half) * 1.01 + own


def narrow_gap(gap: float, order: int) -> float:
    """The gap that is left when angles are wrong by a few units of rounding."""
    return gap - order * ANGLE * math.sqrt(2 * gap)


@dataclass(frozen=True, slots=True)
class Scores:
    """A scale, a blank score, and what is proven of answers with them.

    Args:
        scale: score of a tuple that fits.
        unit: weight of a query, a power of two.
        blank: score of the blank token.
        margin: the least distance of a score from the blank score, rounding counted.
        needed: the margin the proof asks for, ln 8n.
        matched: an answer to a match is at least 1 minus this.
        unmatched: an answer to no match is at most this.
    """

    scale: float
    unit: float
    blank: float
    margin: float
    needed: float
    matched: float
    unmatched: float

    @property
    def proven(self) -> bool:
        """Whether the margin suffices."""
        return self.margin >= self.needed


def choose_scores(
    gap: float,
    *,
    tuples: int,
    mixed: int,
    factor: int,
    rho: float,
    form: NumberFormat,
    lost: float | None = None,
) -> Scores:
    """The least scale, `factor` times a power of two, with margin enough; else the least.

    Args:
        gap: least shortfall of a tuple that does not fit, in units of the scale.
        tuples: n, tuples of tokens.
        mixed: tuples that score 0.
        factor: terms a score adds up where all are 1.
        rho: the most that rounding moves a score, in units of the scale.
        form: the number format.
        lost: what the rounding of weights and answers takes; as many as the tuples when None.
    """
    needed = math.log(8 * tuples)
    lost = bound_answer_rounding(form, tuples) if lost is None else lost
    first = math.ceil(math.log2(2 * needed / (gap * factor)))
    least = _build_scores(2.0**first, gap, tuples, mixed, factor, rho, form, lost)
    # No scale makes up for rounding of half the gap.
    if gap <= 2 * rho:
        return least
    rising = (
        _build_scores(2.0**power, gap, tuples, mixed, factor, rho, form, lost)
        for power in range(first, first + 24)
        # Scores beyond the range of the format would overflow, or saturate and be alike.
        if 2.0**power * factor <= form.range[1]
    )
    return next((one for one in rising if one.proven), least)


def _build_scores(
    unit: float,
    gap: float,
    tuples: int,
    mixed: int,
    factor: int,
    rho: float,
    form: NumberFormat,
    lost: float,
) -> Scores:
    scale = unit * factor
    blank = float(form.round(np.array([min(scale - scale * gap / 2, form.range[1])]))[0])
    # Exact, as the two are close.
    room = scale - blank
    # low - blank, and blank - high.
    above = room - scale * rho
    below = scale * (gap - rho) - room
    rest = _exp(-above) + mixed * _exp(scale * rho - scale)
    leak = tuples * _exp(-below)
    bounds = rest / (1 + rest) + lost, leak / (1 + leak) + lost
    return Scores(scale, unit, blank, min(above, below), math.log(8 * tuples), *bounds)


def _exp(power: float) -> float:
    # exp(710) overflows; a bound of e^700 says as little.
    return math.exp(min(power, 700.0))


def bound_answer_rounding(form: NumberFormat, tuples: int) -> float:
    """How far the rounding of weights and of the answer moves an answer between 0 and 1."""
    own = (tuples + 8) * U
    if not is_rounding(form):
        return own
    return own + (form.spacing / 2 if is_fixed(form) else 1.01 * form.spacing)
