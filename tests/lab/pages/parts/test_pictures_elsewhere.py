"""Pictures in the pages of others, as notebooks show them: drawn to size, in colours that can be
seen.
"""

import io

import numpy as np
import pytest

from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.drawing.heatmaps import draw_error_heatmap, draw_signed_heatmap
from keyhole.drawing.html import join_markup
from keyhole.lab.pages.parts.task_pictures import TokenAsked, draw_keys_and_face, draw_match_circle
from keyhole.lab.pages.shell import wrap_page
from support.browsers import CHROMIUM, launch

W = np.arange(9.0).reshape(3, 3) - 4.0
RING = TokenAsked(
    0, np.array([3.0, 7.0]), ["blank ∅", "1: 3", "2: 7"], np.zeros(3), np.full(3, 1 / 3)
)
# A sheet of somebody else's: black text on white, or white text on black, whatever the system
# prefers.
LIGHT = "<body style='color:rgb(1,2,3);background:white'>"
DARK = "<body style='color:rgb(250,251,252);background:black;color-scheme:dark'>"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as play:
        browser = launch(play)
        yield browser
        browser.close()


@pytest.fixture
def sheet(browser):
    """`sheet(content, scheme)`: a page that shows it, where the system prefers that scheme."""
    contexts = []

    def opened(content, scheme="light"):
        contexts.append(
            browser.new_context(color_scheme=scheme, viewport={"width": 1000, "height": 800})
        )
        page = contexts[-1].new_page()
        page.set_content(content)
        return page

    yield opened
    for context in contexts:
        context.close()


def look(page, selector, name):
    """What the browser made of a property of the first such element."""
    return page.locator(selector).first.evaluate(
        f"e => getComputedStyle(e).getPropertyValue('{name}')"
    )


@pytest.mark.parametrize(
    "figure",
    [draw_signed_heatmap("W", W), draw_error_heatmap(W, 4.0)],
    ids=["matrix", "difference"],
)
def test_a_matrix_is_no_speck(sheet, figure):
    page = sheet(LIGHT + figure)
    box = page.locator("img").first.bounding_box()
    assert min(box["width"], box["height"]) > 200
    assert look(page, "img", "image-rendering") == "pixelated"


def test_the_scale_of_a_matrix_stands_below_it_with_its_ends_apart(sheet):
    page = sheet(LIGHT + draw_signed_heatmap("W", W))
    drawn, scale = (page.locator("img").nth(k).bounding_box() for k in (0, 1))
    assert drawn["y"] + drawn["height"] <= scale["y"]
    assert scale["width"] == pytest.approx(drawn["width"], abs=1)
    left, _, right = (
        page.locator("figure span:not(.axis)").nth(k).bounding_box() for k in range(3)
    )
    assert right["x"] - left["x"] > 150


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("around", "ink", "ours"),
    [
        (LIGHT, "rgb(1, 2, 3)", "rgb(31, 111, 235)"),
        (DARK, "rgb(250, 251, 252)", "rgb(108, 178, 255)"),
    ],
    ids=["light sheet", "dark sheet"],
)
def test_a_drawing_takes_its_colours_from_the_sheet_it_stands_on(sheet, around, ink, ours, scheme):
    page = sheet(around + draw_match_circle(10, RING), scheme)
    assert look(page, "svg circle", "fill") == "none"
    assert look(page, "svg circle.truth", "stroke") == ink
    assert look(page, "svg text:not([class])", "fill") == ink
    assert look(page, "svg circle.ours", "fill") == ours


def test_a_drawing_changes_nothing_around_it(sheet):
    mine = (
        "<figure id='mine'><svg><text"
        " class='ours'>a</text></svg><figcaption>b</figcaption></figure>"
    )
    phi = SetQueries(np.eye(4), "least-squares", 0.01, 2)
    bare, beside = (
        sheet(LIGHT + mine),
        sheet(LIGHT + mine + draw_keys_and_face(phi, [0, 1]) + draw_signed_heatmap("W", W)),
    )
    for selector, name in (
        ("#mine", "width"),
        ("#mine", "margin"),
        ("#mine text", "fill"),
        ("#mine text", "font-size"),
    ):
        assert look(beside, selector, name) == look(bare, selector, name)


@pytest.mark.parametrize(
    ("scheme", "ink", "ground"),
    [
        ("light", "rgb(27, 31, 36)", "rgb(252, 252, 250)"),
        ("dark", "rgb(232, 230, 225)", "rgb(20, 23, 26)"),
    ],
)
def test_a_page_of_ours_is_light_or_dark_as_the_system_prefers(sheet, scheme, ink, ground):
    page = sheet(
        wrap_page("a page", join_markup(draw_signed_heatmap("W", W), draw_match_circle(10, RING))),
        scheme,
    )
    assert look(page, "body", "background-color") == ground
    assert look(page, "svg text:not([class])", "fill") == ink
    assert look(page, "svg circle.truth", "stroke") == ink
    assert page.locator("figure img").first.bounding_box()["width"] > 200


def test_a_page_of_ours_states_how_pictures_look_once():
    pictures = join_markup(draw_signed_heatmap("W", W), draw_match_circle(10, RING))
    assert pictures.count("<style>") == 2
    assert wrap_page("a page", pictures).count("<style>") == 1


@pytest.mark.parametrize(("scheme", "ground"), [("light", (252, 252, 250)), ("dark", (20, 23, 26))])
def test_a_matrix_shows_the_page_where_it_is_zero(sheet, scheme, ground):
    page = sheet(wrap_page("a page", draw_signed_heatmap("W", np.diag([0.0, 1.0]))), scheme)
    picture = page.locator("figure img").first
    box = picture.bounding_box()
    shot = page.screenshot(
        clip={"x": box["x"] + box["width"] / 4, "y": box["y"] + box["height"] / 4}
        | {"width": 1, "height": 1}
    )
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(shot)).convert("RGB")
    assert image.getpixel((0, 0)) == ground
