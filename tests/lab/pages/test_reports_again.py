"""Reports from what runs left behind: the same page again, several runs on one page, and damage
told in sentences.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keyhole.drawing import charts
from keyhole.drawing.html import escape_text
from keyhole.errors import InvalidInput
from keyhole.lab.jobs import BoundJob, ReportJob
from keyhole.lab.pages import audit_page
from keyhole.lab.pages.parts.sweep_maps import draw_sweep_map, measure_cells, place_value
from keyhole.lab.pages.sweep_page import group_values, trace_known_lines
from keyhole.lab.running import run_job
from keyhole.lab.runs import summaries
from keyhole.lab.runs.command_lines import format_command_line
from support.pages import walked

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
SWEEP = """
name = "small"
job = "trial"
[base]
model.kind = "head"
[grid]
model.width = [3, 4]
budget = [5, 60]
[figure]
x = "job.budget"
y = "job.model.width"
kind = "map"
value = "record.verdict"
value_equals = "UNVERIFIED"
boundary = [[5, 3], [60, 4]]
[[expect]]
value = "record.error"
statistic = "max"
at_most = 2
"""


MAKE = """
import numpy as np
from keyhole.lab.jobs import BoundJob, BuildJob, LearnJob, SweepJob, TwinsJob
from keyhole.lab.running import run_job
from keyhole.models import Head, MultiHead, save
rng = np.random.default_rng(5)
save(Head.random(3, rng=rng), "head.safetensors")
save(MultiHead.random(3, heads=2, rng=rng), "heads.safetensors")
run_job(LearnJob("head.safetensors", out="learn"))
run_job(LearnJob("head.safetensors", out="spent", budget=7,
                 simulate=("noise=1e-4", "token-bound=2")))
run_job(TwinsJob("heads.safetensors", out="twins"))
run_job(BuildJob("match2", length=4, modulus=5, out="build"))
run_job(BoundJob("sparse-average", length=6, q=1, embed=6, bits=12, out="bound"))
run_job(SweepJob("small.toml", workers=0, out="sweep"))
"""
ATTEMPT = {
    "options": {},
    "queries": 151,
    "verification": 128,
    "error": 7e-15,
    "function_error": 4e-15,
}
ATTEMPT |= {
    "verdict": "EXACT",
    "status": "RECOVERED",
    "sentence": "done",
    "model": None,
    "run": None,
    "seconds": None,
}
LESS = ATTEMPT | {
    "options": {"budget": 17},
    "queries": 17,
    "verification": 0,
    "error": 0.9,
    "verdict": "BUDGET_SPENT",
}
AUDIT = {
    "sentence": (
        "1 of 2 output policies do not protect this target; a budget below 23 queries does."
    ),
    "target": "head.safetensors",
    "width": 3,
    "outputs": 1,
    "token_bound": 1.73,
    "error_of": "W",
    "policies": [
        {
            "policy": "full precision",
            "simulate": [],
            "protects": False,
            "verdict": "none",
            "attempts": [ATTEMPT],
        },
        {
            "policy": "a budget",
            "simulate": [],
            "protects": True,
            "verdict": "some",
            "attempts": [LESS, LESS],
        },
    ],
    "queries": {"total": 232},
    "seed": 0,
    "command": "keyhole audit head.safetensors",
    "run": "audit",
    "seconds": {"total": 1.5},
    "version": "0.1.0",
}
KINDS = ("learn", "spent", "audit", "twins", "build", "bound", "sweep")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A small run of every kind but the demo, by its name, made by another process; the audit is a
    record by hand.
    """
    folder = tmp_path_factory.mktemp("runs")
    (folder / "small.toml").write_text(SWEEP)
    subprocess.run(
        [sys.executable, "-c", MAKE], cwd=folder, check=True, capture_output=True, timeout=120
    )
    (folder / "audit").mkdir()
    (folder / "audit" / "record.json").write_text(json.dumps(AUDIT))
    (folder / "audit" / "report.html").write_text(audit_page.draw_audit_page(AUDIT))
    return {name: str(folder / name) for name in KINDS}


