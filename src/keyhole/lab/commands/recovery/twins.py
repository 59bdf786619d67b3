"""The twins job: other parameters with the function of a saved model, written down and shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keyhole._files import write_atomically
from keyhole.claims import Outcome
from keyhole.errors import InvalidInput
from keyhole.identify import Twin
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.jobs import TwinsJob
from keyhole.lab.pages import twins_page
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.record_parts import Seconds
from keyhole.lab.runs.recording import record_held_certificate
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.recovery_records import TwinRecord, TwinsRecord
from keyhole.lab.runs.rows import list_twin_rows
from keyhole.lab.targets.opening import label_target, load_askable_model
from keyhole.models import save
from keyhole.models.registry import list_kinds_with, load_model_part


def run_twins(job: TwinsJob) -> Record[TwinsRecord]:
    """Find the twins of a saved model, write them and their page, return the record."""
    start = time.perf_counter()
    rng = seed_generator(job.seed)
    model, find_twins = _load_model(job.model)
    name = f"twins-{label_target(job.model)}"
    with open_run_directory(name, out=job.out, resume=None, force=job.force) as directory:
        # Twins of an earlier model would be taken for those of this one.
        for old in directory.glob("twin-*.safetensors"):
            old.unlink()
        found = find_twins(model, rng=rng)
        rows = [_save_twin(twin, directory) for twin in found]
        save(model, directory / "model.safetensors")
        data = TwinsRecord(
            sentence=_describe_twins(job.model, found),
            model=job.model,
            twins=rows,
            seed=job.seed,
            run=str(directory),
            command=format_job_command("twins", job, "seed"),
            seconds=Seconds(total=time.perf_counter() - start),
        )
        page = ("page", f"{directory}/report.html")
        record = Record(data, 0, (*list_twin_rows(data), page))
        write_atomically(directory / "record.json", record.json() + b"\n")
        write_atomically(
            directory / "report.html", twins_page.draw_twins_page(data, directory).encode()
        )
        return record


def _load_model(path: str) -> tuple[Any, Callable[..., tuple[Twin, ...]]]:
    """The model of a file, and what finds its twins.

    Raises:
        InvalidInput: no twins are known for its kind.
    """
    model = load_askable_model(path)
    find_twins = load_model_part(model, "twins")
    if find_twins is None:
        raise InvalidInput(
            f"{path} holds a {type(model).__name__}: twins are known for a"
            f" {', a '.join(list_kinds_with('twins'))} or a unit, not for a network. `keyhole"
            " sample multihead` writes one to play with."
        )
    return model, find_twins


def _save_twin(twin: Twin, directory: Path) -> TwinRecord:
    """Save a twin, and say what it is; both distances are relative."""
    path = directory / f"twin-{twin.symmetry.name.lower()}.safetensors"
    save(twin.model, path)
    agreement, gap = twin.certificate.conclusion
    return TwinRecord(
        symmetry=twin.symmetry.name,
        changed=twin.changed,
        proof=twin.symmetry.value,
        model=str(path),
        parameters_differ=1.0 - agreement.measured,
        answers_differ=gap.measured,
        certificate=record_held_certificate(twin.certificate),
    )


def _describe_twins(path: str, found: tuple[Twin, ...]) -> str:
    sure = sum(twin.certificate.outcome is Outcome.HOLDS for twin in found)
    # The sentence claims no more than the certificates hold.
    if sure < len(found):
        return (
            f"{sure} of {len(found)} twins of {path} were seen to answer alike; see the"
            " certificates."
        )
    return (
        f"{len(found)} other set{'s' * (len(found) > 1)} of parameters"
        f" answer{'s' * (len(found) == 1)} like {path}: no number of questions tells them apart."
    )
