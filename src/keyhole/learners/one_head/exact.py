"""Theorem 4.1 of [BSHK26]: a head from d^2 + d exact value queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import pin_one_thread
from keyhole.claims import Certificate, Check, Verdict
from keyhole.identify import head_freedom, matrix_rank
from keyhole.learners.base import Plan, Recovery, Status, bound_queries
from keyhole.learners.one_head.columns import Columns
from keyhole.learners.one_head.learner import Measured, recover_head
from keyhole.learners.verifying.examination import EXACT
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import Head
from keyhole.oracles import Oracle


@dataclass(frozen=True, slots=True)
class Exact:
    """Measures every column of W, whatever its rank: d^2/o + d queries and about ten more."""

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """D + 5 queries to read out, a few to find the scale, d ceil(d/o) to measure, then
        verification.
        """
        together = min(width, outputs)
        measure = width * -(-width // together)
        by_phase = {"read": width + 5, "scale": 6, "measure": measure, "verify": QUERIES}
        freedom = head_freedom(width, outputs=outputs)
        return Plan(
            by_phase=by_phase,
            at_most=bound_queries(by_phase),
            degrees_of_freedom=freedom,
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head of any rank; certificate BSHK26/4.1."""
        recovery = recover_head(oracle, measure_every_column, rng=rng)
        return replace(recovery, certificate=certify_every_column(recovery, oracle.width))


def measure_every_column(columns: Columns, rng: np.random.Generator) -> Measured:
    """Strategy that measures all of M."""
    columns.measure(1)  # the scale is steered by what the first column shows
    columns.measure(len(columns.directions.Y))
    M = columns.matrix()
    W, h = columns.split(M)
    with pin_one_thread():
        rank = matrix_rank(W)
        return Measured(W, h, rank, bias_free=h is not None and matrix_rank(M) > rank)


def certify_every_column(recovery: Recovery[Head], width: int) -> Certificate | None:
    """Theorem 4.1 confronted with one run."""
    head = recovery.model
    if head is None or recovery.fresh is None:
        return None
    is_head = recovery.status in (Status.RECOVERED, Status.NO_READOUT)
    extras = (head.h is not None) + (head.U is not None) * (2 + (head.h is not None))
    measured = recovery.ledger["measure"].sequences + recovery.ledger["read"].sequences - 5
    return Certificate(
        "BSHK26/4.1",
        assumptions=(
            Check("answers that no single head gives", float(not is_head), 0.0),
            Check("read-out that is zero", float(not head.V.any()), 0.0),
            Check(
                "answers coarser than float64",
                float(recovery.verdict is Verdict.WITHIN_TOLERANCE),
                0.0,
            ),
        ),
        conclusion=(
            Check("measurements used", measured, width * width + width * (1 + extras)),
            Check("worst relative disagreement on fresh queries", recovery.fresh.relative, EXACT),
        ),
    )
