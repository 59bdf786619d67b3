"""The stops of the tour on its page: in sentences, by cost, and in pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from keyhole.drawing.describing import Axis, Chart, Level, Line, Point, name_rows
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
from keyhole.drawing.labels import shorten_words
from keyhole.drawing.log_marks import describe_log_marks
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages import bound_page, build_page, twins_page
from keyhole.lab.pages.parts.block_portraits import draw_block_progress
from keyhole.lab.pages.parts.conversations import draw_conversation
from keyhole.lab.pages.parts.head_switches import load_both_models
from keyhole.lab.runs.reading import SavedRun, read_run
from keyhole.lab.runs.recovery_records import DemoRecord, Stop
from keyhole.models import AbsAffine, ReluNet

Stops = Sequence[Stop]
_ROW = 24.0  # height of the row of a stop
_NAME = 150.0  # width of its name


def draw_stops(data: DemoRecord, directory: Path) -> Markup:
    """Sections for every stop; a stop whose files are gone keeps its sentence."""
    every: Stops = data.stops
    kept = [stop for stop in every if _has_record(stop, directory)]
    return join_markup(
        _list_stops(every, directory),
        _draw_stop_costs(every),
        *_draw_recovered_networks(every, directory),
        *(_draw_stop_picture(stop, read_run(str(directory / str(stop.run)))) for stop in kept),
    )


def _has_record(stop: Stop, directory: Path) -> bool:
    return bool(stop.run) and (directory / str(stop.run) / "record.json").is_file()


def _list_stops(every: Stops, directory: Path) -> Markup:
    rows = (element("li", stop.sentence, *_link_page(stop, directory)) for stop in every)
    title = f"The tour: {len(every)} further stops, each with its figure and its limit"
    return format_section(title, element("ul", *rows))


def _link_page(stop: Stop, directory: Path) -> Iterator[Markup]:
    """The way to the page of a stop that is a run of its own."""
    if stop.run and (directory / stop.run / "report.html").is_file():
        yield join_markup(". ", element("a", "Its page", href=f"{quote(stop.run)}/report.html"))


def _draw_stop_costs(every: Stops) -> Markup:
    """Queries of each recovery over its limit, one row each, on a log scale."""
    known = [stop for stop in every if stop.queries and stop.limit]
    if not known:
        return Markup()
    ratios = {stop.name: (stop.queries or 0) / (stop.limit or 1) for stop in known}
    points = [
        Point(ratios[stop.name], k, f"{stop.name}: {stop.queries:,} of {stop.limit:,}")
        for k, stop in enumerate(reversed(known))
    ]
    title = (
        f"Recoveries cost {format_number(min(ratios.values()))} to"
        f" {format_number(max(ratios.values()))} times the least any learner could ask"
    )
    chart = Chart(
        title,
        Axis("queries over the least possible", log=True, low=0.9),
        name_rows([_shorten_stop(stop.name) for stop in reversed(known)]),
        [Line("", "ours", points, joined=False)],
        [Level("", 1.0, upright=True)],
        # Names and rows together fit a narrow screen.
        width=150.0,
        height=_ROW * len(known),
    )
    note = (
        "On the dashed line there are just as many queries as hidden numbers: no learner asks"
        " fewer. Labels are bits, of which 40 make a number."
    )
    return format_section(title, draw_chart(chart), format_note(note))


def _shorten_stop(name: str) -> str:
    """The name of a stop without what the list above tells."""
    return shorten_words(name.split(",", maxsplit=1)[0].removeprefix("a "), _NAME)


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


def _draw_stop_picture(stop: Stop, run: SavedRun[Any]) -> Markup:
    """The picture a run of the tour is known by."""
    if run.kind == "learn":
        errors = {part: error for part, error in stop.errors.items() if error is not None}
        return draw_block_progress(run.data, run.directory, errors)
    if run.kind == "twins":
        return twins_page.draw_first_twin(run.data, run.directory)
    if run.kind == "build":
        return build_page.draw_attention_pictures(run.data.task, run.directory, tables=False)
    if run.kind == "bound":
        talk = draw_conversation(run.data.conversation)
        return join_markup(bound_page.draw_plane(run.data), talk)
    return Markup()
