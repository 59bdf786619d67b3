"""The main plots of a run by name: the descriptions that its page, a paper and a notebook draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from keyhole.drawing.describing import Chart, Sheet
from keyhole.drawing.html import format_number
from keyhole.lab.pages.audit_page import describe_policies
from keyhole.lab.pages.bound_page import describe_plane
from keyhole.lab.pages.build_page import describe_frontier, describe_margins, title_frontier
from keyhole.lab.pages.parts.error_curves import describe_error_curve
from keyhole.lab.pages.parts.recovered_matrices import describe_recovery
from keyhole.lab.pages.recovery_page import describe_query_phases
from keyhole.lab.pages.sweep_page import describe_sweep, split_panels
from keyhole.lab.pages.token_audit_page import describe_spectra
from keyhole.lab.pages.training_page import describe_training
from keyhole.lab.pages.twins_page import describe_twins
from keyhole.lab.runs.other_records import SweepRecord
from keyhole.lab.runs.reading import SavedRun
from keyhole.lab.runs.records import Envelope
from keyhole.lab.runs.recovery_records import AuditRecord, RecoveryRecord
from keyhole.lab.runs.rows import count_fewest_queries, count_learning_queries
from keyhole.lab.runs.store import read_rows
from keyhole.lab.runs.tables import tabulate_rows
from keyhole.lab.runs.task_records import BuildRecord

Describe = Callable[[SavedRun[Any]], Sheet | None]


def list_sheets(kind: str) -> Mapping[str, Describe]:
    """The plots that a run of this kind has, by the name of their file."""
    return _SHEETS.get(kind, {})


def _describe_recovery(run: SavedRun[RecoveryRecord]) -> Sheet | None:
    """True W, recovered W and their difference; recovered W alone where truth is not known."""
    sheet = describe_recovery(run.data, run.directory)
    if sheet is None:
        return None
    least = count_fewest_queries(run.data)
    told = f"{count_learning_queries(run.data):,} queries; the limit is {least or 'not known'}"
    return Sheet(f"{sheet.title}: {told}", sheet.panels)


def _title_by_itself(chart: Chart | None) -> Sheet | None:
    return None if chart is None else Sheet(chart.about, (chart,))


def _title_by_sentence(run: SavedRun[Envelope], chart: Chart | None) -> Sheet | None:
    return None if chart is None else Sheet(run.data.sentence, (chart,))


def _describe_audit(run: SavedRun[AuditRecord]) -> Sheet | None:
    """Policies by the error behind them; of a language model the spectrum of its answers."""
    data = run.data
    chart = describe_policies(data) if data.tokens is None else describe_spectra(data.tokens)
    return _title_by_sentence(run, chart)


def _describe_queries(run: SavedRun[RecoveryRecord]) -> Sheet | None:
    asked = run.data.queries.by_phase
    return _title_by_itself(describe_query_phases(run.data)) if asked else None


def _describe_margins(run: SavedRun[BuildRecord]) -> Sheet | None:
    held = run.data.certificate
    if held is None:
        return None
    margin = format_number(run.data.margin)
    title = f"{held.theorem} {held.outcome.lower()}; margin {margin}"
    return Sheet(title, (describe_margins(held),))


def _describe_sweep(run: SavedRun[SweepRecord]) -> Sheet | None:
    figure = run.data.figure
    if figure is None:
        return None
    rows = tabulate_rows(read_rows(run.directory / "store.sqlite"))
    panels = [describe_sweep(among, figure) for among in split_panels(rows, figure).values()]
    charts = tuple(chart for chart in panels if chart is not None)
    return Sheet(figure.title or run.data.name, charts) if charts else None


_LEARNED: dict[str, Describe] = {"recovery": _describe_recovery, "queries": _describe_queries}
# By the kind of a run: names of files, and what is drawn.
_SHEETS: dict[str, dict[str, Describe]] = {
    "demo": {
        **_LEARNED,
        "error-against-queries": lambda run: _title_by_itself(describe_error_curve(run.data)),
    },
    "learn": _LEARNED,
    "audit": {"audit": _describe_audit},
    "twins": {"twins": lambda run: _title_by_sentence(run, describe_twins(run.data))},
    "build": {
        "margin": _describe_margins,
        "sizes": lambda run: Sheet(title_frontier(run.data), (describe_frontier(run.data),)),
    },
    "bound": {"plane": lambda run: _title_by_sentence(run, describe_plane(run.data))},
    "sweep": {"sweep": _describe_sweep},
    "train": {"training": lambda run: _title_by_sentence(run, describe_training(run.data))},
}
