"""How far rounding may move a sum of answers: the error bar of an identity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, FORMATS, Array, Mask, Matrix, Vector
from keyhole.oracles import Imperfection

_ROUNDINGS = 512.0  # of float64, in a sum of answers of one scale
_DECLARED_ROUNDINGS = 64.0  # of a declared, wider rounding, which arithmetic inside may have too
_GRAINS = 64.0  # of the last binary digit that answers of a scale have
_DEVIATIONS = 6.0  # of declared noise, beyond which no answer is
_APART = 64.0  # times the error bar of rounding: what differs
_COARSELY_APART = 4.0  # times that of a format or a declared error, whose size is known
_SHAKES = 128.0  # parts of the unit of rounding by which last digits move an answer
_ALTOGETHER = 1e9  # times the answers themselves: parts inside that large would be needed
_SAME_SCALE = 3.0
_STEEP = 1e3  # how much faster than its token an answer grows that is no linear one
_NARROW = ("bf16", "f16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coarseness:
    """What is known of the rounding of answers.

    Args:
        unit: rounding of arithmetic, relative to the largest answer of a scale.
        relative: error of the format answers are cast to.
        absolute: error that does not shrink with an answer.
    """

    unit: float = _ROUNDINGS * EPS
    relative: float = 0.0
    absolute: float = 0.0

    @property
    def coarse(self) -> bool:
        """Whether answers lack so many digits that pairs of tokens tell little of scores."""
        return self.relative > 0 or self.absolute > 0


def describe_coarseness(stated: Imperfection, seen: Imperfection | None = None) -> Coarseness:
    """The coarseness of answers by what is declared, and by what is seen of them."""
    both = stated if seen is None else stated.combined(seen)
    narrow = both.format in _NARROW
    noise = np.inf if np.isnan(both.noise) else _DEVIATIONS * both.noise
    # Subnormal numbers are rounded to their spacing, however small they are.
    grain = FORMATS[both.format].grain if narrow else 0.0
    return Coarseness(
        unit=max(_ROUNDINGS * EPS, 0.0 if narrow else _find_unit(both)),
        relative=FORMATS[both.format].roundoff if narrow else 0.0,
        absolute=both.tolerance + noise + grain,
    )


def _find_unit(stated: Imperfection) -> float:
    widest = max(stated.roundoff, FORMATS[stated.format].roundoff)
    return _DECLARED_ROUNDINGS * widest if widest > EPS else 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Band:
    """Per output, or pair of outputs: what rounding explains, and what it leaves open at most."""

    tolerance: Array
    allowed: Array


@dataclass(frozen=True, eq=False, slots=True)
class ErrorBar:
    r"""What answers of a run tell of their rounding.

    $$\text{tol} = u \max(\max_i |a_i| M_i, \tfrac14 \textstyle\sum |a_i| M_i, \sum |a_i f_i|)
    + 64 \sum |a_i| q_i + \text{format}$$

    M is the largest answer at tokens of that scale, or at longer ones scaled down; q is the last
    binary digit of answers of the scale, as what cancels inside a target shows as digits missing.

    Args:
        coarseness: rounding, format and declared errors.
        reaches: the longest token of each question.
        lone: whether that is its only token.
        sizes: the largest number of each answer.
        digits: value of the last binary digit of each number, infinite for 0.
        superlinear: whether lone answers grow faster than tokens, so that far ones tell nothing.
        slope: what cancels inside the target, per length of token, where that was seen.
    """

    coarseness: Coarseness
    reaches: Vector
    lone: Mask
    sizes: Vector
    digits: Matrix
    superlinear: bool
    slope: float = 0.0

    def measure_sizes(self, scales: Vector) -> Vector:
        """M: the largest answers expected inside the target, at tokens of each of these lengths."""
        # The zero token is near to everything; what it is divided by does not matter.
        lengths = np.where(self.reaches > 0, self.reaches, 1.0)
        shrunk = 0.0 if self.superlinear else scales[:, None] / lengths
        near = self.reaches <= _SAME_SCALE * scales[:, None]
        sizes = self.sizes * np.where(near, 1.0, shrunk)
        return np.maximum(sizes.max(axis=1), self.slope * scales)

    def measure_digits(self, scales: Vector, lone: Mask) -> Matrix:
        """q: per length of token and output, the last binary digit of answers there.

        Lone tokens apart from others: what cancels in the ones may show in the others.
        """
        ratios = self.reaches / np.where(scales > 0, scales, 1.0)[:, None]
        here = (ratios >= 1.0 / _SAME_SCALE) & (ratios <= _SAME_SCALE)
        here &= self.lone == lone[:, None]
        least = np.where(here[:, :, None], self.digits, np.inf).min(axis=1)
        return np.where(np.isfinite(least), least, 0.0)

    def steepen(self, question: Matrix, change: float) -> ErrorBar:
        """The same once a question with its last digits changed had an answer that far away.

        A sum of large parts that cancel is rounded as these parts are, which shows in no answer.
        """
        if self.coarseness.coarse:
            return self
        inside = change * _SHAKES / self.coarseness.unit
        return replace(self, slope=inside / float(measure_reaches([question])[0]))

    @property
    def erratic(self) -> bool:
        """Whether last digits of a token changed its answer altogether."""
        some = self.reaches > 0
        steepest = float((self.sizes[some] / self.reaches[some]).max(initial=0.0))
        return self.slope > _ALTOGETHER * steepest

    def divide(self, unit: float) -> ErrorBar:
        """The same for answers divided by a unit."""
        return replace(
            self,
            coarseness=replace(self.coarseness, absolute=self.coarseness.absolute / unit),
            sizes=self.sizes / unit,
            digits=self.digits / unit,
            slope=self.slope / unit,
        )

    def keep_outputs(self, count: int) -> ErrorBar:
        """The same for the first outputs alone."""
        return replace(self, digits=self.digits[:, :count])

    def bound_sum(self, weights: Vector, questions: Sequence[Matrix], answers: Matrix) -> Band:
        """The band of the sum of weighted answers to these questions."""
        weights = np.abs(weights)
        scales = _replace_zeros(measure_reaches(questions))
        sizes, digits = self.measure_sizes(scales), self.measure_digits(scales, are_lone(questions))
        top = float((weights * sizes).max())
        mass = weights @ np.abs(answers)
        inside = np.maximum(max(top, float(weights @ sizes) / 4), mass)
        exact = self.coarseness.unit * inside + _GRAINS * (weights @ digits)
        coarse = self.coarseness.relative * np.maximum(top, mass)
        coarse = coarse + float(weights.sum()) * self.coarseness.absolute
        return Band(exact + coarse, _APART * exact + _COARSELY_APART * coarse)


def _replace_zeros(reaches: Vector) -> Vector:
    """Reaches with that of the zero token replaced by the least other one."""
    positive = reaches[reaches > 0]
    return np.where(reaches > 0, reaches, positive.min()) if len(positive) else reaches


def measure_reaches(questions: Iterable[Matrix]) -> Vector:
    """Length of the longest token of each question."""
    return np.array([np.sqrt((tokens**2).sum(axis=1).max()) for tokens in questions])


def are_lone(questions: Iterable[Matrix]) -> Mask:
    """Which questions are one token long."""
    return np.array([len(tokens) == 1 for tokens in questions])


def measure_error_bar(
    questions: Sequence[Matrix], answers: Sequence[Vector], coarseness: Coarseness
) -> ErrorBar:
    """The error bar that these answers support."""
    reaches = measure_reaches(questions)
    table = np.array(answers)
    sizes = np.abs(table).max(axis=1)
    lone = are_lone(questions)
    # Digits that a format cuts off say nothing of what cancelled.
    digits = find_last_digits(table) if coarseness.relative == 0 else np.full(table.shape, np.inf)
    return ErrorBar(
        coarseness,
        reaches,
        lone,
        sizes,
        digits,
        _is_superlinear(reaches[lone], sizes[lone]),
    )


def _is_superlinear(reaches: Vector, sizes: Vector) -> bool:
    """Whether answers to far lone tokens exceed those near by far more than the tokens do."""
    if not reaches.any():
        return False
    unit = float(np.median(reaches[reaches > 0]))
    near = reaches <= _SAME_SCALE * unit
    far = sizes[~near] * (unit / reaches[~near])
    return bool(far.max(initial=0.0) > _STEEP * sizes[near].max(initial=0.0))


def find_last_digits(numbers: Array) -> Array:
    """The largest power of two that divides each number, infinite for 0."""
    fraction, exponent = np.frexp(numbers)
    whole = np.ldexp(fraction, 53).astype(np.int64)
    last = (whole & -whole).astype(np.float64)
    return np.where(numbers == 0, np.inf, np.ldexp(last, exponent - 53))
