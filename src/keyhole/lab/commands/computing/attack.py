"""The attack job: an input on which a saved model of sparse averaging fails."""

from __future__ import annotations

import time
from typing import Any

from msgspec import structs

from keyhole.bounds.attacks import Attack, Attacked, attack
from keyhole.constructions import load
from keyhole.lab.commands.shared import REFUSED, seed_generator
from keyhole.lab.jobs import AttackJob
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.record_parts import Seconds
from keyhole.lab.runs.records import Record, take_fields
from keyhole.lab.runs.task_records import AttackInequality, AttackRecord
from keyhole.lab.targets.tasks import pose_task
from keyhole.tasks import load_part


def run_attack(job: AttackJob) -> Record[AttackRecord]:
    """Load a model, attack it, return the record."""
    start = time.perf_counter()
    model = load(job.model)
    task = pose_task(job.task, job, **find_own_sizes(model, job.task))
    found = attack(
        model, task, rng=seed_generator(job.seed), number_format=job.dtype, accuracy=job.accuracy
    )
    data = AttackRecord(
        task=task.name,
        model=job.model,
        status=found.status.name,
        sentence=found.sentence,
        gap=found.target_gap,
        inequality=take_fields(found.inequality, AttackInequality),
        assumptions=list(found.inequality.assumptions),
        seed=job.seed,
        command=format_job_command("attack", job),
        seconds=Seconds(total=time.perf_counter() - start),
    )
    data = _record_attack_failure(data, found)
    return Record(data, 0 if found.status is Attacked.FOUND else REFUSED, _list_attack_rows(found))


def find_own_sizes(model: Any, task: str) -> dict[str, int]:
    """Sizes of the task that the model tells by its own."""
    read_sizes = load_part(task, "told_sizes")
    return {} if read_sizes is None else read_sizes(model)


def _record_attack_failure(data: AttackRecord, found: Attack) -> AttackRecord:
    """With both inputs, the one that fails first, with what the model says and what is right."""
    if found.inputs is None or found.answers is None or found.targets is None:
        return data
    # The input that fails comes first; its twin shows that the model cannot tell them apart.
    order = [found.worst, 1 - found.worst]
    return structs.replace(
        data,
        input=found.inputs[order[0]].tolist(),
        twin=found.inputs[order[1]].tolist(),
        row=found.row,
        answers=found.answers[order].tolist(),
        targets=found.targets[order].tolist(),
        error=max(found.errors),
        hidden_gap=found.hidden_gap,
    )


def _list_attack_rows(found: Attack) -> tuple[tuple[str, str], ...]:
    if found.answers is None or found.targets is None:
        return (("status", found.status.name),)
    worst = found.worst
    return (
        ("status", found.status.name),
        ("token", str(found.row + 1)),
        ("answer", _format_numbers(found.answers[worst])),
        ("right", _format_numbers(found.targets[worst])),
        ("error", f"{max(found.errors):.4g}"),
    )


def _format_numbers(vector: Any) -> str:
    return ", ".join(f"{value:.4g}" for value in vector)
