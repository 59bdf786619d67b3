"""Who sends what to whom: arrows with their bits, and their total against the bound."""

from __future__ import annotations

import math
from collections.abc import Iterator

from keyhole.drawing.html import Markup, format_number, format_section, frame_figure
from keyhole.drawing.labels import Box, measure_words, shorten_words
from keyhole.drawing.shapes import Patch, Shape, Stroke, Words, frame_shapes, make_rectangle
from keyhole.drawing.svg import paint_drawing
from keyhole.lab.runs.task_records import ConversationRecord, MessageRecord

_COLUMNS = {"Alice": 60.0, "Bob": 490.0, "Carol": 900.0}
_ROW = 34.0
_BAR, _LONGEST = 160.0, 620.0  # where the bar of all bits begins, and how long it may be


def draw_conversation(talk: ConversationRecord | None, people: int = 2) -> Markup:
    """An arrow per message with its bits, their total against the bound."""
    if talk is None:
        return Markup()
    total = sum(message.bits for message in talk.messages)
    needed = talk.needed
    against = f"; any two people need {format_number(needed)} bits for this task" if needed else ""
    owners = "Three people who own a third" if people > 2 else "Two people who own half"
    title = f"{owners} of the tokens each run it with {format_number(total)} bits{against}"
    bottom = 40.0 + _ROW * len(talk.messages)
    shapes = [
        *_draw_people(talk, bottom - 10.0),
        *_draw_messages(talk),
        *_draw_totals(total, needed, bottom),
    ]
    note = (
        f"Every number is rounded to {talk.each} bits; the answers then differ from the model's"
        f" own by {format_number(talk.deviation)}."
    )
    drawing = frame_shapes(shapes, title, Box(0.0, 0.0, 640.0, bottom + 50.0))
    return format_section(title, frame_figure(paint_drawing(drawing), note, width="100%"))


def _list_people(talk: ConversationRecord) -> list[str]:
    heard = [
        name
        for message in talk.messages
        for name in (message.sender, *message.receiver.split(" and "))
    ]
    return [name for name in _COLUMNS if name in heard]


def _draw_people(talk: ConversationRecord, bottom: float) -> Iterator[Shape]:
    for name in _list_people(talk):
        x = _COLUMNS[name]
        yield Stroke([(x, 22.0), (x, bottom)], "rule")
        yield Words(x, 10.0, name, anchor="middle")


def _draw_messages(talk: ConversationRecord) -> Iterator[Shape]:
    """An arrow for each message, and how many bits were sent so far."""
    total = 0
    right = max((_COLUMNS[name] for name in _list_people(talk)), default=0.0)
    for k, message in enumerate(talk.messages):
        total += message.bits
        y = 44.0 + _ROW * k
        yield from _draw_arrow(message, y)
        yield Words(right + 16.0, y, f"{format_number(total)} so far", "quiet")


def _draw_arrow(message: MessageRecord, y: float) -> Iterator[Shape]:
    # A message to two people is drawn to the farther one.
    last = message.receiver.split(" and ")[-1]
    a, b = _COLUMNS[message.sender], _COLUMNS[last]
    side = 6.0 if b > a else -6.0
    about = f"{format_number(message.numbers)} numbers to {message.receiver}"
    yield Stroke([(a, y), (b, y), (b - side, y - 4), (b, y), (b - side, y + 4)], "truth", about)
    said = f"layer {message.layer}, {message.content}: {format_number(message.bits)} bits"
    cut = shorten_words(said, abs(b - a) - 20.0)
    yield Words((a + b) / 2, y - 11.0, cut, anchor="middle", said=said if cut != said else "")


def _draw_totals(total: int, needed: int, y: float) -> Iterator[Shape]:
    """What was sent in all beside what any two people need, on a log scale."""
    # Sent and needed bits differ by orders of magnitude.
    unit = _LONGEST / math.log2(max(2.0, total, needed))
    sent, least = (_BAR + unit * math.log2(max(1, bits)) for bits in (total, needed))
    yield Words(0.0, y + 10.0, "bits in all, log scale", "quiet")
    bar = make_rectangle(Box(_BAR, y, sent, y + 20.0))
    yield Patch(bar, "built", 0.5, f"{total:,} bits")
    # Beyond the bar and the mark of the bound, whichever is longer.
    yield Words(max(sent, least) + 8.0, y + 10.0, f"{total:,} sent")
    if needed:
        words = f"lower bound {needed:,}"
        yield Stroke([(least, y - 6.0), (least, y + 26.0)], "dashed")
        yield Words(max(least, _BAR + measure_words(words) / 2), y + 35.0, words, "quiet", "middle")
