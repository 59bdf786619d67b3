r"""Fresh labels: what agreement on labels is worth.

Most sequences are far from where the label changes, and agreement there says little. So half of the
fresh ones are moved along a segment until the model's own answer is a chosen small share of the
token values: its **margin**, $|\hat f(X)| / \max_i |x_i|$ with columns of V of norm 1. A model that
is wrong by more than the margin gets half of such labels wrong.

How small a margin may be follows from how well W and V are known. A change of scores by at most
$\delta$ moves f by at most $2 \delta \sum_i \alpha_i |x_i \cdot v - f|$ while $\delta$ is small; an
error of v, relative to its norm, moves the margin by no more than itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Mask, Matrix, Sequences, Stack, Vector, pin_one_thread, softmax
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Fresh
from keyhole.learners.labels.bisection import Indices, Voter
from keyhole.learners.verifying.examination import Asked
from keyhole.learners.verifying.questions import CALLS, Batch, Limits, draw_questions, read_limits
from keyhole.learners.verifying.questions import QUERIES as _PLAIN
from keyhole.models import Head

_NEAREST = 1.5  # the smallest margins aimed at, in units of the resolution
_PARTS, _STEPS = 16, 13  # cuts of a segment, 52 binary digits in all
_SMALL = 8  # single tokens so short that a constant would decide their label
QUERIES = _PLAIN - CALLS + _SMALL


@dataclass(frozen=True, slots=True)
class Resolution:
    """How well a head is known.

    Args:
        W: bound on the Frobenius error of W.
        V: bound on the relative error of a column of V.
        roundoff: rounding of the target's arithmetic.
    """

    W: float
    V: float
    roundoff: float

    def of(self, head: Head, X: Sequences) -> Matrix:
        """The least margin at which a label is sure; infinite where scores are not known."""
        longest = _measure_longest_tokens(X)[:, None]
        doubt = longest * np.linalg.norm(X[:, -1:], axis=2)
        doubt *= 2 * self.W + 16 * self.roundoff * float(np.linalg.norm(np.asarray(head.W)))
        spread = np.abs(X @ head.V - head(X)[:, None]) * softmax(head.scores(X))[..., None]
        moved = 2 * doubt * _divide_by_lengths(spread.sum(axis=1), longest)
        least = moved + self.V + 16 * self.roundoff
        # Beyond a tenth the bound, linear in the doubt, is none.
        return np.where(doubt < 0.1, least, np.inf)


def _measure_longest_tokens(X: Sequences) -> Vector:
    return np.linalg.norm(X, axis=2).max(axis=1)


def _divide_by_lengths(numbers: Matrix, lengths: Matrix) -> Matrix:
    """Quotients, 0 where the length is."""
    return np.divide(numbers, lengths, out=np.zeros_like(numbers), where=lengths > 0)


def measure_margins(head: Head, X: Sequences) -> Matrix:
    """|f| over the longest token, per sequence and output; 0 for sequences of zeros."""
    return _divide_by_lengths(np.abs(head(X)), _measure_longest_tokens(X)[:, None])


def approach_boundary(
    head: Head, X: Sequences, output: int, wanted: Vector, *, rng: np.random.Generator
) -> Stack:
    """Sequences like `X` whose margin is about `wanted`, on a random side.

    f(-X) = -f(X), so one of two drawn sequences can be turned to have a positive and the other a
    negative answer; the place between them is found with the model, by cutting the segment into
    parts again and again.
    """
    with pin_one_thread():
        other = rng.permutation(X, axis=1) @ np.linalg.qr(rng.normal(size=(head.width,) * 2))[0]
    ends = [
        Z * np.where(head(Z)[:, output] > 0, sign, -sign)[:, None, None]
        for Z, sign in ((X, 1.0), (other, -1.0))
    ]
    level = wanted * _measure_longest_tokens(X) * rng.choice([-1.0, 1.0], size=len(X))
    at = np.zeros(len(X))
    step = 1.0
    repeated = [np.repeat(end, _PARTS - 1, axis=0) for end in ends]
    for _ in range(_STEPS):
        step /= _PARTS
        cuts = at[:, None] + step * np.arange(1, _PARTS)
        tried = _interpolate_ends(repeated, cuts.ravel())
        above = head(tried)[:, output].reshape(cuts.shape) > level[:, None]
        at = at + step * np.cumprod(above, axis=1).sum(axis=1)
    return _interpolate_ends(ends, at)


def _interpolate_ends(ends: list[Stack], at: Vector) -> Stack:
    return (1 - at)[:, None, None] * ends[0] + at[:, None, None] * ends[1]


def _shorten_tokens(X: Sequences, bound: float) -> Stack:
    longest = _measure_longest_tokens(X)
    return X * np.minimum(1.0, bound / np.where(longest > 0, longest, 1.0))[:, None, None]


def draw_label_questions(
    head: Head,
    resolution: Resolution,
    bound: float,
    limits: Limits,
    *,
    rng: np.random.Generator,
) -> Iterator[Batch]:
    """Fresh questions, every other moved near the boundary, then very short tokens."""
    seeing = np.flatnonzero(head.V.any(axis=0))
    scale = 1.0
    for drawn in draw_questions(head, limits, rng=rng):
        # A doubtful label is asked again by itself.
        batch = drawn.keep([*range(len(drawn.X) - 1)])
        Y = _shorten_tokens(batch.X, bound)
        length = batch.length
        near = (np.arange(len(Y)) + length) % 2 == 0
        if seeing.size:
            output = int(seeing[length % seeing.size])
            least = np.clip(_NEAREST * resolution.of(head, Y[near])[:, output], 1e-15, 1e-2)
            wanted = least * (1e-2 / least) ** (rng.random(len(least)) ** 3)
            moved = approach_boundary(head, Y[near], output, wanted, rng=rng)
            Y[near] = _shorten_tokens(moved, bound)
        scale = min(scale, float(np.abs(Y).max()) or scale)
        yield Batch(Y, batch.kinds)
    x = rng.normal(size=(_SMALL // 2, 1, head.width)) * scale * 2.0**-40
    yield Batch(np.concatenate([x, -x]), ("very short",) * _SMALL)


@dataclass(slots=True)
class Sighting:
    """What fresh labels show, one batch after another.

    Args:
        voter: who is asked.
        head: the model.
        resolution: how well it is known.
        rest: the label of answers that are zero, per output.
    """

    voter: Voter
    head: Head
    resolution: Resolution
    rest: Mask
    wrong: list[Counterexample] = field(default_factory=list[Counterexample], init=False)
    least: float = field(default=np.inf, init=False)
    asked: int = field(default=0, init=False)
    sure: int = field(default=0, init=False)
    flips: int = field(default=0, init=False)
    complete: bool = field(default=False, init=False)
    kinds: list[Asked] = field(default_factory=list[Asked], init=False)

    def look(self, bound: float, *, rng: np.random.Generator) -> None:
        """Ask fresh labels of tokens up to a norm, and compare, as far as the budget goes."""
        try:
            limits = read_limits(self.voter.oracle)
            for batch in draw_label_questions(self.head, self.resolution, bound, limits, rng=rng):
                self._compare(batch.X)
                self.kinds += [Asked(kind, batch.length, 0.0, 0.0) for kind in batch.kinds]
            self.complete = True
        except BudgetSpent:
            pass

    def _compare(self, X: Stack) -> None:
        margin = measure_margins(self.head, X)
        blind = ~self.head.V.any(axis=0)
        predicted = np.where(blind, self.rest, self.head(X) > 0)
        counts = (margin > self.resolution.of(self.head, X)) | blind
        labels = self.voter.ask(X)
        self._recount(X, labels, np.flatnonzero((counts & (labels != predicted)).any(axis=1)))
        self.asked += len(X)
        self.sure += int(counts.any(axis=1).sum())
        agreed = margin[counts & (labels == predicted) & ~blind]
        self.least = min(self.least, float(agreed.min(initial=np.inf)))
        self.wrong += [
            Counterexample(X[n], self.voter.coded(labels[n]), self.voter.coded(labels[n] ^ wrong))
            for n, wrong in enumerate(counts & (labels != predicted))
            if wrong.any()
        ]

    def _recount(self, X: Stack, labels: Mask, at: Indices) -> None:
        """Ask sequences of unexpected labels twice more, and set right those that were flipped."""
        if at.size:
            once, twice = (self.voter.ask(X[at]) for _ in range(2))
            flipped = ((once == twice) & (once != labels[at])).any(axis=1)
            labels[at[flipped]] = once[flipped]
            self.flips += int(flipped.sum())

    @property
    def worst(self) -> Counterexample | None:
        """The shortest sequence whose label is wrong though its margin is sure."""
        return min(self.wrong, key=lambda case: len(case.tokens), default=None)

    @property
    def fresh(self) -> Fresh | None:
        """How many labels were asked, and the least margin at which one agreed."""
        least = self.least if np.isfinite(self.least) else 0.0
        return Fresh(self.asked, least, least) if self.asked else None
