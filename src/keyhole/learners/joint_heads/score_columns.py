r"""Score matrices of all heads: whole columns until no rank grows, then coordinates along ranges.

Columns $W_h y_j$ are measured along orthonormal $y_j$. Once those of every head are dependent their
range is known, and along the other $y_j$ only as many tokens x are asked as the ranks ask for. A
score bias is read with y = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Stack, pin_one_thread, rms
from keyhole.learners.joint_heads.shared_answers import TARGET, JointScores, Lengths, ScoreSizes
from keyhole.learners.joint_heads.token_groups import (
    Group,
    TokenGroups,
    make_group,
    measure_condition,
)

_NEAR = 3.0  # a factor by which the first scores may miss their target
_TRIES = 6
_RANK = 1e-9  # of the largest singular value of columns: what is below is rounding
_SPARE = 1  # columns beyond the largest rank that show it
_UNEVEN = 0.02  # smallest singular value kept, over the largest, below which more columns help
_CONDITION = 300.0  # of the solve for coordinates along a range
_CHOICES = 60  # random groups to choose from


@dataclass(slots=True)
class ScoreColumns:
    """Columns of all score matrices measured so far.

    Args:
        scores: how they are measured.
        Y: orthonormal directions of last tokens, one per row.
        h: score biases, heads by width; None where none acts.
        C: columns measured, directions by heads by width.
    """

    scores: JointScores
    Y: Matrix
    h: Matrix | None = None
    C: Stack = field(init=False)

    def __post_init__(self) -> None:
        self.C = np.zeros((0, self.scores.heads, self.scores.oracle.width))

    def measure_biases(self, size: float) -> None:
        """Score biases, from answers to y = 0; their root mean square is about the given one."""
        nothing = np.zeros((1, self.scores.oracle.width))
        for _ in range(_TRIES):
            self.scores.lengths = Lengths(0.0, TARGET / size)
            forms = self.scores.measure(nothing, self.scores.tokens.groups)[0]
            self.h = forms @ self.scores.tokens.basis
            guess, size = size, rms(forms)
            if 1.0 / _NEAR <= size / guess <= _NEAR:
                return

    def measure(self, count: int) -> None:
        """Measure so many more columns."""
        Y = self.Y[len(self.C) : len(self.C) + count]
        more = self._read(Y, self.scores.tokens.groups)
        self.C = np.concatenate([self.C, more @ self.scores.tokens.basis])

    def _read(self, Y: Matrix, groups: tuple[Group, ...]) -> Stack:
        """Forms x . W_h y along some directions: rows by heads by tokens."""
        forms = self.scores.measure(Y, groups)
        if self.h is not None:
            forms = forms - self.h @ np.concatenate([group.X for group in groups]).T
        return forms / self.scores.lengths.a

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
            if 1.0 / _NEAR <= near <= _NEAR:
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

    def complete(self, ranges: list[Matrix], groups: tuple[Group, ...]) -> Stack:
        """All score matrices, from coordinates along their ranges on the directions left."""
        known = len(self.C)
        forms = self._read(self.Y[known:], groups)
        X = np.concatenate([group.X for group in groups])
        W = self.assemble()
        for at, Q in enumerate(ranges):
            coordinates = np.linalg.lstsq(X @ Q, forms[:, at].T, rcond=None)[0]
            W[at] += Q @ coordinates @ self.Y[known:]
        return W

    def assemble(self) -> Stack:
        """Score matrices as far as whole columns tell: zero along directions not measured."""
        return np.einsum("khd,ke->hde", self.C, self.Y[: len(self.C)])


def measure_score_matrices(
    scores: JointScores, V: Stack, sizes: ScoreSizes, *, rng: np.random.Generator
) -> tuple[Stack, Matrix | None]:
    """W of all heads, and their score biases where any acts.

    Args:
        scores: how they are measured.
        V: read-outs of all heads.
        sizes: of scores, roughly.
        rng: source of the directions.
    """
    width = scores.oracle.width
    with pin_one_thread():
        columns = ScoreColumns(scores, np.linalg.qr(rng.normal(size=(width, width)))[0].T)
        if sizes.bias > 0.0:
            columns.measure_biases(sizes.bias)
        columns.find_lengths(sizes)
        while len(columns.C) < width:
            ranges = columns.find_ranges()
            groups = None if ranges is None else choose_few_groups(V, ranges, scores.tokens, rng)
            if ranges is not None and groups is not None:
                return columns.complete(ranges, groups), columns.h
            columns.measure(max(2, len(columns.C) // 4))
        return columns.assemble(), columns.h


def choose_few_groups(
    V: Stack, ranges: list[Matrix], tokens: TokenGroups, rng: np.random.Generator
) -> tuple[Group, ...] | None:
    """Few groups of tokens, drawn anew, that tell coordinates along all ranges.

    None where they would be no fewer than those of the whole basis.
    """
    rank = max(Q.shape[1] for Q in ranges)
    size = len(tokens.groups[0].X)
    for count in range(max(1, -(-rank // size)), len(tokens.groups)):
        drawn = [_draw_groups(V, ranges, size, count, rng) for _ in range(_CHOICES)]
        condition, groups = min(drawn, key=lambda pair: pair[0])
        if condition <= _CONDITION:
            return groups
    return None


def _draw_groups(
    V: Stack, ranges: list[Matrix], size: int, count: int, rng: np.random.Generator
) -> tuple[float, tuple[Group, ...]]:
    """Random groups, and the worst condition of all that is solved with them."""
    width = V.shape[1]
    X = np.linalg.qr(rng.normal(size=(width, min(width, count * size))))[0].T
    cut = [X[at : at + size] for at in range(0, len(X), size)]
    along = max((float(np.linalg.cond(X @ Q)) for Q in ranges if Q.shape[1]), default=1.0)
    shares = max(measure_condition(V, part) for part in cut)
    return max(along, shares), tuple(make_group(V, part) for part in cut)
