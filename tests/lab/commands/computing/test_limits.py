"""The limits command: rows for every task, and a page of planes with what training found."""

import json

import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import LimitsJob, SweepJob
from keyhole.lab.pages.limits_page import describe_task_plane
from keyhole.lab.running import run_job
from keyhole.lab.runs.task_records import TrainedPoint
from keyhole.tasks import TASKS


def test_every_task_has_a_row():
    record = run_job(LimitsJob(length=32))
    assert [row.task for row in record.data.rows] == list(TASKS)
    assert all(f"{name} " in record.text() for name in TASKS)
    assert record.data.planes == []


def test_a_page_draws_what_is_known_and_what_was_trained(tmp_path):
    trained = tmp_path / "trained.json"
    trained.write_text(json.dumps([{"task": "match3", "length": 32, "size": 40, "error": 0.25}]))
    out = tmp_path / "run"
    record = run_job(LimitsJob("match3", length=32, out=str(out), trained=str(trained)))
    page = (out / "report.html").read_text()
    assert "trained: error 0.25" in page
    assert "4 heads of key width 4, 32 bits" in page
    assert "one layer excluded" in page
    assert {row.length for row in record.data.planes} == {8, 16, 32, 64, 128, 256}
    assert (out / "record.json").is_file()


def test_nothing_is_shaded_at_lengths_where_nothing_is_excluded():
    rows = [run_job(LimitsJob("match3", length=length)).data.rows[0] for length in (16, 256)]
    assert [row.excluded > 0 for row in rows] == [False, True]
    chart = describe_task_plane(rows, [])
    edge = dict(chart.areas[0].points[:2])
    assert edge == {16.0: chart.y.low, 256.0: rows[1].excluded}


def test_what_makes_no_sense_is_refused_in_a_sentence(tmp_path):
    damaged = tmp_path / "trained.json"
    damaged.write_text('[{"task": "match3"}]')
    for job, words in (
        (LimitsJob("match5"), "TASK is one of"),
        (LimitsJob(bits=1), "between 2 and 53"),
        (LimitsJob(length=2), "between 4 and 4,096"),
        (LimitsJob(trained=str(damaged)), "give --out DIR too"),
        (LimitsJob(trained=str(damaged), out=str(tmp_path / "run")), "list of points"),
        (LimitsJob(trained=str(tmp_path / "no"), out=str(tmp_path / "run")), "is not there"),
    ):
        with pytest.raises(InvalidInput, match=words):
            run_job(job)
    assert not (tmp_path / "run").exists()


def test_the_trainings_of_a_sweep_stand_in_the_planes_of_their_tasks(tmp_path):
    file = tmp_path / "few.toml"
    file.write_text(
        """
name = "few"
job = "train"
[base]
seeds = 2
tests = 5
keep = false
[[list]]
task = "composition"
symbols = 3
model = "layers"
embed = 8
heads = 2
steps = 2
[[list]]
task = "sparse-average"
length = 8
q = 2
embed = 4
heads = 3
steps = 2
[[list]]
task = "match2"
length = 6
modulus = 7
model = "mlp"
hidden = 3
steps = 2
[[list]]
task = "match2"
length = 6
modulus = 7
model = "constructed"
"""
    )
    sweep = str(tmp_path / "few")
    run_job(SweepJob(str(file), workers=0, out=sweep))
    out = tmp_path / "limits"
    data = run_job(LimitsJob("composition", out=str(out), trained=sweep)).data
    # A function of 3 symbols and another one, and the token that asks; heads share the width of
    # layers, and have each their own in a unit.
    sizes = {(one.task, one.length, one.size) for one in data.trained}
    assert sizes == {("composition", 7, 8.0), ("sparse-average", 8, 12.0)}
    assert "trained, not found" in (out / "report.html").read_text()
    with pytest.raises(InvalidInput, match="no store at"):
        run_job(LimitsJob(trained=str(tmp_path), out=str(tmp_path / "other")))


@pytest.mark.parametrize("error", [0.04, 0.06])
def test_what_training_did_not_find_is_told_from_what_it_found(error):
    row = run_job(LimitsJob("match3", length=16)).data.rows[0]
    point = TrainedPoint(task="match3", length=16, size=8.0, error=error)
    names = [line.name for line in describe_task_plane([row], [point]).lines]
    assert ("trained" in names, "trained, not found" in names) == (error < 0.05, error > 0.05)
