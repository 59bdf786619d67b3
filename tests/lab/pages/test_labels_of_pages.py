"""Every picture of every page: no two labels touch, none leaves its picture."""

import json
from pathlib import Path

import pytest

from keyhole.lab.jobs import ReportJob
from keyhole.lab.running import run_job
from support.drawn_labels import count_labels, find_faults
from support.recovery_runs import KINDS as RECOVERIES
from support.run_records import KINDS, TRAINED

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("kind", ["exact", "wide", "refuted", "budget", "scalar", "demo"])
def test_labels_of_a_recovery_keep_apart(learned, kind):
    assert kind in RECOVERIES
    page = learned(kind).page
    assert find_faults(page) == []
    assert count_labels(page) > (100 if kind == "demo" else 5)


@pytest.mark.parametrize("name", KINDS)
def test_labels_of_a_page_of_every_kind_keep_apart(runs, name):
    page = (Path(runs[name]) / "report.html").read_text()
    assert find_faults(page) == []
    assert count_labels(page) > 5


def test_labels_of_runs_side_by_side_keep_apart(runs, tmp_path):
    trained = tmp_path / "train"
    trained.mkdir()
    (trained / "record.json").write_text(json.dumps(TRAINED))
    places = (*runs.values(), str(trained))
    run_job(ReportJob(places, out=str(tmp_path / "all")))
    page = (tmp_path / "all" / "report.html").read_text()
    assert find_faults(page) == []
    assert count_labels(page) > 30
