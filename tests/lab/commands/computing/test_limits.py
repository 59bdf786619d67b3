"""The limits command: rows for every task, and a page of planes with what training found."""

import json

import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import LimitsJob
from keyhole.lab.pages.limits_page import describe_task_plane
from keyhole.lab.running import run_job
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
