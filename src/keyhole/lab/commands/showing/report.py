"""The report job: the page of one run again, or of several, from records alone."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from keyhole._files import write_atomically
from keyhole.errors import InvalidInput
from keyhole.lab.jobs.report_jobs import ReportJob
from keyhole.lab.pages.comparing.comparison_page import draw_comparison_page
from keyhole.lab.pages.comparing.index_page import draw_index_page
from keyhole.lab.pages.run_page import draw_run_page, keeps_page
from keyhole.lab.runs.directories import hold_directory, make_new_directory
from keyhole.lab.runs.other_records import ReportedRun, ReportRecord
from keyhole.lab.runs.reading import SavedRun, guard_drawing, read_run
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.summaries import LINES, describe_question, summarise_record


def run_report(job: ReportJob) -> Record[ReportRecord]:
    """Read the runs, write the page and the figures, return the record.

    Raises:
        InvalidInput: a run has no record, or a damaged one.
    """
    if job.index is not None:
        return _write_index(job, job.index)
    if not job.runs:
        raise InvalidInput("report needs at least one RUN, a directory such as runs/TIME-NAME.")
    # A run that is named twice is compared once.
    runs = [read_run(path) for path in dict.fromkeys(job.runs)]
    # The summary fits a screen: a row on figures takes the place of another.
    room = LINES - job.figures
    summaries = [guard_drawing(run, summarise_record, run.data, room) for run in runs]
    with _choose_report_directory(job, runs) as directory:
        path = directory / "report.html"
        _write_page(runs, path)
        figures = _write_run_figures(runs, directory) if job.figures else []
        data = ReportRecord(
            sentence=_describe_runs(runs),
            runs=[_record_run(run, rows) for run, rows in zip(runs, summaries, strict=True)],
            report=str(path),
            figures=figures,
        )
        rows = summaries[0]
        if len(runs) > 1:
            rows = [(run.name, _shorten_sentence(run)) for run in runs]
        more = [("figures", f"{len(figures)} files in {directory / 'figures'}")] if figures else []
        return Record(data, 0, (*rows, *more, ("page", str(path))))


def _write_index(job: ReportJob, under: str) -> Record[ReportRecord]:
    """One page in a directory that links to the page of every run in it."""
    if job.runs or job.figures:
        raise InvalidInput("--index DIR lists all runs of a directory: name no RUN, no --figures.")
    root = Path(under)
    if not root.is_dir():
        raise InvalidInput(f"{root} is not a directory. Give one that holds runs, such as runs.")
    runs, damaged = _find_runs(root)
    # A run's own page is not replaced: its directory is listed from above.
    if job.out is None and (root / "record.json").exists():
        raise InvalidInput(f"{root} is a run itself. Give the directory it lies in, or --out.")
    path = (root if job.out is None else Path(job.out)) / "index.html"
    write_atomically(path, draw_index_page(runs, damaged, root, path.parent).encode())
    data = ReportRecord(
        sentence=f"{len(runs)} runs of {root} are listed on one page.",
        runs=[_record_run(run, []) for run in runs],
        report=str(path),
        figures=[],
    )
    return Record(data, 0, (("page", str(path)),))


def _find_runs(root: Path) -> tuple[list[SavedRun[Any]], list[str]]:
    """Runs below a directory, and the sentences on those that cannot be read."""
    runs: list[SavedRun[Any]] = []
    damaged: list[str] = []
    # A tour holds runs; deeper than that nothing is looked for.
    for file in sorted({*root.glob("*/record.json"), *root.glob("*/*/record.json")}):
        try:
            runs.append(read_run(str(file.parent)))
        except InvalidInput as error:
            damaged.append(str(error))
    # Attempts stand on the page of their audit.
    audits = {run.directory for run in runs if run.kind == "audit"}
    return [run for run in runs if run.directory.parent not in audits], damaged


def _choose_report_directory(
    job: ReportJob, runs: list[SavedRun[Any]]
) -> AbstractContextManager[Path]:
    """Where to write; never over the report of another run."""
    if job.out is None:
        return nullcontext(runs[0].directory if len(runs) == 1 else make_new_directory("report"))
    directory = Path(job.out)
    # A report in its own run needs no lock: the record beside it is not touched.
    if len(runs) == 1 and directory.resolve() == runs[0].directory.resolve():
        return nullcontext(directory)
    # A page in another run's directory would replace that run's own.
    if (directory / "record.json").exists():
        raise InvalidInput(
            f"{directory} holds a run, whose report would be lost. Choose another --out."
        )
    return hold_directory(directory)


def _write_page(runs: list[SavedRun[Any]], path: Path) -> None:
    """The page of one run, or of all beside each other."""
    if len(runs) > 1:
        write_atomically(path, draw_comparison_page(runs).encode())
    # A page that shows more than its record holds could not be drawn again as it was.
    elif not keeps_page(runs[0]) or not path.is_file():
        write_atomically(path, draw_run_page(runs[0]).encode())


def _write_run_figures(runs: list[SavedRun[Any]], directory: Path) -> list[str]:
    # Matplotlib is an extra, and slow to load.
    from keyhole.lab.pages.figures.paper_figures import write_figures

    named = zip(_choose_prefixes(runs), runs, strict=True)
    return [
        str(path)
        for prefix, run in named
        for path in write_figures(run, directory / "figures", prefix)
    ]


def _choose_prefixes(runs: list[SavedRun[Any]]) -> list[str]:
    """What the figures of each run begin with, so that none overwrites another."""
    if len(runs) == 1:
        return [""]
    names = ["".join(c if c.isalnum() or c in "-_." else "-" for c in run.name) for run in runs]
    # Two runs of one name, from different places, would write the same files.
    alike = len(set(names)) < len(names)
    return [f"{k}-{name}-" if alike else f"{name}-" for k, name in enumerate(names, start=1)]


def _describe_runs(runs: list[SavedRun[Any]]) -> str:
    if len(runs) == 1:
        return runs[0].data.sentence or "A run without a sentence."
    kinds = [run.kind for run in runs]
    told = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return f"{len(runs)} runs beside each other: {told}."


def _record_run(run: SavedRun[Any], rows: list[tuple[str, str]]) -> ReportedRun:
    return ReportedRun(
        run=str(run.directory),
        kind=run.kind,
        sentence=run.data.sentence,
        verdict=getattr(run.data, "verdict", None),
        asked=describe_question(run.data),
        summary=rows,
    )


def _shorten_sentence(run: SavedRun[Any]) -> str:
    sentence = run.data.sentence
    return f"{run.kind}: {sentence[:150]}{' ...' * (len(sentence) > 150)}"
