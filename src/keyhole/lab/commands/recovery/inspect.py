"""The inspect job: what is inside a model, and what can be recovered of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from msgspec import structs

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import InspectJob
from keyhole.lab.runs.inspection_records import InspectRecord, PartRecord
from keyhole.lab.runs.records import Record
from keyhole.lab.targets.advising import advise
from keyhole.lab.targets.inspecting import inspect
from keyhole.oracles.inside.described import AttentionPart, Inside, NetworkPart, Part

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


def run_inspect(job: InspectJob) -> Record[InspectRecord]:
    """Look inside a model."""
    inside = inspect(job.model)
    if not inside.parts:
        raise InvalidInput(
            f"{job.model} holds no attention layer, feed-forward network or norm that keyhole"
            " knows by its names or its graph. A callable of your own, package.module:NAME on"
            " (batch, length, width), can still be learned."
        )
    parts = [record_part(part, job.model, inside) for part in inside.parts]
    data = InspectRecord(
        sentence=_describe_inside(job.model, inside, parts),
        model=job.model,
        source=inside.source,
        parts=parts,
    )
    return Record(data, 0, tuple(list_part_rows(parts)))


def record_part(part: Part, model: str, inside: Inside) -> PartRecord:
    """A part of a model with what can be recovered of it."""
    advice = advise(part, model, inside)
    return PartRecord(
        kind=_name_kind(part),
        **asdict(part),
        recoverable=advice.recoverable,
        reason=advice.reason,
        command=advice.command,
        call=advice.call,
    )


def _name_kind(part: Part) -> str:
    if isinstance(part, AttentionPart):
        return "attention"
    return "network" if isinstance(part, NetworkPart) else "norm"


def _describe_inside(model: str, inside: Inside, parts: list[PartRecord]) -> str:
    counts = (
        (len(inside.attention), "attention layer"),
        (len(inside.networks), "feed-forward network"),
        (len(inside.norms), "norm"),
    )
    held = ", ".join(f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count)
    ready = sum(part.recoverable for part in parts)
    return f"{model} holds {held}; keyhole recovers {ready} of them."


def list_part_rows(parts: Iterable[PartRecord]) -> Iterator[tuple[str, str]]:
    """A table for a terminal: parts that differ by a number in their name stand in one row."""
    for name, same in _group_alike(parts):
        first = same[0]
        yield name, describe_part(first)
        yield "", first.reason
        if first.command is not None:
            yield "", first.command
            yield "", first.call or ""


def _group_alike(parts: Iterable[PartRecord]) -> Iterator[tuple[str, list[PartRecord]]]:
    """Parts alike but for numbers in their names, and one name for all of them."""
    groups: dict[tuple[str, str, str], list[PartRecord]] = {}
    for part in parts:
        plain = _NUMBER.sub("*", part.name)
        # Where projections are is told by their names, which have the same number in them.
        sizes = describe_part(structs.replace(part, layout=None))
        groups.setdefault((plain, sizes, part.reason), []).append(part)
    for (plain, _, _), same in groups.items():
        yield same[0].name if len(same) == 1 else f"{plain} ({len(same)})", same


def describe_part(part: PartRecord) -> str:
    """Kind and sizes of a part in one line."""
    if part.kind == "norm":
        eps = "" if part.eps is None else f", eps {part.eps:g}"
        return f"norm: {part.norm}, width {part.width}{eps}, {part.dtype}"
    if part.kind == "network":
        made = f"gated {part.activation}" if part.gated else str(part.activation or "unknown units")
        return f"network: width {part.width}, {part.hidden} hidden units, {made}, {part.dtype}"
    return f"attention: {', '.join(_list_attention_words(part))}"


def _list_attention_words(part: PartRecord) -> Iterator[str]:
    yield f"width {part.width}"
    if part.heads is not None and part.head_size is not None:
        yield f"{part.heads} heads of {part.head_size}"
    if part.groups is not None and part.groups != part.heads:
        yield f"{part.groups} groups"
    yield f"positions {part.positions}"
    if part.rope_base is not None:
        yield f"base {part.rope_base:g}"
    if part.rotary_share not in (None, 1.0):
        yield f"{part.rotary_share:.3g} of a head rotated"
    if part.window is not None:
        yield f"window {part.window}"
    if part.softcap is not None:
        yield f"cap {part.softcap:g}"
    if part.cross:
        yield "keys of other tokens"
    yield str(part.dtype)
    if part.layout:
        yield f"in {part.layout}"
