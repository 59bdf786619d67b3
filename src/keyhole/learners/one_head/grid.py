r"""Fewer queries than parameters, when the entries of W lie on a known grid.

With W = step N and N of small integers, one column along $y = \sum_k B^k e_{j_k}$ holds K columns
of N as digits to the base B, as many as the precision of a logit can carry: $K \approx
\log(10^{13}) / \log B$.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Matrix
from keyhole.errors import InvalidInput
from keyhole.identify import matrix_rank
from keyhole.learners.base import Plan, Recovery
from keyhole.learners.one_head.columns import Columns
from keyhole.learners.one_head.exact import measure_every_column
from keyhole.learners.one_head.learner import Measured, plan_head, recover_head
from keyhole.models import Head
from keyhole.oracles import Oracle

_CARRIES = 200.0  # roundings that the largest digit sum must stay above
_TRIES = 5  # with four times as many levels each


@dataclass(frozen=True, slots=True)
class Grid:
    """Learner of a head whose W has entries that are whole multiples of a step.

    Args:
        step: the distance of neighbouring grid points.
        levels: the largest multiple that occurs; read off one column, with a margin, when absent.
    """

    step: float
    levels: int | None = None

    def __post_init__(self) -> None:
        if not self.step > 0 or (self.levels is not None and self.levels < 1):
            raise InvalidInput(
                f"a grid has a step > 0 and at least one level; got {self.step} and {self.levels}."
            )

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """D ceil(d / K) queries to measure, K the columns that one logit carries."""
        packed = -(-width // _count_digits(self.levels or 1, width))
        return plan_head(width, outputs, (packed + 1) * -(-width // min(width, outputs)))

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover W as grid points; a score bias, or digits that do not decode, cost the most."""
        return recover_head(oracle, self._measure, rng=rng)

    def _measure(self, columns: Columns, rng: np.random.Generator) -> Measured:
        # A score bias is on no grid, and coarse answers carry too few digits to pack columns.
        if columns.directions.weight != 1.0 or columns.prober.roundoff > EPS:
            return measure_every_column(columns, rng)
        width = columns.design.X.shape[2]
        levels = self.levels or self._guess_levels(columns)
        for _ in range(_TRIES):
            digits = _count_digits(levels, width)
            N = None if digits < 2 else self._decode_columns(columns, levels, digits)
            if N is not None:
                return Measured(self.step * N, None, matrix_rank(N))
            # Digits that do not decode are too large for the base.
            levels *= 4
        return measure_every_column(columns, rng)

    def _guess_levels(self, columns: Columns) -> int:
        """Twice the largest multiple in one column."""
        column = self._measure_sums(columns, np.eye(columns.design.X.shape[2])[:1])
        return 2 * max(1, int(np.abs(np.round(column)).max()))

    def _measure_sums(self, columns: Columns, Y: Matrix) -> Matrix:
        """N y for every row y, not yet rounded."""
        lengths = np.linalg.norm(Y, axis=1, keepdims=True)
        with columns.prober.oracle.phase("measure"):
            T = columns.prober.forms(columns.design, Y / lengths)
        return columns.design.solve(T) * lengths / (columns.prober.sy * self.step)

    def _decode_columns(self, columns: Columns, levels: int, digits: int) -> Matrix | None:
        """N from packed columns, or None when a sum is not whole or a digit is out of range."""
        width = columns.design.X.shape[2]
        base = 2 * levels + 1
        packed = -(-width // digits)
        powers = float(base) ** np.arange(digits)[None]
        Y: Matrix = np.kron(np.eye(packed), powers).astype(np.float64)
        sums = self._measure_sums(columns, Y[:, :width])
        whole = np.round(sums)
        if np.abs(sums - whole).max() > 0.25:
            return None
        N = np.empty((packed * digits, width))
        for k in range(digits):
            digit = whole - base * np.round(whole / base)
            N[k::digits] = digit
            whole = (whole - digit) / base
        return None if whole.any() else N[:width].T


def _count_digits(levels: int, width: int) -> int:
    """How many digits to the base 2 levels + 1 a column carries and is still read to a quarter."""
    carried = np.log(1.0 / (_CARRIES * EPS * np.sqrt(width)))
    return max(1, min(width, int(carried / np.log(2 * levels + 1))))
