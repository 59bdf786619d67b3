"""Trained attention asked inputs of other lengths, with fresh codes."""

from __future__ import annotations

import statistics
from dataclasses import replace
from math import log
from typing import Any

from keyhole.lab.jobs import TrainJob
from keyhole.lab.training.inputs.streams import Purpose
from keyhole.lab.training.loop import Trainer
from keyhole.lab.training.supply import Supply

_LEAST = 20  # sequences of a length


# Weight on a set against N others is kept by scores that grow like ln N; multiplying scores by ln N
# / ln n, n the length trained on, gives longer inputs what they need.
def measure_at_lengths(job: TrainJob, trainer: Trainer) -> dict[str, Any]:
    """Errors at other lengths; for resampled codes also with scores that grow like ln N."""
    own = trainer.supply
    best = trainer.best
    grown = job.codes == "resampled" and own.lesson.task.length > 1
    rows: dict[str, list[Any]] = {"lengths": list(job.lengths), "errors": []} | (
        {"scaled": []} if grown else {}
    )
    for length in job.lengths:
        lesson = replace(own.lesson, task=replace(own.lesson.task, length=length))
        # Codes of positions that training never saw are drawn anew.
        reading = replace(own.reading, kind="resampled", columns=lesson.task.columns)
        # Long sequences cost more: fewer of them take about as long.
        size = max(_LEAST, job.tests * own.lesson.task.length // (5 * length))
        tests = Supply(lesson, reading, own.seeds, own.batch, None).held_out(Purpose.TESTS, size)
        rows["errors"].append([float(e) for e in trainer.errors(best, tests)])
        if grown:
            sharper = best | {"Q": best["Q"] * (log(length) / log(own.lesson.task.length))}
            rows["scaled"].append([float(e) for e in trainer.errors(sharper, tests)])
    return rows


def join_length_errors(parts: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Errors at other lengths of all groups of seeds, with their medians."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    rows: dict[str, Any] = {"lengths": known[0]["lengths"]}
    for name in ("errors", "scaled"):
        if name in known[0]:
            each = [
                [e for part in known for e in part[name][k]] for k in range(len(rows["lengths"]))
            ]
            medians = [statistics.median(one) for one in each]
            rows |= {name: each, f"median_{name}": medians, f"last_{name}": medians[-1]}
    return rows
