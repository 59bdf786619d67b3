"""The explorer in a real browser: every view opened, worked by mouse and by keyboard, wide, narrow,
light and dark.
"""

import json
import re
import time
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

import pytest

from keyhole.drawing.palette import COLOURS, SHARES, read_channels
from keyhole.models import Head, save
from keyhole.tasks import TASKS
from keyhole.web.explorer import Explorer, Window
from keyhole.web.messages import Target
from support.browsers import FAULTS_OF_LABELS, find_serious_issues, launch, needs_chromium
from support.majority import WHOLE
from support.paths import ROOT
from support.shelf import HOSTILE, PICTURE, shelved
from support.slow_target import SOURCE

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'"
)
pytestmark = needs_chromium

SHOTS = ROOT / "build" / "screenshots"
VIEWS = {
    "recover": ("#recover", "Choose a size and press Recover"),
    "averages": ("#compute/sparse-average", "WITHIN ACCURACY"),
    "match2": ("#compute/match2", "ALL 8 RIGHT"),
    "match3": ("#compute/match3", "ALL 8 RIGHT"),
    "limits": ("#limits", "What a model must have"),
    "runs": ("#runs", "newest first"),
    "sweep": ("#runs/ranks", "The dashed line is hidden numbers"),
    "training": ("#runs/trained", "Errors: 0.003 at steps 200, the median of 3 seeds"),
}
MAIN = ("recover", "averages", "match2", "match3", "limits", "runs")


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    """A served explorer and a browser."""
    place = tmp_path_factory.mktemp("explorer")
    shelved(place / "runs")
    SHOTS.mkdir(parents=True, exist_ok=True)
    window = Window(Explorer(place / "runs"), 0, str)
    with window.beside() as address, sync_api.sync_playwright() as playwright:
        browser = launch(playwright)
        yield SimpleNamespace(address=address, runs=place / "runs", browser=browser)
        browser.close()


@contextmanager
def opened(explorer, view="#recover", *, forgiving=False):
    """A page of its own; whatever it complains about, asks of other hosts or pops up fails the
    test.
    """
    context = explorer.browser.new_context(
        viewport={"width": 1280, "height": 900}, color_scheme="light"
    )
    complaints = []
    ours = urlsplit(explorer.address).netloc
    context.on(
        "request",
        lambda asked: (
            None if urlsplit(asked.url).netloc in (ours, "") else complaints.append(asked.url)
        ),
    )
    page = context.new_page()
    page.set_default_timeout(20_000)
    listen(page, complaints)
    page.goto(view if view == "about:blank" else explorer.address + view)
    yield page
    context.close()
    assert forgiving or complaints == []


def listen(page, complaints):
    page.on(
        "console",
        lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message) or dialog.dismiss())


def says(page, text):
    # Processes start slowly on a machine that tests share.
    sync_api.expect(page.locator("main")).to_contain_text(text, timeout=20_000)


def shot(page, name):
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def shots(page, name):
    """The view as it is, in dark, and in a window of 360 pixels, which it must fit."""
    shot(page, f"{name}-light")
    page.emulate_media(color_scheme="dark")
    shot(page, f"{name}-dark")
    assert (
        page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    )
    page.emulate_media(color_scheme="light")
    assert (
        page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        == "rgb(252, 252, 250)"
    )
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_timeout(50)
    shot(page, f"{name}-narrow")
    assert page.evaluate(FAULTS_OF_LABELS) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), name
    page.set_viewport_size({"width": 1280, "height": 900})


