"""What a run was asked, what came of it, and the command that does it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keyhole.drawing.html import format_number, format_seconds
from keyhole.lab.runs.command_lines import format_command_line
from keyhole.lab.runs.tables import flatten_table, format_value

Data = Mapping[str, Any]
Rows = Iterator[tuple[str, str]]
_GOOD = ("EXACT", "WITHIN_TOLERANCE", "HOLDS", "ENOUGH")
LINES = 8  # rows between the sentence and where the page is


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


def count_fewest_queries(data: Data) -> int | None:
    """Fewest queries any learner can do with."""
    freedom = data.get("degrees_of_freedom")
    # Each query gives so many numbers; no fewer queries can settle all parameters.
    return None if freedom is None else -(-freedom // (data.get("outputs") or 1))


def count_learning_queries(data: Data) -> int:
    """Queries that were asked, verification apart."""
    return int(data["queries"]["total"]) - count_phase_queries(data).get("verify", 0)


def count_phase_queries(data: Data) -> dict[str, int]:
    """Queries by phase; none where a run was stopped before they were counted."""
    counted: dict[str, int] = data["queries"].get("by_phase") or {}
    return dict(counted)


def summarise_record(kind: str, data: Data, room: int = LINES) -> list[tuple[str, str]]:
    """The record in a few rows, to stand under its sentence."""
    rows = list(_SUMMARIES.get(kind, _summarise_other)(data))
    again = restore_command(kind, data)
    more = [("again", again)] if again else []
    return [*rows[: room - len(more)], *more]


def _summarise_learn(data: Data) -> Rows:
    yield "verdict", str(data["verdict"])
    if data.get("class"):
        sizes = (
            f"{name} {data[name]:,}"
            for name in ("width", "rank", "heads", "outputs")
            if data.get(name)
        )
        yield "class", f"{data['class']}, {', '.join(sizes)}"
    spent = ", ".join(f"{name} {count:,}" for name, count in count_phase_queries(data).items())
    yield "queries", f"{data['queries']['total']:,}" + (f" ({spent})" if spent else "")
    if (least := count_fewest_queries(data)) is not None:
        yield (
            "limit",
            f"{least:,} queries; {count_learning_queries(data):,} were asked, verification apart",
        )
    if fresh := data.get("fresh_error"):
        yield (
            "error",
            (
                f"{format_number(fresh['relative'])} of the token values, over"
                f" {fresh['sequences']:,} fresh sequences"
            ),
        )
    if case := data.get("counterexample"):
        yield (
            "refuted by",
            f"a sequence of length {len(case['tokens'])}; gap {format_number(case['gap'])}",
        )
    yield from _summarise_certificate(data)
    yield from _summarise_time(data)


def _summarise_demo(data: Data) -> Rows:
    # A tour is summed up by its first recovery, and room is left for its stops.
    yield from list(_summarise_learn(data))[:5]
    stops = list(data["stops"])
    good = sum(1 for stop in stops if stop["verdict"] in _GOOD)
    yield "stops", f"{good} of {len(stops)} came out as they should"
    yield from _summarise_time(data)


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
    yield from _summarise_time(data)


def _summarise_twins(data: Data) -> Rows:
    for row in data["twins"]:
        far, gap = row["parameters_differ"], row["answers_differ"]
        yield (
            str(row["symmetry"]).lower(),
            f"parameters differ by {format_number(far)}, answers by {format_number(gap)}",
        )
    yield from _summarise_time(data)


def _summarise_build(data: Data) -> Rows:
    yield "construction", str(data["construction"])
    yield (
        "size",
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in data["size"].items()),
    )
    yield "margin", format_number(data["margin"])
    seen = data["checked"]
    yield (
        "checked",
        (
            f"{seen['inputs']:,} inputs{', all there are' * bool(seen['exhaustive'])},"
            f" {seen['errors']} errors"
        ),
    )
    yield "error bound", format_number(data["error_bound"])
    yield from _summarise_certificate(data)
    if trip := data.get("round_trip"):
        yield "round trip", str(trip["sentence"]).removeprefix("Round trip: ")
    yield from _summarise_time(data)


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
    yield from _summarise_time(data)


def _summarise_sweep(data: Data) -> Rows:
    jobs = data["jobs"]
    yield "jobs", f"{jobs['done']:,} of {jobs['total']:,} done, {jobs['failed']:,} failed"
    for one in data["expectations"]:
        yield (
            "met" if one["met"] else "MISSED",
            f"{one['sentence']}; measured {format_number(one['measured'])}",
        )


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
    yield from _summarise_time(data)


def _summarise_other(data: Data) -> Rows:
    yield from (
        (name, format_value(value))
        for name, value in flatten_table(data).items()
        if name != "sentence"
    )


def _summarise_certificate(data: Data) -> Rows:
    if held := data.get("certificate"):
        sampled = f", sampled: {held['sampled']}" if held.get("sampled") else ""
        yield "certificate", f"{held['theorem']} {held['outcome']}{sampled}"


def _summarise_time(data: Data) -> Rows:
    if spent := data.get("seconds"):
        yield "time", format_seconds(float(spent["total"]))


_SUMMARIES: dict[str, Callable[[Data], Rows]] = {
    "demo": _summarise_demo,
    "learn": _summarise_learn,
    "audit": _summarise_audit,
    "twins": _summarise_twins,
    "build": _summarise_build,
    "bound": _summarise_bound,
    "sweep": _summarise_sweep,
    "train": _summarise_train,
}
