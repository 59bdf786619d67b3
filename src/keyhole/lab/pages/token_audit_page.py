"""The page of an audit of a language model: the gaps drawn, policy by policy, for its owner."""

from __future__ import annotations

from collections.abc import Iterator

from keyhole.drawing.describing import Axis, Chart, Level, Line, Point
from keyhole.drawing.html import (
    Markup,
    element,
    format_command,
    format_note,
    format_number,
    format_section,
    format_table,
    frame_figure,
    join_markup,
    make_scrollable,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.parts.question_bounds import (
    describe_costs,
    list_function_costs,
    list_rotation_costs,
    list_space_costs,
    state_costs,
)
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.record_parts import TokenAudit, TokenPolicyRecord
from keyhole.lab.runs.recovery_records import AuditRecord
from keyhole.lab.runs.summaries import describe_question, describe_versions, restore_command

# Spectra of all policies in one picture would cover each other: these show what rounding does.
_DRAWN = ("full logits", "logits to 4 decimals", "logits to 2 decimals", "logits to 1 decimal")
_KINDS = ("ours", "built", "peer", "bad")


def draw_token_audit_page(data: AuditRecord) -> str:
    """A self-contained page that an owner can hand on."""
    found = data.tokens
    if found is None:
        raise ValueError("the record is of no language model")
    command = format_command(restore_command(data), f"Seed {data.seed}. {describe_versions(data)}")
    parts = (
        element("h1", data.sentence),
        format_note(describe_question(data)),
        format_section("What each policy gives away", _list_policies(found)),
        format_section("The first policy that keeps each back", _list_stopping(found)),
        format_section("The gap that shows the size", _draw_spectra(found)),
        *_draw_costs(found),
        format_section("Questions asked, and the fewest there can be", _list_costs(found)),
        _describe_snapshots(found),
        format_section("What this does and does not say", *map(_format_paragraph, _LIMITS)),
        format_section("How to reproduce", command),
    )
    return wrap_page("audit of a language model", join_markup(*parts))


_LIMITS = (
    "A rank is stated only where the singular values of the answers fall by a factor of three or"
    " more and what is left looks like errors; otherwise the verdict is UNVERIFIED, with the"
    " reason. Directions that move answers by less than their errors are seen by nobody: behind"
    " coarse answers a rank counts those that stand out, and is held against that of full logits."
    " A policy that keeps something back does so against these questions, at this number"
    " of prompts.",
    "The rank is that of the directions in which answers move. It is the hidden size behind no norm"
    " or an RMSNorm, and one less behind a LayerNorm; the answers do not tell these apart. It is"
    " less than the size where prompts do not reach every direction.",
    "The projection is determined as a space, and up to a rotation behind a norm; embeddings and"
    " the weights before it do not follow from this. The function itself is looked for as a layer"
    " of attention alone on at most 64 ids; the error of the copy is measured on prompts that it"
    " was not made from.",
)


def _format_paragraph(words: str) -> Markup:
    return element("p", words)


def _list_policies(found: TokenAudit) -> Markup:
    rows = [
        (
            record.policy,
            "none stated" if record.rank is None else f"{record.rank}",
            _name_sizes(record),
            format_number(record.gap),
            "not known" if record.angle is None else f"to {format_number(record.angle)}",
            _describe_angles(record),
            _describe_function(record),
            record.verdict if record.rank is not None else f"{record.verdict}: {record.reason}",
        )
        for record in found.policies
    ]
    columns = ("policy", "rank", "size", "gap", "space", "up to rotation", "function", "verdict")
    table = make_scrollable(format_table(rows, columns, (1, 3)), "table of policies")
    return join_markup(table, *_explain_what_is_open(found))


def _explain_what_is_open(found: TokenAudit) -> Iterator[Markup]:
    """Why a projection or a function is not known, once for all policies alike."""
    rotations = [(one.policy, one.rotation) for one in found.policies]
    functions = [(one.policy, one.function) for one in found.policies if one.function]
    yield from _name_reasons(
        "the projection is not known up to a rotation",
        [(name, one.reason) for name, one in rotations if one.residual is None],
    )
    yield from _name_reasons(
        "the function is not known",
        [(name, one.reason) for name, one in functions if one.error is None],
    )


def _name_reasons(what: str, reasons: list[tuple[str, str]]) -> Iterator[Markup]:
    for reason in dict.fromkeys(reason for _, reason in reasons):
        names = [name for name, other in reasons if other == reason]
        behind = names[0] if len(names) == 1 else f"{len(names)} policies from {names[0]} on"
        yield format_note(f"Behind {behind} {what}. {_open_sentence(reason)}")


def _open_sentence(reason: str) -> str:
    return reason[:1].upper() + reason[1:]


def _name_sizes(record: TokenPolicyRecord) -> str:
    if record.rank is None:
        return ""
    return f"{record.sizes['rms']} (none, RMSNorm), {record.sizes['layer']} (LayerNorm)"


def _describe_angles(record: TokenPolicyRecord) -> str:
    found = record.rotation
    return "not known" if found.residual is None else f"yes, to {format_number(found.residual)}"


def _describe_function(record: TokenPolicyRecord) -> str:
    found = record.function
    if found is None:
        return ""
    if found.error is None:
        return "not known"
    return f"{found.verdict}: a copy answers to {format_number(found.error)}"


def _list_stopping(found: TokenAudit) -> Markup:
    if not found.stopped_by:
        return _format_paragraph(
            f"Nothing is known to be given away by {found.policies[0].policy}: see above for what"
            " was tried."
        )
    rows = [
        (what, policy or "no policy that was tried") for what, policy in found.stopped_by.items()
    ]
    return format_table(rows, (f"what {found.policies[0].policy} give away", "first kept back by"))


def _draw_spectra(found: TokenAudit) -> Markup:
    note = (
        "Values before the gap are directions of the output projection, those behind it are errors"
        " of the answers: the coarser the answers, the higher they stand."
    )
    return join_markup(draw_chart(describe_spectra(found)), format_note(note))


def describe_spectra(found: TokenAudit) -> Chart:
    """Singular values by their order; the gap is where they fall."""
    shown = [record for record in found.policies if record.policy in _DRAWN]
    rank = found.policies[0].rank
    # Where no gap is seen all values are kept; those far behind the others' gap say nothing.
    longest = max(len(record.spectrum) for record in shown if record.rank or rank is None)
    lines = [
        Line(record.policy, kind, _list_points(record)[:longest])
        for record, kind in zip(shown, _KINDS, strict=False)
    ]
    levels = [] if rank is None else [Level(f"rank {rank}", rank + 0.5, upright=True)]
    return Chart(
        "singular values of the answers, from the largest",
        Axis("order"),
        Axis("singular value", log=True),
        lines,
        levels,
    )


def _list_points(record: TokenPolicyRecord) -> list[Point]:
    # A value that is exactly 0 has no place on a logarithmic axis.
    return [
        Point(order, value, f"{record.policy}, value {order}: {format_number(value)}")
        for order, value in enumerate(record.spectrum, start=1)
        if value
    ]


def _draw_costs(found: TokenAudit) -> Iterator[Markup]:
    """A picture for each thing that was found at a cost."""
    for what, unit, costs in (
        ("The space of the projection", "questions", list_space_costs(found)),
        ("The projection up to a rotation", "prompts", list_rotation_costs(found)),
        ("The function itself", "questions", list_function_costs(found)),
    ):
        if costs:
            said = state_costs(what, unit, costs)
            picture = draw_chart(describe_costs(said, unit, costs))
            yield format_section(said, frame_figure(picture, _MARKS, width="100%"))


_MARKS = (
    "grey: the fewest, by counting the numbers that are to be known and those that answers hold;"
    " blue: what was asked until it was known and confirmed; hover gives both in full"
)


def _list_costs(found: TokenAudit) -> Markup:
    rows = [
        (
            record.policy,
            f"{record.prompts:,}",
            f"{record.questions:,}",
            _format_count(record.limit),
            _format_count(record.rotation.questions),
            _format_count(record.rotation.limit),
        )
        for record in found.policies
    ]
    columns = (
        "policy",
        "prompts",
        "questions for the rank",
        "fewest for the space",
        "questions for the rotation",
        "fewest prompts for it",
    )
    return make_scrollable(format_table(rows, columns, (1, 2, 3, 4, 5)), "table of costs")


def _format_count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _format_known(value: float | None) -> str:
    return "" if value is None else format_number(value)


_FINDINGS = {
    "SHARED": "the same projection: what was trained, if anything, stands before it",
    "MOVED": "a projection that was trained further",
    "UNRELATED": "projections that have nothing in common",
    "UNVERIFIED": "not told: a space is not known, or known too coarsely",
}


def _describe_snapshots(found: TokenAudit) -> Markup:
    """The comparison of two snapshots, where there was one."""
    if found.against is None:
        return Markup()
    rows = [
        (
            record.policy,
            record.signature.finding,
            _FINDINGS[record.signature.finding],
            _format_known(record.signature.angle),
            _format_known(record.signature.allowed),
        )
        for record in found.policies
        if record.signature is not None
    ]
    columns = ("policy", "finding", "in words", "sine of the angle", "errors explain")
    table = make_scrollable(format_table(rows, columns, (3, 4)), "table of signatures")
    return format_section(f"Compared with {found.against}", table)
