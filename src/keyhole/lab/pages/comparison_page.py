"""Several runs on one page: verdicts, queries against limits, errors against queries, matrices, sizes, a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keyhole._arrays import Matrix
from keyhole.drawing.charts import Axis, Line, Point, chart
from keyhole.drawing.heatmaps import errors, signed
from keyhole.drawing.html import draw_svg, escaped, frame_figure, number, seconds, section, table, wide
from keyhole.lab.pages.parts.recovered_matrices import verified
from keyhole.lab.pages.record_page import fields
from keyhole.lab.pages.shell import shell
from keyhole.lab.runs.reading import Run, drawn
from keyhole.lab.runs.summaries import asked, command, learning_queries, limit, versions
from keyhole.models import Head, load

_RECOVERIES = ("learn", "demo")
_BAD = ("CLASS_REFUTED", "TOO_SMALL", "DOES_NOT_FIT")
_LEFT, _RIGHT, _ROW = 230.0, 790.0, 34.0
_MAPS = 12  # matrices that are drawn
Named = list[tuple[str, Run]]


def page(runs: Sequence[Run]) -> str:
    """A self-contained page."""
    named = list(zip(_names(runs), runs, strict=True))
    parts = (_overview, _costs, _errors, _matrices, _sizes, _audits, _twins, _trainings, _expectations, _others, _again)
    body = "".join(part(named) for part in parts)
    return shell("runs compared", f"<h1>{escaped(_finding(runs))}</h1>{body}")


def _names(runs: Sequence[Run]) -> list[str]:
    """A name for each run that no other has."""
    short = [run.name for run in runs]
    return [name if short.count(name) == 1 else str(run.directory) for name, run in zip(short, runs, strict=True)]


def _finding(runs: Sequence[Run]) -> str:
    recovered = [run for run in runs if run.kind in _RECOVERIES]
    good = sum(verified(run.data) for run in recovered)
    said = f"{good} of {len(recovered)} recoveries can be relied on" if recovered else "no recovery among them"
    return f"{len(runs)} runs compared: {said}"


def _of(named: Named, *kinds: str) -> Named:
    return [(name, run) for name, run in named if run.kind in kinds]


def _overview(named: Named) -> str:
    return section("What was asked, and what came", "".join(drawn(run, _entry, name, run) for name, run in named))


def _entry(name: str, run: Run) -> str:
    data = run.data
    verdict = str(data.get("verdict") or data.get("status") or "")
    style = "ours" if verified(data) or verdict in ("ENOUGH", "BUILT") else "bad" if verdict in _BAD else "limit"
    said = f"<b>{escaped(name)}</b>, {escaped(run.kind)}"
    said += f', <span class="{style}">{escaped(verdict)}</span>' if verdict else ""
    question = f'<span class="limit">{escaped(asked(run.kind, data))}</span>'
    return f"<p>{said}: {escaped(data.get('sentence') or '')} {question}</p>"


def _costs(named: Named) -> str:
    """One bar per recovery, its limit across it, on one scale."""
    found = _of(named, *_RECOVERIES)
    if not found:
        return ""
    cost = [(name, drawn(run, learning_queries, run.data), drawn(run, limit, run.data)) for name, run in found]
    most = max([1, *(asked for _, asked, _ in cost), *(least or 0 for _, _, least in cost)])
    marks = "".join(_bar(k, name, asked, least, most) for k, (name, asked, least) in enumerate(cost))
    near = [asked / least for _, asked, least in cost if least]
    title = f"Queries to learn are {number(min(near))} to {number(max(near))} times their limits" if near else "Queries"
    size = f'viewBox="0 0 960 {_ROW * len(cost) + 26:.0f}" style="min-width:40rem"'
    svg = wide(draw_svg(marks, size=size, label=title), "queries by run")
    note = "Bars are queries, verification apart; the dashed mark is the fewest any learner of the class can ask."
    return section(title, frame_figure(svg, f"<b>Queries</b>: {note}", width="100%"))


def _bar(k: int, name: str, asked: int, least: int | None, most: int) -> str:
    y, width = _ROW * k + 6, (_RIGHT - _LEFT) * asked / most
    mark = f'<text x="{_LEFT - 10}" y="{y + 15}" text-anchor="end">{escaped(_short(name))}</text>'
    mark += f'<g><title>{escaped(name)}: {asked:,} queries</title><rect class="phase" fill-opacity="0.4" x="{_LEFT}" '
    mark += f'y="{y}" width="{width:.1f}" height="20"/></g>'
    said = f"{asked:,}"
    if least:
        x = _LEFT + (_RIGHT - _LEFT) * least / most
        mark += f'<g><title>limit {least:,}</title><path class="dashed" d="M{x:.1f} {y - 4}v28"/></g>'
        said += f"; limit {least:,}"
    at = _LEFT + (_RIGHT - _LEFT) * max(asked, least or 0) / most + 8
    return mark + f'<text x="{at:.1f}" y="{y + 15}">{said}</text>'


def _short(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:29]}..."


def _errors(named: Named) -> str:
    """Every run that has an error and a number of queries: one mark, or as many as it made attempts."""
    lines = [line for name, run in named for line in drawn(run, list[Line], _error_lines(name, run))]
    about = "error against queries, one mark per run or attempt"
    svg = chart(lines, Axis("queries, verification apart", True), Axis("relative error", True), about=about)
    if not svg:
        return ""
    note = (
        "One mark per recovery: its disagreement with fresh answers, relative to the token values. Lines follow the "
        "error of one model as queries are added, where the truth was known; amber triangles are attempts of an audit, "
        "crosses are refuted. Lower left is a better extractor."
    )
    return section("Error against queries", f"{svg}<p class='limit'>{escaped(note)}</p>")


def _error_lines(name: str, run: Run) -> Iterator[Line]:
    if run.kind in _RECOVERIES and (fresh := run.data.get("fresh_error")) and fresh.get("relative"):
        count, error = learning_queries(run.data), float(fresh["relative"])
        said = f"{name}: {count:,} queries, error {number(error)}"
        yield Line(_short(name), "ours" if verified(run.data) else "bad", [Point(count, error, said)])
    if run.kind == "demo" and (curve := run.data.get("curve")):
        points = [_point(c["queries"], c["error"], f"{name}: {c['queries']:,} queries") for c in curve if c["error"]]
        yield Line(_short(name), "ours", points)
    if run.kind == "audit":
        tried = [(row["policy"], a) for row in run.data["policies"] for a in row["attempts"] if a["error"]]
        points = [
            _point(a["queries"] - a["verification"], a["error"], f"{name}, {policy}: {number(a['error'])}")
            for policy, a in tried
        ]
        yield Line(_short(name), "peer", points, joined=False)


def _point(x: Any, y: Any, said: str) -> Point:
    """A mark from two values of a record, which must be numbers."""
    return Point(float(x), float(y), said)


def _scores(run: Run) -> Matrix | None:
    """The score matrix of a run's single head, where it has one."""
    path = run.directory / "model.safetensors"
    if run.kind not in _RECOVERIES or run.data.get("model") is None or not path.is_file():
        return None
    model = load(path)
    return np.asarray(model.W, dtype=np.float64) if isinstance(model, Head) else None


