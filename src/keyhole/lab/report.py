"""One self-contained page per run: the verdict in words, then pictures, then numbers. Opens offline."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import shlex
import struct
import zlib
from collections.abc import Iterator, Mapping
from itertools import accumulate, cycle, repeat
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.claims import THEOREMS, Outcome, Verdict
from keyhole.models import Factored, Head, load

_PIXELS = 64  # a larger matrix is shown in blocks
_DENSE = 1024  # singular values of a wider dense matrix would take longer than the page is worth
_OUTPUTS = 6  # numbers of a counterexample's answer that are shown

_STYLE = """
:root { color-scheme: light dark; --page: #fcfcfa; --ink: #1b1f24; --ours: #1f6feb; --limit: #6b7280; --bad: #c2410c;
  --rule: #d9d9d4; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e8e6e1; --ours: #6cb2ff; --limit: #9aa3af;
  --bad: #ff8a5c; --rule: #33383d; } }
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 1.5rem auto;
  max-width: 62rem; padding: 0 1rem; font-variant-numeric: tabular-nums; } h1, h2, p, pre { overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; line-height: 1.35; margin: .3rem 0 1rem; } h1, p { max-width: 46rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 .8rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
.verdict { font-weight: 600; margin: 0; } .ours { color: var(--ours); } .bad { color: var(--bad); }
.limit, figcaption, output, .axis, th { color: var(--limit); } figcaption b { color: var(--ink); }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; } figure { margin: 0; width: 18rem; max-width: 100%; }
figcaption, output { font-size: .85rem; line-height: 1.4; } output { display: block; min-height: 1.4em; }
.map { display: grid; grid-template-columns: 1.3rem 1fr; line-height: 1.3rem; font-size: .8rem; }
.key { writing-mode: vertical-rl; transform: rotate(180deg); text-align: right; } .query, .scale { grid-column: 2; }
img { display: block; width: 100%; box-sizing: border-box; image-rendering: pixelated; border: 1px solid var(--rule); }
.map > img { aspect-ratio: 1; } :focus-visible { outline: 2px solid var(--ours); outline-offset: 2px; }
.scale img { height: .6rem; margin-top: .4rem; } .scale div { display: flex; justify-content: space-between; }
table { border-collapse: collapse; overflow-wrap: break-word; } svg + table { margin-top: 1rem; }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top; font-weight: 400; }
thead th { border-bottom: 1px solid var(--rule); } .number { text-align: right; } td.number { white-space: nowrap; }
svg { display: block; max-width: 100%; overflow: visible; } svg text { fill: var(--ink); font-size: 12px; }
svg .quiet { fill: var(--limit); } svg .ours { fill: var(--ours); } svg .bad { fill: var(--bad); stroke: var(--bad); }
svg .dashed { stroke: var(--limit); stroke-width: 1.5; stroke-dasharray: 5 4; } svg .rule { stroke: var(--rule); }
svg .phase { fill: var(--ours); stroke: var(--ours); } svg .truth { fill: none; stroke: var(--ink); stroke-width: 1.3; }
pre { white-space: pre-wrap; border: 1px solid var(--rule); padding: .6rem .8rem; }
"""

_SCRIPT = """
for (const picture of document.querySelectorAll("[data-cells]")) {
  const { cells, step, width, name } = picture.dataset, numbers = cells.split(" "), n = Math.sqrt(numbers.length);
  const said = picture.closest("figure").querySelector("output"), index = k =>
    step > 1 ? `${k * step}:${Math.min((k + 1) * step, width)}` : k;
  const cell = (at, size) => Math.max(0, Math.min(n - 1, Math.floor(at / size * n)));
  const show = k => said.textContent = `${name}[${index(Math.floor((at = k) / n))}, ${index(k % n)}] = ${numbers[k]}`;
  let at = (said.textContent = "point at a cell, or use the arrow keys", picture.tabIndex = 0, -1);
  picture.onmousemove = e => show(cell(e.offsetY, picture.clientHeight) * n + cell(e.offsetX, picture.clientWidth));
  picture.onkeydown = e => {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -n, ArrowDown: n }[e.key];
    if (move !== undefined) e.preventDefault(), show(at < 0 ? 0 : at + move in numbers ? at + move : at);
  };
}
"""

_NAMES = {
    "EXACT": "recovered W",
    "WITHIN_TOLERANCE": "recovered W, within the declared imperfection",
    "CLASS_REFUTED": "nearest single head, refuted",
    "NOT_IDENTIFIABLE": "one W that fits, not the only one",
    "BUDGET_SPENT": "partial W, zero where not measured",
}
_SHAPES = {
    "truth": "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0",
    "ours": "m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0",
    "bad": "m-3 -3l6 6m0 -6l-6 6",
}
_PHASES = {
    "read": "single tokens: the read-out V, constants and biases",
    "scale": "token lengths at which attention can be read",
    "measure": "pairs of tokens: the entries of W",
    "rank": "directions that show the rank of W",
    "verify": "fresh sequences, not used for the fit",
    "lost": "asked before a kill, answers not kept",
}


def page(data: Mapping[str, Any], directory: Path) -> str:
    """The report of one run, from its record and the model files beside it."""
    parts = (_verdict(data), _counterexample(data), _matrices(data, directory), _queries(data), _certificate(data))
    body = "".join((*parts, _section("The run", _table(list(_facts(data)))), _reproduce(data)))
    # nothing is fetched, and no script runs but the one whose hash is named
    known = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{known}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>keyhole: {_escaped(data["verdict"])}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{_STYLE}</style>'
        f"</head><body><main>{body}</main><script>{_SCRIPT}</script></body></html>\n"
    )


def _escaped(value: Any) -> str:
    return html.escape(str(value))


def _number(value: float | None) -> str:
    """A number for a person: whole ones with separators, others to two or three digits."""
    if value is None or not math.isfinite(value):
        return "not finite"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if not 1e-3 <= abs(value) < 1e6:
        digits, power = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _seconds(value: float) -> str:
    if value < 0.995:
        return f"{_number(float(f'{1000 * value:.2g}'))} ms"
    return f"{value:.1f} s" if value < 120 else f"{int(value // 60):,} min {value % 60:.0f} s"


def _table(rows: list[tuple[str, ...]], columns: tuple[str, ...] = (), numbers: tuple[int, ...] = ()) -> str:
    """Rows of text, the first cell of each its name; columns of `numbers` are set flush right."""
    kinds = [' class="number"' if i in numbers else "" for i in range(9)]
    lines = ""
    for first, *rest in rows:
        cells = "".join(f"<td{kind}>{_escaped(cell)}</td>" for kind, cell in zip(kinds[1:], rest, strict=False))
        lines += f'<tr><th scope="row">{_escaped(first)}</th>{cells}</tr>'
    head = "".join(f'<th scope="col"{kind}>{c}</th>' for kind, c in zip(kinds, columns, strict=False))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_escaped(title)}</h2>{body}</section>"


def _verdict(data: Mapping[str, Any]) -> str:
    name = str(data.get("verdict"))
    failed = name == "CLASS_REFUTED" or data.get("status") in ("BAD_ANSWER", "TARGET_FAILED")
    style, mark = ("bad", "✕") if failed else ("ours", "●") if _verified(data) else ("limit", "○")
    badge = f'<span aria-hidden="true">{mark}</span> {_escaped(name)}'
    return f'<p class="verdict {style}">{badge}</p><h1>{_escaped(data["sentence"])}</h1>'


def _verified(data: Mapping[str, Any]) -> bool:
    return data.get("verdict") in (Verdict.EXACT.name, Verdict.WITHIN_TOLERANCE.name)


def _counterexample(data: Mapping[str, Any]) -> str:
    """The refuting sequence: its length, both answers with enough digits to tell them apart, the gap."""
    case = data.get("counterexample")
    if case is None:
        return ""
    answer, predicted = (np.ravel(np.asarray(case[k], dtype=np.float64)) for k in ("answer", "predicted"))
    order = np.argsort(-np.abs(answer - predicted), kind="stable")[:_OUTPUTS]
    rows = [(f"output {k}", *_apart(float(answer[k]), float(predicted[k]))) for k in order]
    table = _table(rows, ("", "target answers", "model answers", "gap"), (1, 2, 3))
    note = f" Of {len(answer)} outputs, the {len(order)} with the largest gaps." if len(order) < len(answer) else ""
    where = f"<p>The sequence is counterexample.tokens in record.json; ask the target again to see it.{note}</p>"
    title = f"On a sequence of length {len(case['tokens'])} target and model differ by {_number(case['gap'])}"
    return _section(title, table + where)


def _apart(a: float, b: float) -> tuple[str, str, str]:
    gap = abs(a - b)
    digits = 2 + max(1, math.ceil(math.log10(max(abs(a), abs(b)) / gap))) if 0 < gap < math.inf else 3
    return f"{a:.{min(digits, 17)}g}", f"{b:.{min(digits, 17)}g}", _number(gap)


def _certificate(data: Mapping[str, Any]) -> str:
    held = data.get("certificate")
    if held is None:
        return ""
    rows = [
        (f"{part}: {c['name']}", _number(c["measured"]), _number(c["limit"]), "holds" if c["holds"] else "fails")
        for part, key in (("assumed", "assumptions"), ("concluded", "conclusion"))
        for c in held[key]
    ]
    theorem, outcome = THEOREMS.get(held["theorem"]), Outcome[held["outcome"]]
    said = "" if theorem is None else f"<p>{_escaped(theorem.statement)}</p>"
    table = _table(rows, ("inequality", "measured", "at most", ""), (1, 2))
    return _section(f"Certificate {held['theorem']}: {outcome.name.lower()}. {outcome.value}", said + table)


def _facts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the record says, in words; what it leaves open is left out."""
    words = ("verdict", "status", "class", "reason", "determined")
    yield from ((name, str(data[name])) for name in words if data.get(name))
    sizes = (f"{name} {data[name]:,}" for name in ("width", "rank", "heads", "outputs") if data.get(name) is not None)
    yield "sizes", ", ".join(sizes)
    asked = data["queries"]
    yield "queries", f"{asked['total']:,}, verification included"
    if data.get("degrees_of_freedom") is not None:
        yield "limit", f"{_limit(data):,}, with {data['degrees_of_freedom']:,} numbers to be learned"
    if fresh := data.get("fresh_error"):
        yield "fresh error", f"{_number(fresh['relative'])} of the token values, over {fresh['sequences']:,} sequences"
    if data.get("error_bar") is not None:
        yield "error bar", f"{_number(data['error_bar'])} of W, relative"
    if seconds := data.get("seconds"):
        yield "time", f"{_seconds(seconds['total'])}, of which {_seconds(seconds['oracle'])} in the target"


