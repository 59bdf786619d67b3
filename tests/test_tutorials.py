"""The notebooks: every cell runs, what they claim comes out, and pages show what they show."""

import importlib.util
import json
import math
import re
import subprocess
import sys

import pytest

from support.browsers import FAULTS_OF_LABELS, launch, needs_chromium
from support.drawn_labels import count_labels, find_faults
from support.notebooks import SIZES, serve_notebook
from support.paths import ROOT

pytest.importorskip("marimo")
NOTEBOOKS = sorted(path.stem for path in (ROOT / "tutorials").glob("*.py"))
# Cells run as a script runs them, without the checks of shapes that tests add.
RUN = """
import json, sys
sys.path.insert(0, "tools")
import tutorial_pages
made, held = {}, {}
for path in tutorial_pages.NOTEBOOKS:
    shown, names = tutorial_pages.run_notebook(path)
    made[path.stem] = tutorial_pages.compose_page(path, shown, names)
    held[path.stem] = {
        name: value
        for name, value in names.items()
        if isinstance(value, (int, float, str, list)) or name == "fewest"
    }
print(json.dumps([made, held], default=str))
"""


@pytest.fixture(scope="module")
def ran():
    """The page of every notebook, and the plain values that its cells define."""
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def page_of(name):
    return (ROOT / "docs" / "tutorials" / f"{name.replace('_', '-')}.md").read_text("utf-8")


def tool():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tools" / "tutorial_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_five_notebooks_with_sliders():
    assert len(NOTEBOOKS) == 5
    for name in NOTEBOOKS:
        source = (ROOT / "tutorials" / f"{name}.py").read_text("utf-8")
        assert source.count("mo.ui.slider(") >= 2


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_page_of_a_notebook_is_what_it_shows(ran, name):
    mask = tool().mask_rounding
    assert mask(page_of(name)) == mask(ran[0][name]), "run tools/tutorial_pages.py"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_labels_of_a_page_keep_apart(name):
    page = page_of(name)
    assert re.search("<svg|<figure", page)
    assert find_faults(page) == []
    # A cell shows its last line alone: a picture is easily lost.
    alone = name == "what_rounding_does_not_hide"
    assert page.count('<div class="keyhole">') == (1 if alone else 2)
    assert count_labels(page) >= 8 or "<svg" not in page


def test_one_entry_at_a_time_is_right_to_rounding(ran):
    held = ran[1]["a_head_entry_by_entry"]
    assert held["entry_error"] < 1e-12
    assert held["error"] < 1e-12
    assert held["questions"] >= held["width"] ** 2 + held["width"]


def test_rounding_hides_nothing_where_tokens_are_free(ran):
    held = ran[1]["what_rounding_does_not_hide"]
    plain, free, confined = (
        float(re.search(r"(\d(?:\.\d+)?e[+-]\d+) of W", line).group(1)) for line in held["told"]
    )
    assert free < 1e-9 < confined < plain


def test_a_twin_answers_alike(ran):
    held = ran[1]["two_heads_and_their_twins"]
    assert held["gap"] < 1e-13
    assert all("HOLDS" in line for line in held["listed"])
    assert held["apart"] < 1e-9


def test_matches_on_the_circle_need_about_twice_the_bits_of_the_modulus(ran):
    held = ran[1]["match2_on_the_circle"]
    assert held["wrong"] == 0
    bits = {int(modulus): count for modulus, count in held["fewest"].items()}
    for modulus, count in bits.items():
        gap = 1 - math.cos(2 * math.pi / modulus)
        # Each of two products of rounded numbers moves by less than 1.5 steps of 2^(1 - p).
        enough = math.ceil(1 + math.log2(3.1 / gap))
        assert count <= enough
    assert bits[40] >= bits[10] + 2


def test_a_network_that_is_too_small_is_caught(ran):
    # H (2m + v) p bits with one head, v = 1 and p = 8.
    available = ran[1]["where_a_small_network_must_fail"]["available"]
    assert available == [(2 * m + 1) * 8 for m in range(1, 13)]
    told = ran[1]["where_a_small_network_must_fail"]["told"]
    assert told[0].startswith("Too small: the task needs ")
    assert "wrong by 0.5 on one of them" in told[1]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        opened = launch(running)
        yield opened
        opened.close()


# Words of the last cell that shows any.
LAST = {
    "a_head_entry_by_entry": "EXACT after",
    "match2_on_the_circle": "told apart from near misses.",
    "two_heads_and_their_twins": "EXACT after",
    "what_rounding_does_not_hide": "behind bf16: relative",
    "where_a_small_network_must_fail": "6 hidden units.",
}
PICTURES = """() => [...document.querySelectorAll("svg.keyhole, figure.keyhole")].map(
  e => e.outerHTML).join()"""


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_draws_in_marimo_and_follows_its_sliders(browser, name):
    with serve_notebook(ROOT / "tutorials" / f"{name}.py") as address:
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(address)
        page.wait_for_selector("svg.keyhole, figure.keyhole", timeout=120_000)
        # Sliders stand in shadow trees, into which only a locator looks.
        page.locator("[role=slider]").nth(1).wait_for()
        page.get_by_text(LAST[name]).first.wait_for(timeout=120_000)
        assert all(width > 100 and height > 60 for width, height in page.evaluate(SIZES))
        assert page.evaluate(FAULTS_OF_LABELS) == []
        before = page.evaluate(PICTURES)
        page.locator("[role=slider]").first.press("ArrowRight")
        page.wait_for_function(f"before => ({PICTURES})() !== before", arg=before, timeout=120_000)
        page.close()
