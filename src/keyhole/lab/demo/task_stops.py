"""Stops of the tour that are runs of their own: twins, tasks, a round trip, a bound."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from keyhole.lab.commands.computing.bound import run_bound
from keyhole.lab.commands.computing.build import run_build
from keyhole.lab.commands.recovery.twins import run_twins
from keyhole.lab.jobs import BoundJob, BuildJob, TwinsJob
from keyhole.lab.runs.recovery_records import Stop
from keyhole.lab.runs.task_records import BuildRecord


def visit_twin_stop(model: str, directory: Path, seed: int) -> Stop:
    """Other parameters with the answers of a saved model."""
    out = directory / "twins"
    data = run_twins(TwinsJob(model, seed=seed, out=str(out), force=True)).data
    # The nearest twin and the largest gap: the tour claims no more than holds for all.
    rows = data.twins
    far = min(row.parameters_differ or 0.0 for row in rows)
    gap = max(math.inf if row.answers_differ is None else row.answers_differ for row in rows)
    held = all(row.certificate.outcome == "HOLDS" for row in rows)
    sentence = (
        f"twins of two heads: {len(rows)} other sets of parameters, {far:.0%} or more away, whose"
        f" answers differ by {gap:.0e} (limit: rounding); no query tells them apart"
    )
    verdict = "HOLDS" if held else "REFUTED"
    return Stop(name="twins of two heads", verdict=verdict, run=out.name, sentence=sentence)


def visit_task_stops(directory: Path, seed: int) -> list[Stop]:
    """Weights for three tasks, a round trip of one, and a bound with its conversation."""
    average = BuildJob("sparse-average", length=10, q=2, round_trip=True, seed=seed)
    built = _build_into(average, directory / "sparse-average")
    match2 = BuildJob("match2", length=8, modulus=12, seed=seed)
    match3 = BuildJob("match3", length=6, modulus=8, embed=5, seed=seed)
    return [
        _describe_build("averages of 2 of 10 tokens", built),
        _describe_build("Match2 modulo 12", _build_into(match2, directory / "match2")),
        _describe_build("Match3 modulo 8, third order", _build_into(match3, directory / "match3")),
        # The round trip is a stop of its own, made from the first build.
        _describe_round_trip(built),
        _visit_bound_stop(directory / "bound", seed),
    ]


def _build_into(job: BuildJob, out: Path) -> BuildRecord:
    return run_build(replace(job, out=str(out), force=True)).data


def _describe_build(name: str, data: BuildRecord) -> Stop:
    size, held, seen = data.size, data.certificate, data.checked
    if size is None or held is None or seen is None:
        return Stop(name=name, verdict=data.status, sentence=f"{name}: {data.sentence}")
    # One assumption is enough for a sentence; the page of the run lists all.
    tight = held.assumptions[0]
    told = (
        f"key width {size.embed}, {size.bits} bits, {seen.errors} errors on {seen.inputs:,} inputs"
    )
    limits = f"{tight.name} {tight.measured:.2g}, limit {tight.limit:.2g}"
    return Stop(
        name=name,
        verdict=held.outcome,
        run=Path(str(data.run)).name,
        sentence=f"{name}: {told}; {limits}",
    )


def _describe_round_trip(data: BuildRecord) -> Stop:
    """Weights built for a task, hidden, recovered and scored on the task again."""
    trip = data.round_trip
    if trip is None or trip.queries is None or trip.error_after is None:
        return Stop(name="round trip", verdict=None, sentence="round trip: there is none.")
    errors = f"error on the task {trip.error_before:.0e} before, {trip.error_after:.0e} after"
    told = f"{trip.verdict}, {trip.queries:,} queries, {errors}, limit {data.accuracy:.0e}"
    return Stop(
        name="round trip",
        verdict=trip.verdict,
        queries=trip.queries,
        sentence=f"round trip of these averages: {told}",
    )


def _visit_bound_stop(out: Path, seed: int) -> Stop:
    job = BoundJob(
        "sparse-average",
        length=8,
        q=2,
        embed=4,
        bits=24,
        # A conversation needs weights to run.
        build=True,
        seed=seed,
        out=str(out),
        force=True,
    )
    data = run_bound(job).data
    sentence = f"averages of 2 of 8 tokens with key width 4: {data.verdict}"
    if (talk := data.conversation) is not None:
        sent = f"two people who share out the tokens run it with {talk.bits:,} bits"
        sentence = f"{sentence}; {sent}, limit {talk.needed or 0:,}"
    return Stop(
        name="a bound with its protocol", verdict=data.verdict, run=out.name, sentence=sentence
    )
