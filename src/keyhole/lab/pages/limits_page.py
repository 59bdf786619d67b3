"""The page of all limits: the table of tasks, a plane for each, and heads against width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from keyhole.drawing.describing import Area, Axis, Chart, Line, Point
from keyhole.drawing.html import (
    Markup,
    caption_picture,
    element,
    format_command,
    format_note,
    format_number,
    format_section,
    format_table,
    frame_figure,
    join_markup,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.summaries import describe_versions, restore_command
from keyhole.lab.runs.task_records import HeadsLimit, LimitsRecord, TaskLimits, TrainedPoint

_AXES = {"embed": "key width of all heads", "value_width": "value width of all heads"}
_PLANE = (
    "In the grey part one layer of one head is provably too small. Squares are weights proved for"
    " every input, of any depth and order, so that they may stand in it; the dashed line is one"
    " layer of standard attention where that takes more. Dots are where training found the task to"
    " a twentieth, crosses where it did not with the steps it was given."
)
_FOUND = 0.05  # largest error of what counts as found: wrong labels, or error over that of zero
_HEADS = (
    "Heads that share sets of 8 of 64 positions, each built and certified for every set to 0.01."
    " Counting excludes the grey part where a number has so few bits; keys from positions alone,"
    " as these are, need more of one head at any precision."
)


def draw_limits_run(data: LimitsRecord, directory: Path) -> str:
    """The page of a run, of which the record holds everything."""
    del directory
    return draw_limits_page(data)


def draw_limits_page(data: LimitsRecord) -> str:
    """A self-contained page."""
    note = (
        f"Inputs of about {data.length} tokens. Sizes are excluded with numbers of {data.bits}"
        " bits, and weights are proved with those that the table gives; both by formulas."
    )
    parts = (
        element("h1", data.sentence),
        format_note(note),
        format_section("Every task", _tabulate_tasks(data.rows)),
        *((format_note(_PLANE),) if data.planes else ()),
        *(_draw_task_plane(name, data) for name in dict.fromkeys(row.task for row in data.planes)),
        _draw_heads(data.heads),
        format_section(
            "How to reproduce", format_command(restore_command(data), describe_versions(data))
        ),
    )
    return wrap_page("limits of every task", join_markup(*parts))


def _tabulate_tasks(rows: Sequence[TaskLimits]) -> Markup:
    columns = ("task", "smallest known", "m", "v", "H", "D", "bits", "order", "excluded", "why not")
    return format_table([_list_cells(row) for row in rows], columns, (2, 3, 4, 5, 6, 7))


def _list_cells(row: TaskLimits) -> tuple[str, ...]:
    known = row.smallest
    size = None if known is None else known.size
    numbers = ("embed", "value_width", "heads", "layers", "bits")
    cells = ["" if size is None else format_number(getattr(size, name)) for name in numbers]
    order = "" if known is None else format_number(known.order)
    axis = {"embed": "key width", "value_width": "value width"}[row.axis]
    excluded = f"{axis} up to {format_number(row.excluded)}" if row.excluded else ""
    name = "" if known is None else known.construction
    return (row.title, name, *cells, order, excluded, row.missing or "")


def _draw_task_plane(name: str, data: LimitsRecord) -> Markup:
    rows = [row for row in data.planes if row.task == name]
    trained = [point for point in data.trained if point.task == name]
    chart = describe_task_plane(rows, trained)
    picture = frame_figure(draw_chart(chart), width="100%")
    return format_section(f"{rows[0].title}: {_tell_plane(rows[-1])}", picture)


def _tell_plane(row: TaskLimits) -> str:
    """What is known at the largest length, as the title of a picture."""
    axis = {"embed": "key width", "value_width": "value width"}[row.axis]
    at = f"of {format_number(row.length)} tokens"
    known = f"{axis} {format_number(row.enough)} is enough for inputs {at}" if row.enough else ""
    if not row.excluded:
        return known or f"neither side is known {at}"
    small = f"one layer of one head needs more than {axis} {format_number(row.excluded)}"
    return f"{small} {at}" + (
        f"; at any depth and order {axis} {format_number(row.enough)} is enough" if known else ""
    )


def describe_task_plane(rows: Sequence[TaskLimits], trained: Sequence[TrainedPoint]) -> Chart:
    """Size against length of one task: excluded, proved, trained."""
    sizes = [row.enough for row in rows] + [row.one_layer for row in rows]
    seen = [*(size for size in sizes if size), *(row.excluded for row in rows)]
    most = 2.0 * max([4.0, *seen, *(point.size for point in trained)])
    lengths = [float(row.length) for row in rows]
    return Chart(
        f"What is known of {rows[0].title}: size against length.",
        Axis(
            "tokens N (log scale)",
            log=True,
            base=2,
            low=min(lengths),
            high=max(lengths) * 1.25,
        ),
        Axis(f"{_AXES[rows[0].axis]} (log scale)", log=True, base=2, low=0.7, high=most),
        list(_list_plane_lines(rows, trained)),
        areas=list(_shade_excluded(rows)),
        width=640.0,
        height=260.0,
    )


def _shade_excluded(rows: Sequence[TaskLimits]) -> Iterator[Area]:
    # Where nothing is excluded the edge lies on the axis.
    told = [(float(row.length), float(max(0.7, row.excluded))) for row in rows]
    if any(row.excluded for row in rows):
        ends = [(told[-1][0], 0.7), (told[0][0], 0.7)]
        yield Area([*told, *ends], "limit", 0.2, "one layer excluded")


def _list_plane_lines(
    rows: Sequence[TaskLimits], trained: Sequence[TrainedPoint]
) -> Iterator[Line]:
    proved = [(row, row.enough) for row in rows if row.enough is not None]
    if proved:
        yield Line(
            "any depth and order", "built", [_place_proved(row, size) for row, size in proved]
        )
    flat = [row for row in rows if row.one_layer is not None and row.one_layer != row.enough]
    if flat:
        points = [Point(float(row.length), float(row.one_layer or 1)) for row in flat]
        yield Line("one ordinary layer", "limit", points, marked=False)
    for name, style, found in (("trained", "ours", True), ("trained, not found", "bad", False)):
        points = [
            Point(float(one.length), one.size, f"trained: error {format_number(one.error)}")
            for one in trained
            if (one.error <= _FOUND) is found
        ]
        if points:
            yield Line(name, style, points, joined=False)


def _place_proved(row: TaskLimits, size: int) -> Point:
    name = "" if row.smallest is None else row.smallest.construction
    return Point(float(row.length), float(size), f"{row.length} tokens: {size} by {name}")


def _draw_heads(limits: Sequence[HeadsLimit]) -> Markup:
    if not limits:
        return Markup()
    figure = frame_figure(
        draw_chart(describe_heads(limits)),
        caption_picture("Heads against width", _HEADS),
        width="100%",
    )
    return format_section("Heads against width", figure)


def describe_heads(limits: Sequence[HeadsLimit]) -> Chart:
    """Key width of a head against the number of heads."""
    built = [
        Point(
            float(one.heads),
            float(one.embed),
            f"{one.heads} heads of key width {one.embed}, {one.bits} bits",
            label=f"{one.bits} bits",
        )
        for one in limits
        if one.embed is not None
    ]
    told = [(float(one.heads), float(max(0.7, one.excluded))) for one in limits]
    few = limits[0].few
    narrow = [
        Point(float(one.heads), float(one.by_positions), f"up to {one.by_positions} is too narrow")
        for one in limits
        if one.by_positions > one.excluded
    ]
    lines = [Line("certified", "built", built)]
    if narrow:
        lines.append(Line("too narrow", "bad", narrow, joined=False))
    corners = [(told[-1][0], 0.7), (told[0][0], 0.7)]
    return Chart(
        "Key width of a head against the number of heads.",
        Axis("heads H (log scale)", log=True, base=2, low=0.9, high=10.0),
        Axis("key width m of a head (log scale)", log=True, base=2, low=0.7, high=32.0),
        lines,
        areas=[Area([*told, *corners], "limit", 0.2, f"excluded at {few} bits")],
        width=640.0,
        height=260.0,
    )
