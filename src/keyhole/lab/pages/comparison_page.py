"""Several runs on one page: verdicts, queries against limits, errors against queries, matrices,
sizes, a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keyhole._arrays import Matrix
from keyhole.drawing.charts import Axis, Line, Point, draw_chart
from keyhole.drawing.heatmaps import draw_error_heatmap, draw_signed_heatmap
from keyhole.drawing.html import (
    draw_svg,
    escape_text,
    format_number,
    format_seconds,
    format_section,
    format_table,
    frame_figure,
    make_scrollable,
)
from keyhole.lab.pages.parts.recovered_matrices import has_verified_model
from keyhole.lab.pages.record_page import list_record_fields
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.reading import SavedRun, guard_drawing
from keyhole.lab.runs.summaries import (
    count_fewest_queries,
    count_learning_queries,
    describe_question,
    describe_versions,
    restore_command,
)
from keyhole.models import Head, load

_RECOVERIES = ("learn", "demo")
_BAD = ("CLASS_REFUTED", "TOO_SMALL", "DOES_NOT_FIT")
_LEFT, _RIGHT, _ROW = 230.0, 790.0, 34.0
_MAPS = 12  # matrices that are drawn
Named = list[tuple[str, SavedRun]]


def draw_comparison_page(runs: Sequence[SavedRun]) -> str:
    """A self-contained page."""
    named = list(zip(_name_runs(runs), runs, strict=True))
    parts = (
        _draw_overview,
        _draw_query_costs,
        _draw_run_errors,
        _draw_score_matrices,
        _draw_run_sizes,
        _compare_audits,
        _compare_twins,
        _compare_trainings,
        _compare_expectations,
        _show_other_records,
        _list_commands,
    )
    body = "".join(part(named) for part in parts)
    return wrap_page("runs compared", f"<h1>{escape_text(_title_comparison(runs))}</h1>{body}")


def _name_runs(runs: Sequence[SavedRun]) -> list[str]:
    """A name for each run that no other has."""
    short = [run.name for run in runs]
    return [
        name if short.count(name) == 1 else str(run.directory)
        for name, run in zip(short, runs, strict=True)
    ]


def _title_comparison(runs: Sequence[SavedRun]) -> str:
    recovered = [run for run in runs if run.kind in _RECOVERIES]
    good = sum(has_verified_model(run.data) for run in recovered)
    said = (
        f"{good} of {len(recovered)} recoveries can be relied on"
        if recovered
        else "no recovery among them"
    )
    return f"{len(runs)} runs compared: {said}"


def _select_kinds(named: Named, *kinds: str) -> Named:
    return [(name, run) for name, run in named if run.kind in kinds]


def _draw_overview(named: Named) -> str:
    return format_section(
        "What was asked, and what came",
        "".join(guard_drawing(run, _format_overview_entry, name, run) for name, run in named),
    )


def _format_overview_entry(name: str, run: SavedRun) -> str:
    data = run.data
    verdict = str(data.get("verdict") or data.get("status") or "")
    style = (
        "ours"
        if has_verified_model(data) or verdict in ("ENOUGH", "BUILT")
        else "bad"
        if verdict in _BAD
        else "limit"
    )
    said = f"<b>{escape_text(name)}</b>, {escape_text(run.kind)}"
    said += f', <span class="{style}">{escape_text(verdict)}</span>' if verdict else ""
    question = f'<span class="limit">{escape_text(describe_question(run.kind, data))}</span>'
    return f"<p>{said}: {escape_text(data.get('sentence') or '')} {question}</p>"


def _draw_query_costs(named: Named) -> str:
    """One bar per recovery, its limit across it, on one scale."""
    found = _select_kinds(named, *_RECOVERIES)
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
    most = max([1, *(asked for _, asked, _ in cost), *(least or 0 for _, _, least in cost)])
    marks = "".join(
        _draw_query_bar(k, name, asked, least, most) for k, (name, asked, least) in enumerate(cost)
    )
    near = [asked / least for _, asked, least in cost if least]
    title = (
        f"Queries to learn are {format_number(min(near))} to {format_number(max(near))} times their"
        " limits"
        if near
        else "Queries"
    )
    size = f'viewBox="0 0 960 {_ROW * len(cost) + 26:.0f}" style="min-width:40rem"'
    svg = make_scrollable(draw_svg(marks, size=size, label=title), "queries by run")
    note = (
        "Bars are queries, verification apart; the dashed mark is the fewest any learner of the"
        " class can ask."
    )
    return format_section(title, frame_figure(svg, f"<b>Queries</b>: {note}", width="100%"))


def _draw_query_bar(k: int, name: str, asked: int, least: int | None, most: int) -> str:
    y, width = _ROW * k + 6, (_RIGHT - _LEFT) * asked / most
    mark = (
        f'<text x="{_LEFT - 10}" y="{y + 15}"'
        f' text-anchor="end">{escape_text(_shorten_name(name))}</text>'
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


def _shorten_name(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:29]}..."


def _draw_run_errors(named: Named) -> str:
    """Every run that has an error and a number of queries: one mark, or as many as it made
    attempts.
    """
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
    if run.kind in _RECOVERIES and (fresh := run.data.get("fresh_error")) and fresh.get("relative"):
        count, error = count_learning_queries(run.data), float(fresh["relative"])
        said = f"{name}: {count:,} queries, error {format_number(error)}"
        yield Line(
            _shorten_name(name),
            "ours" if has_verified_model(run.data) else "bad",
            [Point(count, error, said)],
        )
    if run.kind == "demo" and (curve := run.data.get("curve")):
        points = [
            _make_point(c["queries"], c["error"], f"{name}: {c['queries']:,} queries")
            for c in curve
            if c["error"]
        ]
        yield Line(_shorten_name(name), "ours", points)
    if run.kind == "audit":
        tried = [
            (row["policy"], a)
            for row in run.data["policies"]
            for a in row["attempts"]
            if a["error"]
        ]
        points = [
            _make_point(
                a["queries"] - a["verification"],
                a["error"],
                f"{name}, {policy}: {format_number(a['error'])}",
            )
            for policy, a in tried
        ]
        yield Line(_shorten_name(name), "peer", points, joined=False)


def _make_point(x: Any, y: Any, said: str) -> Point:
    """A mark from two values of a record, which must be numbers."""
    return Point(float(x), float(y), said)


def _load_scores(run: SavedRun) -> Matrix | None:
    """The score matrix of a run's single head, where it has one."""
    path = run.directory / "model.safetensors"
    if run.kind not in _RECOVERIES or run.data.get("model") is None or not path.is_file():
        return None
    model = load(path)
    return np.asarray(model.W, dtype=np.float64) if isinstance(model, Head) else None


