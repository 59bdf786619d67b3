"""The build job: explicit weights for a task, written down, checked and shown."""

from __future__ import annotations

import time

from msgspec import structs

from keyhole._arrays import Stack
from keyhole._files import write_atomically
from keyhole.constructions import Built, Room, Survey, save, survey_recipes
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.lab.commands.shared import REFUSED, seed_generator
from keyhole.lab.jobs import BuildJob
from keyhole.lab.pages import build_page
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.record_parts import Seconds
from keyhole.lab.runs.recording import record_held_certificate
from keyhole.lab.runs.records import Record, take_fields
from keyhole.lab.runs.rows import FLOAT64, list_build_rows
from keyhole.lab.runs.task_records import (
    BuildRecord,
    BuiltSize,
    CheckedInputs,
    Frontier,
    FrontierPoint,
)
from keyhole.lab.targets.round_trip import make_round_trip, sample_task_inputs
from keyhole.lab.targets.tasks import pose_task
from keyhole.models.files import write_tensors
from keyhole.models.tensor import TensorAttention
from keyhole.tasks import sizes_of


def run_build(job: BuildJob) -> Record[BuildRecord]:
    """Find the smallest weights that hold, write them and their page, return the record."""
    start = time.perf_counter()
    # The round trip draws apart, so that asking for it does not change the weights.
    rng, trip = seed_generator(job.seed).spawn(2)
    task = pose_task(job.task, job)
    form = _choose_number_format(job)
    room = Room(job.embed, job.value_width, job.heads, job.layers)
    found = survey_recipes(task, accuracy=job.accuracy, number_format=form, room=room, rng=rng)
    data = BuildRecord(
        status="DOES_NOT_FIT",
        task=task.name,
        sizes=sizes_of(task),
        accuracy=job.accuracy,
        seed=job.seed,
        command=format_job_command("build", job, "accuracy", "seed"),
        frontier=_record_frontier(found),
        refused=dict(found.refused),
    )
    try:
        best = found.best
    # That nothing fits is an answer, with the frontier as its reason.
    except DoesNotFit as refusal:
        return Record(structs.replace(data, sentence=str(refusal)), REFUSED)
    name = f"build-{task.name}"
    with open_run_directory(name, out=job.out, resume=None, force=job.force) as directory:
        path = directory / "model.safetensors"
        save(best.model, path)
        data = structs.replace(
            _record_weights(data, best),
            sentence=_describe_weights(best, found),
            model=str(path),
            run=str(directory),
            round_trip=make_round_trip(best.model, task, rng=trip) if job.round_trip else None,
        )
        data = structs.replace(data, seconds=Seconds(total=time.perf_counter() - start))
        files = (("model", str(path)), ("page", f"{directory}/report.html"))
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


def _record_weights(data: BuildRecord, best: Built) -> BuildRecord:
    """The record with the chosen weights, as the contract names them."""
    return structs.replace(
        data,
        status="BUILT",
        construction=best.construction,
        size=take_fields(best.size, BuiltSize),
        format=best.format,
        margin=best.margin,
        error_bound=best.error_bound,
        checked=take_fields(best.checked, CheckedInputs),
        certificate=record_held_certificate(best.certificate),
    )


def _record_frontier(found: Survey) -> Frontier:
    """Points that no other beats, proved ones first, and the bits that any model needs."""
    points = [
        FrontierPoint(
            construction=b.construction,
            embed=b.size.embed,
            bits=b.size.bits,
            format=b.format,
            proved=b.proved,
        )
        for b in found.frontier
    ]
    return Frontier(points=points, limit_bits=found.limit, limit="H (2m + v) p >= limit_bits")


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
    said += _describe_bits(best)
    # One-hot keys look like a poor choice: that there is no better one needs saying.
    if best.construction == "one-hot keys":
        said += " One-hot keys are the smallest known at this length."
    if found.limit is not None:
        has = size.heads * (2 * size.embed + size.value_width) * size.bits
        said += f" It carries {has:,} bits; with fewer than {found.limit:.1f} no model can do this."
    return said


def _describe_bits(best: Built) -> str:
    """What is known of the numbers the weights need."""
    bits = best.size.bits
    # Beyond float64 nothing can be seen: what is known is the bound on rounding.
    if best.format == "exact" and bits > FLOAT64:
        return (
            f" Float64 does not carry these numbers; fixed point of {bits} bits does, by the bound"
            " on its rounding."
        )
    return f" On the inputs asked, numbers of {bits} bits were enough."


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
