"""The drawing of a block: one row for each stage, parts that are known filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from keyhole.drawing.blocks.block_stages import (
    SETTLED,
    BlockProgress,
    Step,
    tabulate_steps,
)
from keyhole.drawing.describing import write_csv
from keyhole.drawing.html import Markup, caption_picture, format_number, frame_figure
from keyhole.drawing.labels import Box, measure_words
from keyhole.drawing.shapes import (
    Dot,
    Drawing,
    Patch,
    Shape,
    Stroke,
    Words,
    frame_shapes,
    make_rectangle,
)
from keyhole.drawing.svg import paint_drawing

_TOP, _ROW = 46.0, 54.0  # where rows begin, and how high one is
_BARS, _LONGEST = 472.0, 150.0  # where bars begin, and how long they are together
_LIFT, _STREAM = -8.0, 16.0  # heights of branches and of the residual, about the middle of a row
_LEFT, _RIGHT = 186.0, 448.0  # ends of the residual
_HEADS, _UNITS = 8, 24  # that are drawn
_CALLED = {"norm1": "norm", "norm2": "norm", "values": "values", "scores": "scores"}
_NOTE = (
    "each row is a stage: tokens go from left to right, past heads (scores above, values below) and"
    " past the units of the network. Pale parts are known to some digits, dark ones to the last;"
    " empty ones are not known yet. Bars count questions"
)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the parts of a block stand across."""

    norm1: float
    heads: float
    join1: float
    norm2: float
    units: float
    join2: float
    leave: float
    lifted: bool  # whether norms stand on the branches


# With norms before attention and network, and behind them.
_PLACES = {
    "pre": _Places(200.0, 226.0, 306.0, 330.0, 356.0, 434.0, 316.0, lifted=True),
    "post": _Places(290.0, 206.0, 276.0, 420.0, 334.0, 406.0, 318.0, lifted=False),
}
_BOX, _WIDE = 16.0, 60.0  # widths of a norm, and of the heads or the units


def draw_block_stages(progress: BlockProgress) -> Markup:
    """The block as it fills in, and what each stage asked, with what to look at."""
    painted = paint_drawing(
        arrange_block_stages(progress), write_csv(tabulate_steps(progress.list_steps()))
    )
    limit = "" if progress.limit is None else "; left of the dashed line no learner knows the block"
    note = f"{_NOTE}{limit}.{_count_left(progress)}"
    caption = caption_picture("the block, stage by stage", note)
    return frame_figure(painted, caption, width="100%")


def arrange_block_stages(progress: BlockProgress) -> Drawing:
    """The drawing: names, block and bar of every stage."""
    steps = progress.list_steps()
    bottom = _TOP + _ROW * len(steps)
    shapes = [
        *_draw_names(progress),
        *(shape for k, step in enumerate(steps) for shape in _draw_step(progress, step, k)),
        *_draw_bars(progress, steps, bottom),
        *_tell_errors(progress.errors, bottom),
    ]
    return frame_shapes(shapes, progress.finding, Box(0.0, 0.0, 700.0, bottom + 30.0))


def _count_left(progress: BlockProgress) -> str:
    """What is not drawn of a large block."""
    cut = ((progress.heads or 0, _HEADS, "head"), (progress.units or 0, _UNITS, "unit"))
    told = [f"{most} of {_count(held, name)}" for held, most, name in cut if held > most]
    return f" Drawn are {' and '.join(told)}." if told else ""


def _draw_names(progress: BlockProgress) -> Iterator[Shape]:
    at = _PLACES[progress.style]
    heads = "heads" if progress.heads is None else _count(progress.heads, "head")
    units = "units" if progress.units is None else _count(progress.units, "unit")
    yield Words(0.0, 12.0, "stage", "quiet")
    yield Words(at.heads + _WIDE / 2, 12.0, heads, "quiet", "middle")
    yield Words(at.units + _WIDE / 2, 12.0, units, "quiet", "middle")
    for x in (at.norm1, at.norm2):
        yield Words(x + _BOX / 2, 28.0, "norm", "quiet", "middle")


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"


def _draw_step(progress: BlockProgress, step: Step, row: int) -> Iterator[Shape]:
    """The name of a stage, and the block as it was known then."""
    y = _TOP + _ROW * (row + 0.5)
    yield Words(0.0, y - 7.0, step.name)
    words = f"{step.asked:,} questions"
    yield Words(0.0, y + 8.0, words if step.done else f"{words}, not settled", "quiet")
    yield from _draw_ways(_PLACES[progress.style], y)
    yield from _draw_norms(progress, step, y)
    yield from _draw_heads(progress, step, y)
    yield from _draw_units(progress, step, y)


