"""The demo job: the tour of every capability on embedded defaults."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from msgspec import structs

from keyhole.identify import distance
from keyhole.lab.commands.recovery.finishing import finish_recovery_run
from keyhole.lab.commands.recovery.learn import write_model
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.demo.recovery_stops import (
    confront_stop,
    measure_error_curve,
    visit_block_stop,
    visit_exact_stops,
    visit_imperfect_stops,
    visit_network_stops,
)
from keyhole.lab.demo.task_stops import visit_task_stops, visit_twin_stop
from keyhole.lab.jobs import DemoJob
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import hold_directory, make_new_directory
from keyhole.lab.runs.record_parts import Seconds
from keyhole.lab.runs.recording import record_recovery
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.recovery_records import DemoRecord, Stop
from keyhole.lab.runs.rows import list_recovery_rows
from keyhole.learners.choosing import learn
from keyhole.models import Head, save
from keyhole.oracles import Local


def run_demo(job: DemoJob) -> Record[DemoRecord]:
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
        asked = recovery.ledger.total(without="verify").sequences
        stops = _visit_further_stops(seed_generator(job.seed + 1), directory, job.seed)
        data = structs.replace(
            record_recovery(recovery, DemoRecord),
            sentence=(
                f"{asked} queries recover a hidden {truth.width} x {truth.width} head, its"
                f" weights with a relative error of {gap.largest:.0e}; the limit is"
                f" {recovery.degrees_of_freedom}."
                f" {recovery.sentence}"
            ),
            model=write_model(recovery, directory),
            distance=gap.largest,
            certificate=confront_stop(truth, recovery, rng),
            stops=stops,
            curve=measure_error_curve(truth, asked, rng),
            seed=job.seed,
            # The command on the page learns this very file again.
            target=str(directory / "truth.safetensors"),
            learner="auto",
            run=str(directory),
            command=format_job_command("demo", job, "seed"),
        )
        spent = recovery.ledger.total().seconds
        took = Seconds(total=time.perf_counter() - start, oracle=spent)
        data = structs.replace(data, seconds=took)
        tour = tuple(("also", stop.sentence) for stop in data.stops)
        page = (("error of W", f"{gap.W:.1e}"), *tour, ("page", str(directory / "report.html")))
        lines = (*list_recovery_rows(data), *page)
        return finish_recovery_run(Record(data, 0, lines), directory)


def _visit_further_stops(rng: np.random.Generator, directory: Path, seed: int) -> list[Stop]:
    """Further stops: what answers give away and what not, what attention can compute."""
    # Spawned, so that every other stop hides what it would without this one.
    block = visit_block_stop(rng.spawn(1)[0], directory, seed)
    exact = visit_exact_stops(rng, directory)
    return [
        *exact,
        *visit_imperfect_stops(Head.random(8, rng=rng), rng),
        visit_twin_stop(str(directory / str(exact[-1].truth)), directory, seed),
        *visit_network_stops(rng, directory),
        block,
        *visit_task_stops(directory, seed),
    ]