def _matrices(named: Named) -> str:
    """Score matrices side by side on one scale; those of the first one's shape also as a difference from it."""
    found = [(name, W) for name, run in named if (W := drawn(run, _scores, run)) is not None][:_MAPS]
    if len(found) < 2:
        return ""
    first_name, first = found[0]
    top = max(float(np.abs(W).max()) for _, W in found)
    figures = [signed(f"W of {name}", W, limit=top) for name, W in found]
    alike = [(name, W) for name, W in found[1:] if W.shape == first.shape]
    gaps = [float(np.abs(W - first).max()) for _, W in alike]
    figures += [errors(W - first, float(np.abs(first).max()) or 1.0, f"{name} less {first_name}") for name, W in alike]
    title = f"Score matrices of {len(found)} runs, on one scale"
    title += f"; those of one size differ by {number(max(gaps))} at most" if gaps else ""
    return section(title, f'<div class="pictures">{"".join(figures)}</div>')


def _sizes(named: Named) -> str:
    """Key width against bits: what was built, and what was asked for."""
    found = _of(named, "build", "bound")
    lines = [line for name, run in found for line in drawn(run, _size_lines, name, run)]
    svg = chart(lines, Axis("key width m", True), Axis("bits p of a number", True), about="sizes of the runs")
    note = "Squares were built and checked; asked sizes are blue where they are enough, crosses where too small."
    rows = [(name, str(run.data.get("sentence"))) for name, run in found]
    drawing = f"{svg}<p class='limit'>{note}</p>" if svg else ""
    return (
        section("Sizes that were built or asked for", drawing + wide(table(rows, ("run", "finding")), "sizes"))
        if rows
        else ""
    )


