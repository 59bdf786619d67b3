"""The report job: the page of one run again, or one page that compares several; from records, never
from a recovery.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.lab.jobs.report_jobs import ReportJob
from keyhole.lab.pages.comparison_page import draw_comparison_page as comparison
from keyhole.lab.pages.run_page import KEPT, draw_run_page
from keyhole.lab.runs.directories import hold_directory, make_new_directory
from keyhole.lab.runs.reading import SavedRun, guard_drawing, read_run
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.summaries import LINES, describe_question, summarise_record
from keyhole.models.files import write_atomically


def run_report(job: ReportJob) -> Record:
    """Read the runs, write the page and the figures, return the record.

    Raises:
        InvalidInput: a run has no record, or a damaged one.
    """
    if not job.runs:
        raise InvalidInput("report needs at least one RUN, a directory such as runs/TIME-NAME.")
    runs = [read_run(path) for path in dict.fromkeys(job.runs)]
    room = LINES - job.figures
    summaries = [guard_drawing(run, summarise_record, run.kind, run.data, room) for run in runs]
    with _choose_report_directory(job, runs) as directory:
        path = (
            _write_run_page(runs[0], directory)
            if len(runs) == 1
            else _write_comparison_page(runs, directory)
        )
        figures = _write_run_figures(runs, directory) if job.figures else []
        data: dict[str, Any] = {
            "sentence": _describe_runs(runs),
            "runs": [_record_run(run, rows) for run, rows in zip(runs, summaries, strict=True)],
            "report": str(path),
            "figures": figures,
        }
        rows = (
            summaries[0] if len(runs) == 1 else [(run.name, _shorten_sentence(run)) for run in runs]
        )
        more = [("figures", f"{len(figures)} files in {directory / 'figures'}")] if figures else []
        return Record(data, 0, (*rows, *more, ("page", str(path))))


def _choose_report_directory(job: ReportJob, runs: list[SavedRun]) -> AbstractContextManager[Path]:
    """Where to write; never over the report of another run."""
    if job.out is None:
        return nullcontext(runs[0].directory if len(runs) == 1 else make_new_directory("report"))
    directory = Path(job.out)
    own = len(runs) == 1 and directory.resolve() == runs[0].directory.resolve()
    if own:
        return nullcontext(directory)
    if (directory / "record.json").exists():
        raise InvalidInput(
            f"{directory} holds a run, whose report would be lost. Choose another --out."
        )
    return hold_directory(directory)


def _write_run_page(run: SavedRun, directory: Path) -> Path:
    """The page of a run; one that shows more than the record holds is kept."""
    path = directory / "report.html"
    if run.kind in KEPT and path.is_file():
        return path
    write_atomically(path, draw_run_page(run).encode())
    return path


def _write_comparison_page(runs: list[SavedRun], directory: Path) -> Path:
    path = directory / "report.html"
    write_atomically(path, comparison(runs).encode())
    return path


def _write_run_figures(runs: list[SavedRun], directory: Path) -> list[str]:
    from keyhole.lab.pages.figures.paper_figures import write_figures

    named = zip(_choose_prefixes(runs), runs, strict=True)
    return [
        str(path)
        for prefix, run in named
        for path in write_figures(run, directory / "figures", prefix)
    ]


def _choose_prefixes(runs: list[SavedRun]) -> list[str]:
    """What the figures of each run begin with: its name where there are several, and a number where
    names are alike.
    """
    if len(runs) == 1:
        return [""]
    names = ["".join(c if c.isalnum() or c in "-_." else "-" for c in run.name) for run in runs]
    alike = len(set(names)) < len(names)
    return [f"{k}-{name}-" if alike else f"{name}-" for k, name in enumerate(names, start=1)]


def _describe_runs(runs: list[SavedRun]) -> str:
    if len(runs) == 1:
        return str(runs[0].data.get("sentence") or "A run without a sentence.")
    kinds = [run.kind for run in runs]
    told = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return f"{len(runs)} runs beside each other: {told}."


def _record_run(run: SavedRun, rows: list[tuple[str, str]]) -> dict[str, Any]:
    said = {"sentence": run.data.get("sentence"), "verdict": run.data.get("verdict")}
    question = guard_drawing(run, describe_question, run.kind, run.data)
    return {"run": str(run.directory), "kind": run.kind, **said, "asked": question, "summary": rows}


def _shorten_sentence(run: SavedRun) -> str:
    sentence = str(run.data.get("sentence") or "")
    return (
        f"{run.kind}: {sentence}" if len(sentence) <= 150 else f"{run.kind}: {sentence[:150]} ..."
    )
