"""What a recovery of an attention layer says of itself: how it came about, and what is certain."""

from __future__ import annotations

import numpy as np

from keyhole.claims import Certificate, Check, Verdict
from keyhole.identify import matrix_rank
from keyhole.identify.layers import layer_freedom
from keyhole.learners.positions.found_wiring import describe_fields
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.examination import Examination
from keyhole.models import AttentionLayer, Wiring

# What is looked for; the rest of a wiring is as most layers have it.
_FOUND = ("norm", "eps", "residual", "positions", "qk_norm", "rope_base", "rotary_share")
_FOUND += ("softcap", "window")
_NOT_LOOKED_FOR = (
    "These are not told apart: a window beyond the lengths asked, and the table of a"
    " head whose weights fall"
    " evenly, which is taken as ALiBi. Bases, shares and caps are taken from those in use."
)
UNSPLIT = (
    "No weights of heads showed as multiple eigenvalues: more heads than the outputs hold, or"
    " another wiring than was told."
)
UNSHARED = (
    "Some tokens have no value, as where heads share values, and no heads explain what the others"
    " are answered: more heads of a group than a head is large, more than the outputs hold, or"
    " another wiring than was told."
)
NORMED = (
    "Scores keep their size when tokens are made smaller, as where queries and keys have a norm of"
    " their own (--qk-norm), here beside what is not learned with them, or where a layer stands"
    " before."
)
TOO_SHORT = "Sinks are told from sequences of 256 tokens and more; allow them with --lengths."
UNPLACED = "No vector that is added to a lone token before its norm explains the answers."
NARROW = "Of a token of one number a norm leaves little more than the sign."
NO_EPS = "The eps of the norm is too small to be seen; tell it with --eps."


def explain_layer(told: Wiring, found: Wiring, model: AttentionLayer | None) -> str:
    """What was told, what was found, and what the heads look like."""
    known = found if model is None else model.wiring
    # Where positions are told, what belongs to them is taken as told, or as usual.
    looked_for = _FOUND if told.positions is None else _FOUND[:5]
    shown = describe_fields(
        {
            name: value
            for name, value in known.told.items()
            if name in looked_for and name not in told.told and value
        }
    )
    words = f"Of the wiring was told: {describe_fields(told.told) or 'nothing'}."
    words += f" Found: {shown}." if shown else ""
    if model is None:
        return words
    if told.positions is None:
        words = f"{words} {_NOT_LOOKED_FOR}"
    shared = (
        ""
        if model.groups == model.heads
        else f", {model.groups} of whose keys and values they share"
    )
    return f"{words} The answers are those of {model.heads} heads of size {model.rank}{shared}."


def certify_layer(
    model: AttentionLayer, verdict: Verdict, seen: Examination, limit: float
) -> Certificate:
    """The claim keyhole/layers-as-built, confronted with one run."""
    spaces = np.concatenate(list(model.Wo), axis=1)
    shared = spaces.shape[1] - matrix_rank(spaces)
    return Certificate(
        "keyhole/layers-as-built",
        assumptions=(
            assume_class("answers that no such layer gives", verdict),
            Check("output directions that heads share", float(shared), 0.0),
        ),
        conclusion=(conclude_agreement(seen.fresh, limit),),
    )


def count_layer_freedom(model: AttentionLayer) -> int:
    """Numbers that the answers of a recovered layer determine."""
    return layer_freedom(
        model.wiring,
        model.width,
        heads=model.heads,
        rank=model.rank,
        outputs=model.outputs,
        displacements=model.longest or 1,
        biased=model.bo is not None,
    )


def describe_determined_layer(model: AttentionLayer | None, verdict: Verdict) -> str:
    """What is and is not determined."""
    if model is None:
        return "Nothing was determined."
    if not verdict.verified:
        return "The model is the best one found; nothing of it is certain."
    pairs = "a complex number per turned pair" if model.wiring.positions == "rope" else ""
    free = pairs or "an invertible map of queries and keys"
    if model.wiring.qk_norm:
        free = "what gains and maps of queries and keys share"
    table = " Tables are determined up to a constant per head." if model.table is not None else ""
    norm = " Gains and shifts of the norm are folded in." if model.wiring.norm != "none" else ""
    each = "head" if model.groups == model.heads else "group of heads that share keys and values"
    return (
        f"The maps of {model.heads} heads are determined up to order, an invertible map of values"
        f" and {free}, each {each} its own.{table}{norm}"
    )
