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

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyhole._arrays import EPS, Indices, Matrix, Vector
from keyhole.learners.logits.number_formats import ARITHMETIC

# Errors of singular values add to the values of the smallest directions: three times the next.
SUPPORTED = 3.0
_GAPS = 6  # the widest gaps are looked at: outlying directions make gaps of their own
_WHITE = 1.1  # the largest value of white noise is at most this times the edge, all sizes tried
_TAIL = 8  # values that must stand behind the gap, or nothing can be said of their shape
_ALIKE = 10.0  # ids that differ by less than so many times what is known of them are alike
_ERRORS = 4.0  # a direction this many times as near to a space as the space is known is in it
_EQUAL = 1e-6  # and so are those that differ by less of the largest move
_ROUNDING = 1e-9  # what is known exactly is known to this, and a direction no nearer is another
_AT_ONCE = 1 << 32  # products that one call of a decomposition may take
_ALONE = 1e-6  # of a direction, what other prompts have of it where it belongs to one
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


def find_rank(
    answers: Matrix, *, error: float = 0.0, spread: float = 1.0, asked: int = 0
) -> Spectrum:
    """The rank of answers (prompts x vocabulary), where their singular values support one.

    Args:
        answers: one row per prompt.
        error: standard deviation of the errors of an answer that are known of: what was declared,
            and what the number format of answers leaves; 0 for none but those of arithmetic.
        spread: how much further the singular values of such errors reach than those of equal ones.
        asked: how many prompts it took, where some were answered alike and stand here once.
    """
    centred, mean = _take_mean_away(answers)
    own, copies = choose_own_columns(centred)
    seen = centred[:, own]
    shape = prompts, vocabulary = seen.shape
    triangle = _reduce_to_triangle(seen)
    values = np.linalg.svd(triangle, compute_uv=False).astype(np.float64)
    # Without its mean a batch has a direction less.
    values = values[: max(1, min(prompts - 1, vocabulary - 1))]
    errors = error, spread, ARITHMETIC * float(np.abs(answers[:, own]).max())
    widest = _list_widest_gaps(values)
    more = _advise_prompts(max(asked, prompts), vocabulary)
    refusals = [_doubt_gap(values, rank, gap, shape, errors, more) for rank, gap in widest]
    chosen = refusals.index("") if "" in refusals else 0
    rank, gap = widest[chosen]
    deviation = _measure_tail(values, rank, shape)
    known = (values, rank, gap, prompts, deviation)
    if refusals[chosen]:
        nothing = np.empty((0, answers.shape[1])), np.empty((prompts, 0))
        return Spectrum(values, None, *known[2:], refusals[chosen], *nothing, mean)
    reason = (
        f"{rank} singular values stand {gap:.1e} times above the other {len(values) - rank}, which"
        " are no larger than errors make them; a direction that moves answers by less than"
        f" {values[rank] / np.sqrt(prompts * vocabulary):.0e} would not be seen, nor one that"
        f" fewer than {3.0 / max(asked, prompts):.1%} of prompts use."
    )
    basis = _repeat_columns(_span_rows(seen, triangle, rank), copies)
    spectrum = Spectrum(*known, reason, basis, _read_coordinates(centred, basis), mean)
    alone = _doubt_prompts(spectrum)
    return withdraw_rank(spectrum, alone) if alone else spectrum


def withdraw_rank(spectrum: Spectrum, reason: str) -> Spectrum:
    """The spectrum without its rank, and why."""
    return replace(
        spectrum,
        rank=None,
        reason=reason,
        basis=spectrum.basis[:0],
        coordinates=spectrum.coordinates[:, :0],
    )


def _take_mean_away(answers: Matrix) -> tuple[Matrix, Vector]:
    """Answers less their mean over prompts, and that; what is always the same becomes 0 exactly."""
    moved = answers - answers[0]
    shift = moved.mean(axis=0)
    return moved - shift, answers[0] + shift