PAINTED = """async () => {
  const { colour } = await import("/static/heat.js");
  const signed = [-1, 0, 1].map(t => colour("signed", t));
  return [...signed, colour("log", 1), colour("share", 0), colour("share", 0.5)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_heatmaps_are_painted_in_the_colours_of_the_palette(explorer, scheme):
    # Zero has the colour of the ground, on light and on dark.
    grounds = (COLOURS[name][scheme == "dark"] for name in ("ours", "page", "bad"))
    cold, zero, warm = ("rgb({} {} {})".format(*read_channels(c)) for c in grounds)
    low, _, middle, *_ = ("rgb({} {} {})".format(*read_channels(c)) for c in SHARES)
    with opened(explorer) as page:
        page.emulate_media(color_scheme=scheme)
        page.reload()
        assert page.evaluate(PAINTED) == [cold, zero, warm, warm, low, middle]


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_opens_without_a_complaint_wide_narrow_light_and_dark(explorer, name):
    address, text = VIEWS[name]
    with opened(explorer, address) as page:
        says(page, text)
        assert page.locator(".rail [aria-current=page]").count() == 1
        assert page.evaluate(FAULTS_OF_LABELS) == []
        assert find_serious_issues(page) == []
        shots(page, name) if name in MAIN else shot(page, f"{name}-light")


@pytest.fixture(scope="module")
def recovered(explorer):
    """The address of a recovery that was watched to its end."""
    with opened(explorer, "#recover?d=8&rank=3&seed=2") as page:
        before = page.locator("#main svg").first.bounding_box()
        page.click("#go")
        sync_api.expect(page.locator("#stop")).to_be_enabled()
        says(page, "EXACT")
        says(page, "queries recover a 8 × 8 head of rank 3")
        after = page.locator("#main svg").first.bounding_box()
        return SimpleNamespace(
            view=page.url.removeprefix(explorer.address), jump=after["y"] - before["y"]
        )


def test_a_recovery_is_watched_to_its_end_and_nothing_jumps_when_it_is_there(recovered):
    assert "job=" in recovered.view
    assert recovered.jump == 0


def test_what_was_recovered_is_there_again_at_its_address_and_the_command_says_how(
    explorer, recovered
):
    with opened(explorer, recovered.view) as page:
        says(page, "queries recover a 8 × 8 head of rank 3")
        says(page, "limit 47")  # r (2d - r) + d
        # true, recovered, difference, each with its scale
        assert page.locator("#result canvas").count() == 6
        assert page.locator("#width").input_value() == "8"
        command = page.locator("#result pre").first.inner_text()
        assert re.search(r"keyhole learn \S+truth\.safetensors --learner auto --seed 3", command)
        page.click("summary")
        assert json.loads(page.locator("details pre").inner_text())["verdict"] == "EXACT"
        page.click("summary")
        assert find_serious_issues(page) == []
        shots(page, "recovered")


def test_a_smaller_budget_is_shown_by_dragging_its_slider(explorer, recovered):
    with opened(explorer, recovered.view) as page:
        page.wait_for_selector("#stop-at")
        box = page.locator("#stop-at").bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] - 8, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.55, middle, steps=4)
        page.mouse.up()
        says(page, "W after ")
        assert page.locator("#stop-at").input_value() != page.locator("#stop-at").get_attribute(
            "max"
        )


def test_dragging_a_slider_moves_the_number_and_the_address(explorer):
    with opened(explorer, "#recover?d=16") as page:
        box = page.locator("#width").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 14 / 62, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] / 2, steps=5)
        page.mouse.up()
        width = int(page.locator("#width").input_value())
        assert width > 40
        assert f"d={width}&" in page.url
        assert page.locator("#rank").get_attribute("max") == str(width)
        says(page, f"{width} of {width}")


def test_a_token_is_dragged_round_the_circle_to_its_partner(explorer):
    with opened(explorer, "#compute/match2?M=12&x=1,5,4&i=0") as page:
        says(page, "Token 1 has no partner at 11")
        boxes = (page.locator(f"[data-token='{k}'] circle").bounding_box() for k in (0, 2))
        one, four = ((b["x"] + b["width"] / 2, b["y"] + b["height"] / 2) for b in boxes)
        # Opposite angles are mirror images in the vertical axis through 0: that of 11 is the mirror
        # of 1.
        middle = page.locator("[data-token='0']").locator("xpath=..").bounding_box()
        mirror = 2 * (middle["x"] + middle["width"] / 2) - one[0]
        page.mouse.move(*four)
        page.mouse.down()
        page.mouse.move((mirror + four[0]) / 2, four[1] + 20, steps=3)
        page.mouse.move(mirror, one[1], steps=6)
        page.mouse.up()
        assert "x=1,5,11" in page.url
        says(page, "Token 11 finds its partner at 1")
        shot(page, "match2-dragged")


def test_everything_is_reached_and_worked_by_the_keyboard_alone(explorer):
    with opened(explorer, "#recover?d=6&rank=6") as page:
        tab_to(page, "a[data-view=recover]")
        tab_to(page, "#width")
        page.keyboard.press("ArrowLeft")
        assert "d=5&" in page.url
        tab_to(page, "#go")
        page.keyboard.press("Enter")
        says(page, "EXACT")
        tab_to(page, "#result .cells")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert re.search(
            r"W\[1, 0\] = -?[\d.e-]+", page.locator("#result output.read").first.inner_text()
        )
        tab_to(page, "a[data-view=compute]", backwards=True)
        page.keyboard.press("Enter")
        says(page, "What can one attention unit compute?")
        tab_to(page, "[data-token='2']")
        page.keyboard.press("ArrowRight")
        says(page, "Token 17 ")
        sync_api.expect(page.locator("[data-token='2']")).to_be_focused()
        page.goto(explorer.address + "#compute/sparse-average?N=8&q=2&y=1,2")
        says(page, "{1, 2}")
        tab_to(page, "[data-key='0']")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Space")
        says(page, "{2, 3}")


def tab_to(page, selector, backwards=False):
    """Press Tab until the element has the focus."""
    page.wait_for_selector(selector)
    for _ in range(80):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Shift+Tab" if backwards else "Tab")
    pytest.fail(f"{selector} is not reached by Tab")


def test_an_error_is_a_sentence_and_the_next_try_works(explorer):
    # a browser says on its console what was refused
    with opened(explorer, "#recover?d=6", forgiving=True) as page:
        page.fill("#budget", "-1")
        page.click("#go")
        says(page, "budget is a whole number from 0 to 1,000,000,000; got -1.")
        shot(page, "error")
        page.fill("#budget", "20")
        page.click("#go")
        says(page, "BUDGET SPENT")
        page.goto(explorer.address + "#runs/not-there")
        says(page, "There is no such run.")


def test_a_task_of_the_registry_can_be_asked_for(explorer, monkeypatch):
    monkeypatch.setitem(TASKS, "majority", WHOLE)
    with opened(explorer, "#limits?task=majority&length=9&bits=3") as page:
        # Ten counts do not fit into three bits.
        says(page, "counted ones")
        says(page, "TOO SMALL")
        assert page.locator("#length").count() == 1
        assert page.locator("#q, #modulus, #nodes").count() == 0


def test_the_asked_point_moves_and_weights_are_built_for_it(explorer):
    with opened(explorer, "#limits?task=sparse-average&length=4&q=1&embed=3&bits=1") as page:
        says(page, "TOO SMALL")
        shot(page, "limits-too-small")
        page.locator("#main [role=application]").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowUp")
        says(page, "asked: 4, 2 bits")
        for bits in (3, 4, 5, 6):  # each picture is drawn with its own answer: none is stale here
            page.keyboard.press("ArrowUp")
            says(page, f"asked: 4, {bits} bits")
        says(page, "OPEN")
        page.click("#go")
        says(page, "ENOUGH")
        says(page, "Enough by max-margin keys")
        shot(page, "limits-enough")
        page.locator("#bits").press("End")
        says(page, "asked: 4, real")
        says(page, "ENOUGH")
        assert "embed=4&" in page.url
        assert "bits=real" in page.url
        page.locator("#main [role=application]").focus()
        page.keyboard.press("ArrowRight")
        says(page, "asked: 5, real")
        says(page, "ENOUGH")  # what is enough stays enough with more


def test_limits_open_on_a_case_that_turns_green_when_it_is_built(explorer):
    with opened(explorer, "#limits") as page:
        says(page, "OPEN")
        began = time.monotonic()
        page.click("#go")
        says(page, "ENOUGH")
        # Under two seconds of work, on a machine that tests share.
        assert time.monotonic() - began < 30
        shot(page, "limits-opened")
        page.locator("#bits").press("ArrowRight")
        says(page, "asked: 6, 25 bits")
        address = f"#{urlsplit(page.url).fragment}"
    with opened(explorer, address) as page:
        says(page, "asked: 6, 25 bits")


ADDRESSES = {
    "target": ("#target", "Press Recover"),
    "recover": ("#recover?d=9&rank=2&heads=2&answers=noise&noise=-5&budget=70&seed=4", "Choose"),
    "averages": ("#compute/sparse-average?N=9&q=2&y=3,4&keys=trigonometric&seed=1", "{3, 4}"),
    "match2": ("#compute/match2?M=12&x=1,5,11&i=2", "Token 11 finds its partner at 1"),
    "match3": ("#compute/match3?M=31&x=4,9,18,1&i=3", "No pair sums with 1"),
    "limits": ("#limits?task=match2&length=8&modulus=7&embed=4&bits=30", "asked: 4, 30 bits"),
    "built": ("#limits?task=sparse-average&length=4&q=1&embed=4&bits=6&built=yes", "ENOUGH"),
    "runs": ("#runs", "newest first"),
    "run": ("#runs/learned", "EXACT"),
    "sweep": ("#runs/ranks", "The dashed line is hidden numbers"),
    "training": ("#runs/trained", "Errors: 0.003 at steps 200"),
}
STATE = """() => [document.querySelector("main").innerText,
  [...document.querySelectorAll("main input, main select")].map(one => [one.id, one.value])]"""


@pytest.fixture(scope="module")
def asking(explorer, tmp_path_factory):
    """An explorer with a target that takes its time, and a truth."""
    place = tmp_path_factory.mktemp("asking")
    (place / "slowly.py").write_text(SOURCE)
    made: dict = {}
    exec(SOURCE, made)  # noqa: S102
    save(Head(made["W"], made["V"]), place / "truth.safetensors")
    shelved(place / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        target = Target(target="slowly:slow", truth=str(place / "truth.safetensors"))
        with Window(Explorer(place / "runs", target), 0, str).beside() as address:
            yield SimpleNamespace(address=address, runs=place / "runs", browser=explorer.browser)


@pytest.mark.parametrize("name", ADDRESSES)
def test_every_view_is_restored_by_its_address(asking, name):
    view, words = ADDRESSES[name]
    states = []
    for _ in range(2):
        with opened(asking, view) as page:
            says(page, words)
            page.wait_for_timeout(100)
            states.append((page.evaluate(STATE), page.url))
            view = page.url.removeprefix(asking.address)
    assert states[0] == states[1]


def test_a_target_is_watched_stopped_gone_on_with_and_compared(asking):
    with opened(asking, "") as page:
        says(page, "slowly:slow")
        assert page.locator("#stop").is_disabled()
        page.click("#go")
        says(page, "The least W that explains")
        shot(page, "target-asking")
        page.click("#stop")
        says(page, "STOPPED")
        view = page.url.removeprefix(asking.address)
        assert "run=" in view
        assert page.locator("#on").is_enabled()
    with opened(asking, view) as page:
        says(page, "STOPPED")
        page.click("#on")
        says(page, "EXACT")
        says(page, "differ from the truth by")
        # true, recovered, difference, each with its scale
        assert page.locator("#result canvas").count() == 6
        assert page.locator("#stop-at").count() == 1
        assert page.evaluate(FAULTS_OF_LABELS) == []
        assert find_serious_issues(page) == []
        shots(page, "target")
    with opened(asking, view) as page:
        says(page, "differ from the truth by")


def test_a_target_is_worked_by_the_keyboard_alone(asking):
    with opened(asking, "#target?seed=8&budget=60") as page:
        tab_to(page, "#go")
        page.keyboard.press("Enter")
        tab_to(page, "#stop")
        page.keyboard.press("Enter")
        says(page, "STOPPED")
        tab_to(page, "#on")
        page.keyboard.press("Enter")
        says(page, "BUDGET SPENT")


def test_a_figure_of_the_explorer_is_saved_in_every_form(explorer, tmp_path):
    with opened(explorer, "#compute/sparse-average") as page:
        says(page, "WITHIN ACCURACY")
        figure = page.locator("figure:has(svg):has(button:text-is('CSV'))").first
        for form in ("SVG", "PNG", "CSV"):
            with page.expect_download() as waited:
                figure.get_by_text(form, exact=True).click()
            waited.value.save_as(tmp_path / f"figure.{form}")
    drawn = ElementTree.parse(tmp_path / "figure.SVG").getroot()  # noqa: S314
    assert drawn.tag.endswith("svg")
    assert len([one for one in drawn.iter() if one.tag.endswith("text")]) > 2
    assert "class=" not in (tmp_path / "figure.SVG").read_text()
    assert (tmp_path / "figure.PNG").read_bytes().startswith(b"\x89PNG")
    assert "," in (tmp_path / "figure.CSV").read_text().splitlines()[0]


def test_third_order_slices_follow_the_token_that_asks(explorer):
    with opened(explorer, "#compute/match3?M=31&x=4,9,18,1&i=0") as page:
        says(page, "Token 4 is in 2 matching pairs, such as 4 + 9 + 18 = 31")
        page.locator(".labels button").nth(3).click()
        says(page, "No pair sums with 1 to a multiple of 31")
        assert "i=3" in page.url


def test_a_run_with_a_hostile_name_is_inert_and_its_report_is_kept_out(explorer):
    with opened(explorer, "#runs") as page:
        says(page, PICTURE)
        page.goto(f"{explorer.address}#runs/{quote(PICTURE, safe='')}")
        says(page, "1 queries in all")
        assert page.locator("main img, main script").count() == 0
        with page.expect_popup() as popped:
            page.click("main a:has-text('its report')")
        sync_api.expect(popped.value.locator("#said")).to_have_text("kept out")
        page.goto(f"{explorer.address}#runs/learned")
        says(page, "EXACT")
        page.click("summary")
        assert HOSTILE in json.loads(page.locator("details pre").inner_text())["target"]


def test_a_report_opens_from_its_file_with_the_network_off(explorer):
    with opened(explorer, "about:blank") as page:
        page.context.set_offline(True)
        page.goto((explorer.runs / "learned" / "report.html").as_uri())
        sync_api.expect(page.locator("main")).to_contain_text("EXACT")
        assert HOSTILE in page.locator("pre").last.inner_text()
        assert page.locator("script").count() == 1  # the page's own
        shot(page, "report")


def test_long_work_is_cancelled(explorer):
    with opened(explorer, "#recover?d=64&heads=4") as page:
        page.click("#go")
        sync_api.expect(page.locator("main")).to_contain_text(
            re.compile(r"[1-9][\d,]* queries so far, the counting limit")
        )
        shot(page, "asking")
        start = time.perf_counter()
        page.click("#stop")
        says(page, "CANCELLED")
        assert time.perf_counter() - start < 2
        sync_api.expect(page.locator("#go")).to_be_enabled()
        sync_api.expect(page.locator("#stop")).to_be_disabled()


def test_an_explorer_that_is_gone_is_said_to_be_gone(explorer, tmp_path):
    with opened(explorer, forgiving=True) as page:
        with Window(Explorer(tmp_path / "runs"), 0, str).beside() as address:
            page.goto(address + "#runs")
            says(page, "There is nothing here yet.")
            shot(page, "runs-empty")
            page.goto(address + "#compute/match2")
            says(page, "ALL 8 RIGHT")
        page.click("#again")
        says(page, "The explorer does not answer any more. Start it again with keyhole ui")
