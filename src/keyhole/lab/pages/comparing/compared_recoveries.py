"""Recoveries on one page: queries against limits, errors against queries, score matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from keyhole._arrays import Matrix
from keyhole.drawing.describing import Axis, Bar, Chart, Line, Point, name_rows
from keyhole.drawing.heatmaps import draw_error_heatmap, draw_signed_heatmap
from keyhole.drawing.html import (
    Markup,
    caption_picture,
    format_note,
    format_number,
    format_section,
    frame_figure,
    join_pictures,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.comparing.compared_runs import Named, select_records, shorten_name
from keyhole.lab.pages.parts.error_curves import list_curve
from keyhole.lab.pages.parts.recovered_matrices import has_verified_model
from keyhole.lab.runs.reading import SavedRun, guard_drawing
from keyhole.lab.runs.records import Envelope
from keyhole.lab.runs.recovery_records import AuditRecord, RecoveryRecord
from keyhole.lab.runs.rows import count_fewest_queries, count_learning_queries
from keyhole.models import Head, load

_ROW = 34.0
_MAPS = 12  # matrices that are drawn


def draw_query_costs(named: Named) -> Markup:
    """One bar per recovery, its limit across it, on one scale."""
    found = select_records(named, RecoveryRecord)
    if not found:
        return Markup()
    cost = [
        (
            name,
            guard_drawing(run, count_learning_queries, run.data),
            guard_drawing(run, count_fewest_queries, run.data),
        )
        for name, run in found
    ]
    near = [asked / least for _, asked, least in cost if least]
    title = "Queries"
    if near:
        span = f"{format_number(min(near))} to {format_number(max(near))}"
        title = f"Queries to learn are {span} times their limits"
    note = (
        "Bars are queries, verification apart; the dashed mark is the fewest any learner of the"
        " class can ask."
    )
    picture = draw_chart(_describe_query_costs(title, list(reversed(cost))))
    return format_section(
        title, frame_figure(picture, caption_picture("Queries", note), width="100%")
    )


def _describe_query_costs(title: str, cost: Sequence[tuple[str, int, int | None]]) -> Chart:
    """Bars share one scale, else lengths would not compare."""
    bars = [
        Bar(k, 0.0, asked, said=f"{name}: {asked:,} queries")
        for k, (name, asked, _) in enumerate(cost)
    ]
    limits = [
        Line("", "limit", [Point(least, k - 0.5), Point(least, k + 0.5)], marked=False)
        for k, (_, _, least) in enumerate(cost)
        if least
    ]
    words = [
        Line(
            "", "", [Point(max(asked, least or 0), k, label=_tell_cost(asked, least))], marked=False
        )
        for k, (_, asked, least) in enumerate(cost)
    ]
    return Chart(
        title,
        Axis("queries to learn", low=0.0),
        name_rows([name for name, _, _ in cost]),
        [*limits, *words],
        bars=bars,
        width=500.0,
        height=_ROW * len(cost),
    )


def _tell_cost(asked: int, least: int | None) -> str:
    return f"{asked:,}; limit {least:,}" if least else f"{asked:,}"


def draw_run_errors(named: Named) -> Markup:
    """Every run with an error and queries: one mark, or one for each attempt."""
    lines = [
        line
        for name, run in named
        for line in guard_drawing(run, list[Line], _trace_run_errors(name, run.data))
    ]
    about = "error against queries, one mark per run or attempt"
    x, y = Axis("queries, verification apart", log=True), Axis("relative error", log=True)
    svg = draw_chart(Chart(about, x, y, lines))
    if not svg:
        return Markup()
    note = (
        "One mark per recovery: its disagreement with fresh answers, relative to the token values;"
        " where answers carry errors, the error bar of W. Lines follow the error of one model as"
        " queries are added, where the truth was known; amber triangles are attempts of an audit,"
        " crosses are refuted. Lower left is a better extractor."
    )
    return format_section("Error against queries", svg, format_note(note))


def _trace_run_errors(name: str, data: Envelope) -> Iterator[Line]:
    if isinstance(data, RecoveryRecord) and (fresh := data.fresh_error) and fresh.relative:
        count = count_learning_queries(data)
        # Errors of answers, over the values of tokens near zero, say nothing of the model.
        noisy = data.verdict == "WITHIN_TOLERANCE"
        error = (data.error_bar if noisy else None) or fresh.relative
        said = f"{name}: {count:,} queries, error {format_number(error)}"
        yield Line(
            shorten_name(name),
            "ours" if has_verified_model(data) else "bad",
            [Point(count, error, said)],
        )
    if isinstance(data, RecoveryRecord) and (curve := list_curve(data)):
        points = [
            Point(c.queries, c.error, f"{name}: {c.queries:,} queries") for c in curve if c.error
        ]
        yield Line(shorten_name(name), "ours", points)
    if isinstance(data, AuditRecord):
        points = [
            Point(
                a.queries - a.verification,
                a.error,
                f"{name}, {row.policy}: {format_number(a.error)}",
            )
            for row in data.policies
            for a in row.attempts
            if a.error
        ]
        yield Line(shorten_name(name), "peer", points, joined=False)


def _load_scores(run: SavedRun[RecoveryRecord]) -> Matrix | None:
    """The score matrix of a run's single head, where it has one."""
    path = run.directory / "model.safetensors"
    if run.data.model is None or not path.is_file():
        return None
    model = load(path)
    return np.asarray(model.W, dtype=np.float64) if isinstance(model, Head) else None


def draw_score_matrices(named: Named) -> Markup:
    """Score matrices on one scale; those of one shape also as differences."""
    found = [
        (name, W)
        for name, run in select_records(named, RecoveryRecord)
        if (W := guard_drawing(run, _load_scores, run)) is not None
    ][:_MAPS]
    # One matrix alone is on its own page.
    if len(found) < 2:
        return Markup()
    first_name, first = found[0]
    top = max(float(np.abs(W).max()) for _, W in found)
    figures = [draw_signed_heatmap(f"W of {name}", W, limit=top) for name, W in found]
    # Matrices of different widths have no difference.
    alike = [(name, W) for name, W in found[1:] if W.shape == first.shape]
    gaps = [float(np.abs(W - first).max()) for _, W in alike]
    figures += [
        draw_error_heatmap(
            W - first, float(np.abs(first).max()) or 1.0, f"{name} less {first_name}"
        )
        for name, W in alike
    ]
    title = f"Score matrices of {len(found)} runs, on one scale"
    title += f"; those of one size differ by {format_number(max(gaps))} at most" if gaps else ""
    return format_section(title, join_pictures(*figures))