# Ids that are answered alike, as those that are masked or stand for padding, are off by the same
# where answers are rounded, and so many equal errors look like a direction: each is looked at once.
def choose_own_columns(centred: Matrix) -> tuple[Indices, Indices]:
    """The columns that are unlike all before them and not 0; and for all which one it is, or -1."""
    first = {hash_numbers(np.zeros(len(centred))): -1}
    places: list[int] = []
    copies = np.empty(centred.shape[1], dtype=np.intp)
    for place, column in enumerate(np.ascontiguousarray(centred.T)):
        copies[place] = first.setdefault(hash_numbers(column), len(places))
        if copies[place] == len(places):
            places.append(place)
    # Where all is 0 there is one column all the same.
    return np.asarray(places or [0], dtype=np.intp), copies


def hash_numbers(numbers: Vector) -> bytes:
    """The same for equal numbers alone."""
    return hashlib.blake2b(numbers.tobytes(), digest_size=16).digest()


def _repeat_columns(basis: Matrix, copies: Indices) -> Matrix:
    """The space of all ids from that of those that were looked at, orthonormal again."""
    if len(copies) == basis.shape[1]:
        return basis
    padded = np.concatenate([basis, np.zeros((len(basis), 1))], axis=1)
    return np.linalg.qr(padded[:, copies].T)[0].T


# Rows of a projection that are alike or nothing (padding) are fewer than there are ids: of fewer
# than the hidden size the rank is theirs.
def doubt_ids(spectrum: Spectrum) -> str:
    """Why the rank may be the number of ids that differ; nothing where more of them do."""
    rank, vocabulary = spectrum.basis.shape
    needed = rank + _TAIL
    if not rank or _count_different_ids(spectrum, needed) >= needed:
        return ""
    return (
        f"the answers have rank {rank}, but of {vocabulary} ids fewer than {needed} are answered"
        " unlike all others and not always alike: it may be their number that is seen."
    )


# Where few prompts go another way (another expert, another head), each adds one direction, and what
# they would span together is not seen. Such a direction belongs to one prompt: its leverage is 1.
def _doubt_prompts(spectrum: Spectrum) -> str:
    """Why more directions are to be expected; nothing where each is seen in several prompts."""
    aligned = np.linalg.qr(spectrum.coordinates)[0]
    # The mean is a direction of its own, of which all have an equal part.
    shares = 1.0 - 1.0 / spectrum.prompts - (aligned**2).sum(axis=1)
    alone = int((shares <= max(_ALONE, (2.0 / spectrum.gap) ** 2)).sum())
    if not alone:
        return ""
    return (
        f"{spectrum.rank} directions stand out, but {alone} of {spectrum.prompts} prompts have one"
        " to themselves: more prompts may show more directions."
    )


def _count_different_ids(spectrum: Spectrum, most: int) -> int:
    """How many ids move in ways of their own, counted up to `most`."""
    rank = len(spectrum.basis)
    # By how much an id moves in each direction, and to how much that is known.
    moves = spectrum.basis.T * (spectrum.values[:rank] / np.sqrt(spectrum.prompts))
    known = _ALIKE * spectrum.deviation * np.sqrt(2.0 * rank / spectrum.prompts)
    known += _EQUAL * float(np.abs(moves).max())
    # Those that move most are as many as are needed, in most models.
    largest = np.argsort(-(moves**2).sum(axis=1), kind="stable")[: 2 * most]
    count = _count_unlike(moves[largest], known, most)
    return count if count == most else _count_unlike(moves, known, most)


def _count_unlike(moves: Matrix, known: float, most: int) -> int:
    """How many rows are farther than that from 0 and from each other; the farthest ones first."""
    squares = (moves**2).sum(axis=1)
    nearest = squares.copy()
    for count in range(most):
        farthest = int(nearest.argmax())
        if nearest[farthest] <= known**2:
            return count
        away = squares + squares[farthest] - 2.0 * (moves @ moves[farthest])
        nearest = np.minimum(nearest, away)
    return most


