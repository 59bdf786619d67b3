"""Pictures of a recovered score matrix beside the truth, with its spectrum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from keyhole._arrays import Vector
from keyhole.claims import Verdict
from keyhole.drawing.describing import Chart, Heatmap, Sheet
from keyhole.drawing.heatmaps import describe_errors, describe_signed_matrix, draw_heatmap
from keyhole.drawing.html import (
    Markup,
    caption_picture,
    element,
    format_number,
    format_section,
    frame_figure,
    join_pictures,
)
from keyhole.drawing.log_marks import describe_log_marks
from keyhole.drawing.svg import draw_chart
from keyhole.lab.runs.records import Envelope
from keyhole.lab.runs.recovery_records import DemoRecord, RecoveryRecord
from keyhole.models import Factored, Head, load


def _load_head(path: Path) -> Head | None:
    model = load(path) if path.is_file() else None
    return model if isinstance(model, Head) else None


def draw_recovered_matrices(data: RecoveryRecord, directory: Path) -> Markup:
    """The recovered W, beside the true one where that is known, and its singular values."""
    held = describe_recovery(data, directory)
    if held is None:
        return Markup()
    if not held.panels:
        nothing = "Every entry of it is zero: there is nothing to draw."
        return format_section(held.title, element("p", nothing))
    figures = [
        draw_heatmap(panel) if isinstance(panel, Heatmap) else _draw_spectrum(panel)
        for panel in held.panels
    ]
    return format_section(held.title, join_pictures(*figures))


def describe_recovery(data: RecoveryRecord, directory: Path) -> Sheet | None:
    """True W, recovered W, their difference and singular values, as far as they are known."""
    found = _load_head(directory / "model.safetensors") if data.model is not None else None
    if found is None:
        return None
    # A truth file counts only where the run itself was measured against it.
    measured = isinstance(data, DemoRecord) and data.distance is not None
    truth = _load_head(directory / "truth.safetensors") if measured else None
    name = _NAMES.get(data.verdict, "W as fitted, not verified")
    title = f"{name[0].upper()}{name[1:]}"
    W = np.asarray(found.W)
    if not W.any():
        return Sheet(title, ())
    title += f": {len(W):,} x {len(W):,}, of rank {data.rank or 'not known'}"
    panels: list[Chart | Heatmap] = [describe_signed_matrix(name, W)]
    if truth is not None:
        T = np.asarray(truth.W)
        panels.insert(0, describe_signed_matrix("true W", T))
        panels.append(describe_errors(W - T, float(np.abs(T).max())))
        title += f"; the true W is {format_number(float(np.abs(W - T).max()))} away at most"
    return Sheet(title, (*panels, *_describe_spectrum(data, found, truth)))


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


def _describe_spectrum(data: RecoveryRecord, found: Head, truth: Head | None) -> Iterator[Chart]:
    """Singular values on a log scale: truth as circles, recovered filled, refuted crossed."""
    style = "bad" if data.verdict == Verdict.CLASS_REFUTED.name else "ours"
    true, values = singular_values(truth), singular_values(found)
    count = max(len(true), len(values))
    if not np.append(true, values).any():
        return
    note = f"rank {data.rank}" if data.rank is not None else "rank not measured"
    note += f"; the other {found.width - count:,} are zero" if count < found.width else ""
    note += (
        "; ✕ nearest single head"
        if style == "bad"
        else "; ● recovered"
        if has_verified_model(data)
        else "; ● as fitted"
    )
    note += ", ○ truth" if len(true) else ""
    yield describe_log_marks(
        f"{_SPECTRUM}: {note}",
        "singular value",
        "singular value σ, log scale",
        {"truth": true, style: values},
    )


def _draw_spectrum(chart: Chart) -> Markup:
    note = chart.about.removeprefix(f"{_SPECTRUM}: ")
    return frame_figure(draw_chart(chart), caption_picture(_SPECTRUM, note))


def has_verified_model(data: Envelope) -> bool:
    """Whether the record says that its model may be relied on."""
    good = (Verdict.EXACT.name, Verdict.WITHIN_TOLERANCE.name)
    return isinstance(data, RecoveryRecord) and data.verdict in good


# Singular values of a wider dense matrix would take longer than the page is worth.
_DENSE = 1024
_SPECTRUM = "singular values of W"
_NAMES = {
    "EXACT": "recovered W",
    "WITHIN_TOLERANCE": "recovered W, within the declared imperfection",
    "CLASS_REFUTED": "nearest single head, refuted",
    "NOT_IDENTIFIABLE": "one W that fits, not the only one",
    "BUDGET_SPENT": "partial W, zero where not measured",
}


def describe_standing(data: RecoveryRecord) -> str:
    """What the model is, by its verdict."""
    if has_verified_model(data):
        return "recovered"
    if data.verdict == Verdict.CLASS_REFUTED.name:
        return "fitted, and refuted"
    return "as fitted, not verified"
