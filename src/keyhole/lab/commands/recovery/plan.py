"""The plan job: what a recovery would cost, and what it promises.

Beside the cost stand the accuracy of Theorem 6.1, and the standard error under noise in a ball.
"""

from __future__ import annotations

import math
from dataclasses import asdict

from keyhole.errors import InvalidInput
from keyhole.lab.commands.recovery.learn import read_hints
from keyhole.lab.commands.shared import check_vocabulary_option
from keyhole.lab.jobs import PlanJob
from keyhole.lab.jobs.job_parts import Reaching
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.recovery_records import Guarantee, PlannedClass, PlannedQueries, PlanRecord
from keyhole.lab.targets.opening import (
    open_target,
    open_token_target,
    read_declarations,
)
from keyhole.learners.base import Plan
from keyhole.learners.choosing import plan_recovery
from keyhole.learners.recognising.table import CLASSES
from keyhole.oracles import Imperfection

_REQUEST = 1 << 20  # bytes of a request that is not split


def run_plan(job: PlanJob) -> Record[PlanRecord]:
    """What a recovery would cost, before a single query."""
    check_vocabulary_option(job)
    if job.tokens_in:
        return _plan_token_layer(job)
    width = job.width
    outputs = job.outputs
    latency = job.latency
    if latency is not None and not 0 < latency < math.inf:
        raise InvalidInput(f"--latency is a finite number of seconds > 0; got {latency}.")
    if job.target is None and job.layer is not None:
        raise InvalidInput("--layer names a layer of TARGET, and there is no TARGET.")
    if job.target is not None:
        reaching = Reaching(in_flight=job.in_flight)
        oracle = open_target(
            job.target, width=width, outputs=outputs, reaching=reaching, layer=job.layer
        )
        width = oracle.width
        outputs = outputs or oracle.outputs
        latency = getattr(oracle, "latency", None) if latency is None else latency
    if width is None or width < 1:
        raise InvalidInput(
            "a plan needs --width (a whole number >= 1) or a TARGET that knows its own; got"
            f" {width}."
        )
    if outputs is not None and outputs < 1:
        raise InvalidInput(f"--outputs is a whole number >= 1; got {outputs}.")
    stated = read_declarations(job)
    learner = _choose_planned_learner(job, stated)
    plan = plan_recovery(
        learner, width=width, outputs=outputs or 1, hints=read_hints(job), stated=stated
    )
    promise = _find_tolerance_promise(job, stated, width)
    data = PlanRecord(
        sentence=_describe_plan(plan, width),
        learner=learner,
        width=width,
        outputs=plan.outputs,
        queries=PlannedQueries(
            total=plan.queries, at_most=plan.at_most, by_phase=dict(plan.by_phase)
        ),
        degrees_of_freedom=plan.degrees_of_freedom,
        limit=plan.limit,
        tolerance=promise[0],
        guarantee=promise[1],
        standard_error=_find_standard_error(job, stated),
        latency=latency,
        minutes=None if latency is None else latency * _count_rounds(plan, width, job) / 60.0,
        classes=tuple(PlannedClass(**asdict(one)) for one in plan.classes),
    )
    return Record(data, 0, (*_list_cost_rows(data), *_list_promise_rows(data)))


def _plan_token_layer(job: PlanJob) -> Record[PlanRecord]:
    """What a layer of attention alone on token ids would cost."""
    from keyhole.learners.tokens.learner import TokenLayer

    vocabulary = job.vocabulary
    if vocabulary is None and job.target is not None:
        vocabulary = open_token_target(job.target, None).outputs
    if vocabulary is None or vocabulary < 3:
        raise InvalidInput(
            "a plan for token ids needs --vocabulary (a whole number >= 3) or a TARGET that knows"
            f" its own; got {vocabulary}."
        )
    heads = job.heads or 1
    plan = TokenLayer(heads).plan(1, outputs=vocabulary)
    data = PlanRecord(
        sentence=(
            f"A layer of attention alone on {vocabulary:,} ids with"
            f" {heads} head{'s' * (heads > 1)} has {plan.degrees_of_freedom:,} degrees of freedom:"
            f" no learner can ask fewer than {plan.limit:,} queries; this one expects"
            f" {plan.queries:,}."
        ),
        learner="tokens",
        width=1,
        outputs=vocabulary,
        queries=PlannedQueries(
            total=plan.queries, at_most=plan.at_most, by_phase=dict(plan.by_phase)
        ),
        degrees_of_freedom=plan.degrees_of_freedom,
        limit=plan.limit,
    )
    return Record(data, 0, _list_cost_rows(data))


