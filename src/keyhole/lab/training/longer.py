"""Trained attention asked inputs of other lengths, with fresh codes."""

from __future__ import annotations

import statistics
from dataclasses import replace
from math import log

from msgspec import structs

from keyhole.lab.jobs import TrainJob
from keyhole.lab.runs.record_parts import Number, Numbers
from keyhole.lab.runs.task_records import LengthErrors
from keyhole.lab.training.inputs.streams import Purpose
from keyhole.lab.training.loop import Trainer
from keyhole.lab.training.supply import Supply

_LEAST = 20  # sequences of a length


# Weight on a set against N others is kept by scores that grow like ln N; multiplying scores by ln N
# / ln n, n the length trained on, gives longer inputs what they need.
def measure_at_lengths(job: TrainJob, trainer: Trainer) -> LengthErrors:
    """Errors at other lengths; for resampled codes also with scores that grow like ln N."""
    own = trainer.supply
    best = trainer.best
    grown = job.codes == "resampled" and own.lesson.task.length > 1
    errors: list[list[float]] = []
    scaled: list[list[float]] = []
    for length in job.lengths:
        lesson = replace(own.lesson, task=replace(own.lesson.task, length=length))
        # Codes of positions that training never saw are drawn anew.
        reading = replace(own.reading, kind="resampled", columns=lesson.task.columns)
        # Long sequences cost more: fewer of them take about as long.
        size = max(_LEAST, job.tests * own.lesson.task.length // (5 * length))
        tests = Supply(lesson, reading, own.seeds, own.batch, None).held_out(Purpose.TESTS, size)
        errors.append([float(e) for e in trainer.errors(best, tests)])
        if grown:
            sharper = best | {"Q": best["Q"] * (log(length) / log(own.lesson.task.length))}
            scaled.append([float(e) for e in trainer.errors(sharper, tests)])
    return LengthErrors(
        lengths=list(job.lengths),
        errors=_list_by_seed(errors),
        scaled=_list_by_seed(scaled) if grown else None,
    )


def _list_by_seed(by_length: list[list[float]]) -> list[Numbers]:
    """One row per seed, as curves have them."""
    return [list(row) for row in zip(*by_length, strict=True)]


def join_length_errors(parts: list[LengthErrors | None]) -> LengthErrors | None:
    """Errors at other lengths of all groups of seeds, with their medians."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    errors = [row for part in known for row in part.errors]
    medians = _find_length_medians(errors)
    joined = LengthErrors(
        lengths=known[0].lengths,
        errors=errors,
        median_errors=medians,
        last_errors=medians[-1],
    )
    scaled = [row for part in known for row in part.scaled or []]
    if not scaled:
        return joined
    medians = _find_length_medians(scaled)
    return structs.replace(joined, scaled=scaled, median_scaled=medians, last_scaled=medians[-1])


def _find_length_medians(errors: list[Numbers]) -> list[Number]:
    by_length = zip(*errors, strict=True)
    return [statistics.median(e for e in each if e is not None) for each in by_length]
