r"""The rank of answers, and whether their singular values support it.

Logits are $y = W_U x + c$ with x of size h: after the mean over prompts is taken away, answers to n
> h prompts have rank h and no more. Errors of size $\sigma$, independent from entry to entry, have
singular values up to $\sigma(\sqrt{V} + \sqrt{n})$ (Marchenko and Pastur), so that the rank is seen
where values stop well above that edge and the rest looks like such errors, or is what arithmetic
leaves. Directions that move answers by less than the errors are not seen by anybody.

The rank is that of x where a norm before the projection leaves all directions (none, RMSNorm), and
one less where it takes the mean away (LayerNorm): a LayerNorm of size h without bias answers
exactly as an RMSNorm of size h - 1, so that the size is told for each, and not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector
from keyhole.learners.logits.number_formats import ARITHMETIC

# Errors of singular values add to the values of the smallest directions: three times the next.
SUPPORTED = 3.0
_GAPS = 6  # the widest gaps are looked at: outlying directions make gaps of their own
_WHITE = 1.1  # the largest value of white noise is at most this times the edge, all sizes tried
_TAIL = 8  # values that must stand behind the gap, or nothing can be said of their shape
# A tail above this times the errors that are known of holds more than errors.
_KNOWN = 1.2


@dataclass(frozen=True, eq=False, slots=True)
class Spectrum:
    """Singular values of answers without their mean, and what they support.

    Args:
        values: the singular values, from the largest.
        rank: of the answers; None where no gap supports one.
        gap: how many times larger the last value of the rank is than the next.
        prompts: how many were asked.
        deviation: standard deviation of what stands behind the gap, by entry.
        reason: why the rank is stated, or why it is not.
        basis: orthonormal rows that span the answers, rank x vocabulary; none without a rank.
        coordinates: of every prompt in that basis.
        mean: of the answers over prompts.
    """

    values: Vector
    rank: int | None
    gap: float
    prompts: int
    deviation: float
    reason: str
    basis: Matrix
    coordinates: Matrix
    mean: Vector

    @property
    def error(self) -> float:
        """Sine of the largest angle between the basis and the space it stands for, about."""
        return 1.0 / self.gap if self.rank is not None else 1.0


def find_rank(answers: Matrix, *, error: float = 0.0) -> Spectrum:
    """The rank of answers (prompts x vocabulary), where their singular values support one.

    Args:
        answers: one row per prompt.
        error: standard deviation of the errors of an answer that are known of: what was declared,
            and what the number format of answers leaves; 0 for none but those of arithmetic.
    """
    prompts, vocabulary = answers.shape
    mean = answers.mean(axis=0)
    centred = answers - mean
    triangle = _reduce_to_triangle(centred)
    values = np.linalg.svd(triangle, compute_uv=False).astype(np.float64)
    # Without its mean a batch has a direction less.
    values = values[: max(1, min(prompts - 1, vocabulary - 1))]
    errors = error, ARITHMETIC * float(np.abs(answers).max())
    widest = _list_widest_gaps(values)
    refusals = [_doubt_gap(values, rank, gap, answers.shape, errors) for rank, gap in widest]
    chosen = refusals.index("") if "" in refusals else 0
    rank, gap = widest[chosen]
    deviation = _measure_tail(values, rank, answers.shape)
    if refusals[chosen]:
        nothing = np.empty((0, vocabulary)), np.empty((prompts, 0))
        return Spectrum(values, None, gap, prompts, deviation, refusals[chosen], *nothing, mean)
    reason = (
        f"{rank} singular values stand {gap:.1e} times above the other {len(values) - rank}, which"
        " are no larger than errors make them; a direction that moves answers by less than"
        f" {values[rank] / np.sqrt(prompts * vocabulary):.0e} would not be seen."
    )
    basis = _span_rows(centred, triangle, rank)
    seen = (values, rank, gap, prompts, deviation, reason)
    return Spectrum(*seen, basis, centred @ basis.T, mean)


# Vocabularies are much longer than batches: A = (Q R)^T has the singular values of R, and rows of A
# that R's leading directions add up span what A's span. Q is never formed, and nothing is squared.
def _reduce_to_triangle(rows: Matrix) -> Matrix:
    """The triangle R that has the singular values of `rows`."""
    wide = rows.shape[0] < rows.shape[1]
    triangle: Any = np.linalg.qr(rows.T if wide else rows, mode="r")
    return triangle


def _span_rows(rows: Matrix, triangle: Matrix, rank: int) -> Matrix:
    """Orthonormal rows that span the leading directions of `rows`."""
    directions = np.linalg.svd(triangle)[2][:rank]
    if rows.shape[0] >= rows.shape[1]:
        return directions
    return np.linalg.qr(rows.T @ directions.T)[0].T


def _list_widest_gaps(values: Vector) -> list[tuple[int, float]]:
    """How many values stand before each of the widest gaps, and how wide it is; widest first."""
    if len(values) < 2 or values[0] == 0.0:
        return [(0, 1.0)]
    # Values below the rounding of the largest are noise of the decomposition itself.
    floor = EPS * values[0]
    ratios = np.maximum(values[:-1], floor) / np.maximum(values[1:], floor)
    order = np.argsort(-ratios, kind="stable")[:_GAPS]
    return [(int(place) + 1, float(ratios[place])) for place in order]


def _measure_tail(values: Vector, rank: int, shape: tuple[int, int]) -> float:
    """The standard deviation of white noise with as much behind the gap as there is."""
    prompts, vocabulary = shape
    tail = values[rank:]
    room = max(1, prompts - 1 - rank) * max(1, vocabulary - rank)
    return float(np.sqrt((tail @ tail) / room))


def _doubt_gap(
    values: Vector, rank: int, gap: float, shape: tuple[int, int], errors: tuple[float, float]
) -> str:
    """Why a gap supports no rank; nothing where it does. Errors: known ones, and of arithmetic."""
    known, arithmetic = errors
    prompts, vocabulary = shape
    if rank == 0:
        return "the answers are the same for all prompts."
    tail = values[rank:]
    if gap < SUPPORTED:
        return (
            f"no gap is seen: singular values fall by no more than {gap:.2g} from one to the next,"
            f" and {SUPPORTED:g} is needed. {_advise_prompts(prompts, vocabulary)}"
        )
    if len(tail) < _TAIL:
        return (
            f"only {len(tail)} singular values stand behind the gap, and {_TAIL} are needed."
            f" {_advise_prompts(prompts, vocabulary)}"
        )
    deviation = _measure_tail(values, rank, shape)
    room = np.sqrt(prompts - 1 - rank) + np.sqrt(vocabulary - rank)
    # What arithmetic leaves has a shape of its own, and is told by its size.
    if known < arithmetic and tail[0] <= arithmetic * room:
        return ""
    if tail[0] > _WHITE * deviation * room:
        return (
            f"what stands behind the widest gap ({gap:.2g}) is not white noise: its largest value"
            f" is {tail[0] / (deviation * room):.2g} times what noise of its size has."
        )
    if deviation > _KNOWN * max(known, arithmetic):
        return (
            f"what stands behind the widest gap ({gap:.2g}) is"
            f" {deviation / max(known, arithmetic):.2g} times as large as the errors of the answers"
            " that are known of: directions may be hidden in it. Declare --noise or --decimals if"
            " the target has them."
        )
    if values[rank - 1] < SUPPORTED * known * room:
        return (
            f"the errors of the answers alone reach {known * room / values[rank - 1]:.2g} times as"
            " far as the directions before the widest gap: they are too coarse."
        )
    return ""


def _advise_prompts(prompts: int, vocabulary: int) -> str:
    if prompts > vocabulary + _TAIL:
        return f"The answers may have the rank of the vocabulary, {vocabulary}, or errors hide it."
    return f"{prompts} prompts were asked; more may show one."


def name_sizes(rank: int) -> dict[str, int]:
    """The hidden size that a rank means under each kind of last norm."""
    return {"none": rank, "rms": rank, "layer": rank + 1}
