"""`run(job)`: the one way a job becomes a record."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import numpy as np

from keyhole import __version__
from keyhole.claims import Verdict
from keyhole.errors import BadAnswer, InvalidInput, OracleError
from keyhole.identify import distance
from keyhole.lab import records, report
from keyhole.lab.jobs import CompareJob, DemoJob, Job, LearnJob, PlanJob, SampleJob, VerifyJob
from keyhole.lab.records import Record
from keyhole.lab.targets import digest, label, load_tokens, open_target
from keyhole.learners.auto import Hints, choose, learn, verify
from keyhole.learners.base import Recovery
from keyhole.models import Head, MultiHead, SelfAttention, load, save
from keyhole.models.files import write_atomically
from keyhole.oracles import Budgeted, Chunked, Counted, Declared, Imperfection, Local, Oracle, Recorded, Watched

REFUSED = 3
_RUN_FILES = (
    "record.json",
    *("transcript.sqlite", "transcript.sqlite-wal", "transcript.sqlite-shm"),
    *("model.safetensors", "truth.safetensors", "report.html"),
)


def run(job: Job) -> Record:
    """Do what a job asks and return its record."""
    runners: dict[type, Callable[[Any], Record]] = {
        LearnJob: _learn,
        PlanJob: _plan,
        VerifyJob: _verify,
        CompareJob: _compare,
        SampleJob: _sample,
        DemoJob: _demo,
    }
    return runners[type(job)](job)


def _seeded(seed: int) -> np.random.Generator:
    if seed < 0:
        raise InvalidInput(f"a seed is a whole number >= 0; got {seed}.")
    return np.random.default_rng(seed)


# --- learn -----------------------------------------------------------------------------------------------------


def _learn(job: LearnJob) -> Record:
    start = time.perf_counter()
    rng = _seeded(job.seed)
    learner = choose(job.learner, _hints(job))
    target = open_target(job.target, width=job.width, outputs=job.outputs)
    timed = Counted(Declared(target, Imperfection.cast(job.answers)))
    directory = _run_directory(job)
    with ExitStack() as stack:
        oracle, recorded = _wrapped(job, timed, directory, stack)
        expected = learner.plan(timed.width, outputs=timed.outputs or 1).queries
        watched = stack.enter_context(Watched(oracle, expected, title=f"learning {label(job.target)}"))
        try:
            recovery = learn(watched, rng=rng, learner=learner)
        except InvalidInput:
            if recorded is not None:
                recorded.discard_if_empty()
            raise
        except OracleError as error:
            lost = recorded.charged if recorded is not None else timed.ledger.total().sequences
            data = _failed(error, lost)
        else:
            data = records.of_recovery(recovery, lost=recorded.lost if recorded is not None else 0)
            data |= _write_model(recovery, directory)
        spent = timed.ledger.total()
        data |= {"width": timed.width, "outputs": watched.outputs}
    data |= {
        "seconds": {"total": time.perf_counter() - start, "oracle": spent.seconds},
        "asked": spent.sequences,
        "budget": job.budget,
        "options": _options(job),
        "seed": job.seed,
        "target": job.target,
        "learner": job.learner,
        "run": str(directory),
        **_versions(),
    }
    return _finished(Record(data, _code(data), _learn_lines(data)), directory)


def _options(job: LearnJob) -> dict[str, Any]:
    """Hints and declarations that were given, as the command line names them."""
    given = {name: getattr(job, name) for name in ("rank", "grid", "tokens", "answers", "outputs")}
    return {name: value for name, value in given.items() if value not in (None, "f64")}


def _versions() -> dict[str, str]:
    return {"version": __version__, "python": platform.python_version(), "numpy": np.__version__}


def _hints(job: LearnJob | PlanJob) -> Hints:
    return Hints(rank=job.rank, grid=job.grid, tokens=None if job.tokens is None else load_tokens(job.tokens))


def _wrapped(job: LearnJob, timed: Counted, directory: Path, stack: ExitStack) -> tuple[Oracle, Recorded | None]:
    """Target < transcript < chunks < budget: a budget counts what a kill lost, and no chunk is asked twice."""
    oracle: Oracle = timed
    recorded = None
    if job.record:
        identity = {
            "target": job.target,
            "digest": digest(job.target),
            "width": timed.width,
            **{name: getattr(job, name) for name in ("rank", "grid", "answers", "learner", "seed")},
            "tokens": None if job.tokens is None else digest(job.tokens),
            "version": __version__,
        }
        oracle = recorded = Recorded(oracle, directory / "transcript.sqlite", identity)
        stack.callback(recorded.close)
        if job.budget is not None and job.budget < recorded.charged:
            raise InvalidInput(
                f"the run in {directory} has already asked {recorded.charged} queries; "
                f"--budget {job.budget} is below that. Give at least as many."
            )
    oracle = Chunked(oracle)
    if job.budget is not None:
        oracle = Budgeted(oracle, job.budget, recorded.lost if recorded is not None else 0)
    return oracle, recorded


def _run_directory(job: LearnJob) -> Path:
    if job.out is None:
        if job.resume:
            raise InvalidInput("--resume needs --out DIR, the directory of the run to go on with.")
        return _new_directory(label(job.target))
    directory = Path(job.out)
    held = [name for name in ("record.json", "transcript.sqlite") if (directory / name).exists()]
    if held and not (job.resume or job.force):
        raise InvalidInput(f"{directory} already holds a run. Use --resume to go on with it, or --force to replace it.")
    if job.force and not job.resume:
        for name in _RUN_FILES:
            (directory / name).unlink(missing_ok=True)
    _make(directory)
    return directory


def _new_directory(name: str) -> Path:
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    taken = Path("runs") / stem
    number = 1
    while taken.exists():
        number += 1
        taken = Path("runs") / f"{stem}-{number}"
    _make(taken)
    return taken


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot make the directory {directory}: {error.strerror}. Choose another --out.") from error


def _write_model(recovery: Recovery[Head], directory: Path) -> dict[str, Any]:
    if recovery.model is None:
        return {"model": None}
    path = directory / "model.safetensors"
    save(recovery.model, path, bars=recovery.bars)
    return {"model": str(path)}


def _failed(error: OracleError, asked: int) -> dict[str, Any]:
    status = "BAD_ANSWER" if isinstance(error, BadAnswer) else "TARGET_FAILED"
    sentence = f"The run stopped: {error} What was answered before is kept; mend the target and use --resume."
    keys = ("class", "reason", "determined", "counterexample", "width", "outputs", "heads", "rank", "model")
    more = ("degrees_of_freedom", "fresh_error", "error_bar", "certificate")
    return {
        "status": status,
        "verdict": Verdict.UNVERIFIED.name,
        "sentence": sentence,
        "queries": {"total": asked, "tokens": None, "by_phase": {}},
        **dict.fromkeys((*keys, *more)),
    }


def _code(data: dict[str, Any]) -> int:
    return 0 if Verdict[data["verdict"]].verified else REFUSED


def _finished(record: Record, directory: Path) -> Record:
    write_atomically(directory / "record.json", record.json() + b"\n")
    write_atomically(directory / "report.html", report.page(record.data, directory).encode())
    return record


def _learn_lines(data: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    asked = data["queries"]
    rows = [("verdict", data["verdict"])]
    if data["class"] is not None:
        rows.append(("class", f"{data['class']}: {data['reason']}"))
        rows.append(("determined", data["determined"]))
    phases = ", ".join(f"{name} {count}" for name, count in asked["by_phase"].items())
    rows.append(("queries", f"{asked['total']:,}" + (f" ({phases})" if phases else "")))
    if data["degrees_of_freedom"] is not None:
        limit = -(-data["degrees_of_freedom"] // (data["outputs"] or 1))
        rows.append(("limit", f"{limit:,} queries for {data['degrees_of_freedom']:,} degrees of freedom"))
    if data["fresh_error"] is not None:
        fresh = data["fresh_error"]
        rows.append(("fresh error", f"{fresh['relative']:.1e} relative, over {fresh['sequences']} sequences"))
    if data["error_bar"] is not None:
        rows.append(("error bar", f"{data['error_bar']:.1e} relative, on W"))
    if data["counterexample"] is not None:
        case = data["counterexample"]
        rows.append(
            ("refuted by", f"a sequence of length {len(case['tokens'])}, in record.json; gap {case['gap']:.1e}")
        )
    rows.append(("seconds", f"{data['seconds']['total']:.2f}, of which {data['seconds']['oracle']:.2f} in the target"))
    return (*rows, ("written to", data["run"]))


# --- the others ------------------------------------------------------------------------------------------------


def _plan(job: PlanJob) -> Record:
    width, outputs = job.width, job.outputs
    if job.target is not None:
        oracle = open_target(job.target, width=width, outputs=outputs)
        width, outputs = oracle.width, outputs or oracle.outputs
    if width is None or width < 1:
        raise InvalidInput(f"a plan needs --width (a whole number >= 1) or a TARGET that knows its own; got {width}.")
    if outputs is not None and outputs < 1:
        raise InvalidInput(f"--outputs is a whole number >= 1; got {outputs}.")
    plan = choose(job.learner, _hints(job)).plan(width, outputs=outputs or 1)
    sentence = (
        f"A head of width {width} with {plan.outputs} output{'s' * (plan.outputs > 1)} has {plan.degrees_of_freedom:,} "
        f"degrees of freedom: no learner can ask fewer than {plan.limit:,} queries; this one expects {plan.queries:,}."
    )
    data = {
        "sentence": sentence,
        "learner": job.learner,
        "width": width,
        "outputs": plan.outputs,
        "queries": {"total": plan.queries, "at_most": plan.at_most, "by_phase": dict(plan.by_phase)},
        "degrees_of_freedom": plan.degrees_of_freedom,
        "limit": plan.limit,
    }
    rows = tuple((name, f"{count:,}") for name, count in plan.by_phase.items())
    return Record(data, 0, (*rows, ("at most", f"{plan.at_most:,}")))


def _verify(job: VerifyJob) -> Record:
    start = time.perf_counter()
    model = load(job.model)
    if isinstance(model, SelfAttention):
        model = model.read_last()
    target = open_target(job.target, width=job.width if job.width is not None else model.width)
    timed = Counted(Declared(target, Imperfection.cast(job.answers)))
    try:
        oracle = timed if job.budget is None else Budgeted(timed, job.budget)
        seen = verify(oracle, model, rng=_seeded(job.seed))
    except OracleError as error:
        data = _failed(error, timed.ledger.total().sequences) | {"seed": job.seed}
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
    return Record(data, _code(data), (("verdict", seen.verdict.name), ("fresh error", fresh)))


def _compare(job: CompareJob) -> Record:
    a, b = (_comparable(path) for path in (job.a, job.b))
    gap = distance(a, b)
    same = gap.heads[0] == gap.heads[1]
    sentence = (
        f"The models differ by {gap.largest:.1e} at most, relatively, once the order of heads no longer counts."
        if same
        else f"The models have {gap.heads[0]} and {gap.heads[1]} heads that act: they are different functions."
    )
    parts = {name: getattr(gap, name) for name in ("W", "V", "h", "c", "U")}
    data = {"sentence": sentence, "distance": parts, "largest": gap.largest, "heads": list(gap.heads)}
    return Record(data, 0, tuple((name, f"{value:.2e}") for name, value in parts.items()))


def _comparable(path: str) -> Head | MultiHead:
    model = load(path)
    return model.read_last() if isinstance(model, SelfAttention) else model


def _sample(job: SampleJob) -> Record:
    for name in ("width", "heads", "outputs"):
        if getattr(job, name) < 1:
            raise InvalidInput(f"--{name} is a whole number >= 1; got {getattr(job, name)}.")
    if job.rank is not None and not 0 <= job.rank <= job.width:
        raise InvalidInput(f"--rank lies between 0 and the width {job.width}; got {job.rank}.")
    path = Path(job.out or f"{job.kind}.safetensors")
    if path.exists() and not job.force:
        raise InvalidInput(f"{path} exists. Use --force to overwrite it, or another --out.")
    model = _random(job, _seeded(job.seed))
    save(model, path)
    sentence = f"A random {job.kind} of width {job.width} was written to {path}."
    shown = {"kind": job.kind, "model": str(path), "width": job.width, "outputs": job.outputs, "seed": job.seed}
    return Record({"sentence": sentence, **shown}, 0)


def _random(job: SampleJob, rng: np.random.Generator) -> Head | MultiHead:
    if job.kind == "head":
        options = {"outputs": job.outputs, "rank": job.rank, "scale": job.scale, "biases": job.biases}
        return Head.random(job.width, **cast(Any, options), rng=rng)
    if job.kind == "multihead":
        return MultiHead.random(
            job.width, heads=job.heads, outputs=job.outputs, rank=job.rank, scale=job.scale, rng=rng
        )
    raise InvalidInput(f"KIND is head or multihead; got {job.kind!r}.")


def _stops(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Further stops of the tour, each a hidden model and what its answers gave away."""
    hidden: dict[str, Head | MultiHead] = {
        "a head of rank 3, the rank unknown": Head.random(48, rank=3, rng=rng),
        "a head with 8 outputs, a score bias and a constant": Head.random(32, outputs=8, biases=True, rng=rng),
        "two heads, taken for one": MultiHead.random(8, heads=2, rng=rng),
    }
    return [_stop(name, model, rng) for name, model in hidden.items()]


