"""The trial job: a model drawn, hidden, recovered, and compared with the truth."""

from __future__ import annotations

from typing import Any

import numpy as np

from keyhole.claims import Outcome
from keyhole.errors import InvalidInput
from keyhole.lab.commands.recovery.compare import measure_model_gap
from keyhole.lab.commands.recovery.learn import read_hints
from keyhole.lab.commands.shared import choose_exit_code, seed_generator
from keyhole.lab.jobs import TrialJob
from keyhole.lab.runs.other_records import TrialRecord
from keyhole.lab.runs.record_parts import Given
from keyhole.lab.runs.recording import (
    count_heads,
    name_model_class,
    record_certificate,
    record_queries,
)
from keyhole.lab.runs.records import Record
from keyhole.lab.targets.opening import declare_target, simulate_policies
from keyhole.lab.targets.random_models import draw_random_model
from keyhole.learners.choosing import learn
from keyhole.learners.confronting import confront
from keyhole.oracles import Budgeted, Chunked, Local, Oracle


def run_trial(job: TrialJob) -> Record[TrialRecord]:
    """Draw, hide, recover, compare."""
    truth = draw_random_model(job.model, rng=seed_generator(job.model.seed))
    oracle: Oracle = Chunked(
        declare_target(simulate_policies(Local(truth), job.simulate, job.seed), job)
    )
    if job.budget is not None:
        oracle = Budgeted(oracle, job.budget)
    found = learn(oracle, rng=seed_generator(job.seed), learner=job.learner, hints=read_hints(job))
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
    # Drawn apart, so that confronting a recovery changes none of its questions.
    held = confront(truth, found, rng=np.random.default_rng([job.seed, job.model.seed]))
    if held is not None and held.outcome is Outcome.REFUTED:
        sentence += f" The truth refutes {held.theorem}: this is a bug, please report it."
    model = found.model
    # No time is kept: equal trials have equal records, on every machine.
    data = TrialRecord(
        sentence=sentence,
        seed=job.seed,
        status=found.status.name,
        verdict=found.verdict.name,
        model_class=name_model_class(found),
        width=None if model is None else model.width,
        outputs=None if model is None else model.outputs,
        heads=count_heads(model),
        rank=found.rank,
        queries=record_queries(found.ledger),
        degrees_of_freedom=freedom,
        asked=asked,
        ratio=ratio,
        error=error,
        policies=_parse_policies(job.simulate),
        certificate=record_certificate(held),
    )
    return Record(data, choose_exit_code(data.verdict))


def _parse_policies(simulate: tuple[str, ...]) -> dict[str, Given]:
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
