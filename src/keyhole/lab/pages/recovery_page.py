"""The report of one recovery: the verdict in words, then pictures, then numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from keyhole.claims import THEOREMS, Outcome
from keyhole.drawing.describing import Axis, Bar, Chart, Level, name_rows
from keyhole.drawing.html import (
    Markup,
    element,
    format_command,
    format_note,
    format_number,
    format_section,
    format_table,
    join_markup,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.parts.block_portraits import draw_block_progress
from keyhole.lab.pages.parts.error_curves import draw_error_curve, list_curve
from keyhole.lab.pages.parts.head_switches import draw_heads_against_truth
from keyhole.lab.pages.parts.phase_words import describe_phase
from keyhole.lab.pages.parts.portraits import draw_portrait
from keyhole.lab.pages.parts.recovered_matrices import has_verified_model
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs import summaries
from keyhole.lab.runs.record_parts import CounterexampleRecord
from keyhole.lab.runs.recovery_records import DemoRecord, RecoveryRecord
from keyhole.lab.runs.rows import count_fewest_queries, describe_basis, list_recovery_rows

_OUTPUTS = 6  # numbers of a counterexample's answer that are shown

_UNSEEN = (
    "Left of the limit some parameter is free, whatever the learner; the error is known only at the"
    " end, from fresh queries. How it falls on the way is drawn where the truth is known: keyhole"
    " demo, and sweeps over --budget."
)

# What is recovered, where it is no head.
_CALLED = {
    "relu": "a ReLU network",
    "smooth": "a smooth network",
    "gated": "a gated network",
    "onelayer": "a one-layer Transformer",
    "layer": "an attention layer",
    "block": "a Transformer block",
    "tensor": "a unit of third order",
}


def draw_recovery_page(data: RecoveryRecord, directory: Path) -> str:
    """The report of one run, from its record and the model files beside it."""
    parts = (
        _draw_verdict(data),
        _show_counterexample(data),
        draw_block_progress(data, directory),
        draw_portrait(data, directory),
        _draw_query_phases(data),
        draw_error_curve(data),
        _show_recovery_certificate(data),
        draw_heads_against_truth(data, directory),
        _draw_tour(data, directory),
        format_section("The run", format_table([*list_recovery_rows(data)])),
        _show_recovery_command(data),
    )
    return wrap_page(data.verdict, join_markup(*parts))


def _draw_tour(data: RecoveryRecord, directory: Path) -> Markup:
    """What the stops of a tour look like; their pages are only needed here."""
    if not isinstance(data, DemoRecord):
        return Markup()
    # Pages of tasks load constructions, which a plain recovery need not wait for.
    from keyhole.lab.pages.tour_page import draw_stops

    return draw_stops(data, directory)


def _draw_verdict(data: RecoveryRecord) -> Markup:
    name = data.verdict
    failed = name == "CLASS_REFUTED" or data.status in ("BAD_ANSWER", "TARGET_FAILED")
    style, mark = ("ours", "●") if has_verified_model(data) else ("limit", "○")
    if failed:
        style, mark = ("bad", "✕")
    badge = element(
        "p", element("span", mark, aria_hidden="true"), f" {name}", class_=f"verdict {style}"
    )
    question = summaries.describe_question(data)
    finding, told = split_sentence(data)
    return join_markup(badge, element("h1", finding), element("p", told), format_note(question))


def split_sentence(data: RecoveryRecord) -> tuple[str, str]:
    """The finding that stands above a page, and what is said below it."""
    shape = _describe_shape(data)
    if shape is not None:
        phases, _ = _split_phases(data)
        limit = f"; the limit is {count_fewest_queries(data):,}"
        return f"{sum(phases.values()):,} queries recover {shape}{limit}.", data.sentence
    first, stop, rest = data.sentence.partition(". ")
    return first + stop.rstrip(), rest


def _show_counterexample(data: RecoveryRecord) -> Markup:
    """What speaks against the model: both answers, with enough digits to tell them apart."""
    case = data.counterexample
    if case is None:
        return Markup()
    if case.rule is not None:
        return _show_witness(case)
    answer, predicted = (
        np.ravel(np.asarray(part, dtype=np.float64)) for part in (case.answer, case.predicted)
    )
    # Of many outputs those that differ most are the evidence.
    order = np.argsort(-np.abs(answer - predicted), kind="stable")[:_OUTPUTS]
    rows = [(f"output {k}", *_format_apart(float(answer[k]), float(predicted[k]))) for k in order]
    answers = format_table(rows, ("", "target answers", "model answers", "gap"), (1, 2, 3))
    note = ""
    if len(order) < len(answer):
        note = f" Of {len(answer)} outputs, the {len(order)} with the largest gaps."
    where = (
        "The sequence is counterexample.tokens in record.json; ask the target again to see"
        f" it.{note}"
    )
    title = (
        f"On a sequence of length {len(case.tokens)} target and model differ by"
        f" {format_number(case.gap)}"
    )
    return format_section(title, answers, element("p", where))


def _show_witness(case: CounterexampleRecord) -> Markup:
    """The rule that is broken, and the answers that break it."""
    rows = [
        (f"length {len(question)}", ", ".join(map(format_number, answer[:_OUTPUTS])))
        for question, answer in zip(case.questions, case.answers, strict=False)
    ]
    title = (
        f"{len(rows)} answers break the rule {case.rule} by {format_number(case.gap)}; rounding"
        f" explains {format_number(case.allowed)}"
    )
    where = (
        "The sequences are counterexample.questions in record.json; keyhole verify TARGET --witness"
        " asks them again."
    )
    answers = format_table(rows, ("question", "the target answers"))
    return format_section(title, answers, element("p", where))


def _format_apart(a: float, b: float) -> tuple[str, str, str]:
    gap = abs(a - b)
    digits = 3
    # Two digits beyond the first that differs; a double has no more than 17.
    if 0 < gap < math.inf:
        digits = 2 + max(1, math.ceil(math.log10(max(abs(a), abs(b)) / gap)))
    return f"{a:.{min(digits, 17)}g}", f"{b:.{min(digits, 17)}g}", format_number(gap)


def _show_recovery_certificate(data: RecoveryRecord) -> Markup:
    held = data.certificate
    if held is None:
        return Markup()
    rows = [
        (
            f"{part}: {c.name}",
            format_number(c.measured),
            format_number(c.limit),
            "holds" if c.holds else "fails",
        )
        for part, checks in (("assumed", held.assumptions), ("concluded", held.conclusion))
        for c in checks
    ]
    theorem = THEOREMS.get(held.theorem)
    outcome = Outcome[held.outcome]
    said = "" if theorem is None else element("p", theorem.statement)
    table = format_table(rows, ("inequality", "measured", "at most", ""), (1, 2))
    title = f"Certificate {held.theorem}: {outcome.name.lower()}{describe_basis(held)}"
    return format_section(f"{title}. {outcome.value}", said, table)


def _show_recovery_command(data: RecoveryRecord) -> Markup:
    # Older records do not hold the budget that stopped them.
    lost = data.status in ("BUDGET_SPENT", "UNCHECKED") and data.budget is None
    note = "This run had a budget; add the same --budget. " if lost else ""
    return format_section(
        "How to reproduce",
        format_command(
            summaries.restore_command(data),
            note + summaries.describe_versions(data),
        ),
    )


def describe_query_phases(data: RecoveryRecord) -> Chart:
    """All phases but verification as one bar against the limit, that as a second bar."""
    phases, verify = _split_phases(data)
    limit = count_fewest_queries(data)
    asked = sum(phases.values())
    bars = [
        Bar(1.0, start, start + count, "ours", (0.45, 0.2)[k % 2], f"{name} {count:,} queries")
        for k, ((name, count), start) in enumerate(
            zip(phases.items(), accumulate(phases.values(), initial=0), strict=False)
        )
    ]
    bars.append(Bar(0.0, 0.0, verify, "ours", 0.12, f"verify {verify:,} queries"))
    rows = (f"to verify: {verify:,}", f"to learn: {asked:,}")
    return Chart(
        _title_queries(asked, verify, limit),
        Axis("queries", low=0.0),
        name_rows(rows),
        levels=[Level(f"limit {limit:,}", limit, upright=True)] if limit else [],
        bars=[replace(bar, label=bar.said.removesuffix(" queries")) for bar in bars],
        width=560.0,
        height=72.0,
    )


def _split_phases(data: RecoveryRecord) -> tuple[dict[str, int], int]:
    """Queries to learn by phase, and those to verify."""
    phases: dict[str, int] = dict(data.queries.by_phase or {})
    # Verification is not needed to know the weights: the limit is for learning alone.
    verify = phases.pop("verify", 0)
    return phases, verify


def _draw_query_phases(data: RecoveryRecord) -> Markup:
    if not data.queries.by_phase:
        return format_section(f"{data.queries.total:,} queries were asked before the run stopped")
    phases, verify = _split_phases(data)
    rows = [
        (name, f"{count:,}", describe_phase(name, data.model_class))
        for name, count in (*phases.items(), ("verify", verify))
    ]
    chart = describe_query_phases(data)
    table = format_table(rows, ("phase", "queries", "what for"), (1,))
    unseen = list_curve(data) or count_fewest_queries(data) is None
    note = "" if unseen else format_note(_UNSEEN)
    return format_section(chart.about, draw_chart(chart), table, note)


def _describe_shape(data: RecoveryRecord) -> str | None:
    """What was recovered, where that is verified and the fewest queries for it are known."""
    if not has_verified_model(data) or count_fewest_queries(data) is None:
        return None
    # The rank of several heads is not that of one matrix.
    if (data.heads or 1) > 1 and data.model_class != "block":
        return f"{data.heads:,} heads of width {data.width:,}"
    if data.rank is not None and data.model_class in (None, "head"):
        return f"a {data.width} x {data.width} head of rank {data.rank}"
    called = _CALLED.get(data.model_class or "")
    return None if called is None else f"{called} on tokens of width {data.width:,}"


def _title_queries(asked: int, verify: int, limit: int | None) -> str:
    known = f"; the limit is {limit:,}" if limit is not None else ""
    return f"{asked:,} queries to learn, {verify:,} to verify{known}"