def _stop(name: str, model: Head | MultiHead, rng: np.random.Generator) -> dict[str, Any]:
    found = learn(Local(model), rng=rng)
    asked = found.ledger.total(without="verify").sequences
    if found.model is not None and found.verdict.verified and found.degrees_of_freedom is not None:
        limit = -(-found.degrees_of_freedom // model.outputs)
        said = f"{asked} queries, limit {limit}, error {distance(model, found.model).largest:.0e}"
    else:
        said = found.status.value
    sentence = f"{name}: {found.verdict.name}, {said}"
    return {"name": name, "verdict": found.verdict.name, "queries": asked, "sentence": sentence}


def _demo(job: DemoJob) -> Record:
    start = time.perf_counter()
    hidden, rng = _seeded(job.seed).spawn(2)
    truth = Head.random(16, rng=hidden)
    recovery = learn(Local(truth), rng=rng)
    found = recovery.unwrap()
    gap = distance(truth, found)
    directory = Path(job.out) if job.out is not None else _new_directory("demo")
    _make(directory)
    save(truth, directory / "truth.safetensors")
    data = records.of_recovery(recovery) | _write_model(recovery, directory)
    asked = recovery.ledger.total(without="verify").sequences
    data |= {
        "sentence": f"{asked} queries give away a hidden {truth.width} x {truth.width} head to {gap.largest:.0e}; "
        f"the limit is {recovery.degrees_of_freedom}. {recovery.sentence}",
        "distance": gap.largest,
        "stops": _stops(_seeded(job.seed + 1)),
        "seconds": {"total": time.perf_counter() - start, "oracle": recovery.ledger.total().seconds},
        "seed": job.seed,
        "target": str(directory / "truth.safetensors"),
        "learner": "auto",
        "run": str(directory),
        **_versions(),
    }
    tour = tuple(("also", stop["sentence"]) for stop in data["stops"])
    page = (("error of W", f"{gap.W:.1e}"), *tour, ("page", str(directory / "report.html")))
    lines = (*_learn_lines(data)[:-1], *page)
    return _finished(Record(data, 0, lines), directory)
