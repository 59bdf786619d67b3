"""Several runs on one page: verdicts, costs, errors, matrices, sizes, commands."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.drawing.describing import Axis, Chart, Line, Point
from keyhole.drawing.html import (
    Markup,
    element,
    format_note,
    format_number,
    format_seconds,
    format_section,
    format_table,
    join_markup,
    make_scrollable,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.comparing.compared_recoveries import (
    draw_query_costs,
    draw_run_errors,
    draw_score_matrices,
)
from keyhole.lab.pages.comparing.compared_runs import Named, name_runs, select_records, shorten_name
from keyhole.lab.pages.parts.recovered_matrices import has_verified_model
from keyhole.lab.pages.record_page import list_record_fields
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.other_records import OtherRecord, SweepRecord
from keyhole.lab.runs.reading import SavedRun, guard_drawing
from keyhole.lab.runs.records import Envelope, RunRecord
from keyhole.lab.runs.recovery_records import (
    AuditRecord,
    PolicyRecord,
    RecoveryRecord,
    TwinsRecord,
)
from keyhole.lab.runs.rows import describe_measured
from keyhole.lab.runs.summaries import (
    describe_question,
    describe_versions,
    restore_command,
)
from keyhole.lab.runs.task_records import AttackRecord, BoundRecord, BuildRecord, TrainRecord

_BAD = ("CLASS_REFUTED", "TOO_SMALL", "DOES_NOT_FIT")


def draw_comparison_page(runs: Sequence[SavedRun[Envelope]]) -> str:
    """A self-contained page."""
    named = list(zip(name_runs(runs), runs, strict=True))
    parts = (
        _draw_overview,
        draw_query_costs,
        draw_run_errors,
        draw_score_matrices,
        _draw_run_sizes,
        _compare_audits,
        _compare_twins,
        _compare_trainings,
        _compare_expectations,
        _show_other_records,
        _list_commands,
    )
    title = element("h1", _title_comparison(runs))
    return wrap_page("runs compared", join_markup(title, *(part(named) for part in parts)))


def _title_comparison(runs: Sequence[SavedRun[Envelope]]) -> str:
    recovered = [run for run in runs if isinstance(run.data, RecoveryRecord)]
    good = sum(has_verified_model(run.data) for run in recovered)
    said = f"{good} of {len(recovered)} recoveries can be relied on"
    if not recovered:
        said = "no recovery among them"
    return f"{len(runs)} runs compared: {said}"


def _draw_overview(named: Named) -> Markup:
    return format_section(
        "What was asked, and what came",
        *(guard_drawing(run, _format_overview_entry, name, run) for name, run in named),
    )


def _format_overview_entry(name: str, run: SavedRun[Envelope]) -> Markup:
    data = run.data
    verdict = _judge_record(data)
    style = "bad" if verdict in _BAD else "limit"
    if has_verified_model(data) or verdict in ("ENOUGH", "BUILT"):
        style = "ours"
    judged = (", ", element("span", verdict, class_=style)) if verdict else ()
    said = f": {data.sentence} "
    question = element("span", describe_question(data), class_="limit")
    return element("p", element("b", name), f", {run.kind}", *judged, said, question)


def _judge_record(data: Envelope) -> str:
    """The verdict of a record, or its status; nothing where it has neither."""
    if isinstance(data, RecoveryRecord | BoundRecord):
        return data.verdict
    return data.status if isinstance(data, BuildRecord | AttackRecord) else ""


def _draw_run_sizes(named: Named) -> Markup:
    """Key width against bits: what was built, and what was asked for."""
    found = [(name, run) for name, run in named if isinstance(run.data, BuildRecord | BoundRecord)]
    lines = [
        line for name, run in found for line in guard_drawing(run, _trace_run_sizes, name, run.data)
    ]
    x, y = Axis("key width m", log=True), Axis("bits p of a number", log=True)
    svg = draw_chart(Chart("sizes of the runs", x, y, lines))
    note = (
        "Squares were built and checked; asked sizes are blue where they are enough, crosses where"
        " too small."
    )
    rows = [(name, run.data.sentence) for name, run in found]
    if not rows:
        return Markup()
    table = make_scrollable(format_table(rows, ("run", "finding")), "sizes")
    picture = (svg, format_note(note)) if svg else ()
    return format_section("Sizes that were built or asked for", *picture, table)


def _trace_run_sizes(name: str, data: BuildRecord | BoundRecord) -> list[Line]:
    if isinstance(data, BuildRecord):
        size, said, kind = data.size, data.construction, "built"
    else:
        size, said = data.sizes, data.verdict
        kind = {"TOO_SMALL": "bad", "ENOUGH": "ours"}.get(said, "limit")
    # Real numbers, or networks without attention, have no place on the plane.
    if size is None or not (size.embed and size.bits):
        return []
    return [
        Line(
            shorten_name(name),
            kind,
            [Point(size.embed, size.bits, f"{name}: {said}")],
        )
    ]


def _compare_audits(named: Named) -> Markup:
    """Errors by policy, a column per audit."""
    tried = {
        name: guard_drawing(run, _list_policy_errors, run.data)
        for name, run in select_records(named, AuditRecord)
    }
    if not tried:
        return Markup()
    # Audits of different versions may have tried different policies.
    policies = dict.fromkeys(policy for reached in tried.values() for policy in reached)
    rows = [
        (policy, *(reached.get(policy, "") for reached in tried.values())) for policy in policies
    ]
    body = format_table(rows, ("policy", *tried), tuple(range(1, len(tried) + 1)))
    return format_section(
        "Error an extractor reaches behind each policy", make_scrollable(body, "errors by policy")
    )


def _list_policy_errors(data: AuditRecord) -> dict[str, str]:
    return {row.policy: _format_reached_error(row) for row in data.policies}


def _format_reached_error(row: PolicyRecord) -> str:
    error = row.nearest.error
    said = "no model" if error is None else format_number(error)
    return f"{said}, protects" if row.protects else said


def _compare_twins(named: Named) -> Markup:
    rows = [
        row
        for name, run in select_records(named, TwinsRecord)
        for row in guard_drawing(run, _list_run_twins, name, run.data)
    ]
    columns = ("run", "twin", "parameters differ by", "answers differ by")
    body = make_scrollable(format_table(rows, columns, (2, 3)), "twins")
    return format_section("Other parameters with the same answers", body) if rows else Markup()


def _list_run_twins(name: str, data: TwinsRecord) -> list[tuple[str, ...]]:
    return [
        (
            name,
            row.symmetry.lower(),
            format_number(row.parameters_differ),
            format_number(row.answers_differ),
        )
        for row in data.twins
    ]


def _compare_trainings(named: Named) -> Markup:
    """Median errors during training, and what simple predictors reach."""
    found = select_records(named, TrainRecord)
    lines = [guard_drawing(run, _trace_training, name, run.data) for name, run in found]
    x, y = Axis("step of training"), Axis("error, median over seeds", log=True)
    svg = draw_chart(Chart("learning curves", x, y, lines))
    rows = [
        row
        for name, run in found
        for row in guard_drawing(run, _list_training_errors, name, run.data)
    ]
    if not found:
        return Markup()
    note = format_note("Lines are medians over seeds, on sequences kept apart.")
    table = format_table(rows, ("run", "predictor", "error"), (2,))
    picture = (svg, note) if svg else ()
    return format_section("What training reached", *picture, make_scrollable(table, "trainings"))


def _trace_training(name: str, data: TrainRecord) -> Line:
    steps, errors = data.curve.steps, data.curve.median
    marks = [(step, error) for step, error in zip(steps, errors, strict=False) if error]
    points = [Point(step, error, f"{name}, step {step:,}") for step, error in marks]
    return Line(shorten_name(name), "ours", points)


def _list_training_errors(name: str, data: TrainRecord) -> list[tuple[str, ...]]:
    simple = [
        (name, line.replace("_", " "), format_number(value)) for line, value in data.lines.items()
    ]
    return [(name, data.model_name, format_number(data.error.median)), *simple]


def _compare_expectations(named: Named) -> Markup:
    rows = [
        row
        for name, run in select_records(named, SweepRecord)
        for row in guard_drawing(run, _list_run_landings, name, run.data)
    ]
    body = make_scrollable(
        format_table(rows, ("run", "", "expected", "measured"), (3,)), "expectations"
    )
    return format_section("Where sweeps should land", body) if rows else Markup()


def _list_run_landings(name: str, data: SweepRecord) -> list[tuple[str, ...]]:
    return [
        (
            name,
            "met" if one.met else "missed",
            one.sentence,
            describe_measured(one.measured),
        )
        for one in data.expectations
    ]


def _show_other_records(named: Named) -> Markup:
    return join_markup(
        *(
            format_section(f"{name}: what its record says", list_record_fields(run.data))
            for name, run in select_records(named, OtherRecord)
        )
    )


def _list_commands(named: Named) -> Markup:
    rows = [guard_drawing(run, _format_command_row, name, run) for name, run in named]
    return format_section(
        "How to reproduce",
        make_scrollable(
            format_table(rows, ("run", "command", "seed", "time", "versions")), "commands"
        ),
    )


def _format_command_row(name: str, run: SavedRun[Envelope]) -> tuple[str, ...]:
    spent = run.data.seconds if isinstance(run.data, RunRecord) else None
    took = format_seconds(spent.total) if spent else ""
    return (
        name,
        restore_command(run.data),
        "" if run.data.seed is None else str(run.data.seed),
        took,
        describe_versions(run.data),
    )
