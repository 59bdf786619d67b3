"""What a recovered sum of heads is said to be: its freedom, its heads, what of it is determined."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import EPS
from keyhole.claims import Check, Verdict
from keyhole.identify import canonical_heads, head_freedom, matrix_rank
from keyhole.identify.heads import count_bias_freedom
from keyhole.learners.joint_heads.road import count_most_heads, plan_joint_queries
from keyhole.learners.several_heads.heads_fit import count_soft_sequences
from keyhole.models import Head, MultiHead

PER_HEAD = 60  # queries to find a head, apart from those that grow with d
RANK_SHARE = 1e-9  # of the largest singular value: what is below is rounding


def count_heads_freedom(model: MultiHead | None) -> int | None:
    """Degrees of freedom of the heads found; a mean head has only its read-out."""
    if model is None:
        return None
    beside = model.outputs * (model.c is not None)
    if model.U is not None:
        beside += model.U.size
    return sum(_count_head_freedom(head) for head in model.heads) + beside


def _count_head_freedom(head: Head) -> int:
    """Degrees of freedom of one head, apart from the constant and a residual."""
    W = np.asarray(head.W)
    rank = matrix_rank(W, RANK_SHARE) if W.any() else 0
    return head_freedom(
        head.width,
        outputs=head.outputs,
        rank=rank,
        value_rank=int(np.linalg.matrix_rank(head.V)),
        score_bias=0 if head.h is None else count_bias_freedom(W, head.h, rank, RANK_SHARE),
    )


def explain_heads_found(model: MultiHead | None) -> str:
    """Say which heads were found."""
    if model is None:
        return "A sum of heads was looked for."
    ranks = [matrix_rank(W, RANK_SHARE) if W.any() else 0 for W in model.W]
    return f"Heads found: {len(ranks)}, with W of rank {', '.join(map(str, ranks))}."


def describe_determined_heads(model: MultiHead | None, verdict: Verdict) -> str:
    """Say what answers fix of the heads, and what they leave free."""
    if model is not None and verdict.verified:
        names = "W and V" if model.h is None else "W, V and h"
        beside = "" if model.U is None else ", and the residual U,"
        return (
            f"{names} of every head{beside} are determined; the order of heads, a split of V among"
            " heads of equal W, heads without effect and key biases are not."
        )
    return "Nothing is determined but the sum of all read-outs."


def find_largest_rank(model: MultiHead | None) -> int | None:
    """The largest rank of any W, once heads that are equal are one."""
    if model is None:
        return None
    return max((matrix_rank(W, RANK_SHARE) for W in canonical_heads(model).W), default=None)


def promise_theorem(
    model: MultiHead, roundoff: float, *, joint: bool, fits: int
) -> tuple[str, Check, float]:
    """The theorem of a run, what else it assumes, and how many queries it allows.

    Args:
        model: what was found.
        roundoff: largest relative rounding of answers.
        joint: whether all read-outs were known before any score.
        fits: how many models were fitted to further answers.
    """
    heads, d = model.W.shape[:2]
    if joint:
        most = count_most_heads(d, model.outputs)
        few = Check("heads, of which outputs tell so many apart", heads, most)
        if roundoff > EPS:
            few = Check("rounding of answers, which the claim has exact", roundoff, EPS)
        planned = plan_joint_queries(d, model.outputs, heads, biased=True)
        fitting = fits * count_soft_sequences(model)
        return "keyhole/joint-heads", few, 1.2 * sum(planned.values()) + fitting + d + 50
    allowed = heads * (d * d + 4 * d + PER_HEAD) + d + 200
    fitted = Check("models fitted to further answers", fits, 0.0)
    return "keyhole/saturate-and-isolate", fitted, allowed
