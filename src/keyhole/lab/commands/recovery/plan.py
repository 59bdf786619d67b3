"""The plan job: what a recovery would cost, and what it promises.

Beside the cost stand the accuracy of Theorem 6.1, and the standard error under noise in a ball.
"""

from __future__ import annotations

import math
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.lab.commands.recovery.learn import read_hints
from keyhole.lab.jobs import PlanJob
from keyhole.lab.runs.records import Record
from keyhole.lab.targets.opening import open_target, read_declarations
from keyhole.learners.choosing import choose_learner
from keyhole.oracles import Imperfection


def run_plan(job: PlanJob) -> Record:
    """What a recovery would cost, before a single query."""
    width = job.width
    outputs = job.outputs
    if job.target is not None:
        oracle = open_target(job.target, width=width, outputs=outputs)
        width = oracle.width
        outputs = outputs or oracle.outputs
    if width is None or width < 1:
        raise InvalidInput(
            "a plan needs --width (a whole number >= 1) or a TARGET that knows its own; got"
            f" {width}."
        )
    if outputs is not None and outputs < 1:
        raise InvalidInput(f"--outputs is a whole number >= 1; got {outputs}.")
    stated = read_declarations(job)
    learner = _choose_planned_learner(job, stated)
    plan = choose_learner(learner, read_hints(job), stated).plan(width, outputs=outputs or 1)
    said = _find_promises(job, stated, width)
    sentence = (
        f"A head of width {width} with {plan.outputs} output{'s' * (plan.outputs > 1)} has"
        f" {plan.degrees_of_freedom:,} degrees of freedom: no learner can ask fewer than"
        f" {plan.limit:,} queries; this one expects {plan.queries:,}."
    )
    data = {
        "sentence": sentence,
        "learner": learner,
        "width": width,
        "outputs": plan.outputs,
        "queries": {
            "total": plan.queries,
            "at_most": plan.at_most,
            "by_phase": dict(plan.by_phase),
        },
        "degrees_of_freedom": plan.degrees_of_freedom,
        "limit": plan.limit,
        **said,
    }
    rows = tuple((name, f"{count:,}") for name, count in plan.by_phase.items())
    return Record(data, 0, (*rows, ("at most", f"{plan.at_most:,}"), *_list_promise_rows(said)))


def _choose_planned_learner(job: PlanJob, stated: Imperfection) -> str:
    """The learner a plan is for; a promised accuracy is that of `tolerant`.

    Raises:
        InvalidInput: an accuracy is wanted of another learner, or without the bounds it rests on.
    """
    if job.accuracy is not None and (job.norm_bound is None or job.margin is None):
        raise InvalidInput("--accuracy needs --norm-bound and --margin: Theorem 6.1 rests on both.")
    if job.accuracy is not None and job.learner not in ("auto", "tolerant"):
        raise InvalidInput(
            f"--accuracy goes with the learner tolerant (or auto); got {job.learner}."
        )
    # Theorem 6.1 bounds the worst error; a random one has no worst.
    if job.accuracy is not None and (stated.noise != 0 or stated.levels is not None):
        raise InvalidInput(
            "--accuracy is promised for errors up to a tolerance, not for random noise or labels."
        )
    return (
        "tolerant" if job.learner == "auto" and _has_tolerance_promise(job, stated) else job.learner
    )


def _has_tolerance_promise(job: PlanJob, stated: Imperfection) -> bool:
    known = job.norm_bound is not None and job.margin is not None
    worst = stated.tolerance > 0 and stated.noise == 0 and stated.levels is None
    return known and (job.accuracy is not None or worst)


def _find_promises(job: PlanJob, stated: Imperfection, width: int) -> dict[str, Any]:
    """`tolerance` and `guarantee` by Theorem 6.1, `standard_error` by the tilted simplex."""
    said: dict[str, Any] = dict.fromkeys(("tolerance", "guarantee", "standard_error"))
    if (
        job.norm_bound is not None
        and job.margin is not None
        and _has_tolerance_promise(job, stated)
    ):
        from keyhole.learners.tolerance.guarantees import guarantee, largest_tolerance

        tolerance = stated.tolerance
        if job.accuracy is not None:
            said["tolerance"] = largest_tolerance(
                width, job.norm_bound, job.margin, job.accuracy, math.inf
            )
            # Without a declared tolerance the promise is that of the largest one allowed.
            tolerance = tolerance or said["tolerance"]
        promised = guarantee(width, job.norm_bound, job.margin, tolerance)
        said["guarantee"] = {"W": promised.eps_W, "v": promised.eps_v}
    elif stated.noise > 0 and stated.token_bound is not None and stated.levels is None:
        # By the tilted simplex, of one answer each, while scores are small.
        once = 12.0 * math.sqrt(3.0) * stated.noise / stated.token_bound**3
        said["standard_error"] = once / math.sqrt(job.repeats)
    return said


def _list_promise_rows(said: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The same in rows for a person."""
    rows: list[tuple[str, str]] = []
    if said["tolerance"] is not None:
        rows.append(("largest tolerance", f"{said['tolerance']:.2e}"))
    if said["guarantee"] is not None:
        W, v = (f"{said['guarantee'][name]:.2e}" for name in ("W", "v"))
        rows.append(("guaranteed", f"W to {W} (Frobenius norm), v to {v}"))
    if said["standard_error"] is not None:
        rows.append(
            (
                "standard error",
                f"{said['standard_error']:.2e} / |v| for an entry of W, while scores are small",
            )
        )
    return tuple(rows)
