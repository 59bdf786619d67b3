"""What recovering a layer costs, and the certificate of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from keyhole.claims import Certificate, Check, Verdict
from keyhole.learners.base import Recovery
from keyhole.learners.joint_heads.moved_plateaus import FEW
from keyhole.learners.joint_heads.routed_moves import MANY, WIDE
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import MultiHead

JOINT_ATTEMPTS = 2  # with all read-outs known before any score
ATTEMPTS = 3  # with routing; each with other half circles, as some have flips too close together


def estimate_queries(
    width: int, ranks: Sequence[int], score_rank: int, *, biased: bool
) -> dict[str, int]:
    """Queries by phase for read-outs of the given ranks and score matrices of one rank."""
    heads, least, top = len(ranks), min(ranks), max(ranks)
    groups = -(-width // max(1, least - least // 16))
    columns = min(width, score_rank + 2)
    along = min(groups, -(-score_rank // least))
    routed = heads >= MANY and width >= WIDE
    first = 2 * heads + FEW * (heads - 1) if routed else 0
    return {
        "read": width + 5,
        "switches": 6 + 4 * heads,
        "readouts": first + (heads - 1) * min(width, top + 1),
        "measure": groups * (columns + biased) + along * (width - columns),
    }


def estimate_routed_queries(
    width: int, ranks: Sequence[int], score_rank: int, *, biased: bool
) -> dict[str, int]:
    """The same where heads are routed to sharpen what each writes."""
    heads, least, top = len(ranks), min(ranks), max(ranks)
    together = max(1, int(0.875 * least))
    groups = -(-width // together)
    directions = width + biased
    columns = min(directions, max(heads, score_rank) + 2 + biased)
    along = min(groups, -(-int(np.ceil(1.5 * score_rank)) // together))
    return {
        "read": width + 5,
        "flips": 18 + 11 * heads,
        "spaces": heads * (top + 2 + top // 8),
        "scale": 16,
        "measure": groups * columns + along * (directions - columns),
        "route": sum(int(np.ceil(1.25 * rank)) + 1 for rank in ranks),
    }


def limit_queries(width: int, outputs: int, *, coarse: bool = False) -> int:
    """The most that is ever asked: every form of every head singly, twice, in every attempt.

    Coarse answers are asked for more half circles, twice the moves, and jumps at fresh tokens.
    """
    separate = 18 + 11 * outputs + (outputs + 8) ** 2 // 3 + 2 * outputs * width
    if coarse:
        separate = 6 * separate + 4 * (outputs + 3) * (20 + 3 * outputs)
    measure = (width + 1) * width + 1000
    attempts = ATTEMPTS + JOINT_ATTEMPTS
    return width + 5 + attempts * (2 * measure + separate + 4 * outputs + 400 + QUERIES) + 8


def certify_whole_layer(
    recovery: Recovery[MultiHead], sizes: Sequence[int], tries: int, *, joint: bool
) -> Certificate | None:
    """The claim keyhole/whole-layer confronted with one run.

    Args:
        recovery: its end.
        sizes: ranks of all read-outs.
        tries: how many half circles it took.
        joint: whether all read-outs were known before any score.
    """
    model = recovery.model
    if model is None or recovery.fresh is None or len(sizes) == 0:
        return None
    rank = recovery.rank or model.width
    estimate = estimate_queries if joint else estimate_routed_queries
    counts = estimate(model.width, sizes, rank, biased=model.h is not None)
    per_try = recovery.ledger.total(without="verify").sequences / tries
    coarse = float(recovery.verdict is Verdict.WITHIN_TOLERANCE)
    return Certificate(
        "keyhole/whole-layer",
        assumptions=(
            assume_class("answers that no such layer gives", recovery.verdict),
            Check("answers coarser than float64", coarse, 0.0),
            Check("read-out ranks of all heads together", sum(sizes), model.outputs, judged=True),
            Check("queries per try, but those of verification", per_try, _allow_queries(counts)),
        ),
        conclusion=(conclude_agreement(recovery.fresh),),
    )


def _allow_queries(counts: Mapping[str, int]) -> float:
    """The expected count, a tenth for what is asked again, and columns that end a rank."""
    return 1.1 * sum(counts.values()) + 50
