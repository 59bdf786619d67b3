"""The demo job: the tour of every capability on embedded defaults."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from keyhole.constructions import build
from keyhole.identify import distance
from keyhole.lab import records
from keyhole.lab.directories import finished, make, new_directory
from keyhole.lab.jobs import DemoJob
from keyhole.lab.learning import learn_lines, seeded, versions, write_model
from keyhole.lab.records import Record
from keyhole.lab.round_trip import round_trip
from keyhole.learners.auto import learn
from keyhole.learners.base import Recovery
from keyhole.models import Head, MultiHead, save
from keyhole.oracles import Bounded, Cast, Local, Noisy, Oracle, Signs
from keyhole.tasks import SparseAverage


def _stops(rng: np.random.Generator, directory: Path) -> list[dict[str, Any]]:
    """Further stops of the tour, each a hidden model and what its answers gave away."""
    hidden: dict[str, Head | MultiHead] = {
        "a head of rank 3, the rank unknown": Head.random(48, rank=3, rng=rng),
        "a head with 8 outputs, a score bias and a constant": Head.random(32, outputs=8, biases=True, rng=rng),
        "two heads, their number unknown": MultiHead.random(8, heads=2, rng=rng),
    }
    return [
        *(_stop(name, model, rng, directory) for name, model in hidden.items()),
        *_imperfect(Head.random(8, rng=rng), rng),
        _loop(rng),
    ]


def _loop(rng: np.random.Generator) -> dict[str, Any]:
    """Weights built for a task, hidden, recovered and scored on the task again."""
    task = SparseAverage(10, 2)
    built = build(task, rng=rng)
    found = round_trip(built.model, built.task, rng=rng)
    name = f"averages of {task.q} of {task.length} tokens, built with keys of width {built.size.embed}"
    errors = f"{found['error_before']:.0e} before, {found['error_after']:.0e} after"
    sentence = f"{name}: {found['verdict']}, {found['queries']} queries, error on the task {errors}"
    return {"name": name, "verdict": found["verdict"], "queries": found["queries"], "sentence": sentence}


def _imperfect(model: Head, rng: np.random.Generator) -> list[dict[str, Any]]:
    """What output policies leave to be found: W within its error, V up to a factor where there are only labels."""
    target = Local(model)
    behind: dict[str, Oracle] = {
        "answers with noise 1e-4, tokens up to norm 3": Noisy(Bounded(target, 3.0), 1e-4, 0),
        "answers in bf16": Cast(target, "bf16"),
        "labels only": Signs(target),
    }
    return [_policy_stop(name, model, oracle, rng) for name, oracle in behind.items()]


def _policy_stop(name: str, model: Head, oracle: Oracle, rng: np.random.Generator) -> dict[str, Any]:
    found = learn(oracle, rng=rng)
    asked = found.ledger.total(without="verify").sequences
    error = "no model" if found.model is None else f"error of W {distance(model, found.model).W:.0e}"
    sentence = f"a head of width {model.width}, {name}: {found.verdict.name}, {asked:,} queries, {error}"
    return {"name": name, "verdict": found.verdict.name, "queries": asked, "sentence": sentence}


def _stop(name: str, model: Head | MultiHead, rng: np.random.Generator, directory: Path) -> dict[str, Any]:
    found = learn(Local(model), rng=rng)
    asked = found.ledger.total(without="verify").sequences
    if found.model is not None and found.verdict.verified and found.degrees_of_freedom is not None:
        limit = -(-found.degrees_of_freedom // model.outputs)
        said = f"{asked} queries, limit {limit}, error {distance(model, found.model).largest:.0e}"
    else:
        said = found.status.value
    sentence = f"{name}: {found.verdict.name}, {said}"
    stop = {"name": name, "verdict": found.verdict.name, "queries": asked, "sentence": sentence}
    return stop | _kept(model, found, directory)


def _kept(model: Head | MultiHead, found: Recovery[Any], directory: Path) -> dict[str, Any]:
    """Several heads and what was made of them, as files for the page to compare."""
    if not (isinstance(model, MultiHead) and isinstance(found.model, MultiHead)):
        return {}
    files = {"truth": "heads-truth.safetensors", "model": "heads-model.safetensors"}
    for name, one in (("truth", model), ("model", found.model)):
        save(one, directory / files[name])
    return {**files, "distance": distance(model, found.model).largest, "jumps": records.jumps(found.jumps)}


def run_demo(job: DemoJob) -> Record:
    """Recover hidden models of every kind, write the page, return the record."""
    start = time.perf_counter()
    hidden, rng = seeded(job.seed).spawn(2)
    truth = Head.random(16, rng=hidden)
    recovery = learn(Local(truth), rng=rng)
    found = recovery.unwrap()
    gap = distance(truth, found)
    directory = Path(job.out) if job.out is not None else new_directory("demo")
    make(directory)
    save(truth, directory / "truth.safetensors")
    data = records.of_recovery(recovery) | write_model(recovery, directory)
    asked = recovery.ledger.total(without="verify").sequences
    data |= {
        "sentence": f"{asked} queries give away a hidden {truth.width} x {truth.width} head to {gap.largest:.0e}; "
        f"the limit is {recovery.degrees_of_freedom}. {recovery.sentence}",
        "distance": gap.largest,
        "stops": _stops(seeded(job.seed + 1), directory),
        "seconds": {"total": time.perf_counter() - start, "oracle": recovery.ledger.total().seconds},
        "seed": job.seed,
        "target": str(directory / "truth.safetensors"),
        "learner": "auto",
        "run": str(directory),
        **versions(),
    }
    tour = tuple(("also", stop["sentence"]) for stop in data["stops"])
    page = (("error of W", f"{gap.W:.1e}"), *tour, ("page", str(directory / "report.html")))
    lines = (*learn_lines(data)[:-1], *page)
    return finished(Record(data, 0, lines), directory)
