"""The pictures of README and the docs: each is listed, shown, small, and what its commands draw."""

import importlib.util
import re
import sys

import pytest

from support.browsers import FAULTS_OF_LABELS, launch, needs_chromium
from support.paths import ROOT

FOLDER = ROOT / "docs" / "assets" / "pictures"
NAMES = sorted(path.stem for path in FOLDER.glob("*.svg"))
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "tools" / "pictures.py")
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks its own module up.
    sys.modules["pictures"] = module
    spec.loader.exec_module(module)
    return module


def words_of(svg):
    """Words of a picture; numbers differ between processors where they are errors of rounding."""
    words = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return [re.sub(r"\d(?:\.\d+)?e-\d+", "TINY", word) for word in words]


def test_every_picture_has_its_commands_and_stands_in_the_gallery(tool):
    assert sorted(tool.PICTURES) == NAMES
    gallery = (ROOT / "docs" / "gallery.md").read_text("utf-8")
    assert gallery == tool.write_gallery(), "run tools/pictures.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_has_words_and_a_dark_side_and_fetches_nothing(name):
    svg = (FOLDER / f"{name}.svg").read_text("utf-8")
    assert len(svg) < 60_000
    assert len(words_of(svg)) >= 4
    assert "prefers-color-scheme: dark" in svg
    assert "http" not in svg.replace("http://www.w3.org/", "")
    assert "<script" not in svg


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_every_guide_opens_with_a_picture(guide):
    head, _, _ = guide.read_text("utf-8").partition("\n## ")
    assert re.search(r"!\[[^\]]+\]\(\.\./assets/pictures/[\w-]+\.svg\)", head)


def test_the_first_screen_of_the_readme_has_a_picture_an_example_and_responsible_use():
    first = (ROOT / "README.md").read_text("utf-8").partition("\n## ")[0]
    assert "(docs/assets/pictures/recovered-head.svg)" in first
    assert "make demo" in first
    assert "pip install" in first
    assert "bin/activate" in first
    assert "**Responsible use**" in first
    assert "```python" in first
    assert "| Works on |" in first


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_what_its_commands_draw(tool, name):
    if name == "language-model":
        pytest.importorskip("transformers")
    kept = (FOLDER / f"{name}.svg").read_text("utf-8")
    made = tool.make_picture(tool.PICTURES[name]).decode()
    assert words_of(made) == words_of(kept), f"run tools/pictures.py {name}"
    assert made.count("<") == kept.count("<")


@pytest.mark.slow
@needs_chromium
def test_labels_of_pictures_keep_apart_as_a_browser_draws_them():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = launch(running)
        for name in NAMES:
            page = browser.new_page(viewport={"width": 1000, "height": 700})
            page.set_content((FOLDER / f"{name}.svg").read_text("utf-8"))
            assert page.evaluate(FAULTS_OF_LABELS) == [], name
            page.close()
        browser.close()