def _reproduce(data: Mapping[str, Any]) -> str:
    lost = data.get("status") in ("BUDGET_SPENT", "UNCHECKED") and data.get("budget") is None
    note = "This run had a budget; add the same --budget. " if lost else ""
    names = (("version", "keyhole"), ("numpy", "numpy"), ("python", "Python"))
    versions = ", ".join(f"{name} {data[key]}" for key, name in names if data.get(key))
    command = f'<pre tabindex="0"><code>{_escaped(_command(data))}</code></pre>'
    return _section("How to reproduce", f"{command}<p>{_escaped(note + versions)}</p>")


def _command(data: Mapping[str, Any]) -> str:
    """The command line that gives this record again, quoted for a shell."""
    if "distance" in data:
        return f"keyhole demo --seed {data['seed']}"
    target = str(data["target"])
    options = {key: data.get(key) for key in ("learner", "seed", "budget")} | dict(data.get("options") or {})
    if not target.endswith(".safetensors"):
        options = {"width": data.get("width"), **options}
    given = [part for key, value in options.items() if value is not None for part in (f"--{key}", str(value))]
    return shlex.join(["keyhole", "learn", target, *given])


def _limit(data: Mapping[str, Any]) -> int | None:
    freedom = data.get("degrees_of_freedom")
    return None if freedom is None else -(-freedom // (data.get("outputs") or 1))


def _queries(data: Mapping[str, Any]) -> str:
    """All phases but verification as one stacked bar against the counting limit, verification as a second bar."""
    phases: dict[str, int] = dict(data["queries"].get("by_phase") or {})
    if not phases:
        return _section(f"{data['queries']['total']:,} queries were asked before the run stopped", "")
    verify, limit = phases.pop("verify", 0), _limit(data)
    asked = sum(phases.values())
    per_cent = 99 / max(asked, verify, limit or 0, 1)
    starts = (per_cent * before for before in accumulate(phases.values(), initial=0))
    rows = [(name, f"{count:,}", _PHASES.get(name, "")) for name, count in (*phases.items(), ("verify", verify))]
    bars = "".join(map(_segment, phases, phases.values(), starts, repeat(per_cent), repeat(18), cycle((0.45, 0.2))))
    bars += _segment("verify", verify, 0.0, per_cent, 90, 0.12) + (_limit_mark(limit, per_cent) if limit else "")
    bars += f'<text x="0" y="12">to learn: {asked:,}</text><text x="0" y="84">to verify: {verify:,}</text>'
    title = _query_title(data, asked, verify, limit)
    svg = f'<svg width="100%" height="116" role="img" aria-label="{_escaped(title)}">{bars}</svg>'
    return _section(title, svg + _table(rows, ("phase", "queries", "what for"), (1,)))


def _query_title(data: Mapping[str, Any], asked: int, verify: int, limit: int | None) -> str:
    if _verified(data) and None not in (limit, data.get("rank")):
        shape = f"a {data['width']} x {data['width']} head of rank {data['rank']}"
        return f"{asked:,} queries recover {shape}; the limit is {limit:,}. {verify:,} more verify it"
    known = f"; the limit is {limit:,}" if limit is not None else ""
    return f"{asked:,} queries to learn, {verify:,} to verify{known}"


def _segment(name: str, count: int, start: float, per_cent: float, row: int, shade: float) -> str:
    """One phase, with its name inside where it is wide enough."""
    width, inside = count * per_cent, f"{name} {count:,}"
    label = f'<text x="{start + width / 2:.2f}%" y="{row + 16}" text-anchor="middle">{_escaped(inside)}</text>'
    rect = f'<rect class="phase" fill-opacity="{shade}" x="{start:.2f}%" y="{row}" width="{width:.2f}%" height="24"/>'
    return f"<g><title>{_escaped(inside)} queries</title>{rect}{label if width > 3 * len(inside) else ''}</g>"


def _limit_mark(limit: int, per_cent: float) -> str:
    x, anchor = limit * per_cent, "end" if limit * per_cent > 50 else "start"
    line = f'<line class="dashed" x1="{x:.2f}%" x2="{x:.2f}%" y1="15" y2="51"/>'
    label = f'<text class="quiet" x="{x:.2f}%" y="62" text-anchor="{anchor}">limit {limit:,}</text>'
    return f"<g><title>No learner of this class can ask fewer than {limit:,}</title>{line}{label}</g>"


def _head(path: Path) -> Head | None:
    model = load(path) if path.is_file() else None
    return model if isinstance(model, Head) else None


def _matrices(data: Mapping[str, Any], directory: Path) -> str:
    found = _head(directory / "model.safetensors") if data.get("model") is not None else None
    if found is None:
        return ""
    truth = _head(directory / "truth.safetensors") if "distance" in data else None
    name, W = _NAMES.get(str(data.get("verdict")), "W as fitted, not verified"), np.asarray(found.W)
    if not W.any():
        return _section(f"{name[0].upper()}{name[1:]}", "<p>Every entry of it is zero: there is nothing to draw.</p>")
    figures = [_signed(name, W), _spectrum(data, found, truth)]
    title = f"{name[0].upper()}{name[1:]}: {len(W):,} x {len(W):,}, of rank {data.get('rank') or 'not known'}"
    if truth is not None:
        T = np.asarray(truth.W)
        figures = [_signed("true W", T), figures[0], _errors(W - T, float(np.abs(T).max())), figures[1]]
        title += f"; the true W is {_number(float(np.abs(W - T).max()))} away at most"
    return _section(title, f'<div class="pictures">{"".join(figures)}</div>')


def _signed(title: str, W: Matrix) -> str:
    """A diverging picture, blue below zero, white at zero, orange above; block means where W is large."""
    step, sums = _blocks(np.add, W)
    x = sums / _blocks(np.add, np.ones_like(W))[1]
    limit = float(np.abs(x).max()) or 1.0
    note, name = f"limits ±{_number(limit)}", "W" if step == 1 else "mean of W"
    if step > 1:
        note = f"means over {step} x {step} blocks, {note}; the largest entry is {_number(float(np.abs(W).max()))}"
    about = f'data-step="{step}" data-width="{len(W)}" data-name="{name}"'
    ends = (f"−{_number(limit)}", "0", _number(limit))
    return _figure(title, note, x / limit, np.linspace(-1, 1, 65), ends, x, about)


def _errors(E: Matrix, size: float) -> str:
    """Log magnitude from 1e-16 (pale) to 1 (dark) of the largest true entry; the largest of each block."""
    step, x = _blocks(np.maximum, np.abs(E))
    share = np.clip((np.log10(np.maximum(x / (size or 1.0), 1e-16)) + 16) / 16, 0, 1)
    note = f"largest {_number(float(x.max()))}; log scale, in units of the largest true entry"
    note += f"; the largest of each {step} x {step} block" if step > 1 else ""
    about = f'data-step="{step}" data-width="{len(E)}" data-name="|difference|"'
    return _figure("difference", note, share, np.linspace(0, 1, 65), ("1e-16", "1e-8", "1"), x, about)


def _blocks(ufunc: np.ufunc, W: Matrix) -> tuple[int, Matrix]:
    """Sums or maxima over square blocks, as few entries to a side as fit the picture."""
    step = -(-len(W) // _PIXELS)
    edges = np.arange(0, len(W), step)
    return step, ufunc.reduceat(ufunc.reduceat(W, edges, axis=0), edges, axis=1)


def _figure(title: str, note: str, shares: Matrix, scale: Vector, ends: tuple[str, ...], x: Matrix, about: str) -> str:
    """A matrix with its axes named, its colours explained, and its numbers to be read by pointing or by arrow keys."""
    alt = _escaped(f"{title}, rows key side, columns query side, {note}")
    marks, cells = "".join(f"<span>{end}</span>" for end in ends), " ".join(f"{v:.2g}" for v in x.ravel())
    return (
        '<figure><div class="map"><span class="axis query">query side, column j →</span>'
        f'<span class="axis key">← key side, row i</span><img data-cells="{cells}" {about}'
        f' alt="{alt}" src="{_png(shares)}">'
        f'<div class="scale"><img alt="" src="{_png(scale[None])}"><div>{marks}</div></div></div>'
        f"<output></output><figcaption><b>{_escaped(title)}</b>: {_escaped(note)}</figcaption></figure>"
    )


def _png(shares: Matrix) -> str:
    """Numbers from -1 (blue) over 0 (white) to 1 (orange) as a picture, in an address that holds it."""
    cold, white, warm = (np.array(c, dtype=np.float64) for c in ((31, 111, 235), (252, 252, 250), (194, 65, 12)))
    x = shares[..., None]
    pixels = (white + np.abs(x) * (np.where(x < 0, cold, warm) - white)).round().astype(np.uint8)
    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)
    size = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    body = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(body)).decode()


