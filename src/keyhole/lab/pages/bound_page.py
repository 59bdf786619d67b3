"""The page of a bound: the plane of sizes, the inequalities, and who says what to whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from keyhole.claims import THEOREMS
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
from keyhole.lab.pages.parts.conversations import draw_conversation
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.record_parts import Number
from keyhole.lab.runs.summaries import describe_question, describe_versions, restore_command
from keyhole.lab.runs.task_records import BoundRecord, InequalityRecord, Plane

_AXES = {"embed": "key width m", "value_width": "value width v"}
_KINDS = {"TOO_SMALL": "bad", "ENOUGH": "ours", "OPEN": "limit"}
_MOST_BITS, _REAL = 64.0, 128.0  # the longest number that is told apart, and the place of real ones
_BITS = (*((2.0**k, f"{2**k}") for k in range(7)), (_REAL, "real"))
_GREY = "In the grey part no model of these sizes does the task, whatever its weights."
_GREEN = (
    "In the green part, right of and above the square, a model is proved, or was built and checked."
)
_OPEN = "What is not shaded is open."


def draw_bound_run(data: BoundRecord, directory: Path) -> str:
    """The page of a run, of which the record holds everything."""
    del directory
    return draw_bound_page(data)


def draw_bound_page(data: BoundRecord) -> str:
    """A self-contained page."""
    verdict = data.verdict
    parts = (
        element("p", verdict.replace("_", " "), class_=f"verdict {_KINDS[verdict]}"),
        element("h1", data.sentence),
        format_note(describe_question(data)),
        element("p", data.reason) if data.reason else "",
        draw_plane(data),
        _list_inequalities(data),
        draw_conversation(data.conversation),
        _show_bound_command(data),
    )
    return wrap_page(f"bound on {data.task}", join_markup(*parts))


def draw_plane(data: BoundRecord) -> Markup:
    """Sizes against bits on log scales: the provable limit, what was built and asked."""
    chart = describe_plane(data)
    if chart is None or data.plane is None:
        return Markup()
    caption = caption_picture("Limits", _tell_parts(data.plane))
    figure = frame_figure(draw_chart(chart), caption, width="100%")
    return format_section(f"What is known of {_AXES[data.plane.axis]} against bits", figure)


def _tell_parts(held: Plane) -> str:
    """What the colours mean that the picture has."""
    grey = _GREY if _excludes_any(held.lower) else ""
    green = _GREEN if _list_known_sizes(held.enough) else ""
    return " ".join(part for part in (grey, green, _OPEN) if part)


def describe_plane(data: BoundRecord) -> Chart | None:
    """Sizes against bits; None where the bound is not about sizes."""
    held = data.plane
    if held is None:
        return None
    sure = [float(least) for _, least in held.lower if least is not None]
    # Twice the largest size: what is enough needs room to the right.
    most = 2.0 * max([8.0, held.asked[0] or 1.0, *sure, *_list_known_sizes(held.enough)])
    lower = [(float(bits), most if least is None else float(least)) for bits, least in held.lower]
    return Chart(
        data.sentence,
        Axis(f"{_AXES[held.axis]} (log scale)", log=True, base=2, low=1.0, high=most),
        Axis("bits p of a number (log scale)", log=True, base=2, low=1.0, high=_REAL, ticks=_BITS),
        [*_trace_lower_limit(lower, most), *_mark_sizes(held)],
        areas=[*_shade_too_small(lower), *_shade_enough(held.enough, most)],
        width=720.0,
        height=300.0,
    )


def _excludes_any(lower: Sequence[tuple[float, float | None]]) -> bool:
    """Whether any size is provably too small."""
    return any(least is None or least > 1 for _, least in lower)


def _list_known_sizes(point: tuple[Number, Number] | None) -> list[float]:
    return [] if point is None or point[0] is None else [point[0]]


def _trace_stairs(lower: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What is too small with some bits is too small with fewer: the line is a staircase."""
    steps = [(least, at) for (a, _), (b, least) in pairwise(lower) for at in (a, b)]
    return [(lower[0][1], lower[0][0]), *steps]


