"""One self-contained page per run: the verdict in words, then pictures, then numbers. Opens offline."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from keyhole._arrays import Array, Matrix
from keyhole.models import Head, load

_PIXELS = 64  # a larger matrix is shown as block means
_STYLE = """
:root { --page: #fcfcfa; --ink: #1b1f24; --ours: #1f6feb; --limit: #6b7280; --rule: #d9d9d4; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --ink: #e8e6e1; --ours: #6cb2ff; --limit: #9aa3af; --rule: #33383d; }
}
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; font-variant-numeric: tabular-nums; }
h1 { font-size: 1.3rem; }
h2 { font-size: 1.05rem; margin-top: 2rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
figure { display: inline-block; margin: 0 1.5rem 1rem 0; vertical-align: top; }
figcaption { font-size: .85rem; color: var(--limit); max-width: 16rem; }
img { width: 16rem; height: 16rem; image-rendering: pixelated; border: 1px solid var(--rule); }
table { border-collapse: collapse; } td, th { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top; }
svg { max-width: 100%; } svg text { fill: var(--ink); font-size: 12px; } pre { overflow-x: auto; }
"""


def page(data: Mapping[str, Any], directory: Path) -> str:
    """The report of one run, from its record and the model files beside it."""
    parts = [
        f"<h1>{_escaped(data['sentence'])}</h1>",
        _matrices(data, directory),
        _phases(data),
        _certificate(data.get("certificate")),
        _rows(data),
        _reproduce(data),
    ]
    title = _escaped(f"keyhole: {data.get('verdict')}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>\n'


def _escaped(value: Any) -> str:
    return html.escape(str(value))


def _matrices(data: Mapping[str, Any], directory: Path) -> str:
    found = _scores(data.get("model"))
    if found is None:
        return ""
    truth = _scores(directory / "truth.safetensors")
    pictures = [] if truth is None else [_signed("true W", truth)]
    pictures.append(_signed("recovered W", found))
    if truth is not None:
        pictures.append(_errors("difference, log scale", found - truth, float(np.abs(truth).max())))
    return f"<h2>Score matrix W (rows: key side, columns: query side)</h2>{''.join(pictures)}"


def _scores(path: Any) -> Matrix | None:
    if path is None or not Path(path).is_file():
        return None
    model = load(path)
    return np.asarray(model.W) if isinstance(model, Head) else None


def _blocks(W: Matrix) -> Matrix:
    """W, or means over square blocks of it when it is large."""
    step = -(-len(W) // _PIXELS)
    edges = np.arange(0, len(W), step)
    if step == 1:
        return W
    sums = np.add.reduceat(np.add.reduceat(W, edges, axis=0), edges, axis=1)
    sizes = np.diff(np.append(edges, len(W)))
    return sums / np.outer(sizes, sizes)


def _signed(title: str, W: Matrix) -> str:
    """A diverging picture, blue below zero, white at zero, orange above."""
    limit = float(np.abs(W).max()) or 1.0
    x = _blocks(W) / limit
    cold, white, warm = (np.array(c, dtype=np.float64) for c in ((31, 111, 235), (252, 252, 250), (194, 65, 12)))
    share = np.abs(x)[..., None]
    return _figure(
        title, white + share * (np.where(x[..., None] < 0, cold, warm) - white), f"from {-limit:.2g} to {limit:.2g}"
    )


def _errors(title: str, E: Matrix, size: float) -> str:
    """Log magnitude from 1e-16 (pale) to 1 (dark) of the largest entry."""
    share = np.clip((np.log10(np.maximum(np.abs(_blocks(E)) / (size or 1.0), 1e-16)) + 16) / 16, 0, 1)[..., None]
    pale, dark = np.array((252.0, 252.0, 250.0)), np.array((194.0, 65.0, 12.0))
    return _figure(
        title, pale + share * (dark - pale), f"largest {np.abs(E).max():.1e}; white is 1e-16 of the largest entry"
    )


def _figure(title: str, colours: Array, caption: str) -> str:
    data = base64.b64encode(_png(colours.round().astype(np.uint8))).decode()
    alt = _escaped(f"{title}, {caption}")
    return (
        f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
        f"<figcaption>{_escaped(title)}: {_escaped(caption)}</figcaption></figure>"
    )


def _png(pixels: UInt8[NDArray[np.uint8], "rows columns 3"]) -> bytes:
    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines.tobytes())),
        (b"IEND", b""),
    )
    body = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def _phases(data: Mapping[str, Any]) -> str:
    """Bars of queries by phase, with the counting limit dashed."""
    phases: dict[str, int] = data["queries"].get("by_phase") or {}
    if not phases:
        return ""
    freedom = data.get("degrees_of_freedom")
    limit = -(-freedom // (data.get("outputs") or 1)) if freedom else None
    widest = max([*phases.values(), limit or 1])
    rows = "".join(_bar(i, name, count, widest) for i, (name, count) in enumerate(phases.items()))
    height = 24 * len(phases) + 30
    mark = "" if limit is None else _limit_mark(120 + 560 * limit / widest, height, limit)
    title = f"{data['queries']['total']:,} queries, verification included"
    title += f"; the limit of this class is {limit:,}" if limit is not None else ""
    svg = f'<svg width="800" height="{height}" role="img" aria-label="{_escaped(title)}">{rows}{mark}</svg>'
    return f"<h2>{_escaped(title)}</h2>{svg}"


def _bar(row: int, name: str, count: int, widest: int) -> str:
    y, length = 24 * row, 560 * count / widest
    return (
        f'<text x="0" y="{y + 15}">{_escaped(name)}</text>'
        f'<rect x="120" y="{y + 3}" width="{length:.1f}" height="16" fill="var(--ours)"><title>{count}</title></rect>'
        f'<text x="{124 + length:.1f}" y="{y + 15}">{count:,}</text>'
    )


def _limit_mark(x: float, height: int, limit: int) -> str:
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 18}" stroke="var(--limit)" stroke-dasharray="5 4"/>'
    return f'{line}<text x="{x - 4:.1f}" y="{height - 4}" text-anchor="end">limit {limit:,}</text>'


def _certificate(held: Mapping[str, Any] | None) -> str:
    if held is None:
        return ""
    rows = "".join(
        f"<tr><td>{_escaped(part)}</td><td>{_escaped(c['name'])}</td><td>{c['measured']:.3g}</td>"
        f"<td>at most {c['limit']:.3g}</td><td>{'holds' if c['holds'] else 'fails'}</td></tr>"
        for part in ("assumptions", "conclusion")
        for c in held[part]
    )
    return f"<h2>Certificate {_escaped(held['theorem'])}: {_escaped(held['outcome'])}</h2><table>{rows}</table>"


def _rows(data: Mapping[str, Any]) -> str:
    names = ("verdict", "status", "class", "reason", "determined", "rank", "width", "outputs", "error_bar", "seconds")
    rows = "".join(f"<tr><th>{n}</th><td>{_escaped(data.get(n))}</td></tr>" for n in names)
    return f"<h2>The run</h2><table>{rows}</table>"


def _reproduce(data: Mapping[str, Any]) -> str:
    command = f"keyhole learn {data.get('target')} --learner {data.get('learner')} --seed {data.get('seed')}"
    return f"<h2>How to reproduce</h2><pre>{_escaped(command)}</pre><p>keyhole {_escaped(data.get('version'))}</p>"
