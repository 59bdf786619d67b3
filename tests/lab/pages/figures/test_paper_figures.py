"""Figures for papers: written as files, equal for equal runs, and never replaced."""

import itertools
import json
import shutil
import sys
from pathlib import Path

import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import ReportJob
from keyhole.lab.pages.figures import run_sheets
from keyhole.lab.pages.figures.figure_painter import paint_sheet
from keyhole.lab.running import run_job
from keyhole.lab.runs.reading import read_run
from support.run_records import EVIL, KINDS, TRAINED

PLOTS = {
    "learn": ("recovery", "queries"),
    "spent": ("queries",),
    "audit": ("audit",),
    "twins": ("twins",),
    "build": ("margin", "sizes"),
    "bound": ("plane",),
    "sweep": ("sweep",),
}


@pytest.mark.parametrize("names", [("spent", "bound"), pytest.param(KINDS, marks=pytest.mark.slow)])
def test_figures_are_written_as_svg_and_pdf_with_their_fonts_inside(runs, tmp_path, names):
    pytest.importorskip("matplotlib")
    record = run_job(
        ReportJob(tuple(runs[name] for name in names), out=str(tmp_path), figures=True)
    )
    written = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert len(written) == len(record.data.figures)
    assert set(written) == {
        f"{name}-{plot}.{form}" for name in names for plot in PLOTS[name] for form in ("svg", "pdf")
    }
    for path in (tmp_path / "figures").glob("*.pdf"):
        assert b"/FontFile2" in path.read_bytes()
    for path in (tmp_path / "figures").glob("*.svg"):
        assert "<text" not in path.read_text()


@pytest.mark.slow
def test_figures_of_runs_of_one_name_do_not_replace_each_other(runs, tmp_path):
    places = [
        Path(shutil.copytree(runs["twins"], tmp_path / folder / "run")) for folder in ("a", "b")
    ]
    record = run_job(ReportJob(tuple(map(str, places)), out=str(tmp_path / "both"), figures=True))
    written = {path.name for path in (tmp_path / "both" / "figures").iterdir()}
    assert written == {f"{k}-run-twins.{kind}" for k in (1, 2) for kind in ("svg", "pdf")}
    assert len(record.data.figures) == 4


def test_equal_runs_give_equal_figures_and_dollar_signs_are_words(copied, tmp_path):
    pytest.importorskip("matplotlib")
    directory = copied("twins")
    record = json.loads((directory / "record.json").read_text()) | {
        "sentence": f"costs $5 and $x^ {EVIL}"
    }
    (directory / "record.json").write_text(json.dumps(record))
    for out in ("a", "b"):
        run_job(ReportJob((str(directory),), out=str(tmp_path / out), figures=True))
    one, two = ((tmp_path / out / "figures" / "twins.svg").read_bytes() for out in ("a", "b"))
    assert one == two
    assert b"<script>" not in one


def test_without_matplotlib_a_sentence_says_how_to_get_it(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidInput, match=r"pip install 'keyhole\[figures\]'"):
        run_job(ReportJob((runs["learn"],), out=str(tmp_path), figures=True))


@pytest.mark.parametrize("name", [*KINDS, "train"])
def test_labels_of_figures_keep_apart_as_matplotlib_draws_them(runs, tmp_path, name):
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    (tmp_path / "record.json").write_text(json.dumps(TRAINED))
    run = read_run(str(tmp_path) if name == "train" else runs[name])
    for describe in run_sheets.list_sheets(run.kind).values():
        if (sheet := describe(run)) is None:
            continue
        figure = paint_sheet(sheet)
        renderer = agg.FigureCanvasAgg(figure).get_renderer()
        boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
        assert len(boxes) > 5
        whole = figure.bbox
        assert all(
            whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
            for box in boxes
        )
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