def _shade_too_small(lower: Sequence[tuple[float, float]]) -> Iterator[Area]:
    # No inequality excludes anything: a line along the edge would mislead.
    if not _excludes_any(lower):
        yield Area([(1.0, 1.0)] * 3, "limit", 0.0, "no size is provably too small here")
        return
    corners = [(lower[-1][1], _MOST_BITS), (1.0, _MOST_BITS), (1.0, 1.0)]
    yield Area([*_trace_stairs(lower), *corners], "limit", 0.2, "provably too small")


def _trace_lower_limit(lower: Sequence[tuple[float, float]], most: float) -> Iterator[Line]:
    """The dashed line through the least sizes that are not too small, and its corners."""
    if not _excludes_any(lower):
        return
    yield Line("", "limit", [Point(*place) for place in _trace_stairs(lower)], marked=False)
    corners = [
        Point(least, bits, f"{format_number(bits)} bits: {_tell_limit(least, most)}")
        for bits, least in lower
        if least > 1
    ]
    yield Line("", "limit", corners, joined=False)


def _tell_limit(least: float, most: float) -> str:
    if least >= most:
        return "no size is enough"
    return f"up to {format_number(least - 1)} is too small"


def _shade_enough(point: Sequence[float | None] | None, most: float) -> Iterator[Area]:
    # Nothing was built, and no construction is known to be enough.
    if point is not None and point[0] is not None:
        x, y = point[0], _place_bits(point[1])
        yield Area([(x, y), (most, y), (most, _REAL), (x, _REAL)], "built", 0.1)


def _place_bits(bits: float | None) -> float:
    """Real numbers stand above the longest ones that are told apart."""
    return _REAL if bits is None else min(bits, _MOST_BITS)


def _mark_sizes(held: Plane) -> Iterator[Line]:
    for kind, word, point in (("built", "enough", held.enough), ("ours", "asked", held.asked)):
        if point is not None and point[0] is not None:
            about = f"{word}: {_describe_point(point)}"
            yield Line(about, kind, [Point(float(point[0]), _place_bits(point[1]), about)])


def _describe_point(point: Sequence[float | None]) -> str:
    bits = "real numbers" if point[1] is None else f"{format_number(point[1])} bits"
    return f"{format_number(point[0])}, {bits}"


def _list_inequalities(data: BoundRecord) -> Markup:
    """Every inequality known for the task, with both sides, and what they assume."""
    rows = [
        (
            one.name,
            one.formula,
            format_number(one.needed),
            format_number(one.available),
            _judge_inequality(one),
            one.growth,
        )
        for one in data.inequalities
    ]
    if not rows:
        nothing = element("p", "Nothing is provably too small here.")
        return format_section("No lower bound is known for this task", nothing)
    columns = ("inequality", "formula", "needed", "available", "", "growth in the source")
    # A theorem behind several inequalities is stated once.
    claims = sorted({one.theorem for one in data.inequalities})
    return format_section(
        "What a model must have",
        format_table(rows, columns, (2, 3)),
        *_list_assumptions(data.assumptions),
        *(element("p", element("b", one), f": {THEOREMS[one].statement}") for one in claims),
    )


def _list_assumptions(several: Sequence[str]) -> Iterator[Markup]:
    if several:
        yield element("p", "Assumed of the class of models:")
        yield element("ul", *(element("li", str(one)) for one in several))


def _judge_inequality(one: InequalityRecord) -> str:
    if not one.applies:
        return "does not apply"
    return "violated" if one.violated else "satisfied"


def _show_bound_command(data: BoundRecord) -> Markup:
    return format_section(
        "How to reproduce", format_command(restore_command(data), describe_versions(data))
    )
