r"""The rank of answers, and whether their singular values support it.

Logits are $y = W_U x + c$ with x of size h: after the mean over prompts is taken away, answers to n
> h prompts have rank h and no more. Errors of size $\sigma$, independent from entry to entry, have
singular values up to $\sigma(\sqrt{V} + \sqrt{n})$ (Marchenko and Pastur), so that the rank is seen
where values stop well above that edge and the rest looks like such errors.

The rank is that of x where a norm before the projection leaves all directions (none, RMSNorm), and
one less where it takes the mean away (LayerNorm): a LayerNorm of size h without bias answers
exactly as an RMSNorm of size h - 1, so that the size is told for each, and not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector

# Errors of singular values add to the values of the smallest directions: three times the next.
SUPPORTED = 3.0
# Errors of arithmetic have a shape of their own; below such a gap they must look like white noise.
SHARP = 1e4
_WHITE = 1.1  # the largest value of white noise is at most this times the edge, all sizes tried
_TAIL = 8  # values that must stand behind the gap, or nothing can be said of their shape
# A tail above this times the errors that were declared holds more than errors.
_DECLARED = 1.2


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
        error: standard deviation of the error of an answer that was declared, 0 for none.
    """
    prompts, vocabulary = answers.shape
    mean = answers.mean(axis=0)
    left, values, right = np.linalg.svd(answers - mean, full_matrices=False)
    # Without its mean a batch has a direction less.
    values = values[: max(1, min(prompts - 1, vocabulary - 1))]
    rank, gap = _find_widest_gap(values)
    deviation = _measure_tail(values, rank, answers)
    refusal = _doubt_gap(values, rank, gap, answers, (error, deviation))
    if refusal:
        nothing = np.empty((0, vocabulary)), np.empty((prompts, 0))
        return Spectrum(values, None, gap, prompts, deviation, refusal, *nothing, mean)
    reason = (
        f"{rank} singular values stand {gap:.1e} times above the other {len(values) - rank}, which"
        " are no larger than errors make them."
    )
    coordinates = left[:, :rank] * values[:rank]
    seen = (values, rank, gap, prompts, deviation, reason)
    return Spectrum(*seen, right[:rank], coordinates, mean)


def _find_widest_gap(values: Vector) -> tuple[int, float]:
    """The number of values before the widest gap, and how wide it is."""
    if len(values) < 2 or values[0] == 0.0:
        return 0, 1.0
    # Values below the rounding of the largest are noise of the decomposition itself.
    floor = EPS * values[0]
    ratios = np.maximum(values[:-1], floor) / np.maximum(values[1:], floor)
    rank = int(np.argmax(ratios)) + 1
    return rank, float(ratios[rank - 1])


def _measure_tail(values: Vector, rank: int, answers: Matrix) -> float:
    """The standard deviation of white noise with as much behind the gap as there is."""
    prompts, vocabulary = answers.shape
    tail = values[rank:]
    room = max(1, prompts - 1 - rank) * max(1, vocabulary - rank)
    return float(np.sqrt((tail @ tail) / room))


def _doubt_gap(
    values: Vector, rank: int, gap: float, answers: Matrix, errors: tuple[float, float]
) -> str:
    """Why the gap supports no rank; nothing where it does. Errors are declared, and measured."""
    error, deviation = errors
    prompts, vocabulary = answers.shape
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
    edge = deviation * (np.sqrt(prompts - 1 - rank) + np.sqrt(vocabulary - rank))
    if gap < SHARP and tail[0] > _WHITE * edge:
        return (
            f"what stands behind the widest gap ({gap:.2g}) is not white noise: its largest value"
            f" is {tail[0] / edge:.2g} times what noise of its size has."
        )
    if gap < SHARP and 0 < _DECLARED * error < deviation:
        return (
            f"what stands behind the widest gap ({gap:.2g}) is {deviation / error:.2g} times as"
            " large as the errors of the answers."
        )
    return ""


def _advise_prompts(prompts: int, vocabulary: int) -> str:
    if prompts > vocabulary + _TAIL:
        return f"The answers may have the rank of the vocabulary, {vocabulary}, or errors hide it."
    return f"{prompts} prompts were asked; more may show one."


def name_sizes(rank: int) -> dict[str, int]:
    """The hidden size that a rank means under each kind of last norm."""
    return {"none": rank, "rms": rank, "layer": rank + 1}
