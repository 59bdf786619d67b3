"""The page of two models held against each other: where their answers differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from keyhole.drawing.describing import Axes, Heatmap
from keyhole.drawing.heatmaps import average_blocks, draw_heatmap
from keyhole.drawing.html import (
    element,
    format_command,
    format_note,
    format_number,
    format_section,
    format_table,
    join_markup,
    join_pictures,
)
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.recovery_records import AnswersRecord, CompareRecord
from keyhole.lab.runs.summaries import describe_versions


def draw_answers_page(data: CompareRecord, directory: Path) -> str:
    """A self-contained page, from the record alone."""
    del directory
    parts = [element("h1", data.sentence), format_note(_describe_sides(data))]
    if (held := data.answers) is not None:
        picture = join_pictures(draw_heatmap(describe_answer_gaps(held)))
        parts.append(format_section("Where they differ", picture, format_note(_explain_gaps(held))))
        parts.append(format_section("By length", _list_gaps_by_length(held)))
    if data.distance:
        rows = [(name, format_number(value)) for name, value in data.distance.items()]
        table = format_table(rows, ("part", "relative distance"), (1,))
        parts.append(format_section("Distances of weights", table))
    command = format_command(data.command or "", f"Seed {data.seed}. {describe_versions(data)}")
    parts.append(format_section("How to reproduce", command))
    return wrap_page("compare", join_markup(*parts))


def _describe_sides(data: CompareRecord) -> str:
    said = f"A is {data.a}, B is {data.b}."
    if data.answers is not None and data.answers.read_last:
        said += f" Sequence answers of {' and '.join(data.answers.read_last)} are read at their"
        said += " last position."
    if data.answers is not None and data.answers.singly:
        said += f" {' and '.join(data.answers.singly)} is asked one sequence at a time: in a batch"
        said += " its answers are others."
    return said


def describe_answer_gaps(held: AnswersRecord) -> Heatmap:
    """The picture: differences by length and by output, from none to the largest."""
    gaps = np.array(held.gaps, dtype=np.float64) / (held.size or 1.0)
    step, cells = average_blocks(gaps)
    most = float(cells.max()) or 1.0
    note = f"questions of {', '.join(map(str, held.lengths))} tokens, from above"
    note += f"; means over {step} x {step} blocks" if step > 1 else ""
    ends = ("0", format_number(most / 2), format_number(most))
    axes = Axes("length", "output")
    shape = (len(gaps), len(gaps.T))
    return Heatmap(
        "difference of answers", note, cells, cells / most, "errors", ends, axes, "gap", step, shape
    )


def _explain_gaps(held: AnswersRecord) -> str:
    return (
        f"The largest difference over {held.sequences:,} sequences of Gaussian tokens, in units of"
        " a typical answer of A."
        f" Up to {format_number(held.allowed)} answers are equal."
    )


def _list_gaps_by_length(held: AnswersRecord) -> str:
    gaps = np.array(held.gaps, dtype=np.float64)
    each = gaps.max(axis=1) / (held.size or 1.0)
    rows = [
        (str(n), format_number(float(gap)), str(int(gaps[k].argmax())))
        for k, (n, gap) in enumerate(zip(held.lengths, each, strict=True))
    ]
    return format_table(rows, ("length", "largest difference", "at output"), (0, 1, 2))
