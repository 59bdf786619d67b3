"""Take pictures of every kind of page, wide and narrow, light and dark, to be looked at.

`python tools/screenshots.py OUT` makes a run for every kind of page by the commands below, opens
each report, the explorer's views and, by name, pages of `site/` in a Chromium, and writes sheets of
each into OUT: a page that is longer than a sheet is cut into columns. With names, these alone. It
prints what a script can find by itself: what axe-core calls serious, labels that touch, pages wider
than their window. Runs that OUT/runs holds already are not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from keyhole.web.explorer import Explorer, Window

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from support.browsers import FAULTS_OF_LABELS, find_serious_issues, launch  # noqa: E402

_SHEET = 1500  # pixels of height of a column
# Width of the window, columns of a sheet, and how far a column is scaled.
_WIDTHS = {"wide": (1280, 2, 0.6), "narrow": (360, 4, 1.0)}
_SCHEMES = ("light", "dark")
_PAUSE = 1500  # milliseconds for a view to draw itself

_LAYER = "--width 8 --heads 2 --outputs 8"
# For a name: what is run in the directory of runs. Its page is NAME/report.html.
RUNS: dict[str, tuple[str, ...]] = {
    "learn-head": (
        "sample head --width 16 --rank 4 --seed 1 --out head.safetensors",
        "learn head.safetensors --out learn-head",
    ),
    "learn-outputs": (
        "sample head --width 12 --outputs 3 --biases --seed 2 --out outputs.safetensors",
        "learn outputs.safetensors --out learn-outputs",
    ),
    "learn-heads": (
        "sample multihead --width 6 --outputs 6 --heads 3 --seed 3 --out heads.safetensors",
        "learn heads.safetensors --out learn-heads",
    ),
    "learn-relu": (
        "sample relu --width 6 --hidden 12 --seed 3 --out relu.safetensors",
        "learn relu.safetensors --out learn-relu",
    ),
    "learn-smooth": (
        "sample smooth --width 6 --hidden 8 --seed 3 --out smooth.safetensors",
        "learn smooth.safetensors --out learn-smooth",
    ),
    "learn-gated": (
        "sample gated --width 4 --hidden 6 --outputs 4 --seed 3 --out gated.safetensors",
        "learn gated.safetensors --out learn-gated",
    ),
    "learn-onelayer": (
        "sample onelayer --width 4 --hidden 6 --seed 3 --out onelayer.safetensors",
        "learn onelayer.safetensors --out learn-onelayer",
    ),
    "learn-layer": (
        f"sample layer {_LAYER} --norm layer --seed 3 --out layer.safetensors",
        "learn layer.safetensors --out learn-layer",
    ),
    "learn-table": (
        f"sample layer {_LAYER} --positions table --norm rms --seed 3 --out table.safetensors",
        "learn table.safetensors --out learn-table",
    ),
    "learn-rope": (
        f"sample layer {_LAYER} --positions rope --seed 3 --out rope.safetensors",
        "learn rope.safetensors --out learn-rope",
    ),
    "learn-block": (
        "sample block --style gpt2 --width 8 --heads 2 --hidden 8 --seed 3 --out block.safetensors",
        "learn block.safetensors --out learn-block",
    ),
    "learn-bert": (
        "sample block --style bert --width 8 --hidden 8 --seed 3 --out bert.safetensors",
        "learn bert.safetensors --out learn-bert",
    ),
    "learn-ids": ("learn --tokens-in support.targets:ids --vocabulary 16 --out learn-ids",),
    "learn-tensor": (
        "sample tensor --width 4 --rank 2 --seed 4 --out tensor.safetensors",
        "learn tensor.safetensors --out learn-tensor",
    ),
    "learn-noise": ("learn head.safetensors --simulate noise=1e-5 --out learn-noise",),
    "learn-labels": ("learn head.safetensors --simulate labels --out learn-labels",),
    "learn-refuted": ("learn heads.safetensors --learner low-rank --out learn-refuted",),
    "learn-budget": ("learn head.safetensors --budget 60 --out learn-budget",),
    "audit-head": (
        "sample head --width 4 --seed 4 --out four.safetensors",
        "audit four.safetensors --out audit-head",
    ),
    "audit-relu": ("audit relu.safetensors --out audit-relu",),
    "audit-ids": (
        "audit --tokens-in support.targets:ids --vocabulary 16 --against support.targets:ids"
        " --out audit-ids",
    ),
    "twins-heads": ("twins heads.safetensors --out twins-heads",),
    "twins-layer": ("twins layer.safetensors --out twins-layer",),
    "compare": (
        "sample head --width 16 --rank 4 --seed 9 --out other.safetensors",
        "compare head.safetensors other.safetensors --out compare",
    ),
    "build-averages": ("build sparse-average --length 12 --q 2 --out build-averages",),
    "build-match2": ("build match2 --length 8 --modulus 12 --out build-match2",),
    "build-match3": ("build match3 --length 6 --modulus 8 --out build-match3",),
    "build-k-hop": ("build k-hop --length 12 --hops 2 --symbols 4 --out build-k-hop",),
    "bound": ("bound sparse-average --length 1024 --q 16 --embed 3 --bits 16 --out bound",),
    "bound-match3": (
        "bound match3 --length 64 --modulus 64 --embed 4 --bits 8 --out bound-match3",
    ),
    "limits": ("limits --out limits",),
    "talk": (
        "build match2 --length 6 --modulus 8 --out built",
        "talk built/model.safetensors match2 --length 6 --modulus 8 --bits 12 --out talk",
    ),
    "train": ("train match2 --length 6 --modulus 8 --steps 300 --seeds 2 --out train",),
    "sweep-lines": (f"sweep {ROOT}/experiments/theorem-5-1.toml --out sweep-lines",),
    "sweep-map": (f"sweep {ROOT}/experiments/phase-diagram.toml --out sweep-map",),
    "demo": ("demo --out demo",),
    "report-several": ("report learn-head learn-noise learn-heads --out report-several",),
    "index": ("report --index .",),
}
VIEWS = {
    "ui-recover": "#recover",
    "ui-averages": "#compute/sparse-average",
    "ui-match2": "#compute/match2",
    "ui-match3": "#compute/match3",
    "ui-limits": "#limits",
    "ui-runs": "#runs",
    "ui-run": "#runs/learn-head",
    "ui-sweep": "#runs/sweep-lines",
    "ui-training": "#runs/train",
}


def make_run(name: str, runs: Path) -> Path:
    """The page of a run, which is made where it is not there yet."""
    page = runs / "index.html" if name == "index" else runs / name / "report.html"
    if not page.exists():
        for command in RUNS[name]:
            words = [sys.executable, "-m", "keyhole", *shlex.split(command)]
            done = subprocess.run(words, cwd=runs, capture_output=True, text=True)
            if done.returncode not in (0, 2, 3):
                raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr}")
    if not page.exists():
        raise SystemExit(f"{name} wrote no page: {done.stderr or done.stdout}")
    return page


@contextlib.contextmanager
def open_page(browser: Browser, address: str, width: int, scheme: Any) -> Iterator[Page]:
    """A page in a window of that width, drawn to the end."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(address)
    if address.startswith("http"):
        page.wait_for_timeout(_PAUSE)
    try:
        yield page
    finally:
        context.close()


