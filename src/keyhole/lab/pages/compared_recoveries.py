"""Recoveries on one page: queries against limits, errors against queries, score matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from keyhole._arrays import Matrix
from keyhole.drawing.charts import Axis, Line, Point, draw_chart
from keyhole.drawing.heatmaps import draw_error_heatmap, draw_signed_heatmap
from keyhole.drawing.html import (
    draw_svg,
    escape_text,
    format_number,
    format_section,
    frame_figure,
    make_scrollable,
)
from keyhole.lab.pages.compared_runs import (
    RECOVERIES,
    Named,
    make_point,
    select_kinds,
    shorten_name,
)
from keyhole.lab.pages.parts.recovered_matrices import has_verified_model
from keyhole.lab.runs.reading import SavedRun, guard_drawing
from keyhole.lab.runs.rows import count_fewest_queries, count_learning_queries
from keyhole.models import Head, load

_LEFT, _RIGHT, _ROW = 230.0, 790.0, 34.0
_MAPS = 12  # matrices that are drawn


def draw_query_costs(named: Named) -> str:
    """One bar per recovery, its limit across it, on one scale."""
    found = select_kinds(named, *RECOVERIES)
    if not found:
        return ""
    cost = [
        (
            name,
            guard_drawing(run, count_learning_queries, run.data),
            guard_drawing(run, count_fewest_queries, run.data),
        )
        for name, run in found
    ]
    # Bars share one scale, else lengths would not compare.
    most = max([1, *(asked for _, asked, _ in cost), *(least or 0 for _, _, least in cost)])
    marks = "".join(
        _draw_query_bar(k, name, asked, least, most) for k, (name, asked, least) in enumerate(cost)
    )
    near = [asked / least for _, asked, least in cost if least]
    title = "Queries"
    if near:
        span = f"{format_number(min(near))} to {format_number(max(near))}"
        title = f"Queries to learn are {span} times their limits"
    size = {"viewBox": f"0 0 960 {_ROW * len(cost) + 26:.0f}", "style": "min-width:40rem"}
    svg = make_scrollable(draw_svg(marks, size=size, label=title), "queries by run")
    note = (
        "Bars are queries, verification apart; the dashed mark is the fewest any learner of the"
        " class can ask."
    )
    return format_section(title, frame_figure(svg, f"<b>Queries</b>: {note}", width="100%"))


def _draw_query_bar(k: int, name: str, asked: int, least: int | None, most: int) -> str:
    y = _ROW * k + 6
    width = (_RIGHT - _LEFT) * asked / most
    mark = (
        f'<text x="{_LEFT - 10}" y="{y + 15}"'
        f' text-anchor="end">{escape_text(shorten_name(name))}</text>'
    )
    mark += (
        f'<g><title>{escape_text(name)}: {asked:,} queries</title><rect class="phase"'
        f' fill-opacity="0.4" x="{_LEFT}" '
    )
    mark += f'y="{y}" width="{width:.1f}" height="20"/></g>'
    said = f"{asked:,}"
    if least:
        x = _LEFT + (_RIGHT - _LEFT) * least / most
        mark += (
            f'<g><title>limit {least:,}</title><path class="dashed" d="M{x:.1f} {y - 4}v28"/></g>'
        )
        said += f"; limit {least:,}"
    at = _LEFT + (_RIGHT - _LEFT) * max(asked, least or 0) / most + 8
    return mark + f'<text x="{at:.1f}" y="{y + 15}">{said}</text>'


def draw_run_errors(named: Named) -> str:
    """Every run with an error and queries: one mark, or one for each attempt."""
    lines = [
        line
        for name, run in named
        for line in guard_drawing(run, list[Line], _trace_run_errors(name, run))
    ]
    about = "error against queries, one mark per run or attempt"
    svg = draw_chart(
        lines, Axis("queries, verification apart", True), Axis("relative error", True), about=about
    )
    if not svg:
        return ""
    note = (
        "One mark per recovery: its disagreement with fresh answers, relative to the token values."
        " Lines follow the error of one model as queries are added, where the truth was known;"
        " amber triangles are attempts of an audit, crosses are refuted. Lower left is a better"
        " extractor."
    )
    return format_section("Error against queries", f"{svg}<p class='limit'>{escape_text(note)}</p>")


def _trace_run_errors(name: str, run: SavedRun) -> Iterator[Line]:
    if run.kind in RECOVERIES and (fresh := run.data.get("fresh_error")) and fresh.get("relative"):
        count = count_learning_queries(run.data)
        error = float(fresh["relative"])
        said = f"{name}: {count:,} queries, error {format_number(error)}"
        yield Line(
            shorten_name(name),
            "ours" if has_verified_model(run.data) else "bad",
            [Point(count, error, said)],
        )
    # Only a tour knows the truth, and so the error on the way.
    if run.kind == "demo" and (curve := run.data.get("curve")):
        points = [
            make_point(c["queries"], c["error"], f"{name}: {c['queries']:,} queries")
            for c in curve
            if c["error"]
        ]
        yield Line(shorten_name(name), "ours", points)
    if run.kind == "audit":
        tried = [
            (row["policy"], a)
            for row in run.data["policies"]
            for a in row["attempts"]
            if a["error"]
        ]
        points = [
            make_point(
                a["queries"] - a["verification"],
                a["error"],
                f"{name}, {policy}: {format_number(a['error'])}",
            )
            for policy, a in tried
        ]
        yield Line(shorten_name(name), "peer", points, joined=False)


def _load_scores(run: SavedRun) -> Matrix | None:
    """The score matrix of a run's single head, where it has one."""
    path = run.directory / "model.safetensors"
    if run.kind not in RECOVERIES or run.data.get("model") is None or not path.is_file():
        return None
    model = load(path)
    return np.asarray(model.W, dtype=np.float64) if isinstance(model, Head) else None


def draw_score_matrices(named: Named) -> str:
    """Score matrices on one scale; those of one shape also as differences."""
    found = [
        (name, W) for name, run in named if (W := guard_drawing(run, _load_scores, run)) is not None
    ][:_MAPS]
    # One matrix alone is on its own page.
    if len(found) < 2:
        return ""
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
    return format_section(title, f'<div class="pictures">{"".join(figures)}</div>')
