"""How learners of several heads stop: a sum of heads before fresh queries."""

from __future__ import annotations

import numpy as np

from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent
from keyhole.identify import freedom
from keyhole.learners.base import Counterexample, Recovery, Status
from keyhole.learners.verifying.ending import (
    SPENT,
    SUM_OF_HEADS,
    Account,
    Doubt,
    Ending,
    Probe,
    conclude,
    describe_rounding,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import (
    Examination,
    Ruler,
    examine_model,
    hint_at_rounding,
)
from keyhole.models import MultiHead
from keyhole.oracles import Counted, read_imperfection


def judge_sum(
    oracle: Counted,
    model: MultiHead,
    *,
    probe: Probe | None,
    rng: np.random.Generator,
    leeway: float = 1.0,
) -> Ending:
    """Confront a sum of heads with fresh queries.

    Args:
        oracle: the target, counting.
        model: what was fitted.
        probe: a sequence asked before, with its answer, to be asked again when doubts arise.
        rng: source of the fresh sequences.
        leeway: how much more than usual a declared rounding may explain.
    """
    stated = read_imperfection(oracle)
    tolerance = SUM_OF_HEADS.tolerance(oracle) * (1.0 if stated.perfect else leeway)
    with oracle.phase("verify"):
        ruler = Ruler(tolerance, stated.roundoff)
        seen = examine_model(oracle, model, ruler=ruler, rng=rng)
    return settle(
        oracle,
        seen,
        lines=SUM_OF_HEADS,
        refuse=lambda: resolve_doubt(oracle, _doubt_sum(oracle, seen), probe=probe),
        blind=not model.V.any(),
        words=describe_rounding(oracle, tolerance),
    )


def _doubt_sum(oracle: Counted, seen: Examination) -> Doubt:
    # Answers that are declared coarse disagree by what measuring made of their rounding.
    if seen.fresh.relative <= SUM_OF_HEADS.near or not read_imperfection(oracle).perfect:
        detail = f"Fresh answers are off by {seen.fresh.relative:.1e} of the token values."
        return Doubt(Status.IMPRECISE, detail=detail, again=False)
    return doubt_class(Status.HEADS_DISAGREE, seen.worst)


def doubt_class(status: Status, case: Counterexample | None) -> Doubt:
    """A case against the class, with a hint where the target's answers are float32 numbers."""
    return Doubt(status, case, hint_at_rounding([case.answer[None]]) if case is not None else "")


def refuse_affine(oracle: Counted, case: Counterexample, *, rng: np.random.Generator) -> Ending:
    """Refuse a target whose single tokens are not answered by an affine map.

    Where read-outs of all heads add up to zero, single tokens show but rounding; a random pair
    tells how large the heads are.
    """
    pair = rng.normal(size=(1, 2, oracle.width)) * float(np.abs(case.tokens).max())
    try:
        with oracle.phase("verify"):
            size = float(np.abs(oracle.ask(pair)).max())
    except BudgetSpent:
        return SPENT
    if case.gap <= 1e3 * read_imperfection(oracle).roundoff * size:
        return CANCEL
    return resolve_doubt(oracle, doubt_class(Status.NOT_A_HEAD, case))


CANCEL = Ending(
    status=Status.DEPENDENT,
    detail="The read-outs of all heads add up to zero, so that single tokens show nothing of them.",
)


def describe_sum(model: MultiHead | None, verdict: Verdict) -> str:
    """What is known of a sum of heads after a verdict."""
    if model is None:
        return "Nothing was determined."
    if not model.V.any():
        return (
            "The answers are a constant; W and V of heads that cancel or are idle are not"
            " determined."
        )
    if not verdict.verified:
        return "The model is the nearest one found; nothing of it is certain."
    present = {"W": model.W, "V": model.V, "h": model.h, "c": model.c}
    names = ", ".join(name for name, tensor in present.items() if tensor is not None)
    return (
        f"{names} of {len(model.W)} heads are determined; their order, key biases, and how W and V"
        " split into factors change no answer."
    )


def conclude_sum(
    oracle: Counted, model: MultiHead | None, ending: Ending, reason: str
) -> Recovery[MultiHead]:
    """The recovery of a sum of heads."""
    verified = model is not None and ending.verdict.verified
    return conclude(
        oracle,
        ending,
        Account(
            model=model,
            reason=reason,
            determined=describe_sum(model, ending.verdict),
            degrees_of_freedom=freedom(model) if model is not None and verified else None,
        ),
    )
