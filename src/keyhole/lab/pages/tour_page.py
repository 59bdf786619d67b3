"""The stops of the tour on its page: in sentences, by cost, and in pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keyhole.drawing.describing import Axis, Chart, Line, Point
from keyhole.drawing.html import (
    Markup,
    caption_picture,
    element,
    format_note,
    format_number,
    format_section,
    frame_figure,
    join_markup,
    join_pictures,
)
from keyhole.drawing.log_marks import describe_log_marks
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages import bound_page, build_page, twins_page
from keyhole.lab.pages.parts.conversations import draw_conversation
from keyhole.lab.pages.parts.head_switches import load_both_models
from keyhole.lab.runs.reading import SavedRun, read_run
from keyhole.lab.runs.recovery_records import DemoRecord, Stop
from keyhole.models import AbsAffine, ReluNet

Stops = Sequence[Stop]


def draw_stops(data: DemoRecord, directory: Path) -> Markup:
    """Sections for every stop; a stop whose files are gone keeps its sentence."""
    every: Stops = data.stops
    runs = [
        read_run(str(directory / str(stop.run))) for stop in every if _has_record(stop, directory)
    ]
    return join_markup(
        _list_stops(every),
        _draw_stop_costs(every),
        *_draw_recovered_networks(every, directory),
        *map(_draw_stop_picture, runs),
    )


def _has_record(stop: Stop, directory: Path) -> bool:
    return bool(stop.run) and (directory / str(stop.run) / "record.json").is_file()


def _list_stops(every: Stops) -> Markup:
    rows = (element("li", stop.sentence) for stop in every)
    title = f"The tour: {len(every)} further stops, each with its figure and its limit"
    return format_section(title, element("ul", *rows))


def _draw_stop_costs(every: Stops) -> Markup:
    """Queries of each recovery against its limit, on log scales."""
    marks = {
        stop.name: Point(
            stop.limit, stop.queries, f"{stop.name}: {stop.queries:,} of {stop.limit:,}"
        )
        for stop in every
        if stop.queries and stop.limit
    }
    if not marks:
        return Markup()
    points = list(marks.values())
    # The line on which queries equal their limit, as long as the marks reach.
    ends = (min(p.x for p in points), max(p.x for p in points))
    lines = [
        Line("queries = limit", "limit", [Point(x, x) for x in ends], marked=False),
        *(Line(name.split(",")[0], "ours", [point]) for name, point in marks.items()),
    ]
    x = Axis("limit: the fewest queries any learner can ask", True)
    y = Axis("queries asked", True)
    ratios = [point.y / point.x for point in points]
    title = (
        f"Recoveries cost {format_number(min(ratios))} to {format_number(max(ratios))} times the"
        " least any learner could ask"
    )
    note = (
        "Each mark is a stop; on the grey line there are just as many queries as hidden numbers."
        " Labels are bits, of which 40 make a number."
    )
    return format_section(
        title, draw_chart(Chart(title, x, y, lines, width=640.0, height=330.0)), format_note(note)
    )


def _draw_recovered_networks(every: Stops, directory: Path) -> Iterator[Markup]:
    """Jumps of slope of a hidden network, true and recovered, after sorting."""
    for stop in every:
        truth, found = load_both_models(stop, directory) or (None, None)
        if isinstance(truth, ReluNet) and isinstance(found, AbsAffine):
            yield _draw_slope_jumps(stop, truth.normal_form(), found)


def _draw_slope_jumps(stop: Stop, truth: AbsAffine, found: AbsAffine) -> Markup:
    sizes = {
        kind: np.sort(np.linalg.norm(net.D, axis=1))[::-1]
        for kind, net in (("truth", truth), ("ours", found))
    }
    chart = describe_log_marks(
        "jumps of slope of hidden units",
        "jump of slope at unit",
        "jump of slope |D|, log scale",
        sizes,
    )
    note = "○ true, ● recovered; a unit shows in answers by the jump of slope where it switches"
    figure = frame_figure(draw_chart(chart), caption_picture("jumps of slope", note))
    name = stop.name
    title = (
        f"{name[0].upper()}{name[1:]}: {format_number(stop.distance)} from the truth, whatever"
        " the order of units"
    )
    return format_section(title, join_pictures(figure))


def _draw_stop_picture(run: SavedRun[Any]) -> Markup:
    """The picture a run of the tour is known by."""
    if run.kind == "twins":
        return twins_page.draw_first_twin(run.data, run.directory)
    if run.kind == "build":
        return build_page.draw_attention_pictures(run.data.task, run.directory, tables=False)
    if run.kind == "bound":
        talk = draw_conversation(run.data.conversation)
        return join_markup(bound_page.draw_plane(run.data), talk)
    return Markup()
