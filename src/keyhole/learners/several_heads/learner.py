"""Sums of heads by saturation.

Where there are no more heads than outputs or coordinates, all read-outs are known before any score
(joint_heads); elsewhere, or where that fails, each head is isolated at boundaries where all others
are hard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import PerSequence, Sequences, pin_one_thread
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.coarse_heads.slanted_tokens import slant_tokens
from keyhole.learners.joint_heads.road import count_most_heads, plan_joint_queries
from keyhole.learners.several_heads.heads_account import PER_HEAD
from keyhole.learners.several_heads.session import (
    ATTEMPTS,
    JOINT_ATTEMPTS,
    PROBES,
    SeveralHeadsSession,
)
from keyhole.learners.verifying.ending import DECLARED_ERRORS, SPENT, SUM_OF_HEADS, Ending, settle
from keyhole.learners.verifying.examination import EXACT, Ruler, examine_model
from keyhole.learners.verifying.questions import QUERIES
from keyhole.learners.verifying.sums_of_heads import conclude_sum
from keyhole.models import MultiHead
from keyhole.oracles import Budgeted, Counted, Oracle
from keyhole.oracles.base import read_imperfection

_USUAL = 32  # heads planned for where their number is not told


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralHeads:
    """Recovers any number of heads, each of any rank, their number unknown.

    It takes little more queries than there are parameters per output, score biases and a residual
    included, for at most as many heads as outputs; for more, up to as many as coordinates, as many
    as with one output; otherwise d^2 + 4d + about 30 per head.

    Args:
        most: more heads than this are given up.
        queries: never ask more than this in all; None for `plan(...).at_most`.
    """

    most: int = 64
    queries: int | None = None

    def __post_init__(self) -> None:
        if self.most < 1 or (self.queries is not None and self.queries < 1):
            raise InvalidInput(
                f"most and queries must be at least 1; got {self.most} and {self.queries}."
            )

    def plan(self, width: int, *, outputs: int = 1, heads: int | None = None) -> Plan:
        """What `heads` heads of full rank cost; their number is found and need not be given."""
        count = min(self.most, _USUAL) if heads is None else heads
        by_phase = {
            "read": width + 1,
            **_plan_measurements(width, outputs, count),
            "verify": QUERIES,
        }
        freedom = count * head_freedom(width, outputs=outputs)
        attempts = len(ATTEMPTS) + 2 * JOINT_ATTEMPTS
        attempt = self.most * (2 * width * width + 6 * width + PER_HEAD) + 400
        return Plan(
            by_phase=by_phase,
            at_most=self.queries or attempts * (attempt + by_phase["verify"]),
            degrees_of_freedom=freedom,
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Recover a sum of heads; certificate keyhole/saturate-and-isolate."""
        stated = read_imperfection(oracle)
        cap = Budgeted(oracle, self.plan(oracle.width).at_most)
        with pin_one_thread():
            if stated.tolerance > 0 and stated.noise == 0 and stated.token_bound is None:
                return self._run_rounded(cap, rng)
            return self._start(cap, cap, stated.roundoff).recover(rng)

    def _start(self, oracle: Oracle, cap: Budgeted, roundoff: float) -> SeveralHeadsSession:
        return SeveralHeadsSession(Counted(oracle), self.most, roundoff, cap)

    def _run_rounded(self, cap: Budgeted, rng: np.random.Generator) -> Recovery[MultiHead]:
        """The recovery from answers with declared errors, which long tokens leave behind."""
        asking = Counted(cap)
        try:
            with asking.phase("read"):
                slanted = slant_tokens(asking)
        except BudgetSpent:
            return conclude_sum(asking, None, SPENT, _ROUNDED)
        if slanted is None:
            return conclude_sum(asking, None, _BIASED, _ROUNDED)
        found = self._start(slanted, cap, read_imperfection(cap).roundoff).recover(rng)
        if found.model is None or not found.verdict.verified:
            spent = found.verdict is Verdict.BUDGET_SPENT
            ending = SPENT if spent else Ending(status=found.status, detail=found.detail)
            return conclude_sum(asking, found.model, ending, _ROUNDED)
        return conclude_sum(asking, found.model, _judge_rounded(asking, found.model, rng), _ROUNDED)


_ROUNDED = "Tokens were asked so long that declared errors of answers do not count."
_BIASED = Ending(
    status=Status.UNRESOLVED,
    detail="A score bias acts, beside which no tokens are so long that errors do not count.",
)


def _judge_rounded(oracle: Counted, model: MultiHead, rng: np.random.Generator) -> Ending:
    """Confront the model with fresh answers as they come, whose errors are declared."""
    stated = read_imperfection(oracle)
    # The constant is itself an answer, off by as much as any.
    allowed = 2.0 * stated.tolerance
    tolerance = max(EXACT, SUM_OF_HEADS.tolerance(oracle))

    def allow(X: Sequences) -> PerSequence:
        return np.full(len(X), allowed)

    with oracle.phase("verify"):
        seen = examine_model(oracle, model, ruler=Ruler(tolerance, stated.roundoff, allow), rng=rng)
    return settle(
        oracle,
        seen,
        lines=DECLARED_ERRORS,
        refuse=lambda: Ending(status=Status.UNRESOLVED),
        blind=not model.V.any(),
        words=f"Errors of the answers and of the constant explain gaps up to {allowed:.1e}.",
    )


def _plan_measurements(width: int, outputs: int, heads: int) -> dict[str, int]:
    """Queries by phase apart from lone tokens and verification."""
    if heads <= count_most_heads(width, outputs):
        return plan_joint_queries(width, outputs, heads)
    return {
        "scale": 3 * PROBES,
        "rows": heads * (width + 25) + 20,
        "measure": heads * (width * width + 2 * width),
        "signs": heads + 1,
    }
