"""The shell of every page keyhole writes: one self-contained file that opens offline."""

from __future__ import annotations

import base64
import hashlib

from keyhole.drawing.html import Markup, drop_styles, element
from keyhole.drawing.palette import PAGE_COLOURS, PICTURE_RULES

# A backslash at the end of a line joins it to the next: pages keep their bytes.
_STYLE = """
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; \
margin: 1.5rem auto;
  max-width: 62rem; padding: 0 1rem; font-variant-numeric: tabular-nums; } \
h1, h2, p, pre { overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; line-height: 1.35; margin: .3rem 0 1rem; } h1, p { max-width: 46rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 .8rem; border-top: 1px solid var(--rule); \
padding-top: 1rem; }
.verdict { font-weight: 600; margin: 0; } .ours { color: var(--ours); } .bad { color: var(--bad); }
.limit, figcaption, output, .axis, th { color: var(--limit); } figcaption b { color: var(--ink); }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; } \
.pictures + .pictures { margin-top: 1rem; }
output { display: block; min-height: 1.4em; } \
:focus-visible { outline: 2px solid var(--ours); outline-offset: 2px; }
table { border-collapse: collapse; overflow-wrap: break-word; } svg + table { margin-top: 1rem; }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top; font-weight: 400; }
thead th { border-bottom: 1px solid var(--rule); } .number { text-align: right; } \
td.number { white-space: nowrap; }
@media (max-width: 40rem) { table { display: block; overflow-x: auto; } }
pre { white-space: pre-wrap; border: 1px solid var(--rule); padding: .6rem .8rem; }
"""

# Pointing at a picture, or arrow keys, read its numbers out; the policy allows this script by hash.
_SCRIPT = """
for (const picture of document.querySelectorAll("[data-cells]")) {
  const { cells, step, width, height, name } = picture.dataset, \
numbers = cells.split(" "), n = Math.ceil(width / step);
  const said = picture.closest("figure").querySelector("output"), index = (k, size) =>
    step > 1 ? `${k * step}:${Math.min((k + 1) * step, size)}` : k;
  const cell = (at, size, count) => Math.max(0, Math.min(count - 1, Math.floor(at / size * count)));
  const show = k => said.textContent =
    `${name}[${index(Math.floor((at = k) / n), height)}, ${index(k % n, width)}] = ${numbers[k]}`;
  let at = (said.textContent = "point at a cell, or use the arrow keys", picture.tabIndex = 0, -1);
  picture.onmousemove = e => show(
    cell(e.offsetY, picture.clientHeight, numbers.length / n) * n + \
cell(e.offsetX, picture.clientWidth, n));
  picture.onkeydown = e => {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -n, ArrowDown: n }[e.key];
    if (move !== undefined) e.preventDefault(), \
show(at < 0 ? 0 : at + move in numbers ? at + move : at);
  };
}
"""


def wrap_page(title: str, body: Markup) -> str:
    """A page around `body`; nothing is fetched, and no script runs but the one of known hash."""
    # A report may hold words of strangers: only our own script may run.
    known = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{known}'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width"),
        element("title", f"keyhole: {title}"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("style", Markup(f"{PAGE_COLOURS}{PICTURE_RULES}{_STYLE}")),
    )
    # The page has the rules of pictures once; each picture would bring its own copy.
    inside = element("main", drop_styles(body))
    page = element(
        "html", head, element("body", inside, element("script", Markup(_SCRIPT))), lang="en"
    )
    return f"<!doctype html>\n{page}\n"
