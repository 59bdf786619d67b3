"""The compare job: how far two models are apart, modulo what answers do not determine."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from keyhole.identify import compare
from keyhole.lab.jobs import CompareJob
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.recovery_records import CompareRecord
from keyhole.lab.targets.inspecting import read_layer_weights
from keyhole.lab.targets.opening import load_askable_model


def run_compare(job: CompareJob) -> Record[CompareRecord]:
    """Compare two saved models, or the weights of one layer of a torch model with a saved one."""
    layer = job.layer
    a = load_askable_model(job.a) if layer is None else read_layer_weights(job.a, layer)
    b = load_askable_model(job.b)
    names, apart = measure_model_gap(a, b)
    parts = {name: getattr(apart, name) for name in names}
    # Distances of heads and of networks count different units.
    of = "heads" if hasattr(apart, "heads") else "hidden"
    counts: list[int] = list(getattr(apart, of, ()))
    units = "heads" if of == "heads" else "hidden units"
    sentence = (
        f"The models differ by {apart.largest:.1e} at most, relatively, once the order of {units}"
        " no longer counts."
    )
    # Units that do nothing are not counted: other numbers of them are other functions.
    if len(set(counts)) > 1:
        sentence = (
            f"The models have {counts[0]} and {counts[1]} {units} that act: they are different"
            " functions."
        )
    data = CompareRecord(
        sentence=sentence,
        distance=parts,
        largest=apart.largest,
        heads=counts if of == "heads" else None,
        hidden=counts if of == "hidden" else None,
    )
    return Record(data, 0, tuple((name, f"{value:.2e}") for name, value in parts.items()))


def measure_model_gap(a: Any, b: Any) -> tuple[tuple[str, ...], Any]:
    """The distance of two models of one kind, and the names of its parts."""
    gap = compare(a, b)
    names = [item.name for item in fields(gap) if isinstance(getattr(gap, item.name), float)]
    return tuple(names), gap
