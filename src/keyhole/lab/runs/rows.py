"""What a record says, as (label, text) rows: the same on a terminal, on a page, in a summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keyhole.drawing.html import format_number, format_seconds

Data = Mapping[str, Any]
Rows = Iterator[tuple[str, str]]


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


def list_recovery_rows(data: Data) -> Rows:
    """The record of a recovery; what it leaves open is left out."""
    yield "verdict", str(data["verdict"])
    if data.get("status"):
        yield "status", str(data["status"])
    yield from _list_class_rows(data)
    if data.get("determined"):
        yield "determined", str(data["determined"])
    spent = ", ".join(f"{name} {count:,}" for name, count in count_phase_queries(data).items())
    yield "queries", f"{data['queries']['total']:,}" + (f" ({spent})" if spent else "")
    if (least := count_fewest_queries(data)) is not None:
        yield (
            "limit",
            (
                f"{least:,} queries for {data['degrees_of_freedom']:,} degrees of freedom;"
                f" {count_learning_queries(data):,} were asked, verification apart"
            ),
        )
    yield from list_fresh_error_rows(data)
    if data.get("error_bar") is not None:
        yield "error bar", f"{format_number(data['error_bar'])} of W, relative"
    if case := data.get("counterexample"):
        yield (
            "refuted by",
            (
                f"a sequence of length {len(case['tokens'])}, in record.json; gap"
                f" {format_number(case['gap'])}"
            ),
        )
    yield from list_certificate_rows(data)
    yield from list_time_rows(data)


def _list_class_rows(data: Data) -> Rows:
    sizes = [
        f"{name} {data[name]:,}"
        for name in ("width", "rank", "heads", "outputs")
        if data.get(name) is not None
    ]
    if data.get("class"):
        reason = f": {data['reason']}" if data.get("reason") else ""
        yield "class", ", ".join([str(data["class"]), *sizes]) + reason
    # A run that the target ended has no class, but often knows what it asked.
    elif sizes:
        yield "sizes", ", ".join(sizes)


def list_fresh_error_rows(data: Data) -> Rows:
    """Agreement on fresh queries, where there were any."""
    if fresh := data.get("fresh_error"):
        yield (
            "fresh error",
            (
                f"{format_number(fresh['relative'])} of the token values, over"
                f" {fresh['sequences']:,} fresh sequences"
            ),
        )


def list_build_rows(data: Data) -> Rows:
    """The record of built weights."""
    yield "construction", str(data["construction"])
    yield (
        "size",
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in data["size"].items()),
    )
    if data.get("format"):
        yield "format", str(data["format"])
    yield "margin", format_number(data["margin"])
    yield "error bound", format_number(data["error_bound"])
    seen = data["checked"]
    yield (
        "checked",
        (
            f"{seen['inputs']:,} inputs{', all there are' * bool(seen['exhaustive'])},"
            f" {seen['errors']} errors"
        ),
    )
    yield from list_certificate_rows(data)
    frontier: Data = data.get("frontier") or {}
    for point in frontier.get("points", ()):
        yield "frontier", f"m = {point['embed']}, p = {point['bits']}: {point['construction']}"
    if trip := data.get("round_trip"):
        yield "round trip", str(trip["sentence"]).removeprefix("Round trip: ")
    yield from list_time_rows(data)


def list_twin_rows(data: Data) -> Rows:
    """What was changed in each twin, and how far it and its answers are away."""
    for row in data["twins"]:
        yield str(row["symmetry"]), f"{row['changed']} {describe_distances(row).capitalize()}."


def describe_distances(row: Data) -> str:
    """How far parameters are apart, and how far answers are, in words."""
    far, gap = row["parameters_differ"], row["answers_differ"]
    share = f"{100 * far:.0f} %" if far < 1 else "100 % or more"
    return (
        f"the parameters differ by {share}, the answers by"
        f" {'nothing' if gap == 0 else format_number(gap)}"
    )


def list_expectation_rows(data: Data) -> Rows:
    """Where a sweep should have landed, and where it did."""
    for one in data["expectations"]:
        measured = describe_measured(one["measured"])
        yield "met" if one["met"] else "MISSED", f"{one['sentence']}; measured {measured}"


def describe_measured(value: float | None) -> str:
    """A number that was measured; none where no job gave one."""
    return "nothing" if value is None else format_number(value)


def list_certificate_rows(data: Data) -> Rows:
    """The theorem and its outcome, where a record has a certificate."""
    if held := data.get("certificate"):
        sampled = f", sampled: {held['sampled']}" if held.get("sampled") else ""
        yield "certificate", f"{held['theorem']} {held['outcome']}{sampled}"


def list_time_rows(data: Data) -> Rows:
    """How long it took, and how much of that the target did."""
    if spent := data.get("seconds"):
        oracle = spent.get("oracle")
        share = "" if oracle is None else f", of which {format_seconds(oracle)} in the target"
        yield "time", format_seconds(float(spent["total"])) + share
