"""The build job: explicit weights for a task, written down, checked and shown."""

from __future__ import annotations

import time
from typing import Any

from keyhole._arrays import Stack
from keyhole.constructions import Built, Room, Survey, save, survey_recipes
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.lab.commands.shared import REFUSED, list_versions, seed_generator
from keyhole.lab.jobs import BuildJob
from keyhole.lab.pages import build_page
from keyhole.lab.runs import records
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.rows import list_build_rows
from keyhole.lab.targets.round_trip import make_round_trip, sample_task_inputs
from keyhole.lab.targets.tasks import pose_task
from keyhole.models.files import write_atomically, write_tensors
from keyhole.models.tensor import TensorAttention
from keyhole.tasks import sizes_of


def run_build(job: BuildJob) -> Record:
    """Find the smallest weights that hold, write them and their page, return the record."""
    start = time.perf_counter()
    # The round trip draws apart, so that asking for it does not change the weights.
    rng, trip = seed_generator(job.seed).spawn(2)
    task = pose_task(job.task, job)
    form = _choose_number_format(job)
    room = Room(job.embed, job.value_width, job.heads, job.layers)
    found = survey_recipes(task, accuracy=job.accuracy, number_format=form, room=room, rng=rng)
    data: dict[str, Any] = {
        "task": task.name,
        "sizes": sizes_of(task),
        "accuracy": job.accuracy,
        "seed": job.seed,
    }
    try:
        best = found.best
    # That nothing fits is an answer, with the frontier as its reason.
    except DoesNotFit as refusal:
        frontier = {"frontier": _record_frontier(found), "refused": dict(found.refused)}
        return Record(
            {"status": "DOES_NOT_FIT", "sentence": str(refusal), **data, "model": None, **frontier},
            REFUSED,
        )
    name = f"build-{task.name}"
    with open_run_directory(name, out=job.out, resume=None, force=job.force) as directory:
        path = directory / "model.safetensors"
        save(best.model, path)
        data = {
            "status": "BUILT",
            "sentence": _describe_weights(best, found),
            **data,
            **_record_weights(best),
        }
        data |= {"model": str(path), "frontier": _record_frontier(found)}
        data |= {"refused": dict(found.refused), "run": str(directory)}
        if job.round_trip:
            data["round_trip"] = make_round_trip(best.model, task, rng=trip)
        data |= {
            "seconds": {"total": time.perf_counter() - start},
            "command": format_job_command("build", job, "accuracy", "seed"),
            **list_versions(),
        }
        files = (("model", data["model"]), ("page", f"{data['run']}/report.html"))
        record = Record(data, 0, (*list_build_rows(data), *files))
        write_atomically(directory / "record.json", record.json() + b"\n")
        example = _choose_example(best, sample_task_inputs(best.model, task, trip))
        write_tensors(directory / "example.safetensors", {"kind": "input"}, {"X": example})
        write_atomically(
            directory / "report.html", build_page.draw_build_page(data, directory).encode()
        )
        return record


def _choose_example(best: Built, X: Stack) -> Stack:
    """The input whose tokens have the most different answers."""
    # An input on which all tokens answer alike would show nothing.
    chosen = int(best.task.target(X).std(axis=1).sum(axis=1).argmax())
    return X[chosen : chosen + 1]


def _choose_number_format(job: BuildJob) -> str | int | None:
    if job.bits is not None and job.dtype is not None:
        raise InvalidInput(
            "give --bits, fixed point of so many bits, or --dtype, a format by name; not both."
        )
    return job.dtype if job.bits is None else job.bits


def _record_weights(best: Built) -> dict[str, Any]:
    """The chosen weights as the contract names them."""
    size = best.size
    seen = best.checked
    return {
        "construction": best.construction,
        "size": {
            name: getattr(size, name)
            for name in ("embed", "value_width", "heads", "layers", "bits")
        },
        "format": best.format,
        "margin": best.margin,
        "error_bound": best.error_bound,
        "checked": {
            name: getattr(seen, name) for name in ("inputs", "errors", "worst", "exhaustive")
        },
        "certificate": records.record_certificate(best.certificate),
    }


def _record_frontier(found: Survey) -> dict[str, Any]:
    """Every point that was built, smallest first, and the bits that any model needs."""
    points = [
        {
            "construction": b.construction,
            "embed": b.size.embed,
            "bits": b.size.bits,
            "format": b.format,
        }
        for b in found.built
    ]
    return {"points": points, "limit_bits": found.limit, "limit": "H (2m + v) p >= limit_bits"}


def _describe_weights(best: Built, found: Survey) -> str:
    size = best.size
    doing = "computes" if size.layers == 1 else "compute"
    # Without a proof for every input the sentence claims an intention, not a fact.
    if not best.proved:
        doing = "is meant for" if size.layers == 1 else "are meant for"
    said = (
        f"{_describe_shape(best)} of key width {size.embed} in {best.format} ({best.construction}) "
    )
    said += f"{doing} {best.task.name}: {best.checked.errors} errors on "
    said += f"{'all' if best.checked.exhaustive else 'the'} {best.checked.inputs:,} inputs"
    said += " there are." if best.checked.exhaustive else " asked."
    if not best.proved:
        asked = best.certificate.sampled or f"{best.checked.inputs:,} inputs, not every one"
        said += f" That is a sample ({asked}), and no proof covers the others."
    said += f" Numbers of {size.bits} bits were seen to hold."
    # One-hot keys look like a poor choice: that there is no better one needs saying.
    if best.construction == "one-hot keys":
        said += " One-hot keys are the smallest known at this length."
    if found.limit is not None:
        has = size.heads * (2 * size.embed + size.value_width) * size.bits
        said += f" It carries {has:,} bits; fewer than {found.limit:.1f} cannot do."
    return said


def _describe_shape(best: Built) -> str:
    """Layers and heads in words."""
    size = best.size
    layer = best.model.blocks[-1].layer
    if size.layers == size.heads == 1:
        order = layer.order if isinstance(layer, TensorAttention) else 2
        return f"One attention unit{f' of order {order}' * (order > 2)}"
    heads = f" of {size.heads} heads" if size.heads > 1 else ""
    count = "One attention layer" if size.layers == 1 else f"{size.layers} attention layers"
    return count + heads
