"""What the recovery of an attention layer asks, before a single question."""

from __future__ import annotations

from keyhole.learners.positions.absolute import (
    LONE_EXTRA,
    estimate_position_queries,
    limit_position_queries,
)
from keyhole.learners.positions.grouped.kernel_split import (
    count_split_questions,
    limit_split_questions,
)
from keyhole.learners.positions.head_split import count_extra_moves
from keyhole.learners.positions.measuring import ROUNDS
from keyhole.learners.positions.question_design import design_questions, make_score_form
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import Wiring

# Of the radius of the ball, or of tokens without a norm: smaller where scores are large.
SIZES = (0.8, 0.3, 0.1)


def estimate_layer_queries(
    wiring: Wiring, width: int, rank: int, *, heads: int, displacements: int, biased: bool
) -> dict[str, int]:
    """Queries by phase."""
    D = width - (wiring.norm == "layer")
    absolute = wiring.positions == "absolute"
    longest = displacements if absolute else None
    form = make_score_form(
        wiring, rank, biased=biased, displacements=displacements, longest=longest
    )
    design = design_questions(form, D, rank)
    pair = absolute or wiring.positions == "none"
    placed = estimate_position_queries(wiring, displacements) if absolute else 0
    split = D + 1 if pair else D + count_extra_moves(D, rank)
    if (wiring.groups or heads) < heads:
        split = count_split_questions(heads * rank, heads)
    return {
        "wiring": 7,
        "read": D + (LONE_EXTRA if absolute else 1),
        **({"positions": placed} if absolute else {}),
        "split": split,
        "keys": sum(design.key_questions),
        "queries": design.query_questions,
    }


def limit_layer_queries(wiring: Wiring, width: int, outputs: int, displacements: int) -> int:
    """The most that is ever asked: every try to split, every round, for every size of tokens."""
    split = max(5 * 2 * (width + 2), limit_split_questions(width, outputs))
    scores = 20 * (2 * (width + 1) + displacements) + 64
    placed = (
        limit_position_queries(displacements) + LONE_EXTRA if wiring.positions == "absolute" else 0
    )
    return placed + 16 + len(SIZES) * (width + 1 + split + (1 + ROUNDS) * scores + QUERIES) + 8
