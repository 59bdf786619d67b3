"""What came of a training, as a record and in words no stronger than the numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from keyhole._arrays import Matrix
from keyhole.lab.jobs import TrainJob
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.training.inputs.lessons import Lesson
from keyhole.tasks import sizes_of


@dataclass(frozen=True, slots=True)
class Outcome:
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
    """

    errors: list[float]
    curve: dict[str, Any]
    lines: dict[str, float]
    lengths: dict[str, Any] | None
    models: list[Any]
    parameters: int
    pictures: dict[int, Matrix]


_MEASURES = {True: "share of wrong labels", False: "squared error over that of answering zero"}


def describe_training(
    job: TrainJob, lesson: Lesson[Any], sizes: Mapping[str, Any], came: Outcome
) -> dict[str, Any]:
    """The record of a training, but for where it was written and what it took."""
    errors = came.errors
    spread = _measure_spread(errors)
    lines = came.lines | lesson.find_optimum(sizes)
    data: dict[str, Any] = {
        "task": lesson.task.name,
        "task_sizes": sizes_of(lesson.task),
        "model_kind": job.model,
        "model_name": (
            f"{job.layers} layer{'s' * (job.layers > 1)}" if job.model == "layers" else job.model
        ),
        "model_sizes": sizes,
        "parameters": came.parameters,
        "inputs": getattr(lesson, "inputs", None),
        "samples": job.samples,
        "steps": job.steps,
        "batch": job.batch,
        "seed": job.seed,
        "seeds": job.seeds,
        "measure": _MEASURES[lesson.labels],
        "errors": errors,
        "error": spread,
        "accuracy": _measure_right_labels(spread) if lesson.labels else None,
        "lines": lines,
        "aligned": _measure_spread([row[-1] for row in came.curve["aligned"]]),
        "curve": (
            came.curve
            | {
                "median": _find_medians(came.curve["errors"]),
                "alignment": _find_medians(came.curve["aligned"]),
            }
        ),
        "lengths": came.lengths,
    }
    return {"sentence": _describe_outcome(data), **data}


def _measure_right_labels(spread: Mapping[str, float]) -> dict[str, float]:
    """Shares of right labels, least first."""
    return {
        "min": 1.0 - spread["max"],
        "median": 1.0 - spread["median"],
        "max": 1.0 - spread["min"],
    }


def _measure_spread(values: list[float]) -> dict[str, float]:
    """Least, middle and largest over the seeds; empty where there are none."""
    if not values:
        return {}
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def _find_medians(rows: list[list[float]]) -> list[float]:
    """Over the seeds, check by check."""
    # Seeds that stopped early have fewer checks: no median of the others alone.
    shortest = min((len(row) for row in rows), default=0)
    return [statistics.median(row[k] for row in rows) for k in range(shortest)]


def _describe_outcome(data: dict[str, Any]) -> str:
    error = data["error"]
    seeds = data["seeds"]
    on = data["samples"]
    taught = "fresh sequences every step" if on is None else f"{on:,} sequences"
    kind = data["model_name"]
    said = (
        f"{kind[0].upper()}{kind[1:]} trained on {taught} of {data['task']} for {data['steps']:,}"
        " steps: "
    )
    # Nothing was trained, and the sentence must not say so.
    if not data["parameters"]:
        said = f"Constructed weights on {data['task']}: "
    if data["accuracy"] is not None:
        said += f"{100 * (1 - error['median']):.2f} % of labels right, the median of {seeds} seeds"
        said += f" (from {100 * (1 - error['max']):.2f} to {100 * (1 - error['min']):.2f})"
        return (
            said + "; the more frequent label is right in"
            f" {100 * (1 - data['lines']['majority']):.2f} %."
        )
    said += f"relative error {error['median']:.2g}, the median of {seeds} seeds"
    said += f" (from {error['min']:.2g} to {error['max']:.2g})"
    return (
        said
        + f"; answering zero has 1, the mean of all vectors {data['lines']['mean_of_all']:.3g}."
    )


def list_training_rows(data: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The record for a person."""
    rows = [
        ("errors", ", ".join(f"{error:.3g}" for error in data["errors"])),
        ("parameters", f"{data['parameters']:,} a model"),
        *[(name.replace("_", " "), f"{value:.3g}") for name, value in data["lines"].items()],
    ]
    if data["lengths"] is not None:
        told = data["lengths"]
        for k, length in enumerate(told["lengths"]):
            said = f"{told['median_errors'][k]:.3g}"
            if "scaled" in told:
                said += f", with scores times ln N {told['median_scaled'][k]:.3g}"
            rows.append((f"length {length}", said))
    if "round_trip" in data:
        rows.append(("round trip", data["round_trip"]["sentence"].removeprefix("Round trip: ")))
    if "effective_bits" in data:
        rows.append(("effective bits", data["effective_bits"]["sentence"]))
    rows.append(("seconds", f"{data['seconds']['total']:.1f}"))
    if "run" in data:
        rows += [("model", data["model"]), ("page", f"{data['run']}/report.html")]
    return tuple(rows)


def format_train_command(job: TrainJob) -> str:
    """The words that ask the same again; whether a run is kept is not part of the question."""
    return format_job_command("train", replace(job, keep=None))
