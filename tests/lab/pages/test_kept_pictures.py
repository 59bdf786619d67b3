"""Pictures to keep: every figure of a page saved as SVG, PNG and CSV; a page that lists runs."""

import csv
import re
import shutil
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import ReportJob
from keyhole.lab.running import run_job
from keyhole.models import load
from support.browsers import CHROMIUM, launch

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def kept(runs, tmp_path_factory):
    """The teacher's walk: three pictures of a report in every form, and what hovering told."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    folder = tmp_path_factory.mktemp("kept")
    start = time.monotonic()
    files, said = {}, []
    with playwright.sync_playwright() as play:
        browser = launch(play)
        page = browser.new_context(offline=True, color_scheme="dark").new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((Path(runs["learn"]) / "report.html").as_uri())
        figures = {"matrix": page.locator("figure").first.locator(".keep")}
        figures["marks"] = page.locator("figure:has(svg) .keep").first
        figures["phases"] = page.locator("[role=region] + .keep").first
        for name, row in figures.items():
            for form in ("SVG", "PNG", "CSV"):
                with page.expect_download() as waited:
                    row.get_by_text(form, exact=True).click()
                files[name, form] = folder / f"{name}.{form.lower()}"
                waited.value.save_as(files[name, form])
        picture = page.locator("[data-cells]").first
        picture.focus()
        page.keyboard.press("ArrowDown")
        told = page.locator("figure output").first.text_content()
        before = picture.bounding_box()["width"]
        figures["matrix"].get_by_text("zoom").click()
        after = picture.bounding_box()["width"]
        browser.close()
    assert said == []
    return files, told, (before, after), time.monotonic() - start


def read_csv(path):
    return list(csv.reader(path.read_text().splitlines()))


def test_every_figure_is_saved_as_svg_that_stands_by_itself(kept):
    for (_, form), path in kept[0].items():
        if form != "SVG":
            continue
        drawn = ET.parse(path).getroot()  # noqa: S314
        assert drawn.tag == f"{SVG}svg"
        assert drawn.find(f"{SVG}style").text.count("--ours")
        assert len(drawn.findall(f".//{SVG}text")) >= 4
        assert not re.search(r"href=.http", path.read_text())


def test_every_figure_is_saved_as_png_of_some_size(kept):
    for (_, form), path in kept[0].items():
        if form == "PNG":
            content = path.read_bytes()
            assert content[:8] == b"\x89PNG\r\n\x1a\n"
            width, height = np.frombuffer(content[16:24], dtype=">u4")
            assert min(width, height) > 100


def test_numbers_are_saved_and_read_out_in_all_their_digits(kept, runs):
    W = load(Path(runs["learn"]) / "model.safetensors").W
    head, *rows = read_csv(kept[0]["matrix", "CSV"])
    assert head == ["row", "column", "W"]
    assert [float(value) for _, _, value in rows] == [float(v) for v in W.ravel()]
    assert float(kept[1].rpartition("= ")[2]) == W[0, 0]


def test_the_numbers_of_a_chart_are_saved_with_the_names_of_its_axes(kept):
    head, *rows = read_csv(kept[0]["phases", "CSV"])
    assert head[:2] == ["what", "name"]
    assert head[2] == "queries"
    bars = [row for row in rows if row[0] == "bar"]
    assert {row[3].partition(":")[0] for row in bars} == {"to learn", "to verify"}
    assert all(float(row[5]) > float(row[4]) for row in bars)


def test_a_picture_is_enlarged(kept):
    before, after = kept[2]
    assert after > 2 * before


def test_three_pictures_are_kept_within_a_minute(kept):
    assert kept[3] < 60


def test_a_picture_of_a_notebook_is_saved_in_every_form(tmp_path, runs):
    head = load(Path(runs["learn"]) / "model.safetensors")
    picture = head.plot("W")
    for form in ("svg", "png", "csv"):
        picture.save(tmp_path / f"w.{form}")
    rows = read_csv(tmp_path / "w.csv")
    assert [float(value) for _, _, value in rows[1:]] == [float(v) for v in head.W.ravel()]
    drawn = ET.parse(tmp_path / "w.svg").getroot()  # noqa: S314
    assert len(drawn.findall(f".//{SVG}image")) == 2
    assert (tmp_path / "w.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidInput, match=r"\.svg"):
        picture.save(tmp_path / "w.gif")


def test_all_runs_of_a_directory_are_listed_on_one_page_with_the_way_to_theirs(runs, tmp_path):
    root = tmp_path / "all"
    shutil.copytree(Path(runs["learn"]).parent, root)
    (root / "broken").mkdir()
    (root / "broken" / "record.json").write_text("no record")
    shutil.copytree(runs["learn"], root / "audit" / "attempt")
    done = run_job(ReportJob(index=str(root)))
    page = (root / "index.html").read_text()
    for name, directory in runs.items():
        assert f'href="{Path(directory).name}/report.html"' in page, name
    told = [run.sentence[:40] for run in done.data.runs if "learn" not in run.run]
    assert all(sentence in page.replace("&#x27;", "'") for sentence in told)
    assert "queries recover a 3 x 3 head" in page
    assert "Runs that cannot be read" in page
    # An attempt stands on the page of its audit.
    assert "audit/attempt" not in page
    assert done.data.report == str(root / "index.html")


def test_an_index_is_of_a_directory_that_holds_runs(runs, tmp_path):
    for job, said in (
        (ReportJob(index=runs["learn"]), "is a run itself"),
        (ReportJob(index=str(tmp_path / "none")), "is not a directory"),
        (ReportJob((runs["learn"],), index=str(tmp_path)), "name no RUN"),
    ):
        with pytest.raises(InvalidInput, match=said):
            run_job(job)
