"""The trial job: a model drawn, hidden and recovered, and the recovery measured against the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.lab import records
from keyhole.lab.comparing import gap
from keyhole.lab.jobs import TrialJob
from keyhole.lab.jobs.stating import Drawn
from keyhole.lab.learning import code_of, hints_of, seeded
from keyhole.lab.records import Record
from keyhole.lab.targets import simulated, stated_by
from keyhole.learners.auto import learn
from keyhole.models import Head, MultiHead, OneLayer, ReluNet
from keyhole.oracles import Budgeted, Chunked, Declared, Local, Oracle

_KEPT = ("status", "verdict", "class", "width", "outputs", "heads", "rank", "queries", "degrees_of_freedom")


def run_trial(job: TrialJob) -> Record:
    """Draw, hide, recover, compare. The record holds no time, so that equal trials have equal records."""
    truth = draw(job.model)
    oracle: Oracle = Chunked(Declared(simulated(Local(truth), job.simulate, job.seed), stated_by(job)))
    if job.budget is not None:
        oracle = Budgeted(oracle, job.budget)
    found = learn(oracle, rng=seeded(job.seed), learner=job.learner, hints=hints_of(job))
    data = records.of_recovery(found)
    kept = {name: data[name] for name in _KEPT}
    asked = found.ledger.total(without="verify").sequences
    freedom = found.degrees_of_freedom
    ratio = asked * truth.outputs / freedom if freedom else None
    error = _error(truth, found.model)
    said = f"A hidden {job.model.kind} of width {job.model.width}: {found.verdict.name}, {asked:,} queries"
    sentence = f"{said}, error {error:.1e}." if error is not None else f"{said}."
    measured = {"asked": asked, "ratio": ratio, "error": error, "policies": _policies(job.simulate)}
    return Record({"sentence": sentence, **kept, **measured}, code_of(data))


def _policies(simulate: tuple[str, ...]) -> dict[str, Any]:
    """What was done to the answers, by name, with numbers as numbers so that they can be drawn."""
    pairs = [policy.partition("=")[::2] for policy in ",".join(simulate).split(",") if policy]
    return {name: float(value) if _numeric(value) else value or True for name, value in pairs}


def _numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _error(truth: Any, found: Any) -> float | None:
    """Largest relative distance of the parameters modulo symmetry, where the models are of one kind."""
    try:
        return None if found is None else gap(truth, found)[1].largest
    except InvalidInput:
        return None


def draw(model: Drawn) -> Any:
    """The random model that is described."""
    for name in ("width", "heads", "outputs"):
        if getattr(model, name) < 1:
            raise InvalidInput(f"--{name} is a whole number >= 1; got {getattr(model, name)}.")
    if model.rank is not None and not 0 <= model.rank <= model.width:
        raise InvalidInput(f"--rank lies between 0 and the width {model.width}; got {model.rank}.")
    hidden = 4 * model.width if model.hidden is None else model.hidden
    shared: dict[str, Any] = {"outputs": model.outputs, "scale": model.scale, "rng": seeded(model.seed)}
    makers: dict[str, Callable[[], Any]] = {
        "head": lambda: Head.random(model.width, rank=model.rank, biases=model.biases, **shared),
        "multihead": lambda: MultiHead.random(model.width, heads=model.heads, rank=model.rank, **shared),
        "relu": lambda: ReluNet.random(model.width, hidden=hidden, **shared),
        "onelayer": lambda: OneLayer.random(model.width, hidden=hidden, rank=model.rank, biases=model.biases, **shared),
    }
    if model.kind not in makers:
        raise InvalidInput(f"KIND is head, multihead, relu or onelayer; got {model.kind!r}.")
    return makers[model.kind]()
