"""The explorer as a browser meets it: first paint, how soon interactions are answered, and the size
of the page.

Runs a server and a headless Chromium on the loopback; prints medians and 95th percentiles.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from keyhole.web.explorer import Explorer, Window, read_page_files

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
INTERACTIONS = {
    "Match2, N = 32: a token moved": (
        "#compute/match2?M=97&x=" + ",".join(map(str, range(32))),
        "[data-token='5']",
    ),
    "Match3, N = 32: a token moved": (
        "#compute/match3?M=97&x=" + ",".join(map(str, range(32))),
        ".labels button",
    ),
    "averages, N up to 32: positions added": (
        "#compute/sparse-average?N=4&q=3&y=1,2,3",
        "#positions",
    ),
    "limits, N = 32: the point moved": ("#limits", "#embed"),
}
ANSWER = """selector => new Promise(done => {
    const start = performance.now(), from = document.querySelector('main').innerHTML;
    const press = new KeyboardEvent(
        'keydown', { key: 'ArrowRight', bubbles: true, cancelable: true });
    const node = document.querySelector(selector);
    node.focus();
    if (node.type === 'range') {
      const up = Number(node.value) < Number(node.max) - 1;
      node.value = Number(node.value) + (up ? 1 : -4);
      node.dispatchEvent(new Event('input', { bubbles: true }));
    } else node.dispatchEvent(press);
    const seen = performance.getEntriesByType('resource').length;
    const asked = () => performance.getEntriesByType('resource').length > seen;
    const look = () => asked() && document.querySelector('main').innerHTML !== from
      ? requestAnimationFrame(() => done(performance.now() - start)) : requestAnimationFrame(look);
    look();
})"""


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of the others lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def first_paint(browser, address: str, count: int = 9) -> list[float]:
    """Milliseconds from asking for the page to its first contentful paint, and to a view that is
    ready.
    """
    taken = []
    for _ in range(count):
        context = browser.new_context()
        page = context.new_page()
        start = time.perf_counter()
        page.goto(address)
        page.wait_for_selector("html[data-ready=yes] main h1")
        ready = 1000 * (time.perf_counter() - start)
        paint = page.evaluate(
            "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
        )
        taken.append((paint if paint is not None else ready, ready))
        context.close()
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def answers(browser, address: str, view: str, selector: str, count: int = 30) -> list[float]:
    """Milliseconds from a key or a slider to the picture that follows from it."""
    page = browser.new_page()
    page.goto(address + view)
    page.wait_for_selector(selector)
    page.wait_for_timeout(800)
    page.evaluate("() => performance.setResourceTimingBufferSize(10000)")
    taken = [page.evaluate(ANSWER, selector) for _ in range(count + 2)][2:]
    page.close()
    return taken


def main() -> None:
    """Print what was measured."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("no chromium here: apt-get install chromium")
    held = read_page_files()
    print(
        f"page files: {sum(map(len, held.values())):,} bytes in {len(held)} files (limit 6,000,000)"
    )
    with (
        tempfile.TemporaryDirectory() as place,
        Window(Explorer(Path(place) / "runs"), 0, str).beside() as address,
    ):
        time.sleep(2)  # the libraries have loaded
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            paint, ready = first_paint(browser, address)
            print(f"first paint: {paint:.0f} ms, first view ready: {ready:.0f} ms (limit 1,000 ms)")
            for name, (view, selector) in INTERACTIONS.items():
                taken = answers(browser, address, view, selector)
                print(
                    f"{name}: p50 {percentile(taken, 0.5):.0f} ms, p95"
                    f" {percentile(taken, 0.95):.0f} ms (limit 200 ms)"
                )
            browser.close()


if __name__ == "__main__":
    main()
