"""The limits job: every task in one table, smallest known against largest excluded, and drawn."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import structs

from keyhole._files import read_file, write_atomically
from keyhole.bounds.task_table import (
    TaskStanding,
    count_excluded_keys,
    measure_side,
    pose_at_length,
    weigh_task,
)
from keyhole.constructions import Proven
from keyhole.constructions.split_sets.split_heads import SplitHeads
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.jobs import LimitsJob
from keyhole.lab.pages.limits_page import draw_limits_page
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.reading import read_record
from keyhole.lab.runs.record_parts import Seconds
from keyhole.lab.runs.records import Record, take_fields
from keyhole.lab.runs.store import read_rows
from keyhole.lab.runs.task_records import (
    BuiltSize,
    HeadsLimit,
    LimitsRecord,
    ProvenRecord,
    TaskLimits,
    TrainedPoint,
    TrainRecord,
)
from keyhole.tasks import TASKS, SparseAverage, find_kind, sizes_of, task_named

# Lengths at which the planes are drawn.
_LENGTHS = (8, 16, 32, 64, 128, 256)
# The sets that heads share in the picture of heads against width.
_SETS = SparseAverage(64, 8)
_ACCURACY = 1e-2
_PLAIN = 0.1  # share of wrong labels up to which a guess is nearly always right
_FEW = 8  # bits at which counting excludes something of these sets


def run_limits(job: LimitsJob) -> Record[LimitsRecord]:
    """Weigh every task, draw them where a page is asked for, return the record."""
    start = time.perf_counter()
    _check_limits_job(job)
    # Read before a run that is there is overwritten.
    trained = _read_trained(job.trained)
    names = [job.task] if job.task is not None else list(TASKS)
    out = nullcontext() if job.out is None else _open_limits_directory(job)
    with out as directory:
        rows = [_set_row(name, job.length, job.bits) for name in names]
        data = LimitsRecord(
            bits=job.bits,
            length=job.length,
            rows=rows,
            sentence=_describe_table(rows),
            command=format_job_command("limits", job),
            run=None if directory is None else str(directory),
        )
        if directory is not None:
            data = structs.replace(
                data,
                planes=[_set_row(name, length, job.bits) for name in names for length in _LENGTHS],
                heads=_weigh_heads(job.seed),
                trained=trained,
            )
        data = structs.replace(data, seconds=Seconds(total=time.perf_counter() - start))
        page = () if directory is None else (("page", f"{directory}/report.html"),)
        record = Record(data, 0, (*_list_limit_rows(data), *page))
        if directory is not None:
            write_atomically(directory / "record.json", record.json() + b"\n")
            write_atomically(directory / "report.html", draw_limits_page(data).encode())
        return record


def _check_limits_job(job: LimitsJob) -> None:
    if not 2 <= job.bits <= 53:
        raise InvalidInput(f"--bits lies between 2 and 53, which float64 carries; got {job.bits}.")
    if not 4 <= job.length <= 4096:
        raise InvalidInput(f"--length lies between 4 and 4,096; got {job.length}.")
    if job.trained is not None and job.out is None:
        raise InvalidInput("--trained is drawn on the page: give --out DIR too.")


def _open_limits_directory(job: LimitsJob) -> Any:
    return open_run_directory("limits", out=job.out, resume=None, force=job.force)


def _set_row(name: str, length: int, bits: int) -> TaskLimits:
    found = weigh_task(pose_at_length(name, length), bits=bits)
    return TaskLimits(
        task=name,
        title=find_kind(found.task).title,
        task_sizes=sizes_of(found.task),
        length=found.task.length,
        axis=found.axis,
        smallest=_record_proven(found.smallest),
        enough=_measure(found, found.smallest),
        one_layer=_measure(found, found.one_layer),
        excluded=found.excluded,
        inequality=None if found.told is None else found.told.name,
        missing=found.missing or None,
    )


def _record_proven(proven: Proven | None) -> ProvenRecord | None:
    if proven is None:
        return None
    return structs.replace(
        take_fields(proven, ProvenRecord), size=take_fields(proven.size, BuiltSize)
    )


def _measure(found: TaskStanding, one: Proven | None) -> int | None:
    return None if one is None else measure_side(one, found.axis)


def _weigh_heads(seed: int) -> list[HeadsLimit]:
    """Heads that share sets, each certified for all sets, beside what counting excludes."""
    found: list[HeadsLimit] = []
    for heads in (1, 2, 4, 8):
        try:
            built = SplitHeads(heads).build(
                _SETS,
                accuracy=_ACCURACY,
                number_format="f64",
                embed=None,
                rng=seed_generator(seed),
            )
        # One head of so narrow keys needs more than float64.
        except DoesNotFit:
            built = None
        found.append(
            HeadsLimit(
                heads=heads,
                embed=None if built is None else built.size.embed,
                bits=None if built is None else built.size.bits,
                excluded=count_excluded_keys(_SETS, heads, _FEW, accuracy=_ACCURACY),
                by_positions=count_excluded_keys(
                    _SETS, heads, _FEW, accuracy=_ACCURACY, positional=True
                ),
                few=_FEW,
            )
        )
    return found


def _read_trained(path: str | None) -> list[TrainedPoint]:
    """What training found, from a file of points or from the trainings of a sweep.

    Raises:
        InvalidInput: it is missing, or neither.
    """
    if path is None:
        return []
    if Path(path).is_dir():
        return _read_trainings(Path(path))
    content = read_file(Path(path), f"{path} is not there: --trained names a JSON file of points.")
    try:
        return msgspec.json.decode(content, type=list[TrainedPoint])
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"{path} is a JSON list of points with task, length, size and error each: {error}."
        ) from error


def _read_trainings(directory: Path) -> list[TrainedPoint]:
    """A point for each training of attention among the jobs of a sweep."""
    rows = list(read_rows(directory / "store.sqlite"))
    records = [read_record(row.record) for row in rows if row.record is not None]
    return [
        place_training(one)
        for one in records
        if isinstance(one, TrainRecord) and _has_width(one) and _tells_something(one)
    ]


def _has_width(trained: TrainRecord) -> bool:
    """Whether it is attention, whose size is a width."""
    return trained.parameters > 0 and "embed" in trained.model_sizes


def _tells_something(trained: TrainRecord) -> bool:
    """Whether one answer for all inputs is wrong often enough for a right model to be told."""
    # Where nearly all labels are the same, whoever always says so would count as having found it.
    majority = trained.lines.get("majority")
    return majority is None or majority > _PLAIN


def place_training(trained: TrainRecord) -> TrainedPoint:
    """Where a training stands in the plane of its task: its length, its width over all heads."""
    sizes = trained.model_sizes
    # Layers divide their width among heads; units give each head the whole of it.
    shared = "hidden" in sizes or "heads" not in sizes
    width = float(cast(float, sizes["embed"]))
    return TrainedPoint(
        task=trained.task,
        length=task_named(trained.task, **trained.task_sizes).length,
        size=width if shared else width * float(cast(float, sizes["heads"])),
        error=min(error for error in trained.errors if error is not None),
    )


def _describe_table(rows: list[TaskLimits]) -> str:
    both = sum(row.smallest is not None and row.excluded > 0 for row in rows)
    return (
        f"{both} of {len(rows)} tasks have both sides at these sizes: weights that are proved, and"
        " sizes that are excluded; the others say why not."
    )


def _list_limit_rows(data: LimitsRecord) -> tuple[tuple[str, str], ...]:
    return tuple((row.task, describe_limits(row)) for row in data.rows)


def describe_limits(row: TaskLimits) -> str:
    """Both sides of a task, or why one is missing, in words."""
    axis = {"embed": "key width", "value_width": "value width"}[row.axis]
    parts: list[str] = []
    if row.smallest is not None:
        size = row.smallest.size
        parts.append(
            f"known: {row.smallest.construction} (m {size.embed}, v {size.value_width}, H"
            f" {size.heads}, D {size.layers}, order {row.smallest.order}, {size.bits} bits)"
        )
    if row.excluded:
        parts.append(f"excluded in one layer of one head: {axis} up to {row.excluded:,}")
    return "; ".join([*parts, *([row.missing] if row.missing else [])])
