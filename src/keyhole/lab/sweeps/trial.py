"""The trial job: a model drawn, hidden and recovered, and the recovery measured against the truth."""

from __future__ import annotations

from typing import Any

from keyhole.errors import InvalidInput
from keyhole.lab.commands.recovery.compare import gap
from keyhole.lab.commands.recovery.learn import hints_of
from keyhole.lab.commands.shared import code_of, seeded
from keyhole.lab.jobs import TrialJob
from keyhole.lab.runs import records
from keyhole.lab.runs.records import Record
from keyhole.lab.targets.opening import simulated, stated_by
from keyhole.lab.targets.random_models import draw
from keyhole.learners.choosing import learn
from keyhole.oracles import Budgeted, Chunked, Declared, Local, Oracle

_KEPT = ("status", "verdict", "class", "width", "outputs", "heads", "rank", "queries", "degrees_of_freedom")


def run_trial(job: TrialJob) -> Record:
    """Draw, hide, recover, compare. The record holds no time, so that equal trials have equal records."""
    truth = draw(job.model, rng=seeded(job.model.seed))
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
