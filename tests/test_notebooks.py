"""Faces and the student's walk in notebooks of Jupyter and marimo, as a browser shows them."""

import subprocess
import sys

import pytest

from support.browsers import FAULTS_OF_LABELS, launch, needs_chromium
from support.notebooks import SIZES, serve_notebook
from support.paths import ROOT

# Every line is a cell, and shows its last value.
FACES = """
import keyhole
head = keyhole.Head.random(8, rank=2, rng=1); head
recovery = keyhole.learn(keyhole.Local(head), rng=2, progress=True); recovery
recovery.certificate
keyhole.LowRank().plan(8)
keyhole.build(keyhole.SparseAverage(6, 1), rng=0)
keyhole.bound(keyhole.SparseAverage(1024, 16), embed=3, bits=16)
keyhole.MultiHead.random(4, heads=2, rng=0).plot("W")
""".strip().splitlines()
# Theorem 5.1 from Python: what heads of growing rank cost, beside their parameters.
WALK = [
    "import keyhole",
    "from keyhole.drawing.describing import Axis, Chart, Line, Point",
    "from keyhole.drawing.svg import draw_chart",
    "found = {r: keyhole.learn(keyhole.Head.random(32, rank=r, rng=r), rng=9) for r in (1, 2, 4)}",
    "asked = {r: one.ledger.total(without='verify').sequences for r, one in found.items()}",
    "print(*[one.verdict.name for one in found.values()], asked)",
    "lines = [Line('asked', 'ours', [Point(r, n) for r, n in asked.items()]),"
    " Line('parameters', 'limit', [Point(r, 32 + r * (64 - r)) for r in asked])]",
    "from IPython.display import HTML; HTML(draw_chart(Chart('Theorem 5.1', Axis('rank'),"
    " Axis('queries', low=0), lines)))",
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        opened = launch(running)
        yield opened
        opened.close()


def run_jupyter(lines, folder):
    """A notebook whose cells a kernel has run, as the page that Jupyter exports."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    exporters = pytest.importorskip("nbconvert.exporters")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(line) for line in lines])
    nbclient.NotebookClient(book, timeout=300).execute()
    page, _ = exporters.HTMLExporter().from_notebook_node(book)
    (folder / "book.html").write_text(page, encoding="utf-8")
    return book, folder / "book.html"


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_jupyter_shows_faces_whole(browser, jupyter, scheme, width):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(jupyter[1].as_uri())
    sizes = page.evaluate(SIZES)
    assert len(sizes) >= 8
    assert all(across > 100 and down > 30 for across, down in sizes)
    assert page.evaluate(FAULTS_OF_LABELS) == []
    assert "EXACT" in page.inner_text("body")
    page.close()


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    return run_jupyter(FACES, tmp_path_factory.mktemp("jupyter"))


@pytest.mark.slow
def test_the_bar_of_a_recovery_is_gone_when_jupyter_has_run(jupyter):
    book, _ = jupyter
    shown = [output for output in book.cells[2].outputs if "data" in output]
    # The place of the bar is empty at the end; the recovery stands below it.
    assert [one["data"].get("text/html", "") == "" for one in shown] == [True, False]
    assert "progress" not in shown[-1]["data"]["text/html"]


@pytest.mark.slow
@needs_chromium
def test_the_walk_of_a_student_ends_in_a_plot_of_theorem_5_1_in_jupyter(browser, tmp_path):
    book, file = run_jupyter(WALK, tmp_path)
    printed = "".join(one.get("text", "") for cell in book.cells for one in cell.outputs)
    assert printed.startswith("EXACT EXACT EXACT {1: ")
    asked = eval(printed.split(" ", 3)[3])  # noqa: S307
    assert all(count >= 32 + rank * (64 - rank) for rank, count in asked.items())
    assert all(count <= 3 * (32 + rank * (64 - rank)) for rank, count in asked.items())
    page = browser.new_page()
    page.goto(file.as_uri())
    assert page.evaluate(FAULTS_OF_LABELS) == []
    assert all(across > 300 for across, _ in page.evaluate(SIZES))
    page.close()


@pytest.mark.slow
@needs_chromium
def test_marimo_shows_faces_whole(browser, tmp_path):
    pytest.importorskip("marimo")
    names = ["keyhole", "head", "recovery"]
    cells = ["import marimo", "app = marimo.App()"]
    for k, line in enumerate(FACES):
        # A name that a cell defines is handed to those that use it.
        *before, last = line.split("; ")
        made = [name for name in names if f"{name} =" in line or (k == 0 and name == "keyhole")]
        used = [name for name in names if name in line and name not in made]
        body = [*before, last, f"return {', '.join(made)}," if made else "return"]
        cells += ["@app.cell", f"def _({', '.join(used)}):", *(f"    {part}" for part in body)]
    (tmp_path / "faces.py").write_text("\n".join(cells), encoding="utf-8")
    with serve_notebook(tmp_path / "faces.py") as address:
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(address)
        page.get_by_text("Bound", exact=False).first.wait_for(timeout=120_000)
        page.wait_for_function(f"() => ({SIZES})().length >= 8", timeout=120_000)
        assert all(across > 100 and down > 30 for across, down in page.evaluate(SIZES))
        assert page.evaluate(FAULTS_OF_LABELS) == []
        page.close()


@pytest.mark.slow
def test_the_walk_of_a_student_reaches_theorem_5_1_in_two_commands_after_installing():
    walk = [sys.executable, str(ROOT / "tools" / "student_walk.py"), "--installed"]
    done = subprocess.run(walk, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("2 commands, 8 heads recovered")