def _describe_plan(plan: Plan, width: int) -> str:
    said = (
        f"A head of width {width} with {plan.outputs} output{'s' * (plan.outputs > 1)} has"
        f" {plan.degrees_of_freedom:,} degrees of freedom: no learner can ask fewer than"
        f" {plan.limit:,} queries; this one expects {plan.queries:,}."
    )
    if not plan.classes:
        return said
    return f"{said} Whatever the target is, at most {plan.at_most:,} are asked."


def _list_cost_rows(data: PlanRecord) -> tuple[tuple[str, str], ...]:
    """Queries by phase of one head, then of every class, then the most."""
    rows = [(name, f"{count:,}") for name, count in data.queries.by_phase.items()]
    rows += [
        (one.learner, f"{CLASSES[one.finds]}: {one.expected:,} expected, at most {one.at_most:,}")
        for one in data.classes
    ]
    return (*rows, ("at most", f"{data.queries.at_most:,}"))


def _count_rounds(plan: Plan, width: int, job: PlanJob) -> int:
    """How often the service is waited for, at least: each phase is asked in one batch or more."""
    # Most questions are of two tokens.
    largest = max(1, _REQUEST // (16 * width)) * job.in_flight
    return sum(-(-count // largest) for count in plan.by_phase.values())


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


def _find_tolerance_promise(
    job: PlanJob, stated: Imperfection, width: int
) -> tuple[float | None, Guarantee | None]:
    """By Theorem 6.1 the largest tolerance for an accuracy, where one is wanted, and the errors."""
    if job.norm_bound is None or job.margin is None or not _has_tolerance_promise(job, stated):
        return None, None
    from keyhole.learners.tolerance.guarantees import guarantee, largest_tolerance

    largest = None
    if job.accuracy is not None:
        largest = largest_tolerance(width, job.norm_bound, job.margin, job.accuracy, math.inf)
    # Without a declared tolerance the promise is that of the largest one allowed.
    promised = guarantee(width, job.norm_bound, job.margin, stated.tolerance or largest or 0.0)
    return largest, Guarantee(W=promised.eps_W, v=promised.eps_v)


def _find_standard_error(job: PlanJob, stated: Imperfection) -> float | None:
    """Of an entry of W over |v|, by the tilted simplex of one answer each, where scores are small.

    Theorem 6.1 goes before it: where that promises something, nothing is said of random errors.
    """
    blurred = stated.noise > 0 and stated.levels is None
    if _has_tolerance_promise(job, stated) or not blurred or stated.token_bound is None:
        return None
    once = 12.0 * math.sqrt(3.0) * stated.noise / stated.token_bound**3
    return once / math.sqrt(job.repeats)


def _list_promise_rows(data: PlanRecord) -> tuple[tuple[str, str], ...]:
    """The same in rows for a person."""
    rows: list[tuple[str, str]] = []
    if data.tolerance is not None:
        rows.append(("largest tolerance", f"{data.tolerance:.2e}"))
    if (promised := data.guarantee) is not None:
        rows.append(
            ("guaranteed", f"W to {promised.W:.2e} (Frobenius norm), v to {promised.v:.2e}")
        )
    if data.latency is not None and data.minutes is not None:
        said = f"at least {data.minutes:.2g} minutes, at {1e3 * data.latency:.3g} ms a request"
        rows.append(("time", said))
    if data.standard_error is not None:
        said = f"{data.standard_error:.2e} / |v| for an entry of W, while scores are small"
        rows.append(("standard error", said))
    return tuple(rows)
