"""The trial job: a model drawn, hidden, recovered, and compared with the truth."""

from __future__ import annotations

from typing import Any

from keyhole.errors import InvalidInput
from keyhole.lab.commands.recovery.compare import measure_model_gap
from keyhole.lab.commands.recovery.learn import read_hints
from keyhole.lab.commands.shared import choose_exit_code, seed_generator
from keyhole.lab.jobs import TrialJob
from keyhole.lab.runs import records
from keyhole.lab.runs.records import Record
from keyhole.lab.targets.opening import read_declarations, simulate_policies
from keyhole.lab.targets.random_models import draw_random_model
from keyhole.learners.choosing import learn
from keyhole.oracles import Budgeted, Chunked, Declared, Local, Oracle

_KEPT = (
    "status",
    "verdict",
    "class",
    "width",
    "outputs",
    "heads",
    "rank",
    "queries",
    "degrees_of_freedom",
)


def run_trial(job: TrialJob) -> Record:
    """Draw, hide, recover, compare."""
    truth = draw_random_model(job.model, rng=seed_generator(job.model.seed))
    oracle: Oracle = Chunked(
        Declared(simulate_policies(Local(truth), job.simulate, job.seed), read_declarations(job))
    )
    if job.budget is not None:
        oracle = Budgeted(oracle, job.budget)
    found = learn(oracle, rng=seed_generator(job.seed), learner=job.learner, hints=read_hints(job))
    # No time is kept: equal trials have equal records, on every machine.
    data = records.record_recovery(found)
    kept = {name: data[name] for name in _KEPT}
    asked = found.ledger.total(without="verify").sequences
    freedom = found.degrees_of_freedom
    # Numbers asked over numbers to be known: 1 is the least.
    ratio = asked * truth.outputs / freedom if freedom else None
    error = _measure_distance(truth, found.model)
    said = (
        f"A hidden {job.model.kind} of width {job.model.width}: {found.verdict.name}, {asked:,}"
        " queries"
    )
    sentence = f"{said}, error {error:.1e}." if error is not None else f"{said}."
    measured = {
        "asked": asked,
        "ratio": ratio,
        "error": error,
        "policies": _parse_policies(job.simulate),
    }
    return Record({"sentence": sentence, **kept, **measured}, choose_exit_code(data))


def _parse_policies(simulate: tuple[str, ...]) -> dict[str, Any]:
    """What was done to the answers, by name, with numbers as numbers so that they can be drawn."""
    pairs = [policy.partition("=")[::2] for policy in ",".join(simulate).split(",") if policy]
    return {name: float(value) if _is_number(value) else value or True for name, value in pairs}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _measure_distance(truth: Any, found: Any) -> float | None:
    """Largest relative distance of the parameters modulo symmetry, where there is one."""
    try:
        return None if found is None else measure_model_gap(truth, found)[1].largest
    # A model of another class than the truth has no distance from it.
    except InvalidInput:
        return None
