"""Run directories: where a run writes, and when it may."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from keyhole.errors import InvalidInput
from keyhole.lab import report
from keyhole.lab.records import Record
from keyhole.models.files import write_atomically

_RUN_FILES = (
    "record.json",
    *("transcript.sqlite", "transcript.sqlite-wal", "transcript.sqlite-shm"),
    *("model.safetensors", "truth.safetensors", "example.safetensors", "report.html"),
)
_TRAINED = ("checkpoint-*.safetensors", "seed-*.safetensors")


def run_directory(name: str, *, out: str | None, resume: bool | None, force: bool) -> Path:
    """The directory of a run: a new one, or `out`, which must not hold a run unless that is to go on or be replaced.

    Args:
        name: what a new directory is called, after the time.
        out: the directory that was asked for.
        resume: whether to go on with the run in `out`; nothing where such a run cannot be gone on with.
        force: whether to replace the run in `out`.
    """
    if out is None:
        if resume:
            raise InvalidInput("--resume needs --out DIR, the directory of the run to go on with.")
        return new_directory(name)
    directory = Path(out)
    held = [file for file in ("record.json", "transcript.sqlite") if (directory / file).exists()]
    trained = [file for pattern in _TRAINED for file in directory.glob(pattern)]
    held += [file.name for file in trained]
    if held and not (resume or force):
        go_on = "" if resume is None else "--resume to go on with it, or "
        raise InvalidInput(f"{directory} already holds a run. Use {go_on}--force to replace it.")
    if force and not resume:
        for file in _RUN_FILES:
            (directory / file).unlink(missing_ok=True)
        for file in trained:
            file.unlink()
    make(directory)
    return directory


def new_directory(name: str, under: Path = Path("runs")) -> Path:
    """A directory of its own under runs/, or another, named by time and `name`."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    taken = under / stem
    number = 1
    while taken.exists():
        number += 1
        taken = under / f"{stem}-{number}"
    make(taken)
    return taken


def make(directory: Path) -> None:
    """Make a directory, with its parents."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot make the directory {directory}: {error.strerror}. Choose another --out.") from error


def finished(record: Record, directory: Path) -> Record:
    """Write a record and its page."""
    write_atomically(directory / "record.json", record.json() + b"\n")
    write_atomically(directory / "report.html", report.page(record.data, directory).encode())
    return record
