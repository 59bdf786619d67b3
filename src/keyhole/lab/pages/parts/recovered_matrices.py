"""Pictures of a recovered score matrix beside the truth, with its spectrum."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Vector
from keyhole.claims import Verdict
from keyhole.drawing.heatmaps import draw_error_heatmap, draw_log_marks, draw_signed_heatmap
from keyhole.drawing.html import draw_svg, format_number, format_section, frame_figure
from keyhole.models import Factored, Head, load


def _load_head(path: Path) -> Head | None:
    model = load(path) if path.is_file() else None
    return model if isinstance(model, Head) else None


def draw_recovered_matrices(data: Mapping[str, Any], directory: Path) -> str:
    """The recovered W, beside the true one where that is known, and its singular values."""
    found = _load_head(directory / "model.safetensors") if data.get("model") is not None else None
    if found is None:
        return ""
    # A truth file counts only where the run itself was measured against it.
    truth = _load_head(directory / "truth.safetensors") if "distance" in data else None
    name = _NAMES.get(str(data.get("verdict")), "W as fitted, not verified")
    W = np.asarray(found.W)
    if not W.any():
        return format_section(
            f"{name[0].upper()}{name[1:]}",
            "<p>Every entry of it is zero: there is nothing to draw.</p>",
        )
    figures = [draw_signed_heatmap(name, W), _draw_spectrum(data, found, truth)]
    title = (
        f"{name[0].upper()}{name[1:]}: {len(W):,} x {len(W):,}, of rank"
        f" {data.get('rank') or 'not known'}"
    )
    if truth is not None:
        T = np.asarray(truth.W)
        figures = [
            draw_signed_heatmap("true W", T),
            figures[0],
            draw_error_heatmap(W - T, float(np.abs(T).max())),
            figures[1],
        ]
        title += f"; the true W is {format_number(float(np.abs(W - T).max()))} away at most"
    return format_section(title, f'<div class="pictures">{"".join(figures)}</div>')


def singular_values(head: Head | None) -> Vector:
    """Singular values of W, largest first; none where they would take long."""
    if head is None:
        return np.empty(0)
    W = head.W
    if isinstance(W, Factored):
        # The product of both triangles has the singular values of A B^T, and is small.
        W = np.linalg.qr(W.A)[1] @ np.linalg.qr(W.B)[1].T
    easy = len(W) <= _DENSE and bool(np.isfinite(W).all())
    return np.asarray(np.linalg.svd(W, compute_uv=False), dtype=np.float64) if easy else np.empty(0)


def _draw_spectrum(data: Mapping[str, Any], found: Head, truth: Head | None) -> str:
    """Singular values on a log scale: truth as circles, recovered filled, refuted crossed."""
    style = "bad" if data.get("verdict") == Verdict.CLASS_REFUTED.name else "ours"
    true, values = singular_values(truth), singular_values(found)
    count = max(len(true), len(values))
    if not np.append(true, values).any():
        return ""
    marks = draw_log_marks(
        "singular value", "singular value σ, log scale", {"truth": true, style: values}
    )
    note = f"rank {data['rank']}" if data.get("rank") is not None else "rank not measured"
    note += f"; the other {found.width - count:,} are zero" if count < found.width else ""
    note += (
        "; ✕ nearest single head"
        if style == "bad"
        else "; ● recovered"
        if has_verified_model(data)
        else "; ● as fitted"
    )
    note += ", ○ truth" if len(true) else ""
    svg = draw_svg(marks, size={"viewBox": "0 0 290 250"}, label=f"singular values of W, {note}")
    return frame_figure(svg, f"<b>singular values of W</b>: {note}")


def has_verified_model(data: Mapping[str, Any]) -> bool:
    """Whether the record says that its model may be relied on."""
    return data.get("verdict") in (Verdict.EXACT.name, Verdict.WITHIN_TOLERANCE.name)


# Singular values of a wider dense matrix would take longer than the page is worth.
_DENSE = 1024
_NAMES = {
    "EXACT": "recovered W",
    "WITHIN_TOLERANCE": "recovered W, within the declared imperfection",
    "CLASS_REFUTED": "nearest single head, refuted",
    "NOT_IDENTIFIABLE": "one W that fits, not the only one",
    "BUDGET_SPENT": "partial W, zero where not measured",
}
