"""The sweep job: every job of a file that has not been run yet, run somewhere, and kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from keyhole._files import write_atomically
from keyhole.errors import InvalidInput
from keyhole.lab.jobs import AuditJob, Job, LearnJob, SweepJob, TrainJob
from keyhole.lab.pages.sweep_page import draw_sweep_page
from keyhole.lab.runs.directories import hold_directory
from keyhole.lab.runs.other_records import FailedJob, JobCounts, Landing, SweepRecord
from keyhole.lab.runs.records import Envelope, Record
from keyhole.lab.runs.rows import list_expectation_rows
from keyhole.lab.runs.store import DONE, FAILED, Store, StoredRow, read_rows
from keyhole.lab.runs.summaries import restore_command
from keyhole.lab.runs.tables import Table, check_formats, export_rows, tabulate_rows
from keyhole.lab.sweeps.cluster import Cluster
from keyhole.lab.sweeps.engines import Engine, Outcome, Pool, Serial, Work
from keyhole.lab.sweeps.expectations import judge_expectations
from keyhole.lab.sweeps.files import Sweep, read_sweep
from keyhole.oracles.progress.bars import ProgressBar, TerminalBar

REFUSED = 3
Loader = Callable[[type[Job]], object]
Runner = Callable[[Job], Record[Envelope]]
SECONDS_BETWEEN_LINES = 10.0  # of progress, where standard error is no terminal


def run_sweep(job: SweepJob, *, work: tuple[Loader, Runner]) -> Record[SweepRecord]:
    """Run what is missing, keep it, draw it; `work` says how a job is loaded and done."""
    sweep = read_sweep(job.file)
    check_formats(job.export)
    if job.workers < 0:
        raise InvalidInput(f"--workers is a whole number >= 0; got {job.workers}.")
    directory = Path(job.out) if job.out is not None else Path("runs") / sweep.name
    if job.resume and not (directory / "store.sqlite").is_file():
        raise InvalidInput(
            f"{directory} holds no rows of a sweep to go on with. Leave --resume away to begin, or"
            " name the directory with --out."
        )
    jobs = _place_jobs(sweep, directory)
    # The store has a lock of its own; this one keeps the page from being written twice.
    with hold_directory(directory):
        ran = _run_missing(job, sweep, jobs, directory / "store.sqlite", Work(*work))
        # The file may have changed: rows of jobs it no longer names stay, unseen.
        rows = [row for row in read_rows(directory / "store.sqlite") if row.key in jobs]
        return _finish_sweep(job, sweep, directory, rows, ran)


def _run_missing(job: SweepJob, sweep: Sweep, jobs: dict[str, Job], path: Path, work: Work) -> int:
    """Run and keep every job that the store lacks; how many there were."""
    with closing(Store(path)) as store:
        states = store.states()
        # A failure is a result too, and is not repeated unasked.
        done = {DONE} if job.retry_failed else {DONE, FAILED}
        missing = {key: one for key, one in jobs.items() if states.get(key) not in done}
        if missing:
            _drive_engine(missing, _choose_engine(job, len(missing), work), store, sweep)
    return len(missing)


def _place_jobs(sweep: Sweep, directory: Path) -> dict[str, Job]:
    """The jobs by their keys, equal ones once; each that writes has its own directory."""
    # Jobs that share a directory would overwrite each other.
    if any(getattr(job, name, None) for job in sweep.jobs for name in ("out", "resume", "force")):
        raise InvalidInput(
            "a sweep gives each of its jobs a directory of its own: leave out, resume and force"
            " away."
        )
    return {job.key: _place_job(job, directory) for job in sweep.jobs}


def _place_job(job: Job, directory: Path) -> Job:
    """The job with where it writes, and that it goes on with what it finds there."""
    if isinstance(job, TrainJob) and not job.keep:
        return replace(job, keep=False)
    place = str(directory / "jobs" / job.key)
    # Constructed weights are not trained: there is nothing that could be gone on with.
    if isinstance(job, TrainJob) and job.model == "constructed":
        return replace(job, out=place, force=True)
    if isinstance(job, LearnJob | AuditJob | TrainJob):
        return replace(job, out=place, resume=True)
    return job


def _choose_engine(job: SweepJob, count: int, work: Work) -> Engine:
    if job.cluster is not None:
        return Cluster(work, job.cluster)
    return Pool(work, min(job.workers, count)) if job.workers else Serial(work)


def _drive_engine(missing: dict[str, Job], engine: Engine, store: Store, sweep: Sweep) -> None:
    """Keep the engine supplied and every outcome kept; what is in flight is run again."""
    waiting = iter(missing.items())
    flying = 0
    with closing(engine), _show_progress(sweep.name, len(missing)) as shown:
        left = len(missing)
        while left:
            # The engine holds a window of jobs: what it holds is lost with it.
            while flying < engine.room and (pair := next(waiting, None)) is not None:
                engine.submit(*pair)
                flying += 1
            for key, outcome in engine.completed():
                # Kept before it is counted: whatever happens next, this job is done.
                store.put(_make_stored_row(key, sweep.kind, missing[key], outcome))
                flying -= 1
                left -= 1
                shown.advance(1)


def _make_stored_row(key: str, kind: str, job: Job, outcome: Outcome) -> StoredRow:
    fields = msgspec.json.encode({"kind": kind, **asdict(job)}, order="sorted")
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    about = msgspec.structs.replace(outcome.about, finished=finished)
    state = FAILED if outcome.record is None else DONE
    return StoredRow(key, fields, state, outcome.record, outcome.reason, about)


class _Lines:
    """Progress as a line now and then, where there is no terminal."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.count = 0
        self.start = self.last = time.monotonic()

    def advance(self, jobs: int) -> None:
        """So many more jobs have ended."""
        self.count += jobs
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN_LINES or self.count == self.total:
            left = (now - self.start) / self.count * (self.total - self.count)
            sys.stderr.write(
                f"{self.name}: {self.count} of {self.total} jobs, about {left:.0f} s left\n"
            )
            self.last = now

    def close(self) -> None:
        """Nothing is left to take away."""


