"""What a run was asked, what came of it, and the command that does it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyhole.drawing.html import format_number
from keyhole.lab.runs.command_lines import format_command_line
from keyhole.lab.runs.rows import (
    Data,
    Rows,
    list_build_rows,
    list_expectation_rows,
    list_recovery_rows,
    list_time_rows,
    list_twin_rows,
)
from keyhole.lab.runs.tables import flatten_table, format_value

_GOOD = ("EXACT", "WITHIN_TOLERANCE", "HOLDS", "ENOUGH")
LINES = 8  # rows between the sentence and where the page is
# A summary has few lines: these rows are for the terminal and the page of the run itself.
_LEFT_OUT = {"learn": ("status", "determined", "error bar"), "build": ("format", "frontier")}


def describe_question(kind: str, data: Data) -> str:
    """What was asked, in a sentence."""
    target = data.get("target")
    if kind == "demo":
        return (
            "Asked: hide models of every kind, recover them from answers alone, build and bound"
            " others."
        )
    if kind == "learn":
        budget = f", with at most {data['budget']:,} queries" if data.get("budget") else ""
        return f"Asked: what weights are behind {target}{budget}."
    if kind == "audit":
        return f"Asked: which output policy of {target} keeps how much back."
    if kind == "twins":
        return f"Asked: which other weights answer like {data.get('model')}."
    if kind == "build":
        return f"Asked: weights for {_describe_task(data.get('task'), data.get('sizes'))}."
    if kind == "bound":
        return (
            "Asked: is this size enough for"
            f" {_describe_task(data.get('task'), data.get('task_sizes'))}?"
        )
    if kind == "train":
        return (
            f"Asked: what {data.get('model_name')} learns of"
            f" {_describe_task(data.get('task'), data.get('task_sizes'))}."
        )
    return f"Asked: every job of {data.get('file')}." if kind == "sweep" else ""


def _describe_task(name: Any, sizes: Any) -> str:
    given: dict[str, Any] = dict(sizes or {})
    told = [
        key if value is True else f"{key} {value}"
        for key, value in given.items()
        if value is not False
    ]
    return f"{name} ({', '.join(told).replace('_', ' ')})" if told else str(name)


def restore_command(kind: str, data: Data) -> str:
    """The command that gives this record again; nothing where it is not known."""
    # Most records hold their command; those of recoveries are put together from their fields.
    if data.get("command"):
        return str(data["command"])
    if kind == "demo":
        return format_command_line("demo", (), {"seed": data["seed"]})
    if kind == "twins":
        return format_command_line("twins", (data["model"],), {"seed": data["seed"]})
    if kind == "sweep":
        return format_command_line("sweep", (data["file"],), {"out": data["run"]})
    return _restore_learn_command(data) if kind == "learn" else ""


def _restore_learn_command(data: Data) -> str:
    target = str(data["target"])
    options = {key: data.get(key) for key in ("learner", "seed", "budget")} | dict(
        data.get("options") or {}
    )
    # A saved model says its own width; any other target may need to be told.
    if not target.endswith(".safetensors"):
        options = {"width": data.get("width"), **options}
    return format_command_line("learn", (target,), options)


def describe_versions(data: Data) -> str:
    """What the run was made with."""
    names = (("version", "keyhole"), ("numpy", "numpy"), ("python", "Python"))
    return ", ".join(f"{name} {data[key]}" for key, name in names if data.get(key))


def summarise_record(kind: str, data: Data, room: int = LINES) -> list[tuple[str, str]]:
    """The record in a few rows, to stand under its sentence."""
    told = _SUMMARIES.get(kind, _summarise_other)(data)
    rows = [row for row in told if row[0] not in _LEFT_OUT.get(kind, ())]
    again = restore_command(kind, data)
    more = [("again", again)] if again else []
    return [*rows[: room - len(more)], *more]


def _summarise_demo(data: Data) -> Rows:
    # A tour is summed up by its first recovery, and room is left for its stops.
    told = [row for row in list_recovery_rows(data) if row[0] not in _LEFT_OUT["learn"]]
    yield from told[:5]
    stops = list(data["stops"])
    good = sum(1 for stop in stops if stop["verdict"] in _GOOD)
    yield "stops", f"{good} of {len(stops)} came out as they should"
    yield from list_time_rows(data)


def _summarise_audit(data: Data) -> Rows:
    rows = list(data["policies"])
    keep = [str(row["policy"]) for row in rows if row["protects"]]
    yield "target", str(data["target"])
    yield "policies", f"{len(rows)}; protecting: {', '.join(keep) or 'none'}"
    known = [
        (row["attempts"][-1]["error"], row)
        for row in rows
        if row["attempts"][-1]["error"] is not None
    ]
    # The best and the worst policy for an extractor say more than an average.
    for said_of, pick in (("least error", min), ("largest error", max)) if known else ():
        error, row = pick(known, key=lambda pair: pair[0])
        yield said_of, f"{format_number(error)} of {data['error_of']}: {row['policy']}"
    yield "queries", f"{data['queries']['total']:,} in all"
    yield from list_time_rows(data)


def _summarise_twins(data: Data) -> Rows:
    yield from list_twin_rows(data)
    yield from list_time_rows(data)


def _summarise_bound(data: Data) -> Rows:
    yield "verdict", str(data["verdict"])
    if told := data.get("inequality"):
        yield (
            str(told["name"]),
            f"{format_number(told['needed'])} needed, {format_number(told['available'])} available",
        )
    if talk := data.get("conversation"):
        yield (
            "conversation",
            (
                f"{format_number(talk['bits'])} bits; at least {format_number(talk['needed'])} are"
                " needed"
            ),
        )
    if built := data.get("built"):
        yield (
            "built",
            (
                f"{built['construction']}, key width {built['size']['embed']},"
                f" {built['size']['bits']} bits"
            ),
        )
    yield from list_time_rows(data)


def _summarise_sweep(data: Data) -> Rows:
    jobs = data["jobs"]
    yield "jobs", f"{jobs['done']:,} of {jobs['total']:,} done, {jobs['failed']:,} failed"
    yield from list_expectation_rows(data)


def _summarise_train(data: Data) -> Rows:
    error = data["error"]
    yield (
        "error",
        (
            f"{format_number(error['median'])}, from {format_number(error['min'])} to"
            f" {format_number(error['max'])}: {data['measure']}"
        ),
    )
    yield "model", f"{data['model_name']}, {data['parameters']:,} parameters"
    yield "trained", f"{data['steps']:,} steps, {data['seeds']} seeds"
    for name, value in list(data["lines"].items())[:3]:
        yield str(name).replace("_", " "), format_number(value)
    yield from list_time_rows(data)


def _summarise_other(data: Data) -> Rows:
    yield from (
        (name, format_value(value))
        for name, value in flatten_table(data).items()
        if name != "sentence"
    )


_SUMMARIES: dict[str, Callable[[Data], Rows]] = {
    "demo": _summarise_demo,
    "learn": list_recovery_rows,
    "audit": _summarise_audit,
    "twins": _summarise_twins,
    "build": list_build_rows,
    "bound": _summarise_bound,
    "sweep": _summarise_sweep,
    "train": _summarise_train,
}
