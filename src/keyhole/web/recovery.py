"""A recovery as the page shows it: a hidden model or a target, what was found, the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Matrix
from keyhole._files import write_atomically
from keyhole.drawing.faces import Face, list_matrices
from keyhole.drawing.heatmaps import average_blocks
from keyhole.drawing.html import format_number
from keyhole.errors import InvalidInput
from keyhole.identify import assign_heads, canonical_heads, compare, distance, freedom
from keyhole.lab.jobs import LearnJob, SampleJob
from keyhole.lab.running import run_job
from keyhole.lab.runs.records import encode_json
from keyhole.lab.runs.recovery_records import LearnRecord
from keyhole.lab.runs.rows import count_learning_queries
from keyhole.lab.runs.summaries import restore_command
from keyhole.lab.targets.opening import load_askable_model
from keyhole.models import Head, MultiHead, load
from keyhole.web.following import Follower, Tell, pack_course_point, pack_numbers
from keyhole.web.messages import (
    CoursePoint,
    Event,
    NamedMatrix,
    Portrait,
    RecoveryResult,
    Target,
)
from keyhole.web.requests import Recover, Watch

_MATRICES = 12  # of a model that is no sum of heads

Heads = Head | MultiHead


def recover_hidden_model(wish: Recover, directory: Path, tell: Tell) -> RecoveryResult:
    """Hide a model in `directory`, recover it there, and compare."""
    hidden = directory / "truth.safetensors"
    kind = "head" if wish.heads == 1 else "multihead"
    run_job(
        SampleJob(
            kind,
            width=wish.width,
            rank=wish.rank,
            heads=wish.heads,
            seed=wish.seed,
            out=str(hidden),
        )
    )
    job = LearnJob(
        str(hidden),
        simulate=wish.simulate,
        budget=wish.budget,
        # The learner must not draw the numbers the weights were drawn from.
        seed=wish.seed + 1,
        out=str(directory),
    )
    return _follow_recovery(job, load(hidden), directory, tell)


def recover_target(given: Target, wish: Watch, directory: Path, tell: Tell) -> RecoveryResult:
    """Recover the target in `directory`, or go on there, and compare with the truth if given."""
    job = LearnJob(
        given.target,
        width=given.width,
        outputs=given.outputs,
        layer=given.layer,
        budget=wish.budget,
        seed=wish.seed,
        out=str(directory),
        resume=wish.run is not None,
    )
    truth = None if given.truth is None else load_askable_model(given.truth)
    return _follow_recovery(job, truth, directory, tell)


def _follow_recovery(job: LearnJob, truth: Any, directory: Path, tell: Tell) -> RecoveryResult:
    """Run a job while the page is told of it; what the page shows in the end is kept beside it."""
    true_heads = _read_heads(truth)
    if true_heads is not None:
        # The page draws the hidden matrices while the recovery is still under way.
        hidden = [pack_numbers(W) for W in canonical_heads(true_heads).W]
        tell(Event(limit=freedom(true_heads), hidden=hidden))
    true_W = np.asarray(true_heads.W) if isinstance(true_heads, Head) else None
    follower = Follower(tell, true_W)
    with follower.following():
        record: LearnRecord = run_job(job).data
    model = None if record.model is None else load(record.model)
    found = _read_heads(model)
    result = RecoveryResult(
        record=record,
        command=restore_command(record),
        heads=pack_portraits(true_heads, found),
        matrices=[] if found is not None or model is None else pack_matrices(model),
        course=_end_course(follower.points, record, true_W, found),
        error=measure_relative_error(true_heads, found),
        compared=compare_with_truth(truth, model),
        run=directory.name,
    )
    write_atomically(directory / "watched.json", encode_json(result))
    return result


def _read_heads(model: Any) -> Heads | None:
    return model if isinstance(model, Head | MultiHead) else None


def _end_course(
    points: list[CoursePoint], record: LearnRecord, true_W: Matrix | None, found: Heads | None
) -> list[CoursePoint]:
    """What was read on the way, and the matrix that the learner made of it."""
    if not isinstance(found, Head):
        return []
    asked = count_learning_queries(record)
    last = pack_course_point(asked, true_W, np.asarray(found.W))
    return [*(point for point in points if point.queries < asked), last]


def compare_with_truth(truth: Any, model: Any) -> str | None:
    """How far a model is from the truth, in words; None where no truth was told."""
    if truth is None:
        return None
    if model is None:
        return "Nothing was found that could be compared with the truth."
    try:
        apart: float | None = compare(truth, model).largest
    except InvalidInput as error:
        return f"It cannot be compared with the truth: {error}"
    if apart is None:
        return "It has another number of parts than the truth."
    return (
        f"Its weights differ from the truth by {format_number(apart)} at most, relatively, where"
        " answers determine them."
    )


def measure_relative_error(truth: Heads | None, found: Heads | None) -> float | None:
    """Relative error of W, of the worst head; none where numbers of heads differ."""
    gap = None if truth is None or found is None else distance(truth, found)
    return None if gap is None or gap.heads[0] != gap.heads[1] else gap.W


def pack_portraits(truth: Heads | None, found: Heads | None) -> list[Portrait]:
    """The matrices of each true head beside those of the head that matches it, or those found."""
    seen = None if found is None else canonical_heads(found)
    if truth is None:
        return [] if seen is None else [_pack_portrait(None, W) for W in seen.W]
    hidden = canonical_heads(truth)
    pairs = {} if seen is None else dict(assign_heads(hidden, seen))
    return [
        _pack_portrait(W, None if seen is None or i not in pairs else seen.W[pairs[i]])
        for i, W in enumerate(hidden.W)
    ]


def _pack_portrait(W: Matrix | None, found: Matrix | None) -> Portrait:
    return Portrait(
        truth=None if W is None else pack_numbers(W),
        values=[] if W is None else _list_singular_values(W),
        found=None if found is None else pack_numbers(found),
        difference="" if found is None or W is None else pack_numbers(found - W),
        found_values=[] if found is None else _list_singular_values(found),
    )


def _list_singular_values(W: Matrix) -> list[float]:
    return np.linalg.svd(W, compute_uv=False).tolist()


def pack_matrices(model: Any) -> list[NamedMatrix]:
    """The matrices of a model of any kind, large ones as means over blocks."""
    return [
        NamedMatrix(name=name, rows=len(M), columns=len(M.T), numbers=pack_numbers(M))
        for name, M in ((name, average_blocks(W)[1]) for name, W in _list_parts(model))
    ]


def _list_parts(model: Any) -> Iterator[tuple[str, Matrix]]:
    """Matrices of a model and of the models it is made of."""
    inner = [(item.name, getattr(model, item.name)) for item in fields(model)]
    parts = [(f"{name}.", part) for name, part in inner if isinstance(part, Face)]
    named = (
        (f"{where}{name}", M)
        for where, part in [("", model), *parts]
        for name, M in list_matrices(part)
    )
    yield from islice(named, _MATRICES)
