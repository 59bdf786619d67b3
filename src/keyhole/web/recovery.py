"""A recovery as the page shows it: queries as they come, the error, the truth."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole.errors import KeyholeError
from keyhole.identify import assign_heads, canonical, distance, freedom
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.jobs import LearnJob, SampleJob
from keyhole.lab.running import run_job
from keyhole.lab.runs.recovery_records import LearnRecord
from keyhole.lab.runs.rows import count_learning_queries
from keyhole.lab.runs.summaries import restore_command
from keyhole.lab.targets.opening import simulate_policies
from keyhole.learners.choosing import learn
from keyhole.models import Head, MultiHead, load
from keyhole.oracles import Budgeted, Chunked, Local, watch_batches
from keyhole.web.messages import CoursePoint, Event, Portrait, RecoveryResult
from keyhole.web.requests import Recover

# Shares of all queries, halves first: when patience ends, the curve is coarse but whole.
PARTS = (0.5, 0.25, 0.75, 0.9, 0.1, 0.6, 0.35, 0.98, 0.82, 0.17, 0.67, 0.43, 0.04)
PATIENCE = 2.0  # seconds that asking again for the course may take, about
BETWEEN = 0.05  # seconds between two counts

Tell = Callable[[Event], None]
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
    truth: Any = load(hidden)
    # The page draws the hidden matrices while the recovery is still under way.
    hidden_heads = [pack_numbers(W) for W in canonical(truth).W]
    tell(Event(limit=freedom(truth), hidden=hidden_heads))
    job = LearnJob(
        str(hidden),
        simulate=wish.simulate,
        budget=wish.budget,
        # The learner must not draw the numbers the weights were drawn from.
        seed=wish.seed + 1,
        out=str(directory),
    )
    with _count_phase_queries(tell) as count, watch_batches(count):
        record: LearnRecord = run_job(job).data
    model: Any = None if record.model is None else load(record.model)
    found = model if isinstance(model, Head | MultiHead) else None
    tell(Event(doing="asking again with smaller budgets"))
    return RecoveryResult(
        record=record,
        command=restore_command(record),
        heads=pack_portraits(truth, found),
        course=trace_error_course(truth, found, wish, record),
        error=measure_relative_error(truth, found),
        run=directory.name,
    )


@contextmanager
def _count_phase_queries(tell: Tell) -> Generator[Callable[[str, int], None]]:
    """Queries by phase, added up and told now and then, and once more at the end."""
    asked: dict[str, int] = {}
    last = 0.0

    def count(phase: str, queries: int) -> None:
        nonlocal last
        asked[phase] = asked.get(phase, 0) + queries
        # Batches may come by the thousand a second; a page needs twenty.
        if time.monotonic() - last >= BETWEEN:
            last = time.monotonic()
            tell(Event(asked=dict(asked)))

    try:
        yield count
    finally:
        tell(Event(asked=dict(asked)))


def measure_relative_error(truth: Heads, found: Heads | None) -> float | None:
    """Relative error of W, of the worst head; none where numbers of heads differ."""
    gap = None if found is None else distance(truth, found)
    return None if gap is None or gap.heads[0] != gap.heads[1] else gap.W


def pack_portraits(truth: Heads, found: Heads | None) -> list[Portrait]:
    """The matrices of each true head beside those of the head that matches it."""
    hidden = canonical(truth)
    seen = None if found is None else canonical(found)
    pairs = {} if seen is None else dict(assign_heads(hidden, seen))
    return [
        _pack_portrait(W, None if seen is None or i not in pairs else seen.W[pairs[i]])
        for i, W in enumerate(hidden.W)
    ]


def _pack_portrait(W: Matrix, found: Matrix | None) -> Portrait:
    truth, values = pack_numbers(W), _list_singular_values(W)
    if found is None:
        return Portrait(truth=truth, values=values, found=None)
    return Portrait(
        truth=truth,
        values=values,
        found=pack_numbers(found),
        difference=pack_numbers(found - W),
        found_values=_list_singular_values(found),
    )


def _list_singular_values(W: Matrix) -> list[float]:
    return np.linalg.svd(W, compute_uv=False).tolist()


def pack_numbers(W: Array) -> str:
    """Numbers as little-endian float32, in base 64."""
    # A third of the bytes of JSON numbers, and no digits lost that a picture shows.
    return base64.b64encode(np.ascontiguousarray(W, dtype="<f4").tobytes()).decode()


# A learner has no model while it measures. What it would hand out at an earlier moment is what it
# hands out with a budget that ends there: the same seed asks the same questions and, where they
# carry noise, draws the same noise.
def trace_error_course(
    truth: Heads, found: Heads | None, wish: Recover, record: LearnRecord
) -> list[CoursePoint]:
    """The error of W that smaller budgets reach, and the matrices of single heads."""
    asked = count_learning_queries(record)
    until = time.monotonic() + PATIENCE
    points = [_pack_course_point(asked, truth, found)]
    for part in PARTS:
        if time.monotonic() < until and 0 < round(asked * part) < asked:
            points.append(
                _pack_course_point(
                    round(asked * part), truth, _rerun_with_budget(truth, wish, round(asked * part))
                )
            )
    return sorted(points, key=lambda point: point.queries)


def _rerun_with_budget(truth: Heads, wish: Recover, budget: int) -> Heads | None:
    """What the same run has with a smaller budget."""
    oracle = Budgeted(
        Chunked(simulate_policies(Local(truth), wish.simulate, wish.seed + 1)), budget
    )
    try:
        model: Any = learn(oracle, rng=seed_generator(wish.seed + 1)).model
    except KeyholeError:
        return None
    return model if isinstance(model, Head | MultiHead) else None


def _pack_course_point(queries: int, truth: Heads, found: Heads | None) -> CoursePoint:
    error = measure_relative_error(truth, found)
    if not (isinstance(truth, Head) and isinstance(found, Head)):
        return CoursePoint(queries=queries, error=error)
    W, T = np.asarray(found.W), np.asarray(truth.W)
    packed, gap = pack_numbers(W), pack_numbers(W - T)
    return CoursePoint(queries=queries, error=error, found=packed, difference=gap)
