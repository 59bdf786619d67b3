"""Columns in steps, so that few calls find a rank that is not known.

One call completes columns that are known to be new and opens the next few, on as many rows as tell
how many of those are new again: a column is new where it lies outside the span of the complete ones
on these rows. Nothing is asked in vain where all are new. Where some are not, the rows that were
asked of them serve in the second round, whose forms they hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, pin_one_thread
from keyhole.learners.one_head.columns import Columns
from keyhole.learners.one_head.probes import Indices

# Rows beyond the columns they tell apart: a square of random rows may be badly conditioned.
SPARE_ROWS = 4
_NEW = 1e-7  # of the size of opened columns, above which a part outside the span is new


@dataclass(slots=True)
class RankSteps:
    """Columns under way.

    Args:
        columns: the complete ones.
        order: of the groups of the design, in which columns are opened.
        forms: of the opened columns, a row each, group by group in that order.
        first: number of the first opened column among all directions.
    """

    columns: Columns
    order: Indices
    forms: Matrix = field(init=False)
    first: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.forms = np.zeros((0, 0))

    @property
    def opened_groups(self) -> int:
        """Groups on which the opened columns were asked."""
        return self.forms.shape[1] // self.columns.design.X.shape[1]

    def take(self, new: int, following: int) -> Matrix:
        """Complete the first `new` opened columns and open the `following` ones, in one call.

        Returns:
            The completed columns, as rows.
        """
        columns = self.columns
        groups, together, _ = columns.design.X.shape
        known = columns.known
        rows = min(groups, -(-(known + new + following + SPARE_ROWS) // together))
        late = self.order[self.opened_groups :] if new else self.order[:0]
        pairs = (
            np.concatenate([np.tile(late, new), np.tile(self.order[:rows], following)]),
            np.concatenate(
                [
                    np.repeat(np.arange(known, known + new), len(late)),
                    np.repeat(np.arange(known + new, known + new + following), rows),
                ]
            ),
        )
        found = columns.measure_pairs(*pairs)
        split = new * len(late)
        done = self._complete(new, found[:split].reshape(new, len(late) * together))
        self.forms = found[split:].reshape(following, rows * together)
        self.first = known + new
        return done

    def leave(self, new: int) -> Matrix:
        """Complete the first `new` opened columns, and leave the others as they are.

        Returns:
            The completed columns, as rows.
        """
        left = self.forms[new:]
        done = self.take(new, 0)
        self.forms = left
        return done

    def _complete(self, new: int, late: Matrix) -> Matrix:
        groups, together, _ = self.columns.design.X.shape
        T = np.empty((new, groups, together))
        whole = np.concatenate([self.forms[:new], late], axis=1) if new else T.reshape(0, 0)
        T[:, self.order] = whole.reshape(new, groups, together)
        return self.columns.keep(T.reshape(new, groups * together))

    def count_new(self) -> int:
        """How many of the opened columns lie outside the span of the complete ones."""
        with pin_one_thread():
            span = np.linalg.qr(self.find_rows(np.concatenate(self.columns.C).T))[0]
            rest = self.forms.T - span @ (span.T @ self.forms.T)
            sizes = np.linalg.svd(rest, compute_uv=False)
            return int((sizes > _NEW * float(np.linalg.norm(self.forms))).sum())

    def find_rows(self, vectors: Matrix) -> Matrix:
        """Vectors, one a column, as the groups on which columns were opened show them."""
        asked = self.order[: self.opened_groups]
        return self.columns.design.X[asked].reshape(-1, len(vectors)) @ vectors

    def solve_along(self, Q: Matrix, start: int) -> Matrix:
        """Q^T M on directions from the `start`-th opened one: their rows hold more than that."""
        with pin_one_thread():
            seen = self.find_rows(Q)
            solved = np.linalg.lstsq(seen, self.forms[start:].T, rcond=None)[0]
            return np.asarray(solved.T / self.columns.directions.weight, dtype=np.float64)

    def tells(self, rank: int) -> bool:
        """Whether the rows of opened columns hold all of a column within a space of that rank."""
        whole = self.opened_groups == len(self.order)
        return whole or self.forms.shape[1] >= rank + SPARE_ROWS
