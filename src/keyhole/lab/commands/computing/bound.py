"""The bound job: one verdict for a task and sizes, with the plane around it on a page."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path

import numpy as np
from msgspec import structs

from keyhole._files import write_atomically
from keyhole.bounds.formulas import Inequality, Sizes, count_disjointness_bits
from keyhole.bounds.planned import build_within_sizes, is_standard
from keyhole.bounds.protocol import converse
from keyhole.bounds.verdicts import (
    LARGEST,
    Bound,
    bound,
    bound_network,
    choose_axis,
    find_least_open,
)
from keyhole.constructions import Built, Proven
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.jobs import BoundJob
from keyhole.lab.pages import bound_page
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.record_parts import Number, Seconds
from keyhole.lab.runs.records import Record, take_fields
from keyhole.lab.runs.rows import list_bound_rows
from keyhole.lab.runs.task_records import (
    AskedSizes,
    BoundRecord,
    BuiltRecord,
    BuiltSize,
    CheckedInputs,
    ConversationRecord,
    GapRecord,
    InequalityRecord,
    MessageRecord,
    Plane,
    ProvenRecord,
)
from keyhole.lab.targets.tasks import pose_task
from keyhole.tasks import Task, sizes_of

# About two to a doubling: the staircase of the plane is drawn through them.
_PLANE_BITS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64)
_SECONDS = 2.0  # between two lines of progress
_SENT = 24  # bits of a number in the conversation of the page
_TOKENS = 64  # a longer conversation is not drawn


def run_bound(job: BoundJob) -> Record[BoundRecord]:
    """Judge a task and sizes, write the page where one is asked for, return the record."""
    start = time.perf_counter()
    task = pose_task(job.task, job)
    with _open_bound_directory(job) as directory:
        found = _judge_sizes(job, task)
        data = structs.replace(
            _record_bound(found), seed=job.seed, command=format_job_command("bound", job)
        )
        if directory is not None:
            data = structs.replace(
                data,
                run=str(directory),
                plane=_measure_plane(found, job),
                conversation=_hold_conversation(found, seed_generator(job.seed)),
            )
        data = structs.replace(data, seconds=Seconds(total=time.perf_counter() - start))
        page = () if directory is None else (("page", f"{directory}/report.html"),)
        record = Record(data, 0, (*list_bound_rows(data), *page))
        if directory is not None:
            write_atomically(directory / "record.json", record.json() + b"\n")
            write_atomically(directory / "report.html", bound_page.draw_bound_page(data).encode())
        return record


def _open_bound_directory(job: BoundJob) -> AbstractContextManager[Path | None]:
    """Where the page goes, if one is asked for."""
    if job.out is None:
        return nullcontext()
    return open_run_directory(f"bound-{job.task}", out=job.out, resume=None, force=job.force)


def _judge_sizes(job: BoundJob, task: Task) -> Bound:
    # Networks without attention have bounds of their own.
    if job.hidden is not None or job.state_bits is not None:
        return bound_network(
            task, hidden=job.hidden, state_bits=job.state_bits, accuracy=job.accuracy
        )
    if job.embed is None:
        raise InvalidInput(
            "bound needs --embed (or --hidden or --state-bits for a network without attention)."
        )
    if job.bits is not None and job.dtype is not None:
        raise InvalidInput(f"give --bits or --dtype, not both; got {job.bits} and {job.dtype}.")
    return bound(
        task,
        embed=job.embed,
        bits=inf if job.bits is None else float(job.bits),
        number_format=job.dtype,
        heads=job.heads,
        value_width=job.value_width,
        layers=job.layers,
        order=job.order,
        accuracy=job.accuracy,
        token_width=job.token_width,
        residual=job.residual,
        positional=job.positional,
        builder=build_and_tell,
        # Without a generator nothing is built, and the verdict rests on inequalities alone.
        rng=seed_generator(job.seed) if job.build else None,
    )


def build_and_tell(
    task: Task,
    sizes: Sizes,
    *,
    order: int,
    rng: np.random.Generator,
    write: Callable[[str], object] = sys.stderr.write,
    seconds: float = _SECONDS,
) -> Built:
    """Weights within sizes, with a line now and then; an interrupt ends building and no more.

    Raises:
        DoesNotFit: nothing fits, or building was stopped: the verdict then rests on formulas.
    """
    started = last = time.monotonic()
    trying = "the first recipe"

    def tell(what: str) -> None:
        nonlocal last, trying
        trying = what
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            write(f"building for {last - started:.0f} s: {what}\n")

    try:
        return build_within_sizes(task, sizes, order=order, rng=rng, tell=tell)
    except KeyboardInterrupt as stopped:
        raise DoesNotFit(f"Building was stopped at {trying}.") from stopped


def _record_bound(found: Bound) -> BoundRecord:
    """What the contract names, and what it rests on."""
    told = found.inequality
    sizes = found.sizes
    return BoundRecord(
        task=found.task.name,
        task_sizes=sizes_of(found.task),
        sizes=None if sizes is None else take_fields(sizes, AskedSizes),
        verdict=found.verdict.name,
        inequality=None if told is None else _record_inequality(told),
        construction=found.construction,
        assumptions=list(found.assumptions),
        sentence=found.sentence,
        inequalities=[_record_inequality(one) for one in found.inequalities],
        reason=found.reason or None,
        conjecture=found.conjecture or None,
        gap=None if found.gap is None else take_fields(found.gap, GapRecord),
        built=None if found.built is None else _record_built_model(found.built),
        proven=None if found.proven is None else _record_proof(found.proven),
        sampled=None if found.sampled is None else _record_built_model(found.sampled),
    )


def _record_inequality(told: Inequality) -> InequalityRecord:
    return structs.replace(take_fields(told, InequalityRecord), assumptions=list(told.assumptions))


def _record_built_model(built: Built) -> BuiltRecord:
    return structs.replace(
        take_fields(built, BuiltRecord),
        size=take_fields(built.size, BuiltSize),
        checked=take_fields(built.checked, CheckedInputs),
    )


def _record_proof(proven: Proven) -> ProvenRecord:
    return structs.replace(
        take_fields(proven, ProvenRecord), size=take_fields(proven.size, BuiltSize)
    )


def measure_job_plane(job: BoundJob) -> Plane | None:
    """The plane around what a job asks, without building anything."""
    return _measure_plane(_judge_sizes(replace(job, build=False), pose_task(job.task, job)), job)


def _measure_plane(found: Bound, job: BoundJob) -> Plane | None:
    # The inequalities along the plane are for attention of order two.
    if found.sizes is None or job.order != 2:
        return None
    return _measure_sizes_plane(found, found.sizes)


def _measure_sizes_plane(found: Bound, sizes: Sizes) -> Plane:
    """For numbers of so many bits, the least size that is not provably too small."""
    axis = choose_axis(found.inequality)
    lower: list[tuple[int, int | None]] = []
    for bits in _PLANE_BITS:
        least = find_least_open(
            found.task, replace(sizes, bits=float(bits), fixed=None, format=None), axis
        )
        # From this size on the search gives up: no size is enough as far as is known.
        lower.append((bits, least if least < LARGEST else None))
    asked = (getattr(sizes, axis), sizes.bits if isfinite(sizes.bits) else None)
    known = found.proven if found.built is None else found.built
    size = None if known is None else known.size
    enough = None if found.gap is None else found.gap.enough
    # What was built or proved within the sizes beats what is enough elsewhere.
    if size is not None:
        point: tuple[Number, Number] | None = (getattr(size, axis), size.bits)
    else:
        point = None if enough is None else (enough, asked[1])
    return Plane(axis=axis, lower=lower, asked=asked, enough=point)


def _hold_conversation(found: Bound, rng: np.random.Generator) -> ConversationRecord | None:
    """Two people run the model that was built on one input."""
    built = found.built
    # People exchange messages about standard attention; others have no such protocol here.
    if built is None or found.task.length > _TOKENS or not is_standard(built):
        return None
    talk = converse(built.model, found.task.sample(1, rng=rng), bits=_SENT)
    return ConversationRecord(
        messages=[take_fields(message, MessageRecord) for message in talk.messages],
        bits=talk.bits,
        each=talk.each,
        needed=count_disjointness_bits(found.task),
        deviation=talk.deviation,
    )
