"""A real browser, where there is one; it reaches no host but this."""

import shutil
from pathlib import Path

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium, then run again"
)


def launch(playwright):
    """A browser without a window."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)


def find_serious_issues(page):
    """What axe-core calls serious or critical on a page: the rule, and the first place it names."""
    package = pytest.importorskip("axe_playwright_python", reason="axe-core: pip install '.[dev]'")
    page.evaluate((Path(package.__file__).parent / "axe.min.js").read_text())
    found = page.evaluate("() => axe.run()")["violations"]
    return [
        (one["id"], one["nodes"][0]["html"])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


# Pairs of labels of one drawing that touch as the browser draws them, and labels outside it.
FAULTS_OF_LABELS = """() => [...document.querySelectorAll("svg")].flatMap(svg => {
  const frame = svg.getBoundingClientRect(), faults = [];
  const labels = [...svg.querySelectorAll("text")].map(
    e => [e.textContent, e.getBoundingClientRect()]);
  labels.forEach(([name, a], k) => {
    if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1
        || a.bottom > frame.bottom + 1) faults.push(`${name} leaves its picture`);
    for (const [other, b] of labels.slice(k + 1))
      if (a.left < b.right - 1 && b.left < a.right - 1
          && a.top < b.bottom - 1 && b.top < a.bottom - 1)
        faults.push(`${name} touches ${other}`);
  });
  return faults;
})"""
