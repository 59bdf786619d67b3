"""Pictures of several heads: where each switches, and recovered beside true ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.drawing.heatmaps import draw_error_heatmap, draw_signed_heatmap
from keyhole.drawing.html import draw_svg, escape_text, format_number, format_section
from keyhole.identify import assign_heads
from keyhole.models import MultiHead, load

_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 560.0, 24.0, 190.0
_ROWS = 8  # heads that are drawn
_TICKS = ((0.0, "0"), (0.5, "π/2"), (1.0, "π"))


def draw_half_circle(data: Mapping[str, Any]) -> str:
    """Answers as y goes half round a circle, softmax hard: each step is a head."""
    seen = data.get("jumps")
    if seen is None or not len(seen["angles"]):
        return ""
    angles = np.asarray(seen["angles"], dtype=np.float64)
    sizes = np.asarray(seen["sizes"], dtype=np.float64)
    start = np.asarray(seen["start"], dtype=np.float64)
    # Jumps are recorded in the order in which they were found.
    order = np.argsort(angles)
    angles = angles[order]
    jumps = sizes[order, 0]
    # Answers between jumps, of the first output.
    levels = start[0] + np.append(0.0, np.cumsum(jumps))
    count = len(angles)
    title = (
        f"On a half circle of y answers jump {count:,} time{'s' * (count != 1)}: one jump for each"
        " head that acts"
    )
    note = (
        "[y + t x; y] with t large: every softmax is hard, and answers are constant but where a"
        " head changes sides. The height of a jump is V · x of its head; heads that change sides"
        " together show as one jump."
    )
    svg = draw_svg(
        _draw_answer_steps(angles, levels),
        size={"width": "580", "viewBox": "0 0 580 230"},
        label=title,
    )
    return format_section(title, f"{svg}<p>{escape_text(note)}</p>")


def _draw_answer_steps(angles: Vector, levels: Vector) -> str:
    """The step function, with a mark and the numbers of every jump."""
    low, high = float(levels.min()), float(levels.max())
    # Heads that cancel each other leave a flat line.
    span = (high - low) or 1.0

    def x(angle: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * angle / np.pi

    def y(level: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (level - low) / span

    path = f"M{_LEFT} {y(levels[0]):.1f}"
    for angle, level in zip(angles, levels[1:], strict=True):
        path += f"H{x(angle):.1f}V{y(level):.1f}"
    marks = "".join(
        f"<g><title>angle {format_number(float(a))}, jump"
        f" {format_number(float(after - before))}</title>"
        f'<circle class="ours" cx="{x(a):.1f}" cy="{y((before + after) / 2):.1f}" r="4"/></g>'
        for a, before, after in zip(angles, levels[:-1], levels[1:], strict=True)
    )
    return _draw_step_frame(low, high, y) + f'<path class="step" d="{path}H{_RIGHT}"/>' + marks


def _draw_step_frame(low: float, high: float, y: Any) -> str:
    parts = '<text class="quiet" x="0" y="12">answer over t, less that of y alone</text>'
    for level in (low, high):
        parts += (
            f'<line class="rule" x1="{_LEFT}" x2="{_RIGHT}" y1="{y(level):.1f}"'
            f' y2="{y(level):.1f}"/>'
        )
        parts += (
            f'<text class="quiet" x="{_LEFT - 6}" y="{y(level) + 4:.1f}"'
            f' text-anchor="end">{format_number(level)}</text>'
        )
    for share, name in _TICKS:
        at = _LEFT + (_RIGHT - _LEFT) * share
        parts += (
            f'<text class="quiet" x="{at:.0f}" y="{_BOTTOM + 20:.0f}"'
            f' text-anchor="middle">{name}</text>'
        )
    middle = (_LEFT + _RIGHT) / 2
    return (
        parts
        + f'<text class="quiet" x="{middle:.0f}" y="{_BOTTOM + 36:.0f}" text-anchor="middle">angle'
        " of y</text>"
    )


def draw_heads_against_truth(data: Mapping[str, Any], directory: Path) -> str:
    """One row per head, true, recovered, difference, for stops that kept both."""
    return "".join(
        _draw_matched_heads(stop, directory)
        for stop in data.get("stops") or ()
        if _has_both_models(stop, directory)
    )


def _has_both_models(stop: Mapping[str, Any], directory: Path) -> bool:
    """Whether both models of a stop are beside the page."""
    return all(name in stop and (directory / stop[name]).is_file() for name in ("truth", "model"))


def _draw_matched_heads(stop: Mapping[str, Any], directory: Path) -> str:
    truth, found = (load(directory / stop[name]) for name in ("truth", "model"))
    if not (isinstance(truth, MultiHead) and isinstance(found, MultiHead)):
        return ""
    pairs = assign_heads(truth, found)[:_ROWS]
    rows = "".join(
        _draw_head_row(f"true W of head {k}", truth.W[i], found.W[j])
        for k, (i, j) in enumerate(pairs, start=1)
    )
    title = (
        f"{stop['name'][0].upper()}{stop['name'][1:]}: {format_number(stop['distance'])} from the"
        " truth once matched"
    )
    return format_section(title, rows) + draw_half_circle(stop)


def _draw_head_row(title: str, true: Matrix, found: Matrix) -> str:
    pictures = draw_signed_heatmap(title, true) + draw_signed_heatmap("recovered", found)
    pictures += draw_error_heatmap(found - true, float(np.abs(true).max()))
    return f'<div class="pictures">{pictures}</div>'
