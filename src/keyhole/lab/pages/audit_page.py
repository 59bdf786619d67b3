"""The page of an audit: policies as dots on one axis of errors, verdicts in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from keyhole.drawing.describing import Area, Axis, Chart, Level, Line, Point, name_rows
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
from keyhole.drawing.svg import draw_chart, draw_rows
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.pages.token_audit_page import draw_token_audit_page
from keyhole.lab.runs.recovery_records import AuditRecord, GateRecord, PolicyRecord
from keyhole.lab.runs.summaries import describe_question, describe_versions, restore_command
from keyhole.lab.targets.policies import PROTECTS

_ROW = 30.0  # height of the row of a policy
# Below the rounding of a double errors are all alike, and those above the largest are as bad.
_LEAST, _MOST = 1e-16, 10**0.5


def draw_audit_run(data: AuditRecord, directory: Path) -> str:
    """The page of a run, of which the record holds everything."""
    del directory
    return draw_audit_page(data)


def draw_audit_page(data: AuditRecord) -> str:
    """A self-contained page."""
    if data.tokens is not None:
        return draw_token_audit_page(data)
    verdicts = (element("p", row.verdict) for row in data.policies)
    command = format_command(restore_command(data), f"Seed {data.seed}. {describe_versions(data)}")
    parts = (
        element("h1", data.sentence),
        *((element("p", data.recommendation),) if data.recommendation else ()),
        *_draw_gate(data.gate),
        format_note(describe_question(data)),
        format_section(_title_errors(data), _draw_policies(data)),
        _draw_errors_by_queries(data),
        format_section("What each policy keeps back", *verdicts),
        format_section("The attempts", _list_attempts(data)),
        format_section("What it cost", _describe_cost(data)),
        format_section("How to reproduce", command),
    )
    return wrap_page("audit", join_markup(*parts))


def _draw_gate(gate: GateRecord | None) -> Iterator[Markup]:
    """Whether the owner's demand is met, where one was made."""
    if gate is not None:
        said = "no copy" if gate.error is None else f"an error of {format_number(gate.error)}"
        word = "passes" if gate.passes else "fails"
        demand = f"an error above {format_number(gate.fail_above)} was demanded"
        text = f"The target as it stands {word}: {demand}, an extractor reached {said}."
        yield element("p", text, class_="verdict ours" if gate.passes else "verdict bad")


def _title_errors(data: AuditRecord) -> str:
    return (
        f"Error of {data.error_of} that an extractor reaches: left of the dashed line a policy"
        " keeps little back"
    )


def describe_policies(data: AuditRecord) -> Chart:
    """One row per policy: the errors that attempts behind it reached."""
    rows = list(reversed(data.policies))
    top = len(rows) - 0.5
    kept = [(PROTECTS, -0.5), (_MOST, -0.5), (_MOST, top), (PROTECTS, top)]
    return Chart(
        _title_errors(data),
        Axis("relative error, log scale", log=True, low=_LEAST, high=_MOST, ticks=_POWERS),
        name_rows([row.policy for row in rows]),
        [line for k, row in enumerate(rows) for line in _trace_attempts(k, row)],
        [Level("", PROTECTS, upright=True)],
        areas=[Area(kept, "ours", 0.08)],
        width=560.0,
        height=_ROW * len(rows),
    )


_POWERS = tuple((10.0**power, f"1e{power}" if power else "1") for power in range(-16, 1, 4))


def _trace_attempts(k: int, row: PolicyRecord) -> Iterator[Line]:
    """The attempts behind one policy, the last one with its queries."""
    known = [(a, a.error) for a in row.attempts if a.error is not None]
    points = [
        Point(
            min(max(error, _LEAST), _MOST),
            k,
            f"{a.queries:,} queries: error {format_number(error)}, {a.verdict}",
            label=f"{a.queries:,} queries" if a is row.nearest else "",
        )
        for a, error in known
    ]
    yield Line("", _choose_mark(row), points)
    # No model has no place on the axis: it stands at the end that protects.
    if not known:
        yield Line("no model", "bad", [Point(1.0, k)])


def _choose_mark(row: PolicyRecord) -> str:
    # What this extractor cannot judge is neither kept back nor given away.
    return {True: "built", False: "ours", None: "peer"}[row.protects]


def _draw_policies(data: AuditRecord) -> Markup:
    note = (
        "● the policy gives the weights away, ■ it keeps them back, ▲ this extractor fails behind"
        " it, and another may not; the nearest attempt is named with"
        f" its number of queries; ✕ no model; the shaded side keeps {data.error_of} back"
    )
    return frame_figure(draw_rows(describe_policies(data)), note, width="100%")


def _draw_errors_by_queries(data: AuditRecord) -> Markup:
    """Every attempt as a mark of error against queries; several of one policy as a line."""
    lines = [_trace_policy(row) for row in data.policies]
    x = Axis("queries of the attempt, verification apart", log=True)
    y = Axis(f"relative error of {data.error_of}", log=True)
    level = Level("keeps it back above", PROTECTS)
    about = "error an extractor reaches against queries"
    svg = draw_chart(Chart(about, x, y, lines, [level]))
    note = (
        "Blue circles: the policy gives the weights away; green squares: it keeps them back; yellow"
        " triangles: this extractor fails behind it, and another may not. A line"
        " joins attempts at several costs behind one policy: where it falls, asking more helps."
        " Hover names the policy of a mark."
    )
    title = "Error against queries: what more questions buy an extractor"
    return format_section(title, svg, format_note(note)) if svg else Markup()


def _trace_policy(row: PolicyRecord) -> Line:
    points = [
        Point(
            a.queries - a.verification,
            a.error,
            f"{row.policy}: {a.queries:,} queries, {a.error:.0e}",
        )
        for a in row.attempts
        if a.error
    ]
    # Single marks would crowd each other with names; hovering tells theirs.
    name = row.policy if len(points) > 1 else ""
    return Line(name, _choose_mark(row), points)


def _format_error(error: float | None) -> str:
    return "none" if error is None else format_number(error)


def _list_attempts(data: AuditRecord) -> Markup:
    rows = [
        (
            row.policy,
            " ".join(f"{key} {value}" for key, value in attempt.options.items()),
            f"{attempt.queries:,}",
            _format_error(attempt.error),
            _format_error(attempt.function_error),
            attempt.verdict,
        )
        for row in data.policies
        for attempt in row.attempts
    ]
    columns = (
        "policy",
        "attempt",
        "queries",
        f"error of {data.error_of}",
        "error of answers",
        "verdict",
    )
    return make_scrollable(format_table(rows, columns, (2, 3, 4)), "table of attempts")


def _describe_cost(data: AuditRecord) -> Markup:
    ball = f"the ball has radius {format_number(data.token_bound)}"
    said = (
        f"{data.queries.total:,} queries were asked of the target itself; policies were"
        f" applied here; {ball}."
    )
    if data.cap is not None:
        said += f" An attempt could ask {data.cap:,} queries at most."
    return element("p", said)
