r"""Score matrices of all heads: whole columns until no rank grows, then coordinates along ranges.

Columns $W_h y_j$ are measured along orthonormal $y_j$. Once those of every head are dependent their
range is known, and along the other $y_j$ only as many tokens x are asked as the ranks ask for. A
score bias is read with y = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, pin_one_thread, rms
from keyhole.learners.joint_heads.score_lengths import TARGET, Lengths, Scores, ScoreSizes

_LEAST, _MOST = 1.0 / 6.0, 3.0  # of their target: what the first scores may be
_SHARPEST = 0.7
_TRIES = 6
_RANK = 1e-9  # of the largest singular value of columns: what is below is rounding
_SPARE = 1  # columns beyond the largest rank that show it
_TRIED = 8  # tokens of a whole column over those that are tried before it
_OTHER = 0.8  # of the length of x, at which a column that is measured again is rounded otherwise
_ABOVE = 32.0  # of the noise of columns, from which on singular values count
_INSIDE = 1e-7  # of forms, what ranges leave of them
_CLEAR = 1e-11  # of the sum of squares of columns: no rounding makes dependent ones exceed it
_UNEVEN = 0.01  # smallest singular value kept, over the largest, below which one more helps


@dataclass(slots=True)
class ScoreColumns:
    """Columns of all score matrices measured so far.

    Args:
        scores: how they are measured.
        Y: orthonormal directions of last tokens, one per row.
        h: score biases, heads by width; None where none acts.
        C: columns measured, directions by heads by width.
        noise: root mean square of the error of a number of C, by head; 0 beside float64.
        still: lengths at which score biases were measured.
        refused: ranks of ranges for which no few tokens were found.
    """

    scores: Scores
    Y: Matrix
    h: Matrix | None = None
    C: Stack = field(init=False)
    noise: Vector = field(init=False)
    still: Lengths = field(default=Lengths(0.0, 1.0), init=False)
    refused: list[int] = field(default_factory=list[int], init=False)

    @classmethod
    def random(cls, scores: Scores, width: int, rng: np.random.Generator) -> ScoreColumns:
        """Along random directions."""
        with pin_one_thread():
            return cls(scores, np.linalg.qr(rng.normal(size=(width, width)))[0].T)

    def __post_init__(self) -> None:
        self.C = np.zeros((0, self.scores.heads, self.Y.shape[1]))
        self.noise = np.zeros(self.scores.heads)

    def measure_biases(self, size: float) -> None:
        """Score biases, from answers to y = 0; their root mean square is about the given one."""
        nothing = np.zeros((1, self.Y.shape[1]))
        for _ in range(_TRIES):
            self.scores.lengths = Lengths(0.0, TARGET / size)
            self.still = self.scores.lengths
            biases = self.h = self.scores.measure_columns(nothing)[0]
            guess, size = size, rms(biases)
            if _LEAST <= size / guess <= _MOST:
                return

    def measure(self, count: int) -> None:
        """Measure so many more columns."""
        columns = self.scores.measure_columns(self.Y[len(self.C) : len(self.C) + count])
        still = 0.0 if self.h is None else self.h
        self.C = np.concatenate([self.C, (columns - still) / self.scores.lengths.a])

    def find_lengths(self, sizes: ScoreSizes) -> None:
        """Lengths at which scores have the size aimed at, from the first column, which is kept."""
        bias = 0.0 if self.h is None else rms(self.h)
        for _ in range(_TRIES):
            self.scores.lengths = ScoreSizes(sizes.column, bias).choose_lengths()
            self.C = self.C[:0]
            self.measure(1)
            sizes = ScoreSizes(measure_sharpest(self.C), bias)
            near = sizes.measure_at(self.scores.lengths) / TARGET
            self.scores.lengths = sizes.choose_lengths()
            if _LEAST <= near <= _MOST:
                break
        if self.scores.coarse:
            self.C = self.C[:0]
            self.measure(1)
            self._measure_noise()

    def _measure_noise(self) -> None:
        """Errors of columns, from the first one measured again with tokens a little shorter."""
        last = self.scores.lengths
        self.scores.lengths = Lengths(last.a, _OTHER * last.b)
        first = self.C[0]
        self.C = self.C[:0]
        self.measure(1)
        self.scores.lengths = last
        noise = np.sqrt(((self.C[0] - first) ** 2).mean(axis=1) / 2.0)
        # A few numbers may agree by chance, of half the heads they do not.
        self.noise = np.maximum(noise, np.median(noise))

    def read_again(self) -> None:
        """Measure what was measured by the same calls: read-outs have changed."""
        known = len(self.C)
        last = self.scores.lengths
        if self.h is not None:
            self.scores.lengths = self.still
            self.h = self.scores.measure_columns(np.zeros((1, self.Y.shape[1])))[0]
        self.scores.lengths = last
        self.C = self.C[:0]
        self.measure(1)
        self._measure_noise()
        self.measure(known - 1)

    def count_next(self, guess: int) -> int:
        """How many columns to measure next: a few, and those that show a guessed rank at once."""
        known = len(self.C)
        few = max(1, known // 4)
        shown = guess + _SPARE
        return min(few, shown - known) if known < shown else max(1, known // 16)

    def find_ranges(self) -> tuple[list[Matrix], int]:
        """Orthonormal columns of the ranges of all heads, and how many columns more show them."""
        found: list[Matrix] = []
        missing = 0
        for columns, noise in zip(self.C.transpose(1, 2, 0), self.noise, strict=True):
            left, values, _ = np.linalg.svd(columns, full_matrices=False)
            least = max(_RANK * values[0], _find_least(columns, noise))
            rank = int((values > least).sum())
            # One column more is asked where the last that is kept is a weak one.
            weak = rank > 0 and bool(values[rank - 1] < _UNEVEN * values[0])
            missing = max(missing, _SPARE + weak - (len(self.C) - rank))
            found.append(left[:, :rank])
        return found, missing

    def find_few_tokens(self, rng: np.random.Generator) -> tuple[list[Matrix], Stack] | None:
        """Ranges of all heads and tokens that tell coordinates along them, once both are found."""
        # Where a head has shown no rank its range can be confirmed at powers of two alone.
        if not _is_power_of_two(len(self.C)) and self._are_independent():
            return None
        ranges, missing = self.find_ranges()
        if missing > 1 or (missing == 1 and not self.confirm_ranges(ranges, rng)):
            return None
        ranks = [Q.shape[1] for Q in ranges]
        few = None if ranks == self.refused else self.scores.choose_few_tokens(ranges, rng)
        # The same ranks would be refused again, after as long a search.
        self.refused = ranks
        return None if few is None else (ranges, few)

    def _are_independent(self) -> bool:
        """Whether the columns of some head are far from dependent.

        Their squares less a small share are then still positive, as Cholesky finds out.
        """
        for columns, noise in zip(self.C.transpose(1, 2, 0), self.noise, strict=True):
            squares = columns.T @ columns
            share = max(_CLEAR * np.trace(squares), _find_least(columns, noise) ** 2)
            try:
                np.linalg.cholesky(squares - share * np.eye(len(squares)))
            except np.linalg.LinAlgError:
                continue
            return True
        return False

    def confirm_ranges(self, ranges: list[Matrix], rng: np.random.Generator) -> bool:
        """Whether one column more lies in all ranges, as few tokens more than ranks take show.

        It is not asked where that takes many tokens, or ranks are no power of two, as few are.
        """
        rank = max(Q.shape[1] for Q in ranges)
        few = self.scores.draw_tokens(rank + _SPARE, rng)
        if not (_TRIED * few.shape[1] <= self.Y.shape[1] and _is_power_of_two(rank)):
            return False
        forms = self.scores.measure_along(self.Y[len(self.C) :][:1], few)[0]
        if self.h is not None:
            forms = forms - np.einsum("hkd,hd->hk", few, self.h)
        off = _ABOVE * self.scores.lengths.a * self.noise
        parts = zip(ranges, few, forms, off, strict=True)
        return all(_is_inside(form, X @ Q, most) for Q, X, form, most in parts)

    def complete(self, ranges: list[Matrix], few: Stack) -> Stack:
        """All score matrices, from forms along few tokens of each head on the directions left."""
        known = len(self.C)
        forms = self.scores.measure_along(self.Y[known:], few)
        if self.h is not None:
            forms = forms - np.einsum("hkd,hd->hk", few, self.h)
        W = self.assemble_within(ranges)
        for at, (Q, X) in enumerate(zip(ranges, few, strict=True)):
            along = forms[:, at].T / self.scores.lengths.a
            W[at] += Q @ np.linalg.lstsq(X @ Q, along, rcond=None)[0] @ self.Y[known:]
        return W

    def assemble(self) -> Stack:
        """Score matrices as far as whole columns tell: zero along directions not measured."""
        return np.einsum("khd,ke->hde", self.C, self.Y[: len(self.C)])

    def assemble_within(self, ranges: list[Matrix]) -> Stack:
        """The same, without what rounding of coarse answers adds to ranges."""
        W = self.assemble()
        if not self.scores.coarse:
            return W
        return np.stack([Q @ (Q.T @ part) for Q, part in zip(ranges, W, strict=True)])


def _is_power_of_two(rank: int) -> bool:
    """Whether it is a power of two, as the ranks of built heads are."""
    return rank & (rank - 1) == 0


def _find_least(columns: Matrix, noise: float) -> float:
    """The singular value of columns of one head from which on it is no rounding."""
    return _ABOVE * noise * float(np.sqrt(max(columns.shape)))


def _is_inside(form: Vector, along: Matrix, noise: float) -> bool:
    """Whether forms are those of a vector in a range, the tokens along which are given."""
    inside: Vector = along @ np.linalg.lstsq(along, form, rcond=None)[0]
    return bool(np.abs(form - inside).max() <= max(_INSIDE * np.abs(form).max(), noise))


def measure_sharpest(C: Stack) -> float:
    """Root mean square of scores over all heads, or of the sharpest, made a little smaller.

    Were many heads so much sharper than the others, most answers would be asked again.
    """
    return max(rms(C), _SHARPEST * max(rms(C[:, at]) for at in range(C.shape[1])))


def start_columns(columns: ScoreColumns, sizes: ScoreSizes) -> None:
    """The first column, and score biases where any acts; sizes of scores are known roughly."""
    with pin_one_thread():
        if sizes.bias > 0.0:
            columns.measure_biases(sizes.bias)
        columns.find_lengths(sizes)


def complete_columns(columns: ScoreColumns, guess: int, *, rng: np.random.Generator) -> Stack:
    """W of all heads; score biases, where any acts, are kept with the columns.

    Args:
        columns: the first is measured.
        guess: rank of all heads where they are as built layers have them.
        rng: source of tokens.
    """
    with pin_one_thread():
        while len(columns.C) < columns.Y.shape[1]:
            few = columns.find_few_tokens(rng)
            if few is not None:
                return columns.complete(*few)
            columns.measure(columns.count_next(guess))
        ranges = columns.find_ranges()[0] if columns.scores.coarse else []
        return columns.assemble_within(ranges)