@pytest.fixture
def copied(runs, tmp_path):
    """`copied(name)` is a copy of a run that may be spoilt."""

    def copy(name):
        return Path(shutil.copytree(runs[name], tmp_path / name))

    return copy


@pytest.mark.parametrize("name", KINDS)
def test_a_report_made_again_is_the_same_page(copied, name):
    directory = copied(name)
    before = (directory / "report.html").read_text()
    (directory / "report.html").unlink()
    record = run_job(ReportJob((str(directory),)))
    walked(directory / "report.html")
    assert (directory / "report.html").read_text() == before
    assert record.data["runs"][0]["kind"] == ("learn" if name == "spent" else name)
    assert (
        record.data["sentence"] == json.loads((directory / "record.json").read_text())["sentence"]
    )


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
    assert record.data["report"] == str(tmp_path / "all" / "report.html")
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


@pytest.mark.parametrize("name", ["learn", "audit", "twins", "build", "bound", "sweep"])
def test_hostile_words_in_a_record_stay_words(copied, tmp_path, name):
    def poisoned(value, key=""):
        if isinstance(value, dict):
            return {k: poisoned(entry, k) for k, entry in value.items()}
        if isinstance(value, list):
            return [poisoned(entry, key) for entry in value]
        kept = (
            "theorem",
            "outcome",
            "symmetry",
            "verdict",
            "axis",
            "sender",
            "receiver",
            "x",
            "y",
            "value",
            "kind",
        )
        return value + EVIL if isinstance(value, str) and key not in kept else value

    directory = copied(name)
    record = json.loads((directory / "record.json").read_text())
    models = [row["model"] for row in record["twins"]] if name == "twins" else []
    bad = poisoned(record)
    for row, path in zip(bad.get("twins", []), models, strict=True):
        row["model"] = path
    (directory / "record.json").write_text(json.dumps(bad))
    run_job(ReportJob((str(directory),)))
    run_job(ReportJob((str(directory), str(copied("spent"))), out=str(tmp_path / "two")))
    for page in (directory / "report.html", tmp_path / "two" / "report.html"):
        walk, text = walked(page)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "alert(1)" in walk.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "holds no record.json"),
        ("{", "cannot be read as JSON"),
        ("[1, 2]", "holds no JSON object"),
        ('{"verdict": 3, "queries": "many", "class": null}', "is damaged"),
        ('{"policies": [{}], "error_of": "W"}', "is damaged"),
        ('{"expectations": 7, "jobs": {}, "store": ""}', "is damaged"),
    ],
)
def test_a_missing_or_damaged_record_is_told_in_a_sentence(tmp_path, content, said):
    if content is not None:
        (tmp_path / "record.json").write_text(content)
    with pytest.raises(InvalidInput, match=said):
        run_job(ReportJob((str(tmp_path),)))


@pytest.mark.parametrize(
    ("name", "spoilt"),
    [
        ("learn", {"budget": "many"}),
        ("build", {"sizes": [1]}),
        ("bound", {"task_sizes": 3}),
        ("train", {"curve": {"steps": [0, 10], "median": [1.0, ["x"]]}}),
    ],
)
def test_what_was_asked_and_learning_curves_of_a_damaged_record_are_told_too(
    copied, tmp_path, name, spoilt
):
    directory = tmp_path / name if name == "train" else copied(name)
    directory.mkdir(exist_ok=True)
    record = TRAINED if name == "train" else json.loads((directory / "record.json").read_text())
    (directory / "record.json").write_text(json.dumps(record | spoilt))
    with pytest.raises(InvalidInput, match="is damaged"):
        run_job(ReportJob((str(directory),)))
    with pytest.raises(InvalidInput, match="is damaged"):
        run_job(ReportJob((str(directory), str(copied("spent"))), out=str(tmp_path / "two")))


def test_a_store_is_read_under_any_name_and_no_other_file_is_made(copied, tmp_path):
    there = copied("sweep").rename(tmp_path / "50%20of? #é 'x\"")
    before = set(tmp_path.iterdir())
    assert "4 of 4" in run_job(ReportJob((str(there),))).text()
    assert set(tmp_path.iterdir()) == before