def find_faults(page: Page) -> list[str]:
    """What a script sees to be wrong with a page."""
    faults = [f"{rule}: {place[:120]}" for rule, place in find_serious_issues(page)]
    faults += page.evaluate(FAULTS_OF_LABELS)
    if page.evaluate("() => document.documentElement.scrollWidth > innerWidth"):
        faults.append("the page is wider than its window")
    return faults


def cut_sheets(shot: bytes, columns: int, scale: float) -> list[Image.Image]:
    """A long picture as columns side by side, some to a sheet."""
    image = Image.open(io.BytesIO(shot)).convert("RGB")
    image = image.resize((int(image.width * scale), int(image.height * scale)))
    parts = [
        image.crop((0, top, image.width, min(top + _SHEET, image.height)))
        for top in range(0, image.height, _SHEET)
    ]
    sheets: list[Image.Image] = []
    for first in range(0, len(parts), columns):
        held = parts[first : first + columns]
        height = max(part.height for part in held)
        sheet = Image.new("RGB", ((image.width + 8) * len(held) - 8, height), "gray")
        for k, part in enumerate(held):
            sheet.paste(part, (k * (image.width + 8), 0))
        sheets.append(sheet)
    return sheets


def take_pictures(browser: Browser, name: str, address: str, out: Path) -> int:
    """Sheets of one page in every width and scheme; how many faults it has."""
    count = 0
    for kind, (width, columns, scale) in _WIDTHS.items():
        for scheme in _SCHEMES:
            with open_page(browser, address, width, scheme) as page:
                shot = page.screenshot(full_page=True)
                faults = find_faults(page)
            for k, sheet in enumerate(cut_sheets(shot, columns, scale)):
                sheet.save(out / f"{name}-{kind}-{scheme}-{k + 1}.png")
            for fault in faults:
                sys.stdout.write(f"{name}, {kind}, {scheme}: {fault}\n")
            count += len(faults)
    return count


def main() -> int:
    """Make the runs, open the pages, write the sheets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="pages; all when absent")
    asked = parser.parse_args()
    out = asked.out.resolve()
    runs = out / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    held = (ROOT / "src", ROOT / "tests", runs)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, held))
    site = {f"docs-{p.stem}": p for p in sorted((ROOT / "site").rglob("*.html"))}
    names = asked.names or [*RUNS, *VIEWS]
    faults = 0
    window = Window(Explorer(runs), 0, str)
    with window.beside() as served, sync_playwright() as playwright:
        browser = launch(playwright)
        for name in names:
            if name in VIEWS:
                address = served + VIEWS[name]
            else:
                address = (site.get(name) or make_run(name, runs)).resolve().as_uri()
            faults += take_pictures(browser, name, address, out)
            sys.stdout.write(f"{name} done\n")
            sys.stdout.flush()
        browser.close()
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
