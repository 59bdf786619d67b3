"""Experiments that come with keyhole: jobs make sense, comparisons are fair, lines are theory."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import keyhole
from keyhole.bounds.formulas import bound_by_prefixes
from keyhole.lab.commands.computing.train import check_training_job
from keyhole.lab.sweeps.files import read_sweep

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "experiments").glob("*.toml"))
MEASURED = sorted((ROOT / "experiments" / "measured").glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_training_of_an_experiment_makes_sense_to_its_model(file):
    sweep = read_sweep(str(file))
    assert sweep.name == file.stem
    for job in sweep.jobs:
        if sweep.kind == "train":
            check_training_job(job)


def test_models_that_are_compared_read_the_same_encodings():
    read = {}
    for job in read_sweep(str(ROOT / "experiments" / "sample-complexity.toml")).jobs:
        read.setdefault((job.model, job.samples), set()).add((job.codes, job.code_width))
    every = {("one-hot", None), ("random", 7), ("learned", 7)}
    assert {model for model, _ in read} == {"attention", "linear-attention", "mlp", "gru", "lstm"}
    assert all(encodings == every for encodings in read.values())


def test_the_lines_of_the_phase_diagram_are_where_the_verdicts_change():
    sweep = read_sweep(str(ROOT / "experiments" / "position-codes.toml"))
    lines = {name: dict(points) for name, points in sweep.figure.boundaries.items()}
    for q in sorted({job.q for job in sweep.jobs}):
        task = keyhole.SparseAverage(32, q, 4)
        said = [keyhole.bound(task, embed=m, positional=True).verdict for m in range(1, 18)]
        too_small = sum(verdict.name == "TOO_SMALL" for verdict in said)
        assert all(verdict.name == "ENOUGH" for verdict in said[too_small:])
        assert lines["weights exist"][q] == too_small + 1
        # Width 1 lies below the widths that are drawn.
        assert lines["too small"].get(q, 1) == too_small


def test_the_line_of_what_training_finds_is_where_medians_cross_a_tenth():
    held = (ROOT / "experiments" / "measured" / "position-codes.json").read_text()
    medians = {}
    for row in map(json.loads, held.splitlines()):
        medians.setdefault(row["job.q"], {})[row["job.embed"]] = row["record.error.median"]
    line = dict(read_sweep(str(ROOT / "experiments" / "position-codes.toml")).figure.boundary)
    assert set(line) == set(medians)
    for q, by_width in medians.items():
        widths = np.array(sorted(by_width))
        errors = np.array([by_width[m] for m in widths])
        # Errors fall as codes get wider: interpolation wants them rising.
        assert line[q] == pytest.approx(np.interp(-0.1, -errors, widths), abs=0.06)


def test_the_bound_of_networks_that_read_once_is_that_of_the_theorem():
    sweep = read_sweep(str(ROOT / "experiments" / "reading-once.toml"))
    assert {(job.passes, job.state_bits) for job in sweep.jobs} == {(1, 4)}
    told = bound_by_prefixes(keyhole.SparseAverage(6, 1, 1), 4 * sweep.jobs[0].hidden, 0.25)
    assert sweep.figure.upright == told.needed
    assert told.violated


def test_make_knows_every_long_experiment():
    (named,) = re.findall(r"^LONG := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(named.split()) <= {file.stem for file in FILES}


@pytest.mark.parametrize("file", MEASURED, ids=lambda file: file.stem)
def test_rows_that_are_kept_are_those_of_the_jobs_of_their_file(file):
    assert file.stat().st_size < 2_000_000
    jobs = read_sweep(str(ROOT / "experiments" / file.name).replace(".json", ".toml")).jobs
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(map(repr, map(name_fields, jobs))) == sorted(repr(told_fields(r)) for r in rows)
    for row in rows:
        assert len(row["record.curve.errors"]) == row["job.seeds"]
        trained = row["job.model"] != "constructed"
        assert row["record.curve.steps"][-1] == (row["job.steps"] if trained else 0)


# Whether and where a run is kept does not change what is trained.
APART = {"keep", "out", "resume", "force", "kind"}


def name_fields(job):
    told = json.loads(json.dumps(asdict(job)))
    return sorted((name, value) for name, value in told.items() if name not in APART)


def told_fields(row):
    told = {name[4:]: value for name, value in row.items() if name.startswith("job.")}
    return sorted((name, value) for name, value in told.items() if name not in APART)


def test_the_points_of_training_that_are_kept_are_of_every_task():
    points = json.loads((ROOT / "experiments" / "trained-points.json").read_text())
    asked = read_sweep(str(ROOT / "experiments" / "trained-sizes.toml")).jobs
    assert {point["task"] for point in points} == set(keyhole.tasks.TASKS)
    assert 2 * len(keyhole.tasks.TASKS) <= len(points) <= len(asked)
    assert {point["size"] for point in points} <= {float(job.embed) for job in asked}