def test_a_record_cannot_steer_the_terminal_nor_add_lines(tmp_path):
    record = {"sentence": "\x1b[2Jgone\n  verdict  EXACT", "note\x07": "a\rb\u202e"}
    (tmp_path / "record.json").write_text(json.dumps(record))
    text = run_job(ReportJob((str(tmp_path),))).text()
    assert text.replace("\n", "").isprintable()
    assert len(text.splitlines()) == 3
    assert "\\x1b[2Jgone" in text


def test_a_run_that_is_nowhere_and_no_run_at_all_are_told(tmp_path):
    with pytest.raises(InvalidInput, match="is not a directory"):
        run_job(ReportJob((str(tmp_path / "nowhere"),)))
    with pytest.raises(InvalidInput, match="at least one RUN"):
        run_job(ReportJob(()))


def test_the_command_line_ends_with_the_sentence_and_code_2(keyhole, tmp_path):
    (tmp_path / "record.json").write_text("{")
    ran = keyhole("report", ".")
    assert (ran.code, ran.out) == (2, "")
    assert "cannot be read as JSON" in ran.err
    assert "Traceback" not in ran.err


def test_a_lost_store_or_model_is_named(copied):
    sweep, twins = copied("sweep"), copied("twins")
    (sweep / "store.sqlite").unlink()
    next(twins.glob("twin-*.safetensors")).unlink()
    with pytest.raises(InvalidInput, match="no store at"):
        run_job(ReportJob((str(sweep),)))
    with pytest.raises(InvalidInput, match="no model file at"):
        run_job(ReportJob((str(twins),)))


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


TRAINED = {
    "sentence": f"trained {EVIL}",
    "task": "sparse-average",
    "task_sizes": {"length": 8, "q": 2},
    "model_kind": "attention",
    "model_name": f"attention {EVIL}",
    "model_sizes": {"embed": 4},
    "parameters": 120,
    "steps": 20,
    "seed": 0,
    "seeds": 2,
    "measure": "squared error",
    "errors": [0.1, 0.2],
    "error": {"min": 0.1, "median": 0.15, "max": 0.2},
    "lines": {"zero": 1.0, "mean_of_all": 0.75},
    "curve": {
        "steps": [0, 10, 20],
        "errors": [[1.0, 0.5, 0.1], [1.0, 0.6, 0.2]],
        "median": [1.0, 0.55, 0.15],
    },
    "command": "keyhole train sparse-average",
}
TRAINED["curve"] |= {"alignment": [], "best_steps": [20, 20]}


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


def test_figures_of_lines_take_columns_of_lists_and_lines_that_are_known():
    rows = [{"x": [1, 2], "y": [[1.0, 2.0], [3.0, 4.0]], "known": [5.0, 6.0]}]
    figure = {"x": "x", "y": "y", "lines": {"theory": "known"}}
    assert group_values(rows, figure) == {"": {1.0: [1.0, 3.0], 2.0: [2.0, 4.0]}}
    (line,) = trace_known_lines(rows, figure)
    assert [(p.x, p.y) for p in line.points] == [(1.0, 5.0), (2.0, 6.0)]


def test_the_report_of_another_run_is_not_overwritten(runs):
    with pytest.raises(InvalidInput, match="would be lost"):
        run_job(ReportJob((runs["learn"],), out=runs["audit"]))


def test_the_command_of_a_run_names_every_option_once(runs):
    record = json.loads((Path(runs["spent"]) / "record.json").read_text())
    again = summaries.restore_command("learn", record)
    assert again.endswith("--simulate noise=1e-4 --simulate token-bound=2")
    job = BoundJob("match2", length=4, modulus=5, embed=3, build=False, out="there")
    assert (
        format_command_line("bound", job, "task")
        == "keyhole bound match2 --length 4 --modulus 5 --embed 3 --no-build"
    )


