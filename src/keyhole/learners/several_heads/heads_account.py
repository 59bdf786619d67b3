"""What a recovered sum of heads is said to be: its freedom, its heads, what of it is determined."""

from __future__ import annotations

import numpy as np

from keyhole.claims import Verdict
from keyhole.identify import canonical, head_freedom, matrix_rank
from keyhole.models import MultiHead

RANK_SHARE = 1e-9  # of the largest singular value: what is below is rounding


def count_heads_freedom(model: MultiHead | None) -> int | None:
    """Degrees of freedom of the heads found; a mean head has only its read-out."""
    if model is None:
        return None
    outputs = model.outputs
    return sum(
        head_freedom(
            model.width,
            outputs=outputs,
            rank=matrix_rank(W, RANK_SHARE) if W.any() else 0,
            value_rank=int(np.linalg.matrix_rank(V)),
        )
        for W, V in zip(model.W, model.V, strict=True)
    ) + outputs * (model.c is not None)


def explain_heads_found(model: MultiHead | None) -> str:
    """Say which heads were found."""
    if model is None:
        return "A sum of heads was looked for."
    ranks = [matrix_rank(W, RANK_SHARE) if W.any() else 0 for W in model.W]
    return f"Heads found: {len(ranks)}, with W of rank {', '.join(map(str, ranks))}."


def describe_determined_heads(verdict: Verdict) -> str:
    """Say what answers fix of the heads, and what they leave free."""
    if verdict.verified:
        return (
            "W and V of every head are determined; the order of heads, a split of V among heads of"
            " equal W, and heads without effect are not."
        )
    return "Nothing is determined but the sum of all read-outs."


def find_largest_rank(model: MultiHead | None) -> int | None:
    """The largest rank of any W, once heads that are equal are one."""
    if model is None:
        return None
    return max((matrix_rank(W, RANK_SHARE) for W in canonical(model).W), default=None)
