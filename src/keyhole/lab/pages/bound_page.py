"""The page of a bound: the plane of sizes, the inequalities, and who says what to whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from keyhole.claims import THEOREMS
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

_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 940.0, 26.0, 330.0
_MADE = "var(--built)"  # constructions, in every picture
_AXES = {"embed": "key width m", "value_width": "value width v"}
_COLUMNS = {"Alice": 130.0, "Bob": 560.0, "Carol": 900.0}
_KINDS = {"TOO_SMALL": "bad", "ENOUGH": "ours", "OPEN": "limit"}


def draw_bound_run(data: Mapping[str, Any], directory: Path) -> str:
    """The page of a run, of which the record holds everything."""
    del directory
    return draw_bound_page(data)


def draw_bound_page(data: Mapping[str, Any]) -> str:
    """A self-contained page."""
    verdict = str(data["verdict"])
    head = f'<p class="verdict {_KINDS[verdict]}">{verdict.replace("_", " ")}</p>'
    head += f"<h1>{escape_text(data['sentence'])}</h1>"
    head += f'<p class="limit">{escape_text(describe_question("bound", data))}</p>'
    head += f"<p>{escape_text(data['reason'])}</p>" if data["reason"] else ""
    parts = (
        head,
        draw_plane(data),
        _list_inequalities(data),
        draw_conversation(data.get("conversation")),
        _show_bound_command(data),
    )
    return wrap_page(f"bound on {data['task']}", "".join(parts))


def draw_plane(data: Mapping[str, Any]) -> str:
    """Sizes against bits on log scales: the provable limit, what was built and asked."""
    drawn = data.get("plane")
    if drawn is None:
        return ""
    name = _AXES[drawn["axis"]]
    sure = [float(least) for _, least in drawn["lower"] if least is not None]
    # Twice the largest size: what is enough needs room to the right.
    most = 2.0 * max([8.0, float(drawn["asked"][0]), *sure, *_list_known_sizes(drawn["enough"])])
    lower = [
        (float(bits), most if least is None else float(least)) for bits, least in drawn["lower"]
    ]
    marks = (
        _draw_plane_frame(name, most)
        + _draw_lower_limit(lower, most)
        + _draw_enough_point(drawn["enough"], most)
        + _draw_asked_point(drawn["asked"], most)
    )
    size = {"viewBox": "0 0 960 380", "style": "min-width:42rem"}
    svg = make_scrollable(draw_svg(marks, size=size, label=data["sentence"]), "limits")
    caption = (
        "In the grey part no model of these sizes does the task, whatever its weights. In the green"
        " part, right of and above the square, a model was built and checked. What is not shaded is"
        " open."
    )
    figure = frame_figure(svg, f"<b>Limits</b>: {caption}", width="100%")
    return format_section(f"What is known of {name} against bits", figure)


def _list_known_sizes(point: Any) -> list[float]:
    return [] if point is None else [float(point[0])]


def _place_size(value: float, most: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * math.log2(max(value, 1.0)) / math.log2(most)


def _place_bits(bits: float | None) -> float:
    # Real numbers stand above the axis, which ends at 64 = 2^6 bits.
    if bits is None:
        return _TOP
    return _BOTTOM - (_BOTTOM - _TOP - 20.0) * math.log2(min(bits, 64.0)) / 6.0


def _draw_plane_frame(name: str, most: float) -> str:
    parts = (
        f'<text class="quiet" x="{_LEFT}" y="12">bits p of a number (log scale; real numbers at the'
        " top)</text>"
    )
    for power in range(7):
        y = _place_bits(2.0**power)
        parts += f'<line class="rule" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        parts += (
            f'<text class="quiet" x="{_LEFT - 8}" y="{y + 4:.1f}"'
            f' text-anchor="end">{2**power}</text>'
        )
    # At most ten powers of two are named.
    step = max(1, math.ceil(math.log2(most) / 10))
    for power in range(0, math.floor(math.log2(most)) + 1, step):
        x = _place_size(2.0**power, most)
        parts += (
            f'<text class="quiet" x="{x:.1f}" y="{_BOTTOM + 18}"'
            f' text-anchor="middle">{2**power:,}</text>'
        )
    middle = (_LEFT + _RIGHT) / 2
    label = f"{name} (log scale)"
    return (
        f'{parts}<text class="quiet" x="{middle}" y="{_BOTTOM + 42}"'
        f' text-anchor="middle">{label}</text>'
    )


def _draw_lower_limit(lower: Sequence[tuple[float, float]], most: float) -> str:
    """The dashed line through the least sizes that are not too small."""
    # No inequality excludes anything: a line along the edge would mislead.
    if all(least <= 1 for _, least in lower):
        return (
            f'<text class="quiet" x="{_LEFT + 8}" y="{_BOTTOM - 8}">no size is provably too small'
            " here</text>"
        )
    # What is too small with some bits is too small with fewer: the line is a staircase.
    steps = [(at, least) for (a, _), (b, least) in pairwise(lower) for at in (a, b)]
    points = " ".join(
        f"{_place_size(least, most):.1f},{_place_bits(bits):.1f}"
        for bits, least in (lower[0], *steps)
    )
    low = f"{_place_size(lower[-1][1], most):.1f},{_TOP + 20} {_LEFT},{_TOP + 20} {_LEFT},{_BOTTOM}"
    marks = f'<polygon style="fill: var(--rule); fill-opacity: .45" points="{points} {low}"/>'
    marks += f'<polyline class="dashed" fill="none" points="{points}"/>'
    for bits, least in lower:
        edge = f"up to {format_number(least - 1)} is too small"
        if least >= most:
            edge = "no size is enough"
        at = f'cx="{_place_size(least, most):.1f}" cy="{_place_bits(bits):.1f}"'
        marks += (
            f'<g><title>{format_number(bits)} bits: {edge}</title><circle class="quiet" {at}'
            ' r="3"/></g>'
        )
    return f'{marks}<text class="quiet" x="{_LEFT + 8}" y="{_BOTTOM - 8}">provably too small</text>'


def _draw_enough_point(point: Sequence[float | None] | None, most: float) -> str:
    # Nothing was built, and no construction is known to be enough.
    if point is None or point[0] is None:
        return ""
    x = _place_size(float(point[0]), most)
    y = _place_bits(point[1])
    shade = (
        f'<path style="fill: {_MADE}; fill-opacity: .1" d="M{x:.1f}'
        f' {_TOP}V{y:.1f}H{_RIGHT}V{_TOP}z"/>'
    )
    corner = (
        f'{shade}<path fill="none" style="stroke: {_MADE}" d="M{x:.1f} {_TOP}V{y:.1f}H{_RIGHT}"/>'
    )
    square = f'<rect style="fill: {_MADE}" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>'
    about = f"enough: {_describe_point(point)}"
    return (
        f'<g><title>{about}</title>{corner}{square}</g><text x="{x + 10:.1f}"'
        f' y="{y + 16:.1f}">{about}</text>'
    )


def _describe_point(point: Sequence[float | None]) -> str:
    bits = "real numbers" if point[1] is None else f"{format_number(point[1])} bits"
    return f"{format_number(point[0])}, {bits}"


def _draw_asked_point(point: Sequence[float | None], most: float) -> str:
    x = _place_size(float(point[0] or 1.0), most)
    y = _place_bits(point[1])
    about = f"asked: {_describe_point(point)}"
    cross = f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    return (
        f'<g><title>{about}</title>{cross}</g><text x="{x + 10:.1f}" y="{y - 8:.1f}">{about}</text>'
    )


def _list_inequalities(data: Mapping[str, Any]) -> str:
    """Every inequality known for the task, with both sides, and what they assume."""
    rows = [
        (
            one["name"],
            one["formula"],
            format_number(one["needed"]),
            format_number(one["available"]),
            _judge_inequality(one),
            one["growth"],
        )
        for one in data["inequalities"]
    ]
    if not rows:
        return format_section(
            "No lower bound is known for this task", "<p>Nothing is provably too small here.</p>"
        )
    columns = ("inequality", "formula", "needed", "available", "", "growth in the source")
    words = "".join(f"<li>{escape_text(one)}</li>" for one in data["assumptions"])
    # A theorem behind several inequalities is stated once.
    claims = sorted({one["theorem"] for one in data["inequalities"]})
    told = "".join(
        f"<p><b>{escape_text(one)}</b>: {escape_text(THEOREMS[one].statement)}</p>"
        for one in claims
    )
    assumed = f"<p>Assumed of the class of models:</p><ul>{words}</ul>" if words else ""
    return format_section(
        "What a model must have", format_table(rows, columns, (2, 3)) + assumed + told
    )


def _judge_inequality(one: Mapping[str, Any]) -> str:
    if not one["applies"]:
        return "does not apply"
    return "violated" if one["violated"] else "satisfied"


def draw_conversation(talk: Mapping[str, Any] | None) -> str:
    """Who sends what: an arrow per message with its bits, their total against the bound."""
    if talk is None:
        return ""
    total = 0
    marks = ""
    y = 40.0
    people = [
        name
        for name in _COLUMNS
        if any(name in (m["sender"], m["receiver"]) for m in talk["messages"])
    ]
    for message in talk["messages"]:
        total += int(message["bits"])
        marks += _draw_message_arrow(message, total, y)
        y += 34.0
    for name in people:
        x = _COLUMNS[name]
        marks = f'<line class="rule" x1="{x}" x2="{x}" y1="22" y2="{y - 10:.1f}"/>{marks}'
        marks += f'<text x="{x}" y="14" text-anchor="middle">{name}</text>'
    needed = int(talk["needed"])
    marks += _draw_totals(total, needed, y)
    y += 64.0
    against = f"; any two people need {format_number(needed)} bits for this task" if needed else ""
    title = (
        f"Two people who own half of the tokens each run it with {format_number(total)}"
        f" bits{against}"
    )
    size = {"viewBox": f"0 0 960 {y:.0f}", "style": "min-width:42rem"}
    svg = make_scrollable(draw_svg(marks, size=size, label=title), "conversation")
    note = (
        f"Every number is rounded to {talk['each']} bits; the answers then differ from the model's"
        f" own by {format_number(talk['deviation'])}."
    )
    return format_section(title, frame_figure(svg, escape_text(note), width="100%"))


def _draw_message_arrow(message: Mapping[str, Any], total: int, y: float) -> str:
    # A message to two people is drawn to the farther one.
    first = str(message["receiver"]).split(" and ")[-1]
    a, b = _COLUMNS[str(message["sender"])], _COLUMNS[first]
    side = 6.0 if b > a else -6.0
    line = f'<path class="truth" d="M{a} {y}H{b}m{-side} -4l{side} 4l{-side} 4"/>'
    said = f"layer {message['layer']}, {message['content']}: {format_number(message['bits'])} bits"
    text = (
        f'<text x="{(a + b) / 2:.1f}" y="{y - 6:.1f}"'
        f' text-anchor="middle">{escape_text(said)}</text>'
    )
    about = (
        f"<title>{format_number(message['numbers'])} numbers to"
        f" {escape_text(message['receiver'])}</title>"
    )
    return (
        f'<g>{about}{line}{text}<text class="quiet" x="600" y="{y + 4:.1f}">{format_number(total)}'
        " so far</text></g>"
    )


def _draw_totals(total: int, needed: int, y: float) -> str:
    """What was sent in all beside what any two people need, on a log scale."""
    end = 140.0 + 640.0
    # Sent and needed bits differ by orders of magnitude.
    unit = (end - 140.0) / math.log2(max(2.0, total, needed))
    sent = unit * math.log2(max(1, total))
    marks = (
        f'<text class="quiet" x="0" y="{y + 15:.1f}">bits in all, log'
        f" scale</text><g><title>{total:,} bits</title>"
    )
    marks += (
        f'<rect style="fill: {_MADE}; fill-opacity: .5" x="140" y="{y}" width="{sent:.1f}"'
        ' height="20"/></g>'
    )
    marks += f'<text x="{140 + sent + 6:.1f}" y="{y + 15:.1f}">{total:,} sent</text>'
    if not needed:
        return marks
    x = 140.0 + unit * math.log2(max(1, needed))
    marks += f'<path class="dashed" d="M{x:.1f} {y - 6}v32"/>'
    return f'{marks}<text class="quiet" x="{x:.1f}" y="{y + 40:.1f}">lower bound {needed:,}</text>'


def _show_bound_command(data: Mapping[str, Any]) -> str:
    return format_section(
        "How to reproduce", format_command(restore_command("bound", data), describe_versions(data))
    )