def test_a_map_counts_shares_and_puts_its_line_where_numbers_lie():
    rows = [
        {"a": x, "b": y, "c": "yes" if x > y else "no"}
        for x in (1, 2, 4)
        for y in (1, 3)
        for _ in range(2)
    ]
    figure = {
        "x": "a",
        "y": "b",
        "value": "c",
        "value_equals": "yes",
        "boundary": [[1, 1], [3, 2], [9, 9]],
    }
    held = measure_cells(rows, figure)
    assert held.z == {(1, 1): 0, (1, 3): 0, (2, 1): 1, (2, 3): 0, (4, 1): 1, (4, 3): 1}
    assert place_value(held.x, 3) == pytest.approx(
        2 / 3
    )  # half-way between the middles of the second and third of three
    drawn = draw_sweep_map(rows, figure)
    assert drawn.count("<title>") == 6
    assert re.search(
        r'class="dashed" [^>]* points="[\d.]+,[\d.]+ [\d.]+,[\d.]+"', drawn
    )  # what lies outside is left out
    assert "No row" in draw_sweep_map(rows, figure | {"value": "nothing"})


@pytest.mark.parametrize(("low", "high"), [(2.0, 30.0), (1e-9, 1.0), (3.0, 3.3), (0.5, 0.5)])
def test_a_logarithmic_axis_names_numbers_that_lie_on_it(low, high):
    scale = charts.fit_scale([low, high], 0.0, 100.0, log=True)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 9
    assert all(low * 0.8 <= tick <= high * 1.25 for tick in ticks)


def test_names_of_lines_do_not_touch():
    lines = [
        charts.Line(f"line {k}", "ours", [charts.Point(1, 1), charts.Point(2, 1 + k / 1000)])
        for k in range(4)
    ]
    svg = charts.draw_chart(lines, charts.Axis("x"), charts.Axis("y"), about="four lines")
    heights = sorted(float(y) for y in re.findall(r'class="ours" x="548.0" y="([\d.]+)"', svg))
    assert len(heights) == 4
    assert min(np.diff(heights)) >= 14


def test_the_picture_is_wide_enough_for_its_longest_name_and_names_keep_off_marks():
    name = "noise of 0.04, tokens up to norm 5.66"
    lines = [charts.Line(name, "ours", [charts.Point(1, 1), charts.Point(2, 2)])]
    lines += [
        charts.Line("beside", "peer", [charts.Point(1, 1.5)]),
        charts.Line("", "bad", [charts.Point(1.05, 1.5)]),
    ]
    svg = charts.draw_chart(lines, charts.Axis("x"), charts.Axis("y"), about="names")
    x, height = (float(held) for held in re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups())
    assert (x >= charts.RIGHT + 6 * len(name), height) == (True, charts.HEIGHT)
    cross = float(re.search(r'class="bad" d="M[\d.]+ ([\d.]+)', svg).group(1))
    beside = float(re.search(r'y="([\d.]+)">beside', svg).group(1)) - 4
    assert abs(beside - cross) >= 14


def test_a_policy_of_an_audit_is_named_in_full():
    policies = [
        AUDIT["policies"][1]
        | {
            "policy": "a budget below 1,087 queries",
            "attempts": [LESS, LESS | {"queries": 9}],
        }
    ]
    assert ">a budget below 1,087 queries</text></svg>" in audit_page.draw_audit_page(
        AUDIT | {"policies": policies}
    )


def test_an_axis_takes_hostile_names():
    svg = charts.draw_chart(
        [charts.Line(EVIL, "ours", [charts.Point(1, 1)])],
        charts.Axis(EVIL),
        charts.Axis(EVIL),
        about=EVIL,
    )
    assert "<script>" not in svg
    assert escape_text(EVIL) in svg


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
    assert len(written) == len(record.data["figures"])
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
    assert len(record.data["figures"]) == 4


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


def test_pages_open_in_a_browser_with_everything_outside_blocked(runs, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium")
    shutil.copytree(runs["learn"], tmp_path / "other")
    run_job(ReportJob((*runs.values(), str(tmp_path / "other")), out=str(tmp_path)))
    said, asked = [], []
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_context(offline=True, viewport={"width": 360, "height": 800}).new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        widths = []
        for place in (*map(Path, runs.values()), tmp_path):
            page.goto((place / "report.html").as_uri())
            widths.append(page.evaluate("document.documentElement.scrollWidth"))
        cells = page.locator("[data-cells]")
        cells.first.hover()
        told = page.locator("output").first.text_content()
        browser.close()
    assert (said, set(widths)) == ([], {360})
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert re.match(r"W\[\d+, \d+\] = ", told)
