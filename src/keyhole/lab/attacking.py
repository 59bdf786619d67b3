"""The attack job: an input on which a saved model of sparse averaging fails, put to the model itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from keyhole.bounds.attacks import Attack, Attacked, attack
from keyhole.errors import InvalidInput
from keyhole.lab.jobs import AttackJob, SampleJob
from keyhole.lab.learning import REFUSED, seeded, versions
from keyhole.lab.posing import format_of, posed
from keyhole.lab.records import Record
from keyhole.models import load
from keyhole.models.baselines import UNROUNDED, Mlp, Recurrent


def run_attack(job: AttackJob) -> Record:
    """Load a model, attack it, return the record."""
    start = time.perf_counter()
    model = load(job.model)
    task = posed(job.task, job, **_own_sizes(model, job.task))
    held = format_of(job.dtype)
    found = attack(model, task, rng=seeded(job.seed), rounding=held.rounding, bits=held.bits, accuracy=job.accuracy)
    told = found.inequality
    data = {
        "task": task.name,
        "model": job.model,
        "status": found.status.name,
        "sentence": found.sentence,
        **_failure(found),
        "gap": found.target_gap,
        "inequality": {"name": told.name, "needed": told.needed, "available": told.available},
        "assumptions": told.assumptions,
        "seed": job.seed,
        "seconds": {"total": time.perf_counter() - start},
        **versions(),
    }
    return Record(data, 0 if found.status is Attacked.FOUND else REFUSED, _lines(found))


def _own_sizes(model: Any, task: str) -> dict[str, int]:
    """Sizes of the task that a baseline knows itself."""
    if task != "sparse-average" or not isinstance(model, Mlp | Recurrent):
        return {}
    dimension = len(model.z)
    sizes = {"width": dimension, "q": model.width - dimension - 1}
    return sizes | ({"length": model.length} if isinstance(model, Mlp) else {})


def _failure(found: Attack) -> dict[str, Any]:
    """Both inputs, the one that fails first, with what the model says and what is right."""
    if found.inputs is None or found.answers is None or found.targets is None:
        return {"input": None, "twin": None, "row": None, "answers": None, "targets": None, "error": None}
    order = [found.worst, 1 - found.worst]
    return {
        "input": found.inputs[order[0]],
        "twin": found.inputs[order[1]],
        "row": found.row,
        "answers": found.answers[order],
        "targets": found.targets[order],
        "error": max(found.errors),
        "hidden_gap": found.hidden_gap,
    }


def _lines(found: Attack) -> tuple[tuple[str, str], ...]:
    if found.answers is None or found.targets is None:
        return (("status", found.status.name),)
    worst = found.worst
    return (
        ("status", found.status.name),
        ("token", str(found.row + 1)),
        ("answer", _numbers(found.answers[worst])),
        ("right", _numbers(found.targets[worst])),
        ("error", f"{max(found.errors):.4g}"),
    )


def _numbers(vector: Any) -> str:
    return ", ".join(f"{value:.4g}" for value in vector)


def baseline_makers(job: SampleJob, hidden: int, rng: np.random.Generator) -> dict[str, Callable[[], Any]]:
    """How `keyhole sample` makes networks to attack."""
    if not 1 <= job.state_bits <= UNROUNDED:
        raise InvalidInput(f"--state-bits lies between 1 and {UNROUNDED}; got {job.state_bits}.")
    shared: dict[str, Any] = {"q": job.q, "dimension": job.width, "rng": rng}
    cells = {"units": hidden, "state_bits": job.state_bits}
    return {
        "mlp": lambda: Mlp.random(job.length, hidden=hidden, **shared),
        "gru": lambda: Recurrent.random("gru", **cells, **shared),
        "lstm": lambda: Recurrent.random("lstm", **cells, **shared),
    }
