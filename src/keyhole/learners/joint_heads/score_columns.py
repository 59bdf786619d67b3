r"""Score matrices of all heads: whole columns until no rank grows, then coordinates along ranges.

Columns $W_h y_j$ are measured along orthonormal $y_j$. Once those of every head are dependent their
range is known, and along the other $y_j$ only as many tokens x are asked as the ranks ask for. A
score bias is read with y = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Stack, pin_one_thread, rms
from keyhole.learners.joint_heads.score_lengths import TARGET, Lengths, Scores, ScoreSizes

_LEAST, _MOST = 1.0 / 6.0, 3.0  # of their target: what the first scores may be
_TRIES = 6
_RANK = 1e-9  # of the largest singular value of columns: what is below is rounding
_SPARE = 1  # columns beyond the largest rank that show it
_UNEVEN = 0.02  # smallest singular value kept, over the largest, below which more columns help


@dataclass(slots=True)
class ScoreColumns:
    """Columns of all score matrices measured so far.

    Args:
        scores: how they are measured.
        Y: orthonormal directions of last tokens, one per row.
        h: score biases, heads by width; None where none acts.
        C: columns measured, directions by heads by width.
    """

    scores: Scores
    Y: Matrix
    h: Matrix | None = None
    C: Stack = field(init=False)

    def __post_init__(self) -> None:
        self.C = np.zeros((0, self.scores.heads, self.Y.shape[1]))

    def measure_biases(self, size: float) -> None:
        """Score biases, from answers to y = 0; their root mean square is about the given one."""
        nothing = np.zeros((1, self.Y.shape[1]))
        for _ in range(_TRIES):
            self.scores.lengths = Lengths(0.0, TARGET / size)
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
            sizes = ScoreSizes(rms(self.C), bias)
            near = sizes.measure_at(self.scores.lengths) / TARGET
            self.scores.lengths = sizes.choose_lengths()
            if _LEAST <= near <= _MOST:
                return

    def find_ranges(self) -> list[Matrix] | None:
        """Orthonormal columns of the ranges of all heads; None while more columns are needed."""
        found: list[Matrix] = []
        for columns in self.C.transpose(1, 2, 0):
            left, values, _ = np.linalg.svd(columns, full_matrices=False)
            rank = int((values > _RANK * values[0]).sum())
            spare = len(self.C) - rank
            # Two columns more are asked where the last that is kept is a weak one.
            weak = rank > 0 and values[rank - 1] < _UNEVEN * values[0]
            if spare < (_SPARE + 2 if weak else _SPARE):
                return None
            found.append(left[:, :rank])
        return found

    def complete(self, ranges: list[Matrix], few: Stack) -> Stack:
        """All score matrices, from forms along few tokens of each head on the directions left."""
        known = len(self.C)
        forms = self.scores.measure_along(self.Y[known:], few)
        if self.h is not None:
            forms = forms - np.einsum("hkd,hd->hk", few, self.h)
        W = self.assemble()
        for at, (Q, X) in enumerate(zip(ranges, few, strict=True)):
            along = forms[:, at].T / self.scores.lengths.a
            W[at] += Q @ np.linalg.lstsq(X @ Q, along, rcond=None)[0] @ self.Y[known:]
        return W

    def assemble(self) -> Stack:
        """Score matrices as far as whole columns tell: zero along directions not measured."""
        return np.einsum("khd,ke->hde", self.C, self.Y[: len(self.C)])


def measure_score_matrices(
    scores: Scores, width: int, sizes: ScoreSizes, *, rng: np.random.Generator
) -> tuple[Stack, Matrix | None]:
    """W of all heads, and their score biases where any acts.

    Args:
        scores: how they are measured.
        width: of tokens.
        sizes: of scores, roughly.
        rng: source of the directions.
    """
    with pin_one_thread():
        columns = ScoreColumns(scores, np.linalg.qr(rng.normal(size=(width, width)))[0].T)
        if sizes.bias > 0.0:
            columns.measure_biases(sizes.bias)
        columns.find_lengths(sizes)
        while len(columns.C) < width:
            ranges = columns.find_ranges()
            few = None if ranges is None else scores.choose_few_tokens(ranges, rng)
            if ranges is not None and few is not None:
                return columns.complete(ranges, few), columns.h
            columns.measure(max(2, len(columns.C) // 4))
        return columns.assemble(), columns.h
