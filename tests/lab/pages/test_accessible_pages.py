"""Pages of every kind in a real browser: axe-core finds nothing serious, and the keyboard reaches
what is scrolled.
"""

import json
from pathlib import Path

import pytest

import keyhole
from keyhole.lab.jobs import AuditJob, CompareJob, LearnJob, ReportJob
from keyhole.lab.running import run_job
from keyhole.models import Head, save
from support.browsers import FAULTS_OF_LABELS, find_serious_issues, launch, needs_chromium
from support.run_records import KINDS, TRAINED
from support.seeds import some

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


def check_page(browser, path, *, width=360, scheme="light"):
    """A page in a window of that width: nothing serious, no label on another, no page to scroll."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(Path(path).resolve().as_uri())
    try:
        assert find_serious_issues(page) == []
        assert page.evaluate(FAULTS_OF_LABELS) == []
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        return page.evaluate(
            "() => [...document.querySelectorAll('table')]"
            ".map(t => [t.scrollWidth > t.clientWidth, t.tabIndex === 0])"
        )
    finally:
        context.close()


@pytest.mark.parametrize("name", some(KINDS))
def test_a_page_of_every_kind_has_no_serious_issue(browser, runs, name):
    page = Path(runs[name]) / "report.html"
    # A table is a stop of the keyboard exactly where it is scrolled.
    assert all(scrolled == reached for scrolled, reached in check_page(browser, page))


def test_pages_of_several_runs_and_the_index_have_no_serious_issue(browser, runs, tmp_path):
    trained = tmp_path / "train"
    trained.mkdir()
    (trained / "record.json").write_text(json.dumps(TRAINED))
    run_job(ReportJob((str(trained),)))
    check_page(browser, trained / "report.html", width=1280, scheme="dark")
    run_job(ReportJob((*runs.values(), str(trained)), out=str(tmp_path / "all")))
    check_page(browser, tmp_path / "all" / "report.html", scheme="dark")
    run_job(ReportJob(index=str(tmp_path)))
    check_page(browser, tmp_path / "index.html")


def test_a_page_of_two_models_has_no_serious_issue(browser, tmp_path, rng):
    head = Head.random(3, rng=rng)
    for name, model in (("a", head), ("b", Head(1.1 * head.W, head.V))):
        save(model, tmp_path / f"{name}.safetensors")
    pair = (str(tmp_path / f"{name}.safetensors") for name in ("a", "b"))
    run_job(CompareJob(*pair, out=str(tmp_path / "apart")))
    check_page(browser, tmp_path / "apart" / "report.html", width=1280)


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_pages_of_a_block_and_of_a_language_model_have_no_serious_issue(browser, tmp_path, width):
    block = keyhole.random_block(8, heads=2, hidden=8, rng=5)
    save(block, tmp_path / "block.safetensors")
    told = LearnJob(
        str(tmp_path / "block.safetensors"),
        learner="pre-norm-block",
        out=str(tmp_path / "block"),
    )
    assert run_job(told).data.verdict == "EXACT"
    check_page(browser, tmp_path / "block" / "report.html", width=width)
    asked = AuditJob(
        "support.targets:ids", tokens_in=True, vocabulary=16, out=str(tmp_path / "ids")
    )
    assert run_job(asked).data.tokens.policies
    check_page(browser, tmp_path / "ids" / "report.html", width=width, scheme="dark")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_the_page_of_the_tour_has_no_serious_issue(browser, learned, width, scheme):
    check_page(browser, learned("demo").directory / "report.html", width=width, scheme=scheme)
