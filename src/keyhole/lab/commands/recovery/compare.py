"""The compare job: whether two models are one function, by weights where both have ours, and by
answers.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from msgspec import structs

from keyhole._files import write_atomically
from keyhole.drawing.html import format_number
from keyhole.errors import InvalidInput
from keyhole.identify import compare
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.jobs import CompareJob
from keyhole.lab.pages.comparing.answers_page import draw_answers_page
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.recovery_records import AnswersRecord, CompareRecord
from keyhole.lab.runs.rows import list_compare_rows
from keyhole.lab.targets.answer_gaps import (
    AnswerGap,
    Side,
    is_own_file,
    measure_answer_gap,
    open_side,
)


def run_compare(job: CompareJob) -> Record[CompareRecord]:
    """Compare two models by their weights, where both are of ours, and by their answers."""
    a, b = _open_sides(job)
    weights = _compare_weights(a.model, b.model)
    gap = measure_answer_gap(a, b, rng=seed_generator(job.seed))
    last = [side.name for side in (a, b) if side.reads_last]
    told = _tell_answers(job, gap, last)
    data = structs.replace(
        weights or CompareRecord(sentence=told, distance={}, largest=gap.relative),
        answers=_record_answers(gap, last),
        a=job.a,
        b=job.b,
        seed=job.seed,
        command=format_job_command("compare", job),
    )
    if weights is not None:
        data = structs.replace(data, sentence=f"{weights.sentence} {told}")
    return _write_comparison(job, data)


def _open_sides(job: CompareJob) -> tuple[Side, Side]:
    a = open_side(job.a, layer=job.layer, width=job.width, heads=job.heads)
    # A saved model is one layer already; a model of others has its own under the same name.
    other = job.other_layer
    if other is None and not is_own_file(job.b):
        other = job.layer
    return a, open_side(job.b, layer=other, width=a.oracle.width, heads=job.heads)


def _compare_weights(a: Any, b: Any) -> CompareRecord | None:
    """Distances of weights; None where the two are not of one kind of ours."""
    if a is None or b is None:
        return None
    try:
        names, apart = measure_model_gap(a, b)
    except InvalidInput:
        return None
    parts = {name: getattr(apart, name) for name in names}
    # Distances of heads and of networks count different units.
    of = "heads" if hasattr(apart, "heads") else "hidden"
    counts: list[int] = list(getattr(apart, of, ()))
    units = "heads" if of == "heads" else "hidden units"
    sentence = (
        f"Weights differ by at most {apart.largest:.2g} of their size, {units} put in the same"
        " order."
    )
    # Units that do nothing are not counted: other numbers of them are other functions.
    if len(set(counts)) > 1:
        sentence = (
            f"The models have {counts[0]} and {counts[1]} {units} that act: they are different"
            " functions."
        )
    return CompareRecord(
        sentence=sentence,
        distance=parts,
        largest=apart.largest,
        heads=counts if of == "heads" else None,
        hidden=counts if of == "hidden" else None,
    )


def measure_model_gap(a: Any, b: Any) -> tuple[tuple[str, ...], Any]:
    """The distance of two models of one kind, and the names of its parts."""
    gap = compare(a, b)
    names = [item.name for item in fields(gap) if isinstance(getattr(gap, item.name), float)]
    return tuple(names), gap


def _tell_answers(job: CompareJob, gap: AnswerGap, last: list[str]) -> str:
    """The outcome for answers in one sentence."""
    asked = f"on {gap.sequences} fresh sequences of up to {gap.lengths[-1]} tokens"
    ways = [f"{' and '.join(last)} read at the last position"] if last else []
    ways += [f"{' and '.join(gap.singly)} asked one sequence at a time"] if gap.singly else []
    read = f" ({'; '.join(ways)})" if ways else ""
    equal = f"up to {format_number(gap.allowed)} counts as equal"
    if gap.same:
        return (
            f"{job.b} answers as {job.a} does{read}: the largest difference is"
            f" {format_number(gap.worst)} of an answer, {asked}; {equal}."
        )
    return (
        f"{job.b} does not answer as {job.a} does{read}: the difference is"
        f" {format_number(gap.relative)} of an answer in the root mean square and"
        f" {format_number(gap.worst)} at worst, {asked}, most at length {gap.farthest}; {equal}."
    )


def _record_answers(gap: AnswerGap, last: list[str]) -> AnswersRecord:
    return AnswersRecord(
        relative=gap.relative,
        worst=gap.worst,
        allowed=gap.allowed,
        same=gap.same,
        sequences=gap.sequences,
        lengths=list(gap.lengths),
        size=gap.size,
        gaps=gap.gaps.tolist(),
        read_last=last,
        singly=list(gap.singly),
    )


def _write_comparison(job: CompareJob, data: CompareRecord) -> Record[CompareRecord]:
    """The record; with its page in a directory where one was named."""
    if job.out is None:
        return Record(data, 0, tuple(list_compare_rows(data)))
    with open_run_directory("compare", out=job.out, resume=False, force=job.force) as directory:
        data = structs.replace(data, run=str(directory))
        page = directory / "report.html"
        record = Record(data, 0, (*list_compare_rows(data), ("page", str(page))))
        write_atomically(directory / "record.json", record.json() + b"\n")
        write_atomically(page, draw_answers_page(data, Path(directory)).encode())
        return record
