"""`run(job)`: the one way a job becomes a record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from keyhole.errors import InvalidInput, OracleError
from keyhole.identify import distance, network_distance, one_layer_distance
from keyhole.lab import records
from keyhole.lab.attacking import baseline_makers, run_attack
from keyhole.lab.audit import run_audit
from keyhole.lab.bounding import run_bound
from keyhole.lab.jobs import (
    AttackJob,
    AuditJob,
    BoundJob,
    CompareJob,
    DemoJob,
    Job,
    LearnJob,
    PlanJob,
    SampleJob,
    TwinsJob,
    VerifyJob,
)
from keyhole.lab.learning import REFUSED, code_of, failed, hints_of, run_learn, seeded
from keyhole.lab.planning import planned_learner, promise_lines, promises
from keyhole.lab.records import Record
from keyhole.lab.targets import open_target, simulated, stated_by
from keyhole.lab.tour import run_demo
from keyhole.lab.twinning import run_twins
from keyhole.learners.auto import choose
from keyhole.learners.checking import verify
from keyhole.models import AbsAffine, Head, MultiHead, OneLayer, ReluNet, SelfAttention, load, save
from keyhole.models.files import load_bars
from keyhole.oracles import Budgeted, Counted, Declared


def run(job: Job) -> Record:
    """Do what a job asks and return its record."""
    runners: dict[type, Callable[[Any], Record]] = {
        LearnJob: run_learn,
        PlanJob: _plan,
        VerifyJob: _verify,
        AuditJob: run_audit,
        CompareJob: _compare,
        TwinsJob: run_twins,
        SampleJob: _sample,
        BoundJob: run_bound,
        AttackJob: run_attack,
        DemoJob: run_demo,
    }
    return runners[type(job)](job)


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
    target = open_target(job.target, width=job.width if job.width is not None else model.width)
    timed = Counted(Declared(simulated(target, job.simulate, job.seed), stated_by(job)))
    try:
        oracle = timed if job.budget is None else Budgeted(timed, job.budget)
        seen = verify(oracle, model, rng=seeded(job.seed), bars=load_bars(job.model))
    except OracleError as error:
        data = failed(error, timed.ledger.total().sequences) | {"seed": job.seed}
        return Record(data, REFUSED)
    sentence = " ".join(part for part in (seen.detail, seen.verdict.value) if part)
    data = {
        "verdict": seen.verdict.name,
        "sentence": sentence,
        "fresh_error": records.fresh_error(seen.fresh),
        "counterexample": records.counterexample(seen.counterexample),
        "queries": records.queries(seen.ledger),
        "seconds": {"total": time.perf_counter() - start, "oracle": timed.ledger.total().seconds},
        "seed": job.seed,
        "target": job.target,
        "model": job.model,
    }
    fresh = f"{seen.fresh.relative:.1e} relative, over {seen.fresh.sequences} sequences"
    return Record(data, code_of(data), (("verdict", seen.verdict.name), ("fresh error", fresh)))


def _compare(job: CompareJob) -> Record:
    a, b = (_comparable(path) for path in (job.a, job.b))
    names, gap = _gap(a, b)
    parts = {name: getattr(gap, name) for name in names}
    of = "heads" if hasattr(gap, "heads") else "hidden"
    counts = list(getattr(gap, of, ()))
    same = len(set(counts)) <= 1
    units = "heads" if of == "heads" else "hidden units"
    sentence = (
        f"The models differ by {gap.largest:.1e} at most, relatively, once the order of {units} no longer counts."
        if same
        else f"The models have {counts[0]} and {counts[1]} {units} that act: they are different functions."
    )
    data = {"sentence": sentence, "distance": parts, "largest": gap.largest, of: counts}
    return Record(data, 0, tuple((name, f"{value:.2e}") for name, value in parts.items()))


def _gap(a: Any, b: Any) -> tuple[tuple[str, ...], Any]:
    """The distance of two models of one kind, and the names of its parts."""
    if isinstance(a, OneLayer) and isinstance(b, OneLayer):
        gap = one_layer_distance(a, b)
    elif isinstance(a, ReluNet | AbsAffine) and isinstance(b, ReluNet | AbsAffine):
        gap = network_distance(a, b)
    elif isinstance(a, Head | MultiHead) and isinstance(b, Head | MultiHead):
        gap = distance(a, b)
    else:
        raise InvalidInput(f"models of one kind are compared; got {type(a).__name__} and {type(b).__name__}.")
    return tuple(item.name for item in fields(gap) if isinstance(getattr(gap, item.name), float)), gap


def _comparable(path: str) -> Any:
    model = load(path)
    return model.read_last() if isinstance(model, SelfAttention) else model


def _sample(job: SampleJob) -> Record:
    for name in ("width", "heads", "outputs", "length", "q"):
        if getattr(job, name) < 1:
            raise InvalidInput(f"--{name} is a whole number >= 1; got {getattr(job, name)}.")
    if job.rank is not None and not 0 <= job.rank <= job.width:
        raise InvalidInput(f"--rank lies between 0 and the width {job.width}; got {job.rank}.")
    path = Path(job.out or f"{job.kind}.safetensors")
    if path.exists() and not job.force:
        raise InvalidInput(f"{path} exists. Use --force to overwrite it, or another --out.")
    model = _random(job, seeded(job.seed))
    save(model, path)
    sentence = f"A random {job.kind} of width {job.width} was written to {path}."
    shown = {"kind": job.kind, "model": str(path), "width": job.width, "outputs": model.outputs, "seed": job.seed}
    return Record({"sentence": sentence, **shown}, 0)


def _random(job: SampleJob, rng: np.random.Generator) -> Any:
    hidden = 4 * job.width if job.hidden is None else job.hidden
    shared: dict[str, Any] = {"outputs": job.outputs, "scale": job.scale, "rng": rng}
    makers: dict[str, Callable[[], Any]] = {
        "head": lambda: Head.random(job.width, rank=job.rank, biases=job.biases, **shared),
        "multihead": lambda: MultiHead.random(job.width, heads=job.heads, rank=job.rank, **shared),
        "relu": lambda: ReluNet.random(job.width, hidden=hidden, **shared),
        "onelayer": lambda: OneLayer.random(job.width, hidden=hidden, rank=job.rank, biases=job.biases, **shared),
    }
    makers |= baseline_makers(job, hidden, rng)
    if job.kind not in makers:
        raise InvalidInput(f"KIND is {', '.join(makers)}; got {job.kind!r}.")
    return makers[job.kind]()
