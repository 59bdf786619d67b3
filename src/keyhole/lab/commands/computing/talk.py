"""The talk job: people who each own some tokens run a saved model, every bit they send counted."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import numpy as np
from msgspec import structs

from keyhole._files import write_atomically
from keyhole.bounds.formulas import count_disjointness_bits
from keyhole.bounds.protocol import Conversation, converse
from keyhole.constructions import load
from keyhole.errors import InvalidInput
from keyhole.lab.commands.computing.attack import find_own_sizes
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.jobs import TalkJob
from keyhole.lab.pages.talk_page import draw_talk_page
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.record_parts import Seconds
from keyhole.lab.runs.records import Record, take_fields
from keyhole.lab.runs.task_records import ConversationRecord, MessageRecord, TalkRecord
from keyhole.lab.targets.tasks import pose_task
from keyhole.models import Head, MultiHead, SelfAttention
from keyhole.models.stack import Transformer
from keyhole.tasks import Task, sizes_of

_EACH = 8  # inputs of each kind that are talked about, the bits counted for one


def run_talk(job: TalkJob) -> Record[TalkRecord]:
    """Load a model, split its tokens, hold the conversation, return the record."""
    start = time.perf_counter()
    model = load(job.model)
    task = pose_task(job.task, job, **find_own_sizes(model, job.task))
    named = f"talk-{job.task}"
    out = nullcontext() if job.out is None else _open_talk_directory(named, job)
    with out as directory:
        data = _hold_talk(job, model, task)
        data = structs.replace(
            data,
            seed=job.seed,
            command=format_job_command("talk", job),
            run=None if directory is None else str(directory),
            seconds=Seconds(total=time.perf_counter() - start),
        )
        page = () if directory is None else (("page", f"{directory}/report.html"),)
        record = Record(data, 0, (*_list_talk_rows(data), *page))
        if directory is not None:
            write_atomically(directory / "record.json", record.json() + b"\n")
            write_atomically(directory / "report.html", draw_talk_page(data).encode())
        return record


def _open_talk_directory(named: str, job: TalkJob) -> Any:
    return open_run_directory(named, out=job.out, resume=None, force=job.force)


def _hold_talk(job: TalkJob, model: Any, task: Task) -> TalkRecord:
    if not isinstance(model, Transformer | SelfAttention | Head | MultiHead):
        raise InvalidInput(
            "people can run a Transformer of attention layers, a self-attention layer, or heads;"
            f" {job.model} holds a {type(model).__name__}."
        )
    rng = seed_generator(job.seed)
    X = np.concatenate([task.sample(_EACH, rng=rng, kind=kind) for kind in task.kinds])
    split = _split_tokens(task.length, job.people)
    talk = converse(model, X, bits=job.bits, parties=split)
    if talk.answers.shape != task.target(X).shape:
        raise InvalidInput(
            f"{job.model} does not answer {task.name}: it gives {talk.answers.shape[2:]} numbers a"
            f" token, and the task has {task.target(X).shape[2:]}."
        )
    needed = count_disjointness_bits(task)
    errors = [float(task.error(each, X).max()) for each in (talk.direct, talk.answers)]
    return TalkRecord(
        task=task.name,
        task_sizes=sizes_of(task),
        model=job.model,
        people=job.people,
        conversation=_record_talk(talk, needed),
        error=errors[1],
        error_direct=errors[0],
        inputs=len(X),
        sentence=_describe_talk(job, task, talk, needed, errors),
    )


def _split_tokens(length: int, people: int) -> list[list[int]]:
    """Neighbouring tokens, as many for each as can be."""
    if not 2 <= people <= 3 or length < people:
        raise InvalidInput(
            f"two or three people own a token each at least; got {people} and {length} tokens."
        )
    return [part.tolist() for part in np.array_split(np.arange(length), people)]


def _record_talk(talk: Conversation, needed: int) -> ConversationRecord:
    return ConversationRecord(
        messages=[take_fields(message, MessageRecord) for message in talk.messages],
        bits=talk.bits,
        each=talk.each,
        needed=needed,
        deviation=talk.deviation,
    )


def _describe_talk(
    job: TalkJob, task: Task, talk: Conversation, needed: int, errors: list[float]
) -> str:
    words = {2: "Two", 3: "Three"}[job.people]
    against = f"; no two people do {task.name} of these sizes with fewer than {needed:,}"
    as_well = errors[1] <= max(errors[0], task.accuracy)
    done = "as well as by one person" if as_well else "worse than by one person"
    return (
        f"{words} people who share out the tokens run the model with messages of"
        f" {talk.bits:,} bits for an input, {talk.each} bits for a number"
        f"{against if needed else ''}. Rounded so, answers move by {talk.deviation:.2g} at most,"
        f" and the task is done {done} (error {errors[1]:.2g} against {errors[0]:.2g})."
    )


def _list_talk_rows(data: TalkRecord) -> tuple[tuple[str, str], ...]:
    said = data.conversation
    rows = [
        (
            f"layer {one.layer}, {one.sender}",
            f"{one.content}: {one.numbers:,} numbers, {one.bits:,} bits",
        )
        for one in said.messages
    ]
    return (
        *rows,
        ("bits", f"{said.bits:,}"),
        ("needed", f"{said.needed:,}" if said.needed else "no bound"),
    )
