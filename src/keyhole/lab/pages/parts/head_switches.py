"""Pictures of several heads: where each switches, and recovered beside true ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from keyhole._arrays import Matrix
from keyhole.drawing.describing import Axis, Chart, Line, Point
from keyhole.drawing.heatmaps import draw_error_heatmap, draw_signed_heatmap
from keyhole.drawing.html import (
    Markup,
    element,
    format_number,
    format_section,
    join_markup,
    join_pictures,
)
from keyhole.drawing.svg import draw_chart
from keyhole.identify import assign_heads
from keyhole.lab.runs.recovery_records import DemoRecord, RecoveryRecord, Stop
from keyhole.models import MultiHead, load

_ROWS = 8  # heads that are drawn
_ANGLES = ((0.0, "0"), (np.pi / 2, "π/2"), (np.pi, "π"))
_NOTE = (
    "[y + t x; y] with t large: every softmax is hard, and answers are constant but where a head"
    " changes sides. The height of a jump is V · x of its head; heads that change sides together"
    " show as one jump."
)


def describe_half_circle(data: RecoveryRecord | Stop) -> Chart | None:
    """Answers as y goes half round a circle, softmax hard: each step is a head."""
    seen = data.jumps
    if seen is None or not len(seen.angles):
        return None
    angles = np.asarray(seen.angles, dtype=np.float64)
    # Jumps are recorded in the order in which they were found.
    order = np.argsort(angles)
    jumps = np.asarray(seen.sizes, dtype=np.float64)[order, 0]
    start = float(np.asarray(seen.start, dtype=np.float64)[0])
    # Answers between jumps, of the first output.
    levels = [float(level) for level in start + np.append(0.0, np.cumsum(jumps))]
    turns = [float(angle) for angle in angles[order]]
    steps = [
        Point(turn, level)
        for turn, before, after in zip(turns, levels[:-1], levels[1:], strict=True)
        for level in (before, after)
    ]
    marks = [
        Point(
            turn,
            (before + after) / 2,
            f"angle {format_number(turn)}, jump {format_number(after - before)}",
        )
        for turn, before, after in zip(turns, levels[:-1], levels[1:], strict=True)
    ]
    count = len(turns)
    return Chart(
        f"On a half circle of y answers jump {count:,} time{'s' * (count != 1)}: one jump for each"
        " head that acts",
        Axis("angle of y", low=0.0, high=np.pi, ticks=_ANGLES),
        Axis("answer over t, less that of y alone"),
        [
            Line(
                "",
                "ours",
                [Point(0.0, levels[0]), *steps, Point(np.pi, levels[-1])],
                marked=False,
            ),
            Line("", "ours", marks, joined=False),
        ],
        height=230.0,
    )


def draw_half_circle(data: RecoveryRecord | Stop) -> Markup:
    """The half circle, and what to look at; nothing where nothing jumped."""
    chart = describe_half_circle(data)
    if chart is None:
        return Markup()
    return format_section(chart.about, draw_chart(chart), element("p", _NOTE))


def draw_heads_against_truth(data: RecoveryRecord, directory: Path) -> Markup:
    """One row per head, true, recovered, difference, for stops that kept both."""
    stops = data.stops if isinstance(data, DemoRecord) else ()
    return join_markup(*(_draw_matched_heads(stop, directory) for stop in stops))


def load_both_models(stop: Stop, directory: Path) -> tuple[object, object] | None:
    """The true and the recovered model of a stop, where both are beside the page."""
    if stop.truth is None or stop.model is None:
        return None
    files = directory / stop.truth, directory / stop.model
    # A page can be moved without the models of its stops.
    return (load(files[0]), load(files[1])) if all(file.is_file() for file in files) else None


def _draw_matched_heads(stop: Stop, directory: Path) -> Markup:
    truth, found = load_both_models(stop, directory) or (None, None)
    if not (isinstance(truth, MultiHead) and isinstance(found, MultiHead)):
        return Markup()
    pairs = assign_heads(truth, found)[:_ROWS]
    rows = [
        _draw_head_row(f"true W of head {k}", truth.W[i], found.W[j])
        for k, (i, j) in enumerate(pairs, start=1)
    ]
    title = (
        f"{stop.name[0].upper()}{stop.name[1:]}: {format_number(stop.distance)} from the"
        " truth once matched"
    )
    return join_markup(format_section(title, *rows), draw_half_circle(stop))


def _draw_head_row(title: str, true: Matrix, found: Matrix) -> Markup:
    return join_pictures(
        draw_signed_heatmap(title, true),
        draw_signed_heatmap("recovered", found),
        draw_error_heatmap(found - true, float(np.abs(true).max())),
    )
