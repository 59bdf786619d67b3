"""Stops of the tour that are runs of their own: twins, tasks, a round trip, a bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from keyhole.lab.commands.computing.bound import run_bound
from keyhole.lab.commands.computing.build import run_build
from keyhole.lab.commands.recovery.twins import run_twins
from keyhole.lab.jobs import BoundJob, BuildJob, TwinsJob

Stop = dict[str, Any]


def visit_twin_stop(model: str, directory: Path, seed: int) -> Stop:
    """Other parameters with the answers of a saved model."""
    out = directory / "twins"
    data = run_twins(TwinsJob(model, seed=seed, out=str(out), force=True)).data
    # The nearest twin and the largest gap: the tour claims no more than holds for all.
    rows = data["twins"]
    far = min(row["parameters_differ"] for row in rows)
    gap = max(row["answers_differ"] for row in rows)
    held = all(row["certificate"]["outcome"] == "HOLDS" for row in rows)
    sentence = (
        f"twins of two heads: {len(rows)} other sets of parameters, {far:.0%} or more away, answers"
        f" to {gap:.0e}, limit rounding: no query tells them apart"
    )
    verdict = "HOLDS" if held else "REFUTED"
    return {"name": "twins of two heads", "verdict": verdict, "run": out.name, "sentence": sentence}


def visit_task_stops(directory: Path, seed: int) -> list[Stop]:
    """Weights for three tasks, a round trip of one, and a bound with its conversation."""
    average = BuildJob("sparse-average", length=10, q=2, round_trip=True, seed=seed)
    built = _visit_build_stop("averages of 2 of 10 tokens", average, directory / "sparse-average")
    # The round trip is a stop of its own, made from the first build.
    trip = built.pop("round_trip") | {"accuracy": average.accuracy}
    match2 = BuildJob("match2", length=8, modulus=12, seed=seed)
    match3 = BuildJob("match3", length=6, modulus=8, embed=5, seed=seed)
    return [
        built,
        _visit_build_stop("Match2 modulo 12", match2, directory / "match2"),
        _visit_build_stop("Match3 modulo 8, third order", match3, directory / "match3"),
        _describe_round_trip(trip),
        _visit_bound_stop(directory / "bound", seed),
    ]


def _visit_build_stop(name: str, job: BuildJob, out: Path) -> Stop:
    data = run_build(replace(job, out=str(out), force=True)).data
    size = data["size"]
    held = data["certificate"]
    seen = data["checked"]
    # One assumption is enough for a sentence; the page of the run lists all.
    tight = held["assumptions"][0]
    told = (
        f"key width {size['embed']}, {size['bits']} bits, {seen['errors']} errors on"
        f" {seen['inputs']:,} inputs"
    )
    sentence = (
        f"{name}: {told}; {tight['name']} {tight['measured']:.2g}, limit {tight['limit']:.2g}"
    )
    stop = {"name": name, "verdict": held["outcome"], "run": out.name, "sentence": sentence}
    return stop | ({"round_trip": data["round_trip"]} if "round_trip" in data else {})


def _describe_round_trip(trip: dict[str, Any]) -> Stop:
    """Weights built for a task, hidden, recovered and scored on the task again."""
    errors = f"error on the task {trip['error_before']:.0e} before, {trip['error_after']:.0e} after"
    told = f"{trip['verdict']}, {trip['queries']:,} queries, {errors}, limit {trip['accuracy']:.0e}"
    sentence = f"round trip of these averages: {told}"
    return {
        "name": "round trip",
        "verdict": trip["verdict"],
        "queries": trip["queries"],
        "sentence": sentence,
    }


def _visit_bound_stop(out: Path, seed: int) -> Stop:
    job = BoundJob(
        "sparse-average", length=8, q=2, embed=4, bits=24, seed=seed, out=str(out), force=True
    )
    data = run_bound(job).data
    talk = data["conversation"]
    sentence = (
        f"averages of 2 of 8 tokens with key width 4: {data['verdict']}; two people run it with"
        f" {talk['bits']:,} bits, limit {talk['needed']:,}"
    )
    return {
        "name": "a bound with its protocol",
        "verdict": data["verdict"],
        "run": out.name,
        "sentence": sentence,
    }
