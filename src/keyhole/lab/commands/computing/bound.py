"""The bound job: one verdict for a task and sizes, with the plane around it on a page."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from keyhole.bounds.formulas import Inequality, Sizes, count_disjointness_bits
from keyhole.bounds.planned import is_standard
from keyhole.bounds.protocol import converse
from keyhole.bounds.verdicts import (
    LARGEST,
    Bound,
    BoundVerdict,
    bound,
    bound_network,
    choose_axis,
    find_least_open,
)
from keyhole.constructions import Built
from keyhole.errors import InvalidInput
from keyhole.lab.commands.shared import list_versions, seed_generator
from keyhole.lab.jobs import BoundJob
from keyhole.lab.pages import bound_page
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.records import Record
from keyhole.lab.targets.tasks import pose_task
from keyhole.models.files import write_atomically
from keyhole.tasks import Task, sizes_of

# About two to a doubling: the staircase of the plane is drawn through them.
_PLANE_BITS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64)
_SENT = 24  # bits of a number in the conversation of the page
_TOKENS = 64  # a longer conversation is not drawn


def run_bound(job: BoundJob) -> Record:
    """Judge a task and sizes, write the page where one is asked for, return the record."""
    start = time.perf_counter()
    task = pose_task(job.task, job)
    with _open_bound_directory(job) as directory:
        found = _judge_sizes(job, task)
        data: dict[str, Any] = {
            **_record_bound(found),
            "seed": job.seed,
            "command": format_job_command("bound", job),
            **list_versions(),
        }
        if directory is not None:
            data |= {"run": str(directory), **_record_bound_pictures(found, job)}
        data["seconds"] = {"total": time.perf_counter() - start}
        record = Record(data, 0, _list_bound_rows(found, data))
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
        residual=job.residual,
        positional=job.positional,
        # Without a generator nothing is built, and the verdict rests on inequalities alone.
        rng=seed_generator(job.seed) if job.build else None,
    )


def _record_bound(found: Bound) -> dict[str, Any]:
    """What the contract names, and what it rests on."""
    told = found.inequality
    sizes = found.sizes
    return {
        "task": found.task.name,
        "task_sizes": sizes_of(found.task),
        "sizes": None if sizes is None else asdict(sizes),
        "verdict": found.verdict.name,
        "inequality": None if told is None else _record_inequality(told),
        "construction": found.construction,
        "assumptions": found.assumptions,
        "sentence": found.sentence,
        "inequalities": [_record_inequality(one) for one in found.inequalities],
        "reason": found.reason or None,
        "gap": None if found.gap is None else asdict(found.gap),
        "built": None if found.built is None else _record_built_model(found.built),
        "sampled": None if found.sampled is None else _record_built_model(found.sampled),
    }


def _record_inequality(told: Inequality) -> dict[str, Any]:
    kept = (
        "name",
        "needed",
        "available",
        "unit",
        "formula",
        "theorem",
        "assumptions",
        "applies",
        "violated",
        "growth",
    )
    return {name: getattr(told, name) for name in kept}


def _record_built_model(built: Built) -> dict[str, Any]:
    return {
        "construction": built.construction,
        "size": asdict(built.size),
        "format": built.format,
        "margin": built.margin,
        "error_bound": built.error_bound,
        "checked": asdict(built.checked),
    }


def _list_bound_rows(found: Bound, data: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    rows = [("verdict", found.verdict.name)]
    # What was built and checked assumes nothing of the class.
    if found.verdict is not BoundVerdict.ENOUGH:
        rows += [("assumes", one) for one in found.assumptions]
    if found.inequality is not None and found.inequality.growth:
        rows.append(("growth", found.inequality.growth))
    rows += [("not built" if found.sampled is None else "not proved", found.reason)] * bool(
        found.reason
    )
    return (*rows, *([("page", f"{data['run']}/report.html")] if "run" in data else []))


def _record_bound_pictures(found: Bound, job: BoundJob) -> dict[str, Any]:
    """The plane around what was asked, and a conversation of the model that was built."""
    # The inequalities along the plane are for attention of order two.
    plane = None if found.sizes is None or job.order != 2 else _measure_plane(found, found.sizes)
    return {"plane": plane, "conversation": _hold_conversation(found, seed_generator(job.seed))}


def measure_job_plane(job: BoundJob) -> dict[str, Any]:
    """The plane around what a job asks, without building anything."""
    found = _judge_sizes(replace(job, build=False), pose_task(job.task, job))
    return {
        "plane": (
            None if found.sizes is None or job.order != 2 else _measure_plane(found, found.sizes)
        )
    }


def _measure_plane(found: Bound, sizes: Sizes) -> dict[str, Any]:
    """For numbers of so many bits, the least size that is not provably too small."""
    axis = choose_axis(found.inequality)
    lower: list[list[int | None]] = []
    for bits in _PLANE_BITS:
        least = find_least_open(
            found.task, replace(sizes, bits=float(bits), fixed=None, format=None), axis
        )
        # From this size on the search gives up: no size is enough as far as is known.
        lower.append([bits, least if least < LARGEST else None])
    asked = [getattr(sizes, axis), sizes.bits if isfinite(sizes.bits) else None]
    size = None if found.built is None else found.built.size
    enough = None if found.gap is None else found.gap.enough
    # What was built itself beats what is only known to be enough.
    if size is not None:
        point: list[float | None] | None = [getattr(size, axis), size.bits]
    else:
        point = None if enough is None else [enough, asked[1]]
    return {"axis": axis, "lower": lower, "asked": asked, "enough": point}


def _hold_conversation(found: Bound, rng: np.random.Generator) -> dict[str, Any] | None:
    """Two people run the model that was built on one input."""
    built = found.built
    # People exchange messages about standard attention; others have no such protocol here.
    if built is None or found.task.length > _TOKENS or not is_standard(built):
        return None
    talk = converse(built.model, found.task.sample(1, rng=rng), bits=_SENT)
    return {
        "messages": [asdict(message) for message in talk.messages],
        "bits": talk.bits,
        "each": talk.each,
        "needed": count_disjointness_bits(found.task),
        "deviation": talk.deviation,
    }
