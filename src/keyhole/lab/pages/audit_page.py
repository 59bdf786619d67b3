"""The page of an audit: policies as dots on one axis of errors, verdicts in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyhole.drawing.charts import Axis, Level, Line, Point, draw_chart
from keyhole.drawing.html import (
    draw_svg,
    escape_text,
    format_command,
    format_number,
    format_section,
    format_table,
    frame_figure,
    make_scrollable,
)
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.summaries import describe_question, describe_versions, restore_command
from keyhole.lab.targets.policies import PROTECTS

_LEFT, _RIGHT, _ROW, _TOP = 300, 880, 30, 40
# Below the rounding of a double errors are all alike.
_LOWEST = -16.0


def draw_audit_run(data: Mapping[str, Any], directory: Path) -> str:
    """The page of a run, of which the record holds everything."""
    del directory
    return draw_audit_page(data)


def draw_audit_page(data: Mapping[str, Any]) -> str:
    """A self-contained page."""
    verdicts = "".join(f"<p>{escape_text(row['verdict'])}</p>" for row in data["policies"])
    body = (
        f"<h1>{escape_text(data['sentence'])}</h1>"
        f"<p class='limit'>{escape_text(describe_question('audit', data))}</p>"
        + format_section(_title_errors(data), _draw_policies(data))
        + _draw_errors_by_queries(data)
        + format_section("What each policy keeps back", verdicts)
        + format_section("The attempts", _list_attempts(data))
        + format_section("What it cost", _describe_cost(data))
        + format_section(
            "How to reproduce",
            format_command(
                restore_command("audit", data), f"Seed {data['seed']}. {describe_versions(data)}"
            ),
        )
    )
    return wrap_page("audit", body)


def _title_errors(data: Mapping[str, Any]) -> str:
    return (
        f"Error of {data['error_of']} that an extractor reaches: left of the dashed line a policy"
        " keeps little back"
    )


def _place_error(error: float) -> float:
    """Where an error stands on the axis."""
    # An error far above 1 is as bad as one a little above it.
    power = min(0.5, max(_LOWEST, math.log10(max(error, 1e-300))))
    return _LEFT + (_RIGHT - _LEFT) * (power - _LOWEST) / (0.5 - _LOWEST)


def _draw_policies(data: Mapping[str, Any]) -> str:
    rows = data["policies"]
    height = _TOP + _ROW * len(rows) + 20
    body = _draw_error_axis(height) + "".join(
        _draw_policy_row(row, _TOP + _ROW * (k + 0.5)) for k, row in enumerate(rows)
    )
    note = (
        "● attempt, with its number of queries; ✕ no model; the shaded side keeps"
        f" {data['error_of']} back"
    )
    size = {"viewBox": f"0 0 960 {height}", "style": "min-width:46rem;overflow:hidden"}
    svg = draw_svg(body, size=size, label=_title_errors(data))
    return frame_figure(make_scrollable(svg, "picture of errors"), escape_text(note), width="100%")


def _draw_errors_by_queries(data: Mapping[str, Any]) -> str:
    """Every attempt as a mark of error against queries; several of one policy as a line."""
    lines = [_trace_policy(row) for row in data["policies"]]
    x = Axis("queries of the attempt, verification apart", True)
    y = Axis(f"relative error of {data['error_of']}", True)
    level = Level("keeps it back above", PROTECTS)
    svg = draw_chart(
        lines, x, y, about="error an extractor reaches against queries", levels=[level]
    )
    note = (
        "Blue circles: the policy gives the weights away; green squares: it keeps them back. A line"
        " joins attempts at several costs behind one policy: where it falls, asking more helps."
        " Hover names the policy of a mark."
    )
    title = "Error against queries: what more questions buy an extractor"
    return format_section(title, f"{svg}<p class='limit'>{escape_text(note)}</p>") if svg else ""


def _trace_policy(row: Mapping[str, Any]) -> Line:
    points = [
        Point(
            a["queries"] - a["verification"],
            a["error"],
            f"{row['policy']}: {a['queries']:,} queries, {a['error']:.0e}",
        )
        for a in row["attempts"]
        if a["error"]
    ]
    # Single marks would crowd each other with names; hovering tells theirs.
    name = row["policy"] if len(points) > 1 else ""
    return Line(name, "built" if row["protects"] else "ours", points)


def _draw_error_axis(height: int) -> str:
    x = _place_error(PROTECTS)
    parts = f'<rect class="phase" style="stroke:none" fill-opacity="0.08" x="{x:.1f}" y="{_TOP}" '
    parts += f'width="{_RIGHT - x:.1f}" height="{height - _TOP - 20}"/>'
    parts += f'<line class="dashed" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - 20}"/>'
    for power in range(-16, 1, 4):
        at = _place_error(10.0**power)
        said = f"1e{power}" if power else "1"
        parts += f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{height - 20}"/>'
        parts += (
            f'<text class="quiet" x="{at:.1f}" y="{_TOP - 8}" text-anchor="middle">{said}</text>'
        )
    return parts + f'<text class="quiet" x="{_LEFT}" y="14">relative error, log scale</text>'


def _draw_policy_row(row: Mapping[str, Any], y: float) -> str:
    parts = (
        f'<text x="{_LEFT - 12}" y="{y + 4:.1f}"'
        f' text-anchor="end">{escape_text(row["policy"])}</text>'
    )
    known = [(_place_error(a["error"]), a) for a in row["attempts"] if a["error"] is not None]
    if len(known) > 1:
        ends = [x for x, _ in known]
        parts += (
            f'<line class="phase" stroke-width="1.5" x1="{min(ends):.1f}" x2="{max(ends):.1f}"'
            f' y1="{y}" y2="{y}"/>'
        )
    for x, attempt in known:
        about = (
            f"{attempt['queries']:,} queries: error {format_number(attempt['error'])},"
            f" {attempt['verdict']}"
        )
        parts += (
            f'<g><title>{escape_text(about)}</title><circle class="ours" cx="{x:.1f}" cy="{y}"'
            ' r="4"/></g>'
        )
    # No model has no place on the axis: it stands at the end that protects.
    if not known:
        return (
            parts + f'<text class="bad" x="{_RIGHT - 12}" y="{y + 4:.1f}" text-anchor="end">✕ no'
            " model</text>"
        )
    return parts + _label_last_dot([x for x, _ in known], f"{known[-1][1]['queries']:,} queries", y)


def _label_last_dot(dots: list[float], said: str, y: float) -> str:
    """Words on the last dot, never across the line that joins the dots."""
    # Words to the right of the last dot would leave the picture.
    left = max(dots) > _RIGHT - 110 or (
        dots[-1] == min(dots) < max(dots) and min(dots) > _LEFT + 110
    )
    x, anchor = (min(dots) - 8, "end") if left else (max(dots) + 8, "start")
    halo = "paint-order:stroke;stroke:var(--page);stroke-width:4px"
    return (
        f'<text class="quiet" style="{halo}" x="{x:.1f}" y="{y + 4:.1f}"'
        f' text-anchor="{anchor}">{said}</text>'
    )


def _format_error(error: float | None) -> str:
    return "none" if error is None else format_number(error)


def _list_attempts(data: Mapping[str, Any]) -> str:
    rows = [
        (
            row["policy"],
            " ".join(f"{key} {value}" for key, value in attempt["options"].items()),
            f"{attempt['queries']:,}",
            _format_error(attempt["error"]),
            _format_error(attempt["function_error"]),
            str(attempt["verdict"]),
        )
        for row in data["policies"]
        for attempt in row["attempts"]
    ]
    columns = (
        "policy",
        "attempt",
        "queries",
        f"error of {data['error_of']}",
        "error of answers",
        "verdict",
    )
    return make_scrollable(format_table(rows, columns, (2, 3, 4)), "table of attempts")


def _describe_cost(data: Mapping[str, Any]) -> str:
    ball = f"the ball has radius {format_number(data['token_bound'])}"
    said = (
        f"{data['queries']['total']:,} queries were asked of the target itself; policies were"
        f" applied here; {ball}."
    )
    return f"<p>{escape_text(said)}</p>"