def _draw_ways(at: _Places, y: float) -> Iterator[Shape]:
    """The residual, and the branches past it; ways end where a part begins."""
    stream, lift = y + _STREAM, y + _LIFT
    parts = ((at.norm1, _BOX), (at.heads, _WIDE), (at.norm2, _BOX), (at.units, _WIDE))
    lifted = sorted((x, width) for x, width in parts if at.lifted or width == _WIDE)
    below = [] if at.lifted else [(x, width) for x, width in parts if width == _BOX]
    yield from _draw_way((_LEFT, _RIGHT), stream, below)
    for start, end in ((_LEFT + 6.0, at.join1), (at.leave, at.join2)):
        held = [(x, width) for x, width in lifted if start < x < end]
        yield Stroke([(start, stream), (start, lift)], "truth")
        yield from _draw_way((start, end), lift, held)
        yield Stroke([(end, lift), (end, stream)], "truth")
        yield Dot(end, stream, "truth", "added to the token", 3.5)
    yield Stroke([(_RIGHT - 5, stream - 4), (_RIGHT, stream), (_RIGHT - 5, stream + 4)], "truth")


def _draw_way(
    ends: tuple[float, float], y: float, parts: list[tuple[float, float]]
) -> Iterator[Shape]:
    start, end = ends
    for x, width in parts:
        yield Stroke([(start, y), (x, y)], "truth")
        start = x + width
    yield Stroke([(start, y), (end, y)], "truth")


def _draw_norms(progress: BlockProgress, step: Step, y: float) -> Iterator[Shape]:
    at = _PLACES[progress.style]
    middle = y + (_LIFT if at.lifted else _STREAM)
    for part, x in (("norm1", at.norm1), ("norm2", at.norm2)):
        box = Box(x, middle - 12.0, x + _BOX, middle + 12.0)
        yield from _fill(progress, step, part, box)


def _draw_heads(progress: BlockProgress, step: Step, y: float) -> Iterator[Shape]:
    """One column for each head: its scores, then its values."""
    count = min(progress.heads or 3, _HEADS)
    left, width = _PLACES[progress.style].heads, _WIDE / count
    for k in range(count):
        x = left + k * width
        for part, top in (("scores", y + _LIFT - 14.0), ("values", y + _LIFT)):
            box = Box(x + 1.0, top, x + width - 1.0, top + 14.0)
            yield from _fill(progress, step, part, box, f" of head {k + 1}")


def _draw_units(progress: BlockProgress, step: Step, y: float) -> Iterator[Shape]:
    count = min(progress.units or 12, _UNITS)
    columns = -(-count // 3)
    left, width = _PLACES[progress.style].units, _WIDE / columns
    for k in range(count):
        x, top = left + (k // 3) * width, y + _LIFT - 14.0 + 9.6 * (k % 3)
        box = Box(x + 1.0, top, x + width - 1.0, top + 8.0)
        yield from _fill(progress, step, "units", box)


def _fill(
    progress: BlockProgress, step: Step, part: str, box: Box, whose: str = ""
) -> Iterator[Shape]:
    """A part, filled as well as it is known."""
    share = step.known.get(part, 0.0)
    corners = make_rectangle(box)
    standing = {0.0: "not known", SETTLED: "known to the last digit"}.get(share, "known roughly")
    said = f"{step.name}: {_CALLED.get(part, part)}{whose} {standing}"
    kind = "ours" if progress.verified else "limit"
    yield Patch(corners, kind, share, said)
    yield Stroke([*corners, corners[0]], f"line {kind}" if share else "rule", width=1.0)


def _draw_bars(progress: BlockProgress, steps: list[Step], bottom: float) -> Iterator[Shape]:
    """What each stage asked, one bar after the other, and the limit across."""
    unit = _LONGEST / max(1, steps[-1].total if steps else 1, progress.limit or 0)
    limit = _BARS + unit * (progress.limit or 0)
    yield Words(_BARS, 12.0, "questions so far", "quiet")
    for row, step in enumerate(steps):
        y = _TOP + _ROW * (row + 0.5)
        start, end = _BARS + unit * (step.total - step.asked), _BARS + unit * step.total
        bar = make_rectangle(Box(start, y - 9.0, max(end, start + 1.0), y + 9.0))
        fresh = row == len(steps) - 1 and progress.verified
        said = f"{step.name}: {step.asked:,} questions, {step.total:,} so far"
        yield Patch(bar, "ours", 0.2 if fresh else 0.5, said)
        yield Words(_clear_limit(end + 6.0, f"{step.total:,}", limit), y, f"{step.total:,}")
    if progress.limit is not None:
        yield Stroke([(limit, _TOP), (limit, bottom)], "dashed")
        yield Words(limit, _TOP - 10.0, f"limit {progress.limit:,}", "quiet", "middle")


def _clear_limit(x: float, words: str, limit: float) -> float:
    """Where words begin that the line of the limit does not run through."""
    return limit + 6.0 if x - 4.0 < limit < x + measure_words(words) + 4.0 else x


def _tell_errors(errors: Mapping[str, float], bottom: float) -> Iterator[Shape]:
    """How far the parts are from the truth."""
    if errors:
        told = ", ".join(f"{part} {format_number(error)}" for part, error in errors.items())
        yield Words(0.0, bottom + 16.0, f"errors beside the truth: {told}")
