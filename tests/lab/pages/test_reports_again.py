"""Reports from what runs left behind: the same page again, and several runs on one page."""

import json
import re
import shutil
from pathlib import Path

import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import BoundJob, ReportJob
from keyhole.lab.running import run_job
from keyhole.lab.runs import summaries
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.reading import read_run
from support.browsers import CHROMIUM, FAULTS_OF_LABELS, launch
from support.pages import walked
from support.run_records import EVIL, KINDS, TRAINED


@pytest.mark.parametrize("name", KINDS)
def test_a_report_made_again_is_the_same_page(copied, name):
    directory = copied(name)
    before = (directory / "report.html").read_text()
    (directory / "report.html").unlink()
    record = run_job(ReportJob((str(directory),)))
    walked(directory / "report.html")
    assert (directory / "report.html").read_text() == before
    assert record.data.runs[0].kind == ("learn" if name == "spent" else name)
    assert record.data.sentence == json.loads((directory / "record.json").read_text())["sentence"]


@pytest.mark.parametrize("name", KINDS)
def test_the_summary_has_at_most_ten_lines_and_says_how_to_do_it_again(runs, tmp_path, name):
    text = run_job(ReportJob((runs[name],), out=str(tmp_path))).text()
    assert 4 <= len(text.splitlines()) <= 10
    assert re.search(r"again +keyhole (learn|audit|twins|build|bound|sweep)", text)
    assert "report.html" in text.splitlines()[-1]


@pytest.mark.parametrize("name", ["learn", "audit", "twins", "build", "bound"])
def test_every_page_says_what_was_asked_and_how_to_reproduce_it(runs, name):
    walk, page = walked(Path(runs[name]) / "report.html")
    text = walk.text
    assert "Asked: " in text
    assert "How to reproduce" in text
    assert "keyhole 0." in text
    assert len(page) < 6_000_000


def test_all_kinds_of_runs_are_compared_on_one_page(runs, tmp_path):
    record = run_job(ReportJob(tuple(runs.values()), out=str(tmp_path / "all")))
    walk, _ = walked(tmp_path / "all" / "report.html")
    text = walk.text
    assert record.data.report == str(tmp_path / "all" / "report.html")
    assert not (tmp_path / "all" / "record.json").exists()
    assert all(name in text for name in runs)
    asked = json.loads((Path(runs["learn"]) / "record.json").read_text())
    count = sum(n for phase, n in asked["queries"]["by_phase"].items() if phase != "verify")
    assert f"{count:,}; limit {asked['degrees_of_freedom']:,}" in text
    assert "Error against queries" in text
    assert "1 of 2 recoveries can be relied on" in text


def test_runs_of_one_name_are_told_apart(runs, tmp_path):
    for folder in ("a", "b"):
        shutil.copytree(runs["learn"], tmp_path / folder / "run")
    run_job(
        ReportJob(
            (str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run")), out=str(tmp_path / "both")
        )
    )
    text = walked(tmp_path / "both" / "report.html")[0].text
    assert str(tmp_path / "a" / "run") in text
    assert "differ by 0 at most" in text


def test_a_run_of_an_unknown_kind_is_shown_as_a_table_and_keeps_its_own_page(tmp_path):
    record = {
        "sentence": f"made {EVIL}",
        "loss": {"last": 0.25, "first": None},
        "steps": 1000,
        "tags": [1, 2],
    }
    (tmp_path / "record.json").write_text(json.dumps(record))
    run_job(ReportJob((str(tmp_path),)))
    walk, page = walked(tmp_path / "report.html")
    text = walk.text
    assert all(word in text for word in ("loss.last", "0.25", "1,000", "[1, 2]", "none"))
    assert "<script>alert" not in page
    (tmp_path / "report.html").write_text("its own")
    run_job(ReportJob((str(tmp_path),)))
    assert (tmp_path / "report.html").read_text() == "its own"


def test_a_training_is_drawn_from_its_record_and_beside_other_runs(runs, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "record.json").write_text(json.dumps(TRAINED))
    text = run_job(ReportJob((str(tmp_path / "train"),))).text()
    assert "0.15, from 0.1 to 0.2: squared error" in text
    run_job(ReportJob((str(tmp_path / "train"), runs["learn"]), out=str(tmp_path / "two")))
    for page in (tmp_path / "train" / "report.html", tmp_path / "two" / "report.html"):
        walk, drawn = walked(page)
        assert "step of training" in walk.text
        assert "<script>alert" not in drawn
    (tmp_path / "train" / "report.html").write_text("with pictures")
    run_job(ReportJob((str(tmp_path / "train"),)))
    assert (tmp_path / "train" / "report.html").read_text() == "with pictures"


def test_the_report_of_another_run_is_not_overwritten(runs):
    with pytest.raises(InvalidInput, match="would be lost"):
        run_job(ReportJob((runs["learn"],), out=runs["audit"]))


def test_the_command_of_a_run_names_every_option_once(runs):
    again = summaries.restore_command(read_run(runs["spent"]).data)
    assert again.endswith("--simulate noise=1e-4 --simulate token-bound=2")
    job = BoundJob("match2", length=4, modulus=5, embed=3, build=True, out="there")
    assert (
        format_job_command("bound", job)
        == "keyhole bound match2 --length 4 --modulus 5 --embed 3 --build"
    )


def test_pages_open_in_a_browser_with_everything_outside_blocked(runs, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    shutil.copytree(runs["learn"], tmp_path / "other")
    run_job(ReportJob((*runs.values(), str(tmp_path / "other")), out=str(tmp_path)))
    said, asked = [], []
    with playwright.sync_playwright() as play:
        browser = launch(play)
        page = browser.new_context(offline=True, viewport={"width": 360, "height": 800}).new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        widths, faults = [], []
        for place in (*map(Path, runs.values()), tmp_path):
            page.goto((place / "report.html").as_uri())
            widths.append(page.evaluate("document.documentElement.scrollWidth"))
            faults += page.evaluate(FAULTS_OF_LABELS)
        cells = page.locator("[data-cells]")
        cells.first.hover()
        told = page.locator("output").first.text_content()
        browser.close()
    assert (said, set(widths), faults) == ([], {360}, [])
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert re.match(r"W\[\d+, \d+\] = ", told)
