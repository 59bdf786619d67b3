"""Run directories: where a run writes, and when it may."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path

from keyhole._files import make_folders
from keyhole.errors import InvalidInput
from keyhole.lab.runs.locks import name_holder, release_lock, take_lock

# All that a run may leave; --force removes these and nothing a person put there.
_RUN_FILES = (
    "record.json",
    *("transcript.sqlite", "transcript.sqlite-wal", "transcript.sqlite-shm"),
    *("against.sqlite", "against.sqlite-wal", "against.sqlite-shm", "projection.safetensors"),
    *("model.safetensors", "truth.safetensors", "example.safetensors", "report.html"),
    "watched.json",
)
_TRAINED = ("checkpoint-*.safetensors", "seed-*.safetensors")
_LOCK = "run.lock"


@contextmanager
def open_run_directory(
    name: str, *, out: str | None, resume: bool | None, force: bool
) -> Generator[Path]:
    """The directory of a run, kept for it while inside: a new one, or `out`.

    That must not hold a run unless it is to go on or be replaced, and never a live one.

    Args:
        name: what a new directory is called, after the time.
        out: the directory that was asked for.
        resume: whether to go on with the run in `out`; nothing where such a run cannot be gone on
            with.
        force: whether to replace the run in `out`.
    """
    # A new directory has nothing to go on with.
    if out is None and resume:
        raise InvalidInput("--resume needs --out DIR, the directory of the run to go on with.")
    with hold_directory(make_new_directory(name) if out is None else Path(out)) as directory:
        if out is not None:
            _make_room(directory, resume=resume, force=force)
        yield directory


@contextmanager
def hold_directory(directory: Path) -> Generator[Path]:
    """Keep a directory, made when absent, from every other run while inside.

    Raises:
        InvalidInput: a live run has it, or it cannot be written to.
    """
    make_directory(directory)
    try:
        lock = take_lock(directory / _LOCK)
    except OSError as error:
        raise InvalidInput(
            f"cannot write in {directory}: {error.strerror}. Choose another --out."
        ) from error
    if lock is None:
        raise InvalidInput(
            f"{directory} cannot be used, another process may be writing it: a run is still going"
            f" on ({name_holder(directory / _LOCK)}). Wait for its end, or choose another --out."
        )
    try:
        yield directory
    finally:
        release_lock(lock)


def _make_room(directory: Path, *, resume: bool | None, force: bool) -> None:
    """Refuse to touch a run that is neither to go on nor to be replaced; clear one that is."""
    held = [file for file in ("record.json", "transcript.sqlite") if (directory / file).exists()]
    trained = [file for pattern in _TRAINED for file in directory.glob(pattern)]
    held += [file.name for file in trained]
    if held and not (resume or force):
        # Runs that cannot be gone on with do not advise --resume.
        go_on = "" if resume is None else "--resume to go on with it, or "
        raise InvalidInput(f"{directory} already holds a run. Use {go_on}--force to replace it.")
    if force and not resume:
        for file in _RUN_FILES:
            (directory / file).unlink(missing_ok=True)
        for file in trained:
            file.unlink()


def make_new_directory(name: str, under: Path = Path("runs")) -> Path:
    """A directory of its own under runs/, or another, named by time and `name`."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    # Two runs of one second get numbers.
    names = (under / (f"{stem}-{number}" if number > 1 else stem) for number in count(1))
    return next(place for place in names if make_directory(place, anew=True))


def make_directory(directory: Path, *, anew: bool = False) -> bool:
    """Make a directory, with its parents; False where it is to be a new one and is none."""
    try:
        make_folders(directory, exist_ok=not anew)
        return True
    except OSError as error:
        # Somebody else was faster: the next name is tried.
        if anew and isinstance(error, FileExistsError):
            return False
        raise InvalidInput(
            f"cannot make the directory {directory}: {error.strerror}. Choose another --out."
        ) from error
