"""`run(job)`: the one way a job becomes a record."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keyhole.errors import InvalidInput, OracleError
from keyhole.lab import records
from keyhole.lab.attacking import BASELINES, run_attack, to_attack
from keyhole.lab.audit import run_audit
from keyhole.lab.bounding import run_bound
from keyhole.lab.building import run_build
from keyhole.lab.comparing import run_compare
from keyhole.lab.jobs import (
    AttackJob,
    AuditJob,
    BoundJob,
    BuildJob,
    CompareJob,
    DemoJob,
    Job,
    LearnJob,
    PlanJob,
    SampleJob,
    ServeJob,
    SweepJob,
    TrialJob,
    TwinsJob,
    VerifyJob,
)
from keyhole.lab.learning import REFUSED, code_of, failed, hints_of, run_learn, seeded
from keyhole.lab.planning import planned_learner, promise_lines, promises
from keyhole.lab.records import Record
from keyhole.lab.sweeping import run_sweep
from keyhole.lab.targets import open_target, simulated, stated_by
from keyhole.lab.tour import run_demo
from keyhole.lab.trials import draw, run_trial
from keyhole.lab.twinning import run_twins
from keyhole.learners.auto import choose
from keyhole.learners.checking import verify
from keyhole.models import SelfAttention, load, save
from keyhole.models.files import load_bars
from keyhole.oracles import Budgeted, Counted, Declared, asked_again


def run(job: Job) -> Record:
    """Do what a job asks and return its record."""
    runners: dict[type, Callable[[Any], Record]] = {
        LearnJob: run_learn,
        PlanJob: _plan,
        VerifyJob: _verify,
        AuditJob: run_audit,
        CompareJob: run_compare,
        TwinsJob: run_twins,
        BuildJob: run_build,
        SampleJob: _sample,
        BoundJob: run_bound,
        AttackJob: run_attack,
        TrialJob: run_trial,
        SweepJob: run_sweep,
        DemoJob: run_demo,
        ServeJob: _serve,
    }
    return runners[type(job)](job)


def _serve(job: ServeJob) -> Record:
    try:
        from keyhole.lab.serving import run_serve
    except ImportError as error:
        raise InvalidInput(str(error)) from error
    return run_serve(job)


def _plan(job: PlanJob) -> Record:
    width, outputs = job.width, job.outputs
    if job.target is not None:
        oracle = open_target(job.target, width=width, outputs=outputs)
        width, outputs = oracle.width, outputs or oracle.outputs
    if width is None or width < 1:
        raise InvalidInput(f"a plan needs --width (a whole number >= 1) or a TARGET that knows its own; got {width}.")
    if outputs is not None and outputs < 1:
        raise InvalidInput(f"--outputs is a whole number >= 1; got {outputs}.")
    stated = stated_by(job)
    learner = planned_learner(job, stated)
    plan = choose(learner, hints_of(job), stated).plan(width, outputs=outputs or 1)
    said = promises(job, stated, width)
    sentence = (
        f"A head of width {width} with {plan.outputs} output{'s' * (plan.outputs > 1)} has {plan.degrees_of_freedom:,} "
        f"degrees of freedom: no learner can ask fewer than {plan.limit:,} queries; this one expects {plan.queries:,}."
    )
    data = {
        "sentence": sentence,
        "learner": learner,
        "width": width,
        "outputs": plan.outputs,
        "queries": {"total": plan.queries, "at_most": plan.at_most, "by_phase": dict(plan.by_phase)},
        "degrees_of_freedom": plan.degrees_of_freedom,
        "limit": plan.limit,
        **said,
    }
    rows = tuple((name, f"{count:,}") for name, count in plan.by_phase.items())
    return Record(data, 0, (*rows, ("at most", f"{plan.at_most:,}"), *promise_lines(said)))


def _verify(job: VerifyJob) -> Record:
    start = time.perf_counter()
    model = load(job.model)
    if isinstance(model, SelfAttention):
        model = model.read_last()
    target = open_target(job.target, width=job.width if job.width is not None else model.width, reaching=job)
    timed = Counted(Declared(simulated(target, job.simulate, job.seed), stated_by(job)))
    try:
        oracle = timed if job.budget is None else Budgeted(timed, job.budget)
        seen = verify(oracle, model, rng=seeded(job.seed), bars=load_bars(job.model))
    except OracleError as error:
        data = failed(error, timed.ledger.total().sequences + asked_again(target)) | {"seed": job.seed}
        return Record(data, REFUSED)
    sentence = " ".join(part for part in (seen.detail, seen.verdict.value) if part)
    data = {
        "verdict": seen.verdict.name,
        "sentence": sentence,
        "fresh_error": records.fresh_error(seen.fresh),
        "counterexample": records.counterexample(seen.counterexample),
        "queries": records.queries(seen.ledger, asked_again(target)),
        "seconds": {"total": time.perf_counter() - start, "oracle": timed.ledger.total().seconds},
        "seed": job.seed,
        "target": job.target,
        "model": job.model,
    }
    fresh = f"{seen.fresh.relative:.1e} relative, over {seen.fresh.sequences} sequences"
    return Record(data, code_of(data), (("verdict", seen.verdict.name), ("fresh error", fresh)))


def _sample(job: SampleJob) -> Record:
    model = to_attack(job) if job.kind in BASELINES else draw(job)
    path = Path(job.out or f"{job.kind}.safetensors")
    if path.exists() and not job.force:
        raise InvalidInput(f"{path} exists. Use --force to overwrite it, or another --out.")
    save(model, path)
    sentence = f"A random {job.kind} of width {job.width} was written to {path}."
    shown = {"kind": job.kind, "model": str(path), "width": job.width, "outputs": model.outputs, "seed": job.seed}
    return Record({"sentence": sentence, **shown}, 0)
