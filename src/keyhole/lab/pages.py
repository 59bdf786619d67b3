"""The shell of every page keyhole writes: one self-contained file that opens offline, and words and numbers in it."""

from __future__ import annotations

import base64
import hashlib
import html
import math
from typing import Any

from keyhole.lab.palette import PAGE_COLOURS, PICTURE_RULES, PICTURE_STYLE

_STYLE = """
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 1.5rem auto;
  max-width: 62rem; padding: 0 1rem; font-variant-numeric: tabular-nums; } h1, h2, p, pre { overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; line-height: 1.35; margin: .3rem 0 1rem; } h1, p { max-width: 46rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 .8rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
.verdict { font-weight: 600; margin: 0; } .ours { color: var(--ours); } .bad { color: var(--bad); }
.limit, figcaption, output, .axis, th { color: var(--limit); } figcaption b { color: var(--ink); }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; } .pictures + .pictures { margin-top: 1rem; }
output { display: block; min-height: 1.4em; } :focus-visible { outline: 2px solid var(--ours); outline-offset: 2px; }
table { border-collapse: collapse; overflow-wrap: break-word; } svg + table { margin-top: 1rem; }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top; font-weight: 400; }
thead th { border-bottom: 1px solid var(--rule); } .number { text-align: right; } td.number { white-space: nowrap; }
@media (max-width: 40rem) { table { display: block; overflow-x: auto; } }
pre { white-space: pre-wrap; border: 1px solid var(--rule); padding: .6rem .8rem; }
"""

_SCRIPT = """
for (const picture of document.querySelectorAll("[data-cells]")) {
  const { cells, step, width, height, name } = picture.dataset, numbers = cells.split(" "), n = Math.ceil(width / step);
  const said = picture.closest("figure").querySelector("output"), index = (k, size) =>
    step > 1 ? `${k * step}:${Math.min((k + 1) * step, size)}` : k;
  const cell = (at, size, count) => Math.max(0, Math.min(count - 1, Math.floor(at / size * count)));
  const show = k => said.textContent =
    `${name}[${index(Math.floor((at = k) / n), height)}, ${index(k % n, width)}] = ${numbers[k]}`;
  let at = (said.textContent = "point at a cell, or use the arrow keys", picture.tabIndex = 0, -1);
  picture.onmousemove = e => show(
    cell(e.offsetY, picture.clientHeight, numbers.length / n) * n + cell(e.offsetX, picture.clientWidth, n));
  picture.onkeydown = e => {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -n, ArrowDown: n }[e.key];
    if (move !== undefined) e.preventDefault(), show(at < 0 ? 0 : at + move in numbers ? at + move : at);
  };
}
"""


def shell(title: str, body: str) -> str:
    """A page around `body`; nothing is fetched, and no script runs but the one whose hash is named."""
    known = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{known}'"
    look = f"{PAGE_COLOURS}{PICTURE_RULES}{_STYLE}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>keyhole: {escaped(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{look}</style>'
        f"</head><body><main>{body.replace(PICTURE_STYLE, '')}</main><script>{_SCRIPT}</script></body></html>\n"
    )


def escaped(value: Any) -> str:
    """Text that is safe inside a page."""
    return html.escape(str(value))


def number(value: float | None) -> str:
    """A number for a person: whole ones with separators, others to two or three digits."""
    if value is None or not math.isfinite(value):
        return "not finite"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if not 1e-3 <= abs(value) < 1e6:
        digits, power = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A time for a person."""
    if value < 0.995:
        return f"{number(float(f'{1000 * value:.2g}'))} ms"
    return f"{value:.1f} s" if value < 120 else f"{int(value // 60):,} min {value % 60:.0f} s"


def table(rows: list[tuple[str, ...]], columns: tuple[str, ...] = (), numbers: tuple[int, ...] = ()) -> str:
    """Rows of text, the first cell of each its name; columns of `numbers` are set flush right."""
    kinds = [' class="number"' if i in numbers else "" for i in range(max(33, len(columns)))]
    lines = ""
    for first, *rest in rows:
        cells = "".join(f"<td{kind}>{escaped(cell)}</td>" for kind, cell in zip(kinds[1:], rest, strict=False))
        lines += f'<tr><th scope="row">{escaped(first)}</th>{cells}</tr>'
    head = "".join(f'<th scope="col"{kind}>{escaped(c)}</th>' for kind, c in zip(kinds, columns, strict=False))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def section(title: str, body: str) -> str:
    """A part of a page; its title is the finding in a sentence."""
    return f"<section><h2>{escaped(title)}</h2>{body}</section>"


def wide(body: str, name: str) -> str:
    """Something that is scrolled sideways where the page is narrow."""
    return f'<div style="overflow-x:auto" role="region" aria-label="{escaped(name)}" tabindex="0">{body}</div>'


def draw_svg(marks: str, *, size: str, label: str) -> str:
    """A drawing that carries its style.

    Args:
        marks: its shapes and texts, which have the classes the palette knows.
        size: its view box, and other attributes.
        label: what it shows, in words.
    """
    about = f'class="keyhole" {size} role="img" aria-label="{escaped(label)}"'
    return f"<svg {about}>{PICTURE_STYLE}{marks}</svg>"


def frame_figure(body: str, caption: str = "", *, width: str = "18rem") -> str:
    """A picture with its caption under it, both marked up; what is inside need not carry the style again."""
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    inside = body.replace(PICTURE_STYLE, "")
    return f'<figure class="keyhole" style="width:{width}">{PICTURE_STYLE}{inside}{below}</figure>'


def reproduced(command: str, versions: str) -> str:
    """A command to be copied, and what it was run with."""
    return f'<pre tabindex="0"><code>{escaped(command)}</code></pre><p>{escaped(versions)}</p>'