def _size_lines(name: str, run: Run) -> list[Line]:
    built = run.kind == "build"
    size: dict[str, Any] = run.data["size" if built else "sizes"] or {}
    said = run.data["construction" if built else "verdict"]
    kind = "built" if built else {"TOO_SMALL": "bad", "ENOUGH": "ours"}.get(str(said), "limit")
    if not (size.get("embed") and size.get("bits")):
        return []
    return [Line(_short(name), kind, [Point(float(size["embed"]), float(size["bits"]), f"{name}: {said}")])]


def _audits(named: Named) -> str:
    """Errors by policy, a column per audit."""
    tried = {name: drawn(run, _by_policy, run.data) for name, run in _of(named, "audit")}
    if not tried:
        return ""
    policies = dict.fromkeys(policy for reached in tried.values() for policy in reached)
    rows = [(policy, *(reached.get(policy, "") for reached in tried.values())) for policy in policies]
    body = table(rows, ("policy", *tried), tuple(range(1, len(tried) + 1)))
    return section("Error an extractor reaches behind each policy", wide(body, "errors by policy"))


def _by_policy(data: Mapping[str, Any]) -> dict[str, str]:
    return {str(row["policy"]): _reached(row) for row in data["policies"]}


def _reached(row: Mapping[str, Any]) -> str:
    error = row["attempts"][-1]["error"]
    said = "no model" if error is None else number(error)
    return f"{said}, protects" if row["protects"] else said


def _twins(named: Named) -> str:
    rows = [row for name, run in _of(named, "twins") for row in drawn(run, _twin_rows, name, run.data)]
    columns = ("run", "twin", "parameters differ by", "answers differ by")
    body = wide(table(rows, columns, (2, 3)), "twins")
    return section("Other parameters with the same answers", body) if rows else ""


def _twin_rows(name: str, data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (name, str(row["symmetry"]).lower(), number(row["parameters_differ"]), number(row["answers_differ"]))
        for row in data["twins"]
    ]


def _trainings(named: Named) -> str:
    """Median errors during training, and what simple predictors reach."""
    found = _of(named, "train")
    lines = [drawn(run, _training_line, name, run.data) for name, run in found]
    svg = chart(lines, Axis("step of training"), Axis("error, median over seeds", True), about="learning curves")
    rows = [row for name, run in found for row in drawn(run, _training_rows, name, run.data)]
    note = "<p class='limit'>Lines are medians over seeds, on sequences kept apart.</p>" if svg else ""
    body = svg + note + wide(table(rows, ("run", "predictor", "error"), (2,)), "trainings")
    return section("What training reached", body) if found else ""


def _training_line(name: str, data: Mapping[str, Any]) -> Line:
    steps, errors = data["curve"]["steps"], data["curve"]["median"]
    marks = [(step, error) for step, error in zip(steps, errors, strict=False) if error]
    points = [_point(step, error, f"{name}, step {step:,}") for step, error in marks]
    return Line(_short(name), "ours", points)


def _training_rows(name: str, data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    simple = [(name, str(line).replace("_", " "), number(value)) for line, value in data["lines"].items()]
    return [(name, str(data["model_name"]), number(data["error"]["median"])), *simple]


def _expectations(named: Named) -> str:
    rows = [row for name, run in _of(named, "sweep") for row in drawn(run, _landings, name, run.data)]
    body = wide(table(rows, ("run", "", "expected", "measured"), (3,)), "expectations")
    return section("Where sweeps should land", body) if rows else ""


def _landings(name: str, data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (name, "met" if one["met"] else "missed", str(one["sentence"]), number(one["measured"]))
        for one in data["expectations"]
    ]


def _others(named: Named) -> str:
    return "".join(section(f"{name}: what its record says", fields(run.data)) for name, run in _of(named, "other"))


def _again(named: Named) -> str:
    rows = [drawn(run, _repeated, name, run) for name, run in named]
    return section("How to reproduce", wide(table(rows, ("run", "command", "seed", "time", "versions")), "commands"))


def _repeated(name: str, run: Run) -> tuple[str, ...]:
    spent = run.data.get("seconds")
    took = seconds(float(spent["total"])) if spent else ""
    return name, command(run.kind, run.data), str(run.data.get("seed", "")), took, versions(run.data)
