"""The shell of every page keyhole writes: one self-contained file that opens offline."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re

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
a { color: var(--ours); } nav ol { columns: 20rem; column-gap: 3rem; \
padding-left: 1.4rem; margin: 1.5rem 0; } nav li { margin: .2rem 0; break-inside: avoid; }
.keep { display: flex; gap: .3rem; margin: .2rem 0; } .keep button { font: inherit; \
font-size: .75rem; line-height: 1.3;
  min-height: 24px; color: var(--limit); background: none; border: 1px solid var(--rule); \
border-radius: 3px; padding: 0 .4rem; cursor: pointer; }
.keep button:hover { color: var(--ink); } .keep button[aria-pressed=true] { color: var(--ours); }
figure.zoomed { width: 100% !important; } [role=region].zoomed > svg { width: 160%; \
max-width: none; } @media print { .keep, output { display: none; } }
.on-narrow { display: none; }
@media (max-width: 40rem) { .on-wide { display: none; } .on-narrow { display: block; }
  table { display: block; overflow-x: auto; }
  td.words { min-width: 9rem; } }
pre { white-space: pre-wrap; border: 1px solid var(--rule); padding: .6rem .8rem; }
"""

# Pointing at a picture, or arrow keys, read its numbers out in all their digits; every picture has
# buttons that save it and enlarge it. The policy allows this script by its hash.
_SCRIPT = """
const numbersOf = picture =>
  new Float64Array(Uint8Array.from(atob(picture.dataset.cells), c => c.charCodeAt(0)).buffer);
const rules = document.querySelector("style").textContent;
const save = (address, name) => {
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
};
const fileName = words => "keyhole-" + words.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60);
// The name space of drawings, from one: no address stands on a page.
const drawing = document.createRange().createContextualFragment("<svg></svg>").firstChild;
const space = drawing.namespaceURI;
const svgOf = (inside, box) =>
  `<svg xmlns="${space}" class="keyhole" viewBox="${box.join(" ")}" ` +
  `width="${box[2]}" height="${box[3]}"><${"style"}>${rules} ` +
  `text { font-family: system-ui, sans-serif; }` +
  `</${"style"}><rect x="${box[0]}" y="${box[1]}" width="${box[2]}" height="${box[3]}" ` +
  `style="fill: var(--page)"/>${inside}</svg>`;
const escaped = words =>
  words.replace(/[&<>]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
const drawingOf = svg => {
  const box = svg.getAttribute("viewBox").split(" ").map(Number);
  const inside = new XMLSerializer().serializeToString(svg);
  return svgOf(inside.replace(/^<svg[^>]*>|<\\/svg>$/g, ""), box);
};
const heatmapOf = figure => {
  const [cells, scale] = figure.querySelectorAll("img"), { width, height } = cells.dataset;
  const side = 360, tall = Math.max(14, side * height / width);
  const image = (one, y, high) => `<image href="${one.src}" x="0" y="${y}" width="${side}" ` +
    `height="${high}" preserveAspectRatio="none" style="image-rendering: pixelated"/>`;
  const text = (x, y, words, more = "") =>
    `<text x="${x}" y="${y}" class="quiet" ${more}>${escaped(words)}</text>`;
  const ends = [...figure.querySelectorAll(".scale span")].map(end => end.textContent);
  const caption = figure.querySelector("figcaption").textContent.match(/.{1,58}(\\s|$)/g) || [];
  const lines = caption.map((line, k) => text(0, tall + 62 + 15 * k, line.trim()));
  const middle = x => `text-anchor="${x}"`;
  const inside = image(cells, 0, tall) + image(scale, tall + 14, 10) +
    text(side / 2, -8, figure.querySelector(".query").textContent, middle("middle")) +
    `<g transform="translate(-8 ${tall / 2}) rotate(-90)">` +
    text(0, 0, figure.querySelector(".key").textContent, middle("middle")) + "</g>" +
    ends.map((end, k) => text(side * k / 2, tall + 40, end, middle(["start", "middle", "end"][k])))
      .join("") + lines.join("");
  return svgOf(inside, [-28, -28, side + 48, tall + 84 + 15 * lines.length]);
};
const tableOf = picture => {
  const { step, width, name } = picture.dataset, n = Math.ceil(width / step);
  const rows = [...numbersOf(picture)].map((v, k) => [Math.floor(k / n) * step, k % n * step, v]);
  return [["row", "column", name], ...rows].map(row => row.join(",")).join("\\n") + "\\n";
};
const asAddress = (kind, words) => `data:${kind};charset=utf-8,` + encodeURIComponent(words);
const asPixels = (svg, done) => {
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = 2 * image.width;
    canvas.height = 2 * image.height;
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    context.drawImage(image, 0, 0);
    done(canvas.toDataURL("image/png"));
  };
  image.src = asAddress("image/svg+xml", svg);
};
const addButtons = (place, words, svg, table, zoomed) => {
  const row = document.createElement("div"), name = fileName(words);
  row.className = "keep";
  const add = (text, about, act) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: text, onclick: act });
    button.setAttribute("aria-label", `${about}: ${words}`);
    row.append(button);
    return button;
  };
  add("SVG", "save as SVG", () => save(asAddress("image/svg+xml", svg()), name + ".svg"));
  add("PNG", "save as PNG", () => asPixels(svg(), address => save(address, name + ".png")));
  if (table) add("CSV", "save as CSV", () => save(asAddress("text/csv", table()), name + ".csv"));
  const zoom = add("zoom", "enlarge", () =>
    zoom.setAttribute("aria-pressed", zoomed.classList.toggle("zoomed")));
  zoom.setAttribute("aria-pressed", false);
  place.after(row);
};
// What is scrolled sideways must be reached by the keyboard; what is not would stand in its way.
const reach = () => {
  for (const table of document.querySelectorAll("table"))
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
    else table.removeAttribute("tabindex");
};
addEventListener("resize", reach);
reach();
for (const svg of document.querySelectorAll("svg.keyhole")) {
  const outer = svg.closest("[role=region]") || svg, numbers = svg.dataset.csv;
  addButtons(outer, svg.getAttribute("aria-label"), () => drawingOf(svg),
    numbers === undefined ? null : () => numbers, outer);
}
for (const picture of document.querySelectorAll("[data-cells]")) {
  const { step, width, height, name } = picture.dataset, \
numbers = numbersOf(picture), n = Math.ceil(width / step);
  const figure = picture.closest("figure"), said = figure.querySelector("output");
  const index = (k, size) =>
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
  addButtons(said, picture.alt.split(",")[0], () => heatmapOf(figure), () => tableOf(picture),
    figure);
}
"""


_MANY = 8  # sections from which on a page has contents
_HEADED = re.compile(r"<section><h2>(.*?)</h2>", re.DOTALL)


def wrap_page(title: str, body: Markup) -> str:
    """A page around `body`; nothing is fetched, and no script runs but the one of known hash.

    A page of many sections begins with its contents.
    """
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
    inside = element("main", _add_contents(drop_styles(body)))
    page = element(
        "html", head, element("body", inside, element("script", Markup(_SCRIPT))), lang="en"
    )
    return f"<!doctype html>\n{page}\n"


def _add_contents(body: Markup) -> Markup:
    """A long page with addresses of its sections, and a list of them behind its first words."""
    titles = _HEADED.findall(body)
    if len(titles) < _MANY:
        return body
    numbers = itertools.count(1)
    addressed = _HEADED.sub(
        lambda found: f'<section id="part-{next(numbers)}"><h2>{found[1]}</h2>', body
    )
    # Titles were escaped when the page was made.
    links = [
        element("li", element("a", Markup(title), href=f"#part-{k}"))
        for k, title in enumerate(titles, start=1)
    ]
    nav = element("nav", element("ol", *links), aria_label="contents")
    before, first, rest = addressed.partition("<section ")
    return Markup(before + nav + first + rest)
