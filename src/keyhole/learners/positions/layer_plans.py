"""What the recovery of an attention layer asks, before a single question."""

from __future__ import annotations

from dataclasses import replace

from keyhole.errors import InvalidInput
from keyhole.learners.positions.absolute import (
    LONE_EXTRA,
    estimate_position_queries,
    limit_position_queries,
)
from keyhole.learners.positions.grouped.kernel_split import (
    count_split_questions,
    limit_split_questions,
)
from keyhole.learners.positions.grouped.sink_values import NODES, limit_sink_questions
from keyhole.learners.positions.head_split import count_extra_moves
from keyhole.learners.positions.measuring import ROUNDS
from keyhole.learners.positions.normed.normed_heads import count_normed_questions
from keyhole.learners.positions.normed.normed_kernel import count_normed_split
from keyhole.learners.positions.position_kind import COMPARED, FURTHER, LENGTHS, MOST, STEPS
from keyhole.learners.positions.question_design import design_questions, make_score_form
from keyhole.learners.positions.wide.shift_split import limit_wide_questions
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import Wiring

# Of the radius of the ball, or of tokens without a norm: smaller where scores are large.
SIZES = (0.8, 0.3, 0.1)


def estimate_layer_queries(
    told: Wiring, width: int, rank: int, *, heads: int, displacements: int, biased: bool
) -> dict[str, int]:
    """Queries by phase; positions that are not told are taken to be rotary ones."""
    wiring = complete_told_wiring(told, heads)
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
    if wiring.sinks:
        split = D
    if (wiring.groups or heads) < heads:
        split = count_split_questions(heads * rank, heads)
    keys, queries = sum(design.key_questions), design.query_questions
    if wiring.qk_norm:
        own, keys = count_normed_questions(form, D, rank, heads * rank)
        shared = (wiring.groups or heads) < heads
        split = count_normed_split(heads * rank, heads) if shared else own
        queries = 0
    return {
        "wiring": _count_wiring_queries(told),
        "read": (NODES * D if told.sinks else D) + (LONE_EXTRA if absolute else 1),
        **({"positions": placed} if absolute else {}),
        "split": split + _count_kind_queries(told, rank + FURTHER),
        "keys": keys,
        "queries": queries,
    }


def check_told_wiring(wiring: Wiring) -> None:
    """Raise where a wiring is told that this learner does not know."""
    rotary = wiring.positions in (None, "rope") and wiring.rotary_share in (None, 1.0)
    beside = (wiring.sinks, wiring.softcap, wiring.window)
    if wiring.qk_norm and (any(beside) or not (rotary or wiring.positions == "none")):
        raise InvalidInput(
            "layers with qk_norm are learned with rotary positions of whole heads, or none, and"
            " without sinks, a cap or a window; other ones are modelled only."
        )
    if wiring.qk_norm and wiring.eps == 0.0:
        raise InvalidInput(
            "norms of queries and keys with eps = 0 do not show the size of these maps; give the"
            " eps that the layer was built with, often 1e-6."
        )
    normed = wiring.norm in ("rms", "layer")
    if wiring.sinks and (
        wiring.positions != "rope" or wiring.softcap or (normed and not wiring.eps)
    ):
        raise InvalidInput(
            "sinks are learned beside rotary positions and without a cap, and eps must be told with"
            " them; say --positions rope and the --eps that the layer was built with, often 1e-5."
        )
    if normed and wiring.eps == 0.0:
        raise InvalidInput(
            "a norm with eps = 0 lets tokens be read on a sphere only, which this learner does not"
            " do; give the eps that the layer was built with, often 1e-5."
        )


def complete_told_wiring(told: Wiring, heads: int) -> Wiring:
    """What is planned for: of what is not told, what most layers have."""
    return replace(told, positions=told.positions or "rope").complete(told.groups or heads)


def _count_wiring_queries(told: Wiring) -> int:
    """Questions that tell norm, residual, eps and order, as far as they are not told."""
    normed = told.norm != "none"
    found = 7 if told.norm is None else int(normed and told.residual is None)
    order = 4 if told.positions is None else 0
    eps = 5 if normed and told.eps is None and told.positions != "absolute" else 0
    return found + order + eps


def _count_kind_queries(told: Wiring, displacements: int) -> int:
    """Questions that tell base, share and cap, where positions are not told."""
    if told.positions is not None:
        return 0
    return COMPARED + min(displacements, MOST) + (len(STEPS) if told.softcap is None else 0)


def limit_layer_queries(told: Wiring, width: int, outputs: int, displacements: int) -> int:
    """The most that is ever asked: every try to split, every round, for every size of tokens."""
    split = max(
        5 * 2 * (width + 2), limit_split_questions(width, outputs), limit_sink_questions(width)
    )
    scores = 20 * (2 * (width + 1) + displacements) + 64
    # Positions that are not told may turn out to be absolute.
    placed = 0
    if told.positions in (None, "absolute"):
        placed = limit_position_queries(displacements) + LONE_EXTRA
    placed += NODES * width if told.sinks else 0
    kind = len(LENGTHS) * _count_kind_queries(told, MOST)
    # Heads that are not told apart one by one may be wide ones.
    if told.positions in ("rope", "none") and not (told.sinks or told.softcap):
        placed += limit_wide_questions(width)
    each = width + 1 + split + kind + (1 + ROUNDS) * scores + QUERIES
    return placed + _count_wiring_queries(told) + (len(SIZES) + 1) * each + 96
