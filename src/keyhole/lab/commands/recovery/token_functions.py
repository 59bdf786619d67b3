"""How far the function of a language model itself follows from a policy of answers.

Only that of the smallest models does: one layer of attention alone on few ids, learned from how
often ids come. What a copy is worth is measured on prompts that it was not made from.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import rms
from keyhole.claims import Verdict
from keyhole.errors import OracleError, OutOfTime
from keyhole.lab.commands.recovery.token_snapshots import Snapshot
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.runs.record_parts import FunctionRecord
from keyhole.lab.targets.token_policies import TokenPolicy
from keyhole.learners.logits.reading import ReadLogits
from keyhole.learners.tokens.learner import TokenLayer
from keyhole.learners.tokens.ratios import COPIES
from keyhole.models.layers.token_heads import TokenHeads
from keyhole.oracles import Counted, read_imperfection
from keyhole.oracles.tokens.ids import pack_ids

LARGEST_VOCABULARY = 64  # a function of V ids takes about V^2 questions
_MOST_QUESTIONS = 30_000
_LONGEST = max(a + b for a, b in COPIES)
_HELD_OUT = 64  # prompts that no copy is made from
_OTHER = 2  # added to the seed of what is learned from, for those


def try_function(
    policy: TokenPolicy, target: Snapshot, seed: int, first: FunctionRecord | None
) -> FunctionRecord:
    """A copy made behind a policy, and how far it is from the model.

    Args:
        policy: what is answered.
        target: the model.
        seed: of what is asked.
        first: what full logits give away, which no policy exceeds; nothing for full logits.
    """
    refusal = _refuse_function(policy, target, first)
    if refusal:
        return FunctionRecord(verdict=Verdict.UNVERIFIED.name, reason=refusal)
    counted = Counted(policy.wrap(target.oracle, seed))
    try:
        recovery = TokenLayer().run(ReadLogits(counted, policy.reading), rng=seed_generator(seed))
        error = None
        if recovery.model is not None:
            error = _measure_error(recovery.model, policy, target, seed)
    except (OracleError, OutOfTime) as failed:
        reason = f"not tried to its end: {failed}"
        return FunctionRecord(verdict=Verdict.UNVERIFIED.name, reason=reason)
    told = (recovery.detail, recovery.status.value)
    freedom = recovery.degrees_of_freedom
    return FunctionRecord(
        verdict=recovery.verdict.name,
        reason=next(filter(None, told)),
        error=error,
        questions=counted.ledger.total().sequences,
        limit=None if freedom is None else -(-freedom // policy.reading.numbers),
    )


def _refuse_function(policy: TokenPolicy, target: Snapshot, first: FunctionRecord | None) -> str:
    lengths = read_imperfection(target.oracle).lengths
    if target.vocabulary > LARGEST_VOCABULARY:
        return f"not tried: it is learned of up to {LARGEST_VOCABULARY} ids."
    if target.vocabulary < 3 or (lengths and not lengths[0] == 1 < _LONGEST <= lengths[1]):
        return f"not tried: it takes 3 ids, and prompts of 1 to {_LONGEST}."
    questions = TokenLayer().plan(1, outputs=target.vocabulary).queries * policy.reading.per_prompt
    if questions > _MOST_QUESTIONS:
        return f"not tried: it takes {questions:,} questions under this policy."
    if first is not None and not first.follows:
        return "not tried: full logits do not give it away either."
    if policy.reading.kind == "likeliest":
        return "not tried: answers hold few ids, of which nobody chooses which."
    return ""


def _measure_error(model: TokenHeads, policy: TokenPolicy, target: Snapshot, seed: int) -> float:
    """Of answers to fresh prompts, as far as the policy shows what they are."""
    ids = seed_generator(seed + _OTHER).integers(target.vocabulary, size=(_HELD_OUT, target.length))
    truth = policy.reading.centre(target.oracle.ask(pack_ids(ids)))
    copied = model(pack_ids(ids))
    size = rms(truth)
    return rms(copied - truth) / size if size else float(np.abs(copied).max())