def _draw_score_matrices(named: Named) -> str:
    """Score matrices side by side on one scale; those of the first one's shape also as a difference
    from it.
    """
    found = [
        (name, W) for name, run in named if (W := guard_drawing(run, _load_scores, run)) is not None
    ][:_MAPS]
    if len(found) < 2:
        return ""
    first_name, first = found[0]
    top = max(float(np.abs(W).max()) for _, W in found)
    figures = [draw_signed_heatmap(f"W of {name}", W, limit=top) for name, W in found]
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


def _draw_run_sizes(named: Named) -> str:
    """Key width against bits: what was built, and what was asked for."""
    found = _select_kinds(named, "build", "bound")
    lines = [
        line for name, run in found for line in guard_drawing(run, _trace_run_sizes, name, run)
    ]
    svg = draw_chart(
        lines,
        Axis("key width m", True),
        Axis("bits p of a number", True),
        about="sizes of the runs",
    )
    note = (
        "Squares were built and checked; asked sizes are blue where they are enough, crosses where"
        " too small."
    )
    rows = [(name, str(run.data.get("sentence"))) for name, run in found]
    drawing = f"{svg}<p class='limit'>{note}</p>" if svg else ""
    return (
        format_section(
            "Sizes that were built or asked for",
            drawing + make_scrollable(format_table(rows, ("run", "finding")), "sizes"),
        )
        if rows
        else ""
    )


def _trace_run_sizes(name: str, run: SavedRun) -> list[Line]:
    built = run.kind == "build"
    size: dict[str, Any] = run.data["size" if built else "sizes"] or {}
    said = run.data["construction" if built else "verdict"]
    kind = "built" if built else {"TOO_SMALL": "bad", "ENOUGH": "ours"}.get(str(said), "limit")
    if not (size.get("embed") and size.get("bits")):
        return []
    return [
        Line(
            _shorten_name(name),
            kind,
            [Point(float(size["embed"]), float(size["bits"]), f"{name}: {said}")],
        )
    ]


