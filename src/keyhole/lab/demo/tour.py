"""The demo job: the tour of every capability on embedded defaults."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from keyhole.identify import distance
from keyhole.lab.commands.recovery.finishing import finish_recovery_run
from keyhole.lab.commands.recovery.learn import write_model
from keyhole.lab.commands.shared import list_versions, seed_generator
from keyhole.lab.demo.recovery_stops import (
    measure_error_curve,
    visit_exact_stops,
    visit_imperfect_stops,
    visit_network_stops,
)
from keyhole.lab.demo.task_stops import visit_task_stops, visit_twin_stop
from keyhole.lab.jobs import DemoJob
from keyhole.lab.runs import records
from keyhole.lab.runs.directories import hold_directory, make_new_directory
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.rows import list_recovery_rows
from keyhole.learners.choosing import learn
from keyhole.models import Head, save
from keyhole.oracles import Local


def run_demo(job: DemoJob) -> Record:
    """Recover, build and bound models of every kind, write the page, return the record."""
    start = time.perf_counter()
    # The learner's generator must know nothing of the hidden weights.
    hidden, rng = seed_generator(job.seed).spawn(2)
    truth = Head.random(16, rng=hidden)
    recovery = learn(Local(truth), rng=rng)
    found = recovery.unwrap()
    gap = distance(truth, found)
    with hold_directory(
        Path(job.out) if job.out is not None else make_new_directory("demo")
    ) as directory:
        save(truth, directory / "truth.safetensors")
        data = records.record_recovery(recovery) | write_model(recovery, directory)
        asked = recovery.ledger.total(without="verify").sequences
        data |= {
            "sentence": (
                f"{asked} queries give away a hidden {truth.width} x {truth.width} head to"
                f" {gap.largest:.0e}; the limit is {recovery.degrees_of_freedom}."
                f" {recovery.sentence}"
            ),
            "distance": gap.largest,
            "stops": _visit_further_stops(seed_generator(job.seed + 1), directory, job.seed),
            "curve": measure_error_curve(truth, asked, rng),
            "seconds": {
                "total": time.perf_counter() - start,
                "oracle": recovery.ledger.total().seconds,
            },
            "seed": job.seed,
            # The command on the page learns this very file again.
            "target": str(directory / "truth.safetensors"),
            "learner": "auto",
            "run": str(directory),
            **list_versions(),
        }
        tour = tuple(("also", stop["sentence"]) for stop in data["stops"])
        page = (("error of W", f"{gap.W:.1e}"), *tour, ("page", str(directory / "report.html")))
        lines = (*list_recovery_rows(data), *page)
        return finish_recovery_run(Record(data, 0, lines), directory)


def _visit_further_stops(
    rng: np.random.Generator, directory: Path, seed: int
) -> list[dict[str, Any]]:
    """Further stops: what answers give away and what not, what attention can compute."""
    exact = visit_exact_stops(rng, directory)
    return [
        *exact,
        *visit_imperfect_stops(Head.random(8, rng=rng), rng),
        visit_twin_stop(str(directory / exact[-1]["truth"]), directory, seed),
        *visit_network_stops(rng, directory),
        *visit_task_stops(directory, seed),
    ]
