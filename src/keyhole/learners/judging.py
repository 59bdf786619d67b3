"""From fresh queries to a verdict, for learners of sums of heads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent
from keyhole.identify import freedom
from keyhole.learners.base import Counterexample, Fresh, Recovery, Status
from keyhole.learners.single import rounded_hint
from keyhole.learners.verify import EXACT, NO_ROOM, asked_again, examine
from keyhole.models import MultiHead
from keyhole.oracles import Counted
from keyhole.oracles.base import declared

_GROSS = 1e-3  # a relative disagreement that no rounding explains
_AMPLIFIED = 1e4  # roundings that measuring may turn into an error, for answers coarser than float64

Probe = tuple[Stack, Matrix]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Judgement:
    """How a recovery ended: the parts of a Recovery that do not depend on the learner."""

    status: Status
    verdict: Verdict = Verdict.UNVERIFIED
    fresh: Fresh | None = None
    counterexample: Counterexample | None = None
    detail: str = ""


SPENT = Judgement(status=Status.BUDGET_SPENT, verdict=Verdict.BUDGET_SPENT)


def judged(
    oracle: Counted, model: MultiHead, *, probe: Probe | None, rng: np.random.Generator, leeway: float = 1.0
) -> Judgement:
    """Confront a sum of heads with fresh queries.

    Args:
        oracle: the target, counting.
        model: what was fitted.
        probe: a sequence asked before, with its answer, to be asked again when doubts arise.
        rng: source of the fresh sequences.
        leeway: how much more than usual a declared rounding may explain.
    """
    stated = declared(oracle)
    tolerance = EXACT if stated.perfect else _AMPLIFIED * stated.roundoff * leeway
    with oracle.phase("verify"):
        seen = examine(oracle, model, tolerance=tolerance, roundoff=stated.roundoff, rng=rng)
    fresh = seen.fresh if seen.fresh.sequences else None
    if seen.hidden:
        return Judgement(status=Status.HIDDEN, fresh=fresh)
    if not seen.passed and (seen.fresh.relative <= _GROSS or not stated.perfect):
        detail = f"Fresh answers are off by {seen.fresh.relative:.1e} of the token values."
        return Judgement(status=Status.IMPRECISE, fresh=fresh, detail=detail)
    if not seen.passed:
        return replace(refuted(oracle, Status.HEADS_DISAGREE, seen.worst, probe=probe), fresh=fresh)
    if not seen.complete:
        return Judgement(status=Status.UNCHECKED, fresh=fresh)
    if not model.V.any():
        return Judgement(status=Status.NO_READOUT, verdict=Verdict.NOT_IDENTIFIABLE, fresh=fresh)
    if stated.perfect:
        return Judgement(status=Status.RECOVERED, verdict=Verdict.EXACT, fresh=fresh)
    detail = (
        f"Answers are declared to be rounded to {stated.roundoff:.1e}, which explains errors up to {tolerance:.1e}."
    )
    return Judgement(status=Status.RECOVERED, verdict=Verdict.WITHIN_TOLERANCE, fresh=fresh, detail=detail)


def scattered(gap: float) -> Judgement:
    """The target answered the same question differently."""
    return Judgement(status=Status.INCONSISTENT, detail=f"Two answers to one sequence differ by {gap:.1e}.")


def refuted(oracle: Counted, status: Status, case: Counterexample | None, *, probe: Probe | None) -> Judgement:
    """Refuse the class, unless the target turns out to answer the same question differently."""
    gap = asked_again(oracle, probe, case, declared(oracle).roundoff)
    if gap is None:
        return Judgement(status=Status.UNCHECKED, detail=NO_ROOM)
    if gap > 0.0:
        return scattered(gap)
    hint = rounded_hint([case.answer[None]]) if case is not None else ""
    return Judgement(status=status, verdict=Verdict.CLASS_REFUTED, counterexample=case, detail=hint)


def not_affine(oracle: Counted, case: Counterexample, *, rng: np.random.Generator) -> Judgement:
    """Refuse a target whose single tokens are not answered by an affine map.

    Where read-outs of all heads add up to zero, single tokens show but rounding; a random pair tells how large the
    heads are.
    """
    pair = rng.normal(size=(1, 2, oracle.width)) * float(np.abs(case.tokens).max())
    try:
        with oracle.phase("verify"):
            size = float(np.abs(oracle.ask(pair)).max())
    except BudgetSpent:
        return SPENT
    if case.gap <= 1e3 * declared(oracle).roundoff * size:
        return CANCEL
    return refuted(oracle, Status.NOT_A_HEAD, case, probe=None)


CANCEL = Judgement(
    status=Status.DEPENDENT,
    detail="The read-outs of all heads add up to zero, so that single tokens show nothing of them.",
)


def determined(model: MultiHead | None, verdict: Verdict) -> str:
    """What is known of a sum of heads after a verdict."""
    if model is None or verdict is Verdict.CLASS_REFUTED:
        return "Nothing was determined."
    if not model.V.any():
        return "The answers are a constant; W and V of heads that cancel or are idle are not determined."
    if not verdict.verified:
        return "The model is the nearest one found; nothing of it is certain."
    names = "W, V" + (", h" if model.h is not None else "") + (", c" if model.c is not None else "")
    return (
        f"{names} of {len(model.W)} heads are determined; their order, key biases, and how W and V split into "
        "factors act on no answer."
    )


def ended(oracle: Counted, model: MultiHead | None, how: Judgement, reason: str) -> Recovery[MultiHead]:
    """The recovery of a sum of heads after a judgement."""
    return Recovery(
        model=model,
        status=how.status,
        verdict=how.verdict,
        reason=reason,
        determined=determined(model, how.verdict),
        ledger=oracle.ledger,
        degrees_of_freedom=freedom(model) if model is not None and how.verdict.verified else None,
        fresh=how.fresh,
        counterexample=how.counterexample,
        detail=how.detail,
    )