def _singular(head: Head | None) -> Vector:
    """Singular values of W, largest first; from its factors where it has them, none where they would take long."""
    if head is None:
        return np.empty(0)
    W = head.W
    if isinstance(W, Factored):
        W = np.linalg.qr(W.A)[1] @ np.linalg.qr(W.B)[1].T
    easy = len(W) <= _DENSE and bool(np.isfinite(W).all())
    return np.asarray(np.linalg.svd(W, compute_uv=False), dtype=np.float64) if easy else np.empty(0)


def _spectrum(data: Mapping[str, Any], found: Head, truth: Head | None) -> str:
    """Singular values on a log scale: truth as dark circles, recovered as filled blue ones, refuted as crosses."""
    style = "bad" if data.get("verdict") == Verdict.CLASS_REFUTED.name else "ours"
    true, values = _singular(truth), _singular(found)
    count, every = max(len(true), len(values)), np.append(true, values)
    if not every.any():
        return ""
    low = math.floor(math.log10(max(every.min(), 1e-18 * every.max(), 1e-320)))
    high = math.floor(math.log10(every.max())) + 1
    marks = _axes(low, high, count)
    for kind, numbers in (("truth", true), (style, values)):
        for k, value in enumerate(map(float, numbers)):
            y = 24 + 206 * min(1.0, (high - math.log10(max(value, 1e-320))) / (high - low))
            path = f'<path class="{kind}" d="M{44 + 244 * (k + 0.5) / count:.1f} {y:.1f}{_SHAPES[kind]}"/>'
            marks += f"<g><title>singular value {k + 1}: {_number(value)}</title>{path}</g>"
    note = f"rank {data['rank']}" if data.get("rank") is not None else "rank not measured"
    note += f"; the other {found.width - count:,} are zero" if count < found.width else ""
    note += "; ✕ nearest single head" if style == "bad" else "; ● recovered" if _verified(data) else "; ● as fitted"
    note += ", ○ truth" if len(true) else ""
    svg = f'<svg viewBox="0 0 290 250" role="img" aria-label="singular values of W, {note}">{marks}</svg>'
    return f"<figure>{svg}<figcaption><b>singular values of W</b>: {note}</figcaption></figure>"


def _axes(low: int, high: int, count: int) -> str:
    """Rules at powers of ten, at most seven, and the ends of the index."""
    parts = '<text class="quiet" x="44" y="10">singular value σ, log scale</text>'
    for power in range(high, low - 1, -max(1, -(-(high - low) // 6))):
        y, said = 24 + 206 * (high - power) / (high - low), f"1e{power}" if abs(power) > 3 else _number(10.0**power)
        parts += f'<line class="rule" x1="44" x2="288" y1="{y:.1f}" y2="{y:.1f}"/>'
        parts += f'<text class="quiet" x="38" y="{y + 4:.1f}" text-anchor="end">{said}</text>'
    for x, anchor, said in ((48, "start", "1"), (166, "middle", "index"), (288, "end", f"{count:,}")):
        parts += f'<text class="quiet" x="{x}" y="246" text-anchor="{anchor}">{said}</text>'
    return parts
