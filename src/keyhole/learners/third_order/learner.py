r"""The learner of one unit of third order, read at its last token."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from keyhole._arrays import Matrix
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BadAnswer, BudgetSpent, InvalidInput, TargetFailed
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.third_order.token_scale import count_scale_questions
from keyhole.learners.third_order.unit_tries import (
    CHECKED,
    TRIES,
    LearnedUnit,
    Measuring,
    count_unit_answers,
)
from keyhole.learners.third_order.zero_tokens import refuses_zero_tokens
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.ending import (
    NO_READOUT,
    SPENT,
    THIRD_ORDER,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_gap,
    describe_rounding,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import Examination, examine_model
from keyhole.learners.verifying.questions import QUERIES
from keyhole.learners.verifying.rules import ask_by_length
from keyhole.models.layers.tensor_row import TensorRow, third_order_freedom
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection


@dataclass(frozen=True, slots=True)
class ThirdOrder:
    """Learner of a unit of third order that reads the last token.

    Args:
        rank: products that T is a sum of, for the plan only; all of T is planned for when absent.
    """

    rank: int | None = None

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 0:
            raise InvalidInput(f"a sum has 0 products or more; got rank {self.rank}.")

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """A length of tokens, values, then d^3 scores or about r(3d - 2) of them."""
        usual, most = count_scale_questions()
        by_phase = {
            "scale": usual,
            "values": 3 * width - 3 if width > 1 else 1,
            "scores": count_scores(width, self.rank, outputs),
            "check": CHECKED,
            "verify": QUERIES,
        }
        whole = count_scores(width, None, 1) + count_unit_answers(width, None, outputs)
        # Signs of differences, where both places have one value vector, take less than all scores.
        at_most = most + by_phase["values"] + TRIES * (2 * whole + 2 * CHECKED) + 2 * QUERIES
        count = third_order_freedom(width, rank=self.rank, outputs=outputs)
        return Plan(by_phase=by_phase, at_most=at_most, degrees_of_freedom=count, outputs=outputs)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[TensorRow]:
        """Recover the unit behind the oracle; certificate keyhole/third-order-recovery."""
        measuring, checking = rng.spawn(2)
        run = _UnitRun(Counted(oracle), read_imperfection(oracle).roundoff)
        try:
            run.learn(measuring)
        except BudgetSpent:
            return run.conclude(SPENT)
        return run.judge(checking)


def count_scores(width: int, rank: int | None, outputs: int) -> int:
    """Questions for T: $d^3$ with one output, fewer where T is a sum of r < d products."""
    d, r = width, rank
    if outputs == 1 and r is not None and 0 < r < d:
        side = int(np.ceil(np.sqrt(r)))
        others = d - 1 - (r > 1)
        return r * r + (d - r) * (2 * r + 1) + (r * r if r > 1 else 0) + others * side**2
    own, pairs, triples = d, d * (d - 1), d * (d - 1) * (d - 2) // 2
    return own + pairs * -(-3 // outputs) + triples * -(-2 // outputs)


@dataclass(slots=True)
class _UnitRun:
    """One recovery under way."""

    oracle: Counted
    roundoff: float
    learned: LearnedUnit = field(default=LearnedUnit(), init=False)
    refusal: BadAnswer | TargetFailed | None = field(default=None, init=False)

    def ask(self, questions: list[Matrix]) -> Matrix:
        return np.array(ask_by_length(self.oracle, questions))

    def learn(self, rng: np.random.Generator) -> None:
        """The unit, not yet verified; none where zero tokens are refused.

        Raises:
            BadAnswer: an answer is not finite, and zero tokens are not the reason.
            TargetFailed: the target failed for another reason.
        """
        width = self.oracle.width
        try:
            self.learned = Measuring(self.ask, width, self.roundoff, self.oracle.phase, rng).learn()
        except (BadAnswer, TargetFailed) as refusal:
            if not refuses_zero_tokens(self.ask, width, rng=rng):
                raise
            self.refusal = refusal

    def judge(self, rng: np.random.Generator) -> Recovery[TensorRow]:
        """What fresh queries say of the unit."""
        if self.refusal is not None:
            return self.conclude(Ending(status=Status.NO_ZERO_TOKENS, detail=_tell(self.refusal)))
        if self.learned.dead:
            return self.conclude(NO_READOUT)
        row = self.learned.row
        if row is None:
            detail = "In no basis were all weights of pairs positive and of a size that is read."
            return self.conclude(Ending(status=Status.NO_THIRD_ORDER, detail=detail))
        with self.oracle.phase("verify"):
            ruler = THIRD_ORDER.ruler(self.oracle)
            seen = examine_model(self.oracle, row, ruler=ruler, rng=rng)
        ending = settle(
            self.oracle,
            seen,
            lines=THIRD_ORDER,
            refuse=partial(self._refuse, seen),
            words=describe_rounding(self.oracle, THIRD_ORDER.tolerance(self.oracle)),
        )
        return self.conclude(ending, seen)

    def _refuse(self, seen: Examination) -> Ending:
        if seen.fresh.relative <= THIRD_ORDER.near:
            detail = f"Fresh answers are off by {seen.fresh.relative:.1e} of the token values."
            return Ending(status=Status.IMPRECISE, detail=detail)
        doubt = Doubt(Status.NO_THIRD_ORDER, seen.worst, describe_gap(seen.worst))
        return resolve_doubt(self.oracle, doubt)

    def conclude(self, ending: Ending, seen: Examination | None = None) -> Recovery[TensorRow]:
        """The recovery."""
        learned, row = self.learned, self.learned.row
        return conclude(
            self.oracle,
            ending,
            Account(
                model=row,
                reason=_explain_unit_found(learned),
                determined=_describe_determined_unit(learned, ending.verdict),
                degrees_of_freedom=None
                if row is None
                else third_order_freedom(row.width, rank=learned.rank, outputs=row.outputs),
                rank=learned.rank,
                certificate=None if seen is None else self._certify(ending.verdict, seen),
            ),
        )

    def _certify(self, verdict: Verdict, seen: Examination) -> Certificate | None:
        """The claim of third-order recovery, confronted with one run."""
        learned, row = self.learned, self.learned.row
        if row is None:
            return None
        plan = ThirdOrder(learned.rank).plan(row.width, outputs=row.outputs)
        asked = self.oracle.ledger.total(without="verify").sequences
        return Certificate(
            "keyhole/third-order-recovery",
            assumptions=(
                assume_class("answers that no such unit gives", verdict),
                Check("value vectors that are parallel", float(learned.parallel), 0.0),
                Check("queries used", asked, 2 * plan.queries),
            ),
            conclusion=(conclude_agreement(seen.fresh),),
        )


def _tell(refusal: BadAnswer | TargetFailed) -> str:
    return f"A token beside its copy is answered; beside a zero token {refusal}"


def _explain_unit_found(learned: LearnedUnit) -> str:
    if learned.row is None:
        return "A unit of third order was tried."
    scores = (
        "all of T was measured"
        if learned.rank is None
        else f"T is a sum of {learned.rank} product{'s' * (learned.rank != 1)}"
    )
    values = "one value vector in both places" if learned.parallel else "two value vectors"
    return f"Lone tokens are answered by a product of two linear forms, {values}; {scores}."


def _describe_determined_unit(learned: LearnedUnit, verdict: Verdict) -> str:
    if learned.dead:
        return "The answers are zero: there are no values, and T is not determined."
    if learned.row is None:
        return "Nothing was determined."
    if not verdict.verified:
        return "The model is the best one found; nothing of it is certain."
    return (
        "T and the products of the two value vectors of every output are determined, up to"
        " exchanging both places in all of them; how T splits into columns of Q, K1 and K2 is not."
    )
