"""What came of a training, as a record and in words no stronger than the numbers."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from keyhole._arrays import Matrix
from keyhole.lab.jobs import TrainJob
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.record_parts import Given, Numbers
from keyhole.lab.runs.task_records import Curve, LengthErrors, Spread, TrainRecord
from keyhole.lab.training.inputs.lessons import Lesson
from keyhole.tasks import sizes_of


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a training.

    Args:
        errors: of each seed, on the tests.
        curve: steps of the checks, errors and alignments of each seed at them.
        lines: errors of simple predictors.
        lengths: errors at other lengths, where asked for.
        models: the numpy model of each seed.
        parameters: numbers that were trained, of one seed.
        pictures: attention of the first seed by step, with the ideal under -1 where the task tells
            it.
        last_errors: of each seed, on the tests, at the last token alone.
    """

    errors: list[float]
    curve: Curve
    lines: dict[str, float]
    lengths: LengthErrors | None
    models: list[Any]
    parameters: int
    pictures: dict[int, Matrix]
    last_errors: list[float]


_MEASURES = {True: "share of wrong labels", False: "squared error over that of answering zero"}


def describe_training(
    job: TrainJob, lesson: Lesson[Any], sizes: dict[str, Given], came: Trained
) -> TrainRecord:
    """The record of a training, but for where it was written and what it took."""
    spread = _measure_spread(came.errors)
    curve = came.curve
    data = TrainRecord(
        task=lesson.task.name,
        task_sizes=sizes_of(lesson.task),
        model_kind=job.model,
        model_name=(
            f"{job.layers} layer{'s' * (job.layers > 1)}" if job.model == "layers" else job.model
        ),
        model_sizes=sizes,
        parameters=came.parameters,
        inputs=getattr(lesson, "inputs", None),
        samples=job.samples,
        steps=job.steps,
        batch=job.batch,
        seed=job.seed,
        seeds=job.seeds,
        measure=_MEASURES[lesson.labels],
        errors=list(came.errors),
        error=spread,
        last_errors=list(came.last_errors),
        accuracy=_measure_right_labels(came.errors) if lesson.labels else None,
        lines={**came.lines, **lesson.find_optimum(sizes)},
        aligned=_measure_spread([row[-1] for row in curve.aligned]),
        curve=structs.replace(
            curve, median=_find_medians(curve.errors), alignment=_find_medians(curve.aligned)
        ),
        lengths=came.lengths,
    )
    return structs.replace(data, sentence=_describe_outcome(data, came.errors))


def _measure_right_labels(errors: list[float]) -> Spread:
    """Shares of right labels, least first."""
    middle = statistics.median(errors)
    return Spread(min=1.0 - max(errors), median=1.0 - middle, max=1.0 - min(errors))


def _measure_spread(values: Numbers) -> Spread:
    """Least, middle and largest over the seeds; nothing where there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return Spread()
    return Spread(min=min(known), median=statistics.median(known), max=max(known))


def _find_medians(rows: list[Numbers]) -> Numbers:
    """Over the seeds, check by check."""
    # Seeds that stopped early have fewer checks: no median of the others alone.
    shortest = min((len(row) for row in rows), default=0)
    return [_measure_spread([row[k] for row in rows]).median for k in range(shortest)]


def _describe_outcome(data: TrainRecord, errors: list[float]) -> str:
    least, middle, most = min(errors), statistics.median(errors), max(errors)
    on = data.samples
    taught = "fresh sequences every step" if on is None else f"{on:,} sequences"
    kind = data.model_name
    said = (
        f"{kind[0].upper()}{kind[1:]} trained on {taught} of {data.task} for {data.steps:,} steps: "
    )
    # Nothing was trained, and the sentence must not say so.
    if not data.parameters:
        said = f"Constructed weights on {data.task}: "
    if data.accuracy is not None:
        said += f"{100 * (1 - middle):.2f} % of labels right, "
        said += _describe_seeds(data, f"{100 * (1 - most):.2f} to {100 * (1 - least):.2f}")
        majority = data.lines["majority"] or 0.0
        return said + f"; the more frequent label is right in {100 * (1 - majority):.2f} %."
    said += f"relative error {middle:.2g}, "
    said += _describe_seeds(data, f"{least:.2g} to {most:.2g}")
    mean = data.lines["mean_of_all"]
    return said + f"; answering zero has 1, the mean of all vectors {mean:.3g}."


def _describe_seeds(data: TrainRecord, span: str) -> str:
    """Of which seeds a number is the median, or of which one."""
    if data.seeds == 1:
        return f"of seed {data.seed}"
    return f"the median of {data.seeds} seeds (from {span})"


def format_train_command(job: TrainJob) -> str:
    """The words that ask the same again; whether a run is kept is not part of the question."""
    return format_job_command("train", replace(job, keep=None))
