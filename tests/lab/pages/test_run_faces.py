"""Runs in a notebook: sentence, plots, table, page, and the same as plain data."""

import copy
import json
import re
from pathlib import Path

import pytest

import keyhole
from keyhole.errors import InvalidInput
from support import run_records
from support.drawn_labels import find_faults

PLOTTED = {
    "learn": "recovery",
    "audit": "audit",
    "twins": "twins",
    "build": "margin",
    "bound": "plane",
    "sweep": "sweep",
}


@pytest.mark.parametrize("name", PLOTTED)
def test_every_kind_of_run_shows_its_sentence_and_its_plots_without_a_script(runs, name):
    run = keyhole.open_run(runs[name])
    shown = run._repr_html_()
    assert run.record.sentence.split("'")[0] in shown
    assert "<script" not in shown
    assert "http" not in shown.replace("http://www.w3.org/", "")
    assert re.search("<svg|<img", shown)
    assert find_faults(shown) == []
    assert PLOTTED[name] in [plot for plot, _ in run._describe_plots()]
    assert run.plot(PLOTTED[name])._repr_html_() in shown
    assert type(shown) is type(run.plot(PLOTTED[name])._repr_html_()) is str


def test_a_run_is_one_line_with_its_command_and_its_sentence(runs):
    line = repr(keyhole.open_run(runs["audit"]))
    assert line == f"<Run: audit in audit. {run_records.AUDIT['sentence']}>"


def test_a_run_is_equal_to_its_copy_and_to_no_other(runs):
    one = keyhole.open_run(runs["learn"])
    assert copy.deepcopy(one) == one == keyhole.open_run(runs["learn"])
    assert hash(copy.deepcopy(one)) == hash(one)
    assert one != keyhole.open_run(runs["build"])
    assert one != "a run"


def test_a_plot_that_a_run_lacks_is_named_with_those_it_has(runs):
    with pytest.raises(InvalidInput, match=r"plot of this run \(recovery, queries\); got 'sweep'"):
        keyhole.open_run(runs["learn"]).plot("sweep")


def test_a_run_is_the_dictionary_that_its_file_holds(runs):
    for name in ("learn", "sweep"):
        held = json.loads((Path(runs[name]) / "record.json").read_text())
        assert keyhole.open_run(runs[name]).to_dict() == held


def test_attempts_of_an_audit_and_jobs_of_a_sweep_are_rows_of_a_table(runs):
    pytest.importorskip("pandas")
    attempts = keyhole.open_run(runs["audit"]).to_frame()
    assert list(attempts["policy"]) == ["full precision", "a budget", "a budget"]
    assert list(attempts["queries"]) == [151, 17, 17]
    jobs = keyhole.open_run(runs["sweep"]).to_frame()
    pairs = zip(jobs["job.model.width"], jobs["job.budget"], strict=True)
    assert sorted(pairs) == [(3, 5), (3, 60), (4, 5), (4, 60)]
    assert len(keyhole.open_run(runs["bound"]).to_frame()) == 1


def test_plots_and_the_page_of_a_run_are_kept_as_files(runs, tmp_path):
    run = keyhole.open_run(runs["audit"])
    assert run.page(tmp_path / "audit.html") == (tmp_path / "audit.html").read_text()
    run.plot().save(tmp_path / "audit.svg")
    assert (tmp_path / "audit.svg").read_text().startswith("<svg")
    run.plot().save(tmp_path / "audit.csv")
    assert "mark" in (tmp_path / "audit.csv").read_text()
    with pytest.raises(InvalidInput, match=r"saved as .svg or .csv; got 'audit.pdf'"):
        run.plot().save(tmp_path / "audit.pdf")
    keyhole.open_run(runs["learn"]).plot().save(tmp_path / "learn.png")
    assert (tmp_path / "learn.png").read_bytes().startswith(b"\x89PNG")


def test_a_directory_without_a_run_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(InvalidInput, match=r"holds no record.json. Give the directory of a run"):
        keyhole.open_run(tmp_path)