# Vocabularies are much longer than batches: A = (Q R)^T has the singular values of R, and rows of A
# that R's leading directions add up span what A's span. Q is never formed, and nothing is squared.
def _reduce_to_triangle(rows: Matrix) -> Matrix:
    """The triangle R that has the singular values of `rows`."""
    tall = rows.T if rows.shape[0] < rows.shape[1] else rows
    triangle: Any = np.linalg.qr(tall[:0], mode="r")
    for part in _cut_rows(tall):
        triangle = np.linalg.qr(np.concatenate([triangle, part]), mode="r")
    return triangle


# One call for a long vocabulary would take minutes, in which no Ctrl-C is heard.
def _cut_rows(tall: Matrix) -> Iterator[Matrix]:
    """A tall matrix in parts that take about a second each."""
    count, width = tall.shape
    size = count if count * width**2 <= _AT_ONCE else 3 * width
    for start in range(0, count, size):
        yield tall[start : start + size]


def _span_rows(rows: Matrix, triangle: Matrix, rank: int) -> Matrix:
    """Orthonormal rows that span the leading directions of `rows`."""
    _, values, right = np.linalg.svd(triangle)
    directions = right[:rank]
    if rows.shape[0] >= rows.shape[1]:
        return directions
    # Orthonormal but for rounding, which a triangle takes away.
    scaled = directions.T / values[:rank]
    span = np.concatenate([part @ scaled for part in _cut_rows(rows.T)])
    back = np.linalg.inv(_reduce_to_triangle(span))
    return np.concatenate([part @ back for part in _cut_rows(span)]).T


def _read_coordinates(centred: Matrix, basis: Matrix) -> Matrix:
    """Of every prompt in a basis."""
    size = max(1, _AT_ONCE // basis.size)
    starts = range(0, len(centred), size)
    return np.concatenate([centred[start : start + size] @ basis.T for start in starts])


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
    values: Vector,
    rank: int,
    gap: float,
    shape: tuple[int, int],
    errors: tuple[float, float, float],
    advice: str,
) -> str:
    """Why a gap supports no rank; nothing where it does.

    Errors: known ones and how unequal they are, and those of arithmetic.
    """
    known, spread, arithmetic = errors
    prompts, vocabulary = shape
    if rank == 0:
        return "the answers are the same for all prompts."
    tail = values[rank:]
    if gap < SUPPORTED:
        return (
            f"no gap is seen: singular values fall by no more than {gap:.2g} from one to the next,"
            f" and {SUPPORTED:g} is needed. {advice}"
        )
    if len(tail) < _TAIL:
        return (
            f"only {len(tail)} singular values stand behind the gap, and {_TAIL} are needed."
            f" {advice}"
        )
    deviation = _measure_tail(values, rank, shape)
    room = np.sqrt(prompts - 1 - rank) + np.sqrt(vocabulary - rank)
    # What arithmetic leaves has a shape of its own, and is told by its size.
    if known < arithmetic and tail[0] <= arithmetic * room:
        return ""
    if tail[0] > _WHITE * spread * deviation * room:
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
        return (
            f"The answers may have the rank of the vocabulary, {vocabulary} ids that are not"
            " answered like others, or errors hide it."
        )
    return f"{prompts} prompts were asked; more may show one."


# A vector of ones is no sum of columns of a projection but by chance; in log-probabilities it is,
# since the logarithm of a sum is taken from all ids of a prompt.
def holds_common_shift(spectrum: Spectrum) -> bool:
    """Whether one direction of the answers is a number that all ids of a prompt share."""
    rank, vocabulary = spectrum.basis.shape
    shift = np.full(vocabulary, 1.0 / np.sqrt(vocabulary))
    outside = float(np.linalg.norm(shift - (spectrum.basis @ shift) @ spectrum.basis))
    allowed = _ERRORS * spectrum.error + _ROUNDING
    # By chance, a direction is so far from a space that is as large as this one.
    return bool(rank and outside <= allowed and 3.0 * allowed < np.sqrt(1.0 - rank / vocabulary))


def name_sizes(rank: int) -> dict[str, int]:
    """The hidden size that a rank means under each kind of last norm."""
    return {"none": rank, "rms": rank, "layer": rank + 1}
