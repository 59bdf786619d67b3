"""The page of a conversation: who says what to whom, and what it comes to."""

from __future__ import annotations

from pathlib import Path

from keyhole.drawing.html import (
    element,
    format_command,
    format_number,
    format_section,
    format_table,
    join_markup,
)
from keyhole.lab.pages.parts.conversations import draw_conversation
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.summaries import describe_versions, restore_command
from keyhole.lab.runs.task_records import TalkRecord


def draw_talk_run(data: TalkRecord, directory: Path) -> str:
    """The page of a run, of which the record holds everything."""
    del directory
    return draw_talk_page(data)


def draw_talk_page(data: TalkRecord) -> str:
    """A self-contained page."""
    said = data.conversation
    rows = [
        (
            str(one.layer),
            one.sender,
            one.receiver,
            one.content,
            format_number(one.numbers),
            format_number(one.bits),
        )
        for one in said.messages
    ]
    columns = ("layer", "who", "to whom", "what", "numbers", "bits")
    parts = (
        element("h1", data.sentence),
        draw_conversation(said, data.people),
        format_section("Every message", format_table(rows, columns, (4, 5))),
        format_section(
            "How to reproduce", format_command(restore_command(data), describe_versions(data))
        ),
    )
    return wrap_page(f"a conversation about {data.task}", join_markup(*parts))