def _compare_audits(named: Named) -> str:
    """Errors by policy, a column per audit."""
    tried = {
        name: guard_drawing(run, _list_policy_errors, run.data)
        for name, run in _select_kinds(named, "audit")
    }
    if not tried:
        return ""
    policies = dict.fromkeys(policy for reached in tried.values() for policy in reached)
    rows = [
        (policy, *(reached.get(policy, "") for reached in tried.values())) for policy in policies
    ]
    body = format_table(rows, ("policy", *tried), tuple(range(1, len(tried) + 1)))
    return format_section(
        "Error an extractor reaches behind each policy", make_scrollable(body, "errors by policy")
    )


def _list_policy_errors(data: Mapping[str, Any]) -> dict[str, str]:
    return {str(row["policy"]): _format_reached_error(row) for row in data["policies"]}


def _format_reached_error(row: Mapping[str, Any]) -> str:
    error = row["attempts"][-1]["error"]
    said = "no model" if error is None else format_number(error)
    return f"{said}, protects" if row["protects"] else said


def _compare_twins(named: Named) -> str:
    rows = [
        row
        for name, run in _select_kinds(named, "twins")
        for row in guard_drawing(run, _list_run_twins, name, run.data)
    ]
    columns = ("run", "twin", "parameters differ by", "answers differ by")
    body = make_scrollable(format_table(rows, columns, (2, 3)), "twins")
    return format_section("Other parameters with the same answers", body) if rows else ""


def _list_run_twins(name: str, data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            str(row["symmetry"]).lower(),
            format_number(row["parameters_differ"]),
            format_number(row["answers_differ"]),
        )
        for row in data["twins"]
    ]


def _compare_trainings(named: Named) -> str:
    """Median errors during training, and what simple predictors reach."""
    found = _select_kinds(named, "train")
    lines = [guard_drawing(run, _trace_training, name, run.data) for name, run in found]
    svg = draw_chart(
        lines,
        Axis("step of training"),
        Axis("error, median over seeds", True),
        about="learning curves",
    )
    rows = [
        row
        for name, run in found
        for row in guard_drawing(run, _list_training_errors, name, run.data)
    ]
    note = (
        "<p class='limit'>Lines are medians over seeds, on sequences kept apart.</p>" if svg else ""
    )
    body = (
        svg
        + note
        + make_scrollable(format_table(rows, ("run", "predictor", "error"), (2,)), "trainings")
    )
    return format_section("What training reached", body) if found else ""


def _trace_training(name: str, data: Mapping[str, Any]) -> Line:
    steps, errors = data["curve"]["steps"], data["curve"]["median"]
    marks = [(step, error) for step, error in zip(steps, errors, strict=False) if error]
    points = [_make_point(step, error, f"{name}, step {step:,}") for step, error in marks]
    return Line(_shorten_name(name), "ours", points)


def _list_training_errors(name: str, data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    simple = [
        (name, str(line).replace("_", " "), format_number(value))
        for line, value in data["lines"].items()
    ]
    return [(name, str(data["model_name"]), format_number(data["error"]["median"])), *simple]


def _compare_expectations(named: Named) -> str:
    rows = [
        row
        for name, run in _select_kinds(named, "sweep")
        for row in guard_drawing(run, _list_run_landings, name, run.data)
    ]
    body = make_scrollable(
        format_table(rows, ("run", "", "expected", "measured"), (3,)), "expectations"
    )
    return format_section("Where sweeps should land", body) if rows else ""


def _list_run_landings(name: str, data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            "met" if one["met"] else "missed",
            str(one["sentence"]),
            format_number(one["measured"]),
        )
        for one in data["expectations"]
    ]


def _show_other_records(named: Named) -> str:
    return "".join(
        format_section(f"{name}: what its record says", list_record_fields(run.data))
        for name, run in _select_kinds(named, "other")
    )


def _list_commands(named: Named) -> str:
    rows = [guard_drawing(run, _format_command_row, name, run) for name, run in named]
    return format_section(
        "How to reproduce",
        make_scrollable(
            format_table(rows, ("run", "command", "seed", "time", "versions")), "commands"
        ),
    )


def _format_command_row(name: str, run: SavedRun) -> tuple[str, ...]:
    spent = run.data.get("seconds")
    took = format_seconds(float(spent["total"])) if spent else ""
    return (
        name,
        restore_command(run.kind, run.data),
        str(run.data.get("seed", "")),
        took,
        describe_versions(run.data),
    )