@contextmanager
def _show_progress(name: str, total: int) -> Generator[ProgressBar]:
    # A bar is redrawn in place, which fills a log file with its every state.
    with closing(TerminalBar(name, total) if sys.stderr.isatty() else _Lines(name, total)) as shown:
        yield shown


def _finish_sweep(
    job: SweepJob, sweep: Sweep, directory: Path, rows: list[StoredRow], ran: int
) -> Record[SweepRecord]:
    """Exports, the page and the record, all read from the rows."""
    flat: Table = tabulate_rows(rows)
    landed = judge_expectations([row for row in flat if row["state"] == DONE], sweep.expect)
    failed = [row for row in rows if row.state == FAILED]
    counts = JobCounts(
        total=len(rows), done=len(rows) - len(failed), failed=len(failed), run_now=ran
    )
    data = SweepRecord(
        sentence=_describe_progress(sweep, rows, failed, ran, landed),
        name=sweep.name,
        about=sweep.about,
        jobs=counts,
        failures=[FailedJob(key=row.key, reason=row.reason) for row in failed],
        expectations=landed,
        store=str(directory / "store.sqlite"),
        exports=export_rows(flat, directory, job.export),
        run=str(directory),
        file=job.file,
        figure=sweep.figure,
    )
    data = msgspec.structs.replace(data, command=restore_command(data))
    lines = [*list_expectation_rows(landed)]
    lines += [("failed", f"{row.key}: {row.reason}") for row in failed[:5]]
    lines += [("written to", str(directory))]
    record = Record(data, REFUSED if failed else 0, tuple(lines))
    write_atomically(directory / "record.json", record.json() + b"\n")
    write_atomically(directory / "report.html", draw_sweep_page(data, flat, sweep.figure).encode())
    return record


def _describe_progress(
    sweep: Sweep, rows: list[StoredRow], failed: list[StoredRow], ran: int, landed: list[Landing]
) -> str:
    said = (
        f"{len(rows) - len(failed):,} of {len(rows):,} jobs of {sweep.name} are done, {ran:,} of"
        " them run now."
    )
    if failed:
        said += f" {len(failed):,} failed; mend the cause and add --retry-failed."
    if landed:
        met = sum(one.met for one in landed)
        said += f" {met} of {len(landed)} expectations are met."
    return said
