"""Theorem 4.1 of [BSHK26]: a head from d^2 + d exact value queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import pin_one_thread
from keyhole.claims import Certificate, Check, Verdict
from keyhole.identify import matrix_rank
from keyhole.learners.base import Plan, Recovery
from keyhole.learners.one_head.columns import Columns
from keyhole.learners.one_head.learner import Measured, plan_head, recover_head
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.models import Head
from keyhole.oracles import Oracle


@dataclass(frozen=True, slots=True)
class Exact:
    """Measures every column of W, whatever its rank: d^2/o + d queries and about ten more."""

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Queries to measure: d ceil(d/o)."""
        return plan_head(width, outputs, width * -(-width // min(width, outputs)))

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head of any rank; certificate BSHK26/4.1."""
        recovery = recover_head(oracle, measure_every_column, rng=rng)
        return replace(recovery, certificate=certify_every_column(recovery, oracle.width))


def measure_every_column(columns: Columns, rng: np.random.Generator) -> Measured:
    """Strategy that measures all of M."""
    # One column alone first: what it shows steers the scale of all others.
    columns.measure(1)
    columns.measure(len(columns.directions.Y))
    M = columns.matrix()
    W, h = columns.split(M)
    with pin_one_thread():
        rank = matrix_rank(W)
        return Measured(W, h, rank, bias_free=h is not None and matrix_rank(M) > rank)


def check_assumptions(recovery: Recovery[Head], head: Head) -> tuple[Check, ...]:
    """What theorems of exact answers assume: a head, seen by its read-out, in float64."""
    coarse = recovery.verdict is Verdict.WITHIN_TOLERANCE
    return (
        assume_class("answers that no single head gives", recovery.verdict),
        Check("read-out that is zero", float(not head.V.any()), 0.0, judged=True),
        Check("answers coarser than float64", float(coarse), 0.0),
    )


def certify_every_column(recovery: Recovery[Head], width: int) -> Certificate | None:
    """Theorem 4.1 confronted with one run."""
    head = recovery.model
    if head is None or recovery.fresh is None:
        return None
    # A score bias adds a column, a residual doubles the read-out, and both triple it.
    extras = (head.h is not None) + (head.U is not None) * (2 + (head.h is not None))
    measured = recovery.ledger["measure"].sequences + recovery.ledger["read"].sequences - 5
    return Certificate(
        "BSHK26/4.1",
        assumptions=(
            *check_assumptions(recovery, head),
            Check("measurements used", measured, width * width + width * (1 + extras)),
        ),
        conclusion=(conclude_agreement(recovery.fresh),),
    )
