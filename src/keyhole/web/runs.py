"""The shelf: what a directory of runs holds; nothing outside it is ever read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import structs

from keyhole._files import read_file
from keyhole.errors import InvalidInput
from keyhole.lab.runs.reading import recognise_kind
from keyhole.lab.runs.record_parts import Cell
from keyhole.lab.runs.store import read_rows
from keyhole.lab.runs.tables import tabulate_rows

DEEP = 3  # levels that are looked through
LISTED = 500  # runs that are listed
RECORD = 16 << 20  # bytes of a record that is read
REPORT = 64 << 20  # bytes of a report
ROWS = 5000  # rows of a sweep that are handed out
# Columns no table shows; they would be most of the bytes of an answer.
_HEAVY = ("counterexample", "jumps", "certificate", "stops")


class NotThere(Exception):
    """Nothing of that name is on the shelf."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the shelf lists it."""

    name: str
    kind: str
    verdict: str | None
    sentence: str
    report: bool
    when: float


class Shelf(msgspec.Struct, frozen=True, kw_only=True):
    """Every run of a directory, and how many more there are."""

    directory: str
    runs: list[RunSummary]
    left_out: int


class SweepTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a sweep by column, or a sentence why there are none."""

    columns: dict[str, list[Cell]] = {}
    count: int = 0
    left_out: int = 0
    sentence: str | None = None


class ShownRun(RunSummary, frozen=True, kw_only=True):
    """One run: its record as `--json` printed it, and the rows of its store where it is a sweep."""

    record: msgspec.Raw
    rows: SweepTable | None


class _Glance(msgspec.Struct, frozen=True):
    """What the shelf shows of a record, whatever it is of."""

    record: str | None = None
    verdict: str | None = None
    status: str | None = None
    sentence: str | None = None


_EMPTY = msgspec.Raw(b"{}")


def list_runs(runs: Path) -> Shelf:
    """Every run and sweep, newest first, with its verdict and sentence."""
    found = sorted(_find_run_directories(runs, DEEP), key=_read_modified_time, reverse=True)
    rows = [_summarise_run(runs, place) for place in found[:LISTED]]
    return Shelf(directory=str(runs), runs=rows, left_out=max(0, len(found) - LISTED))


def _find_run_directories(directory: Path, deep: int) -> Iterator[Path]:
    """Directories that hold a run or a sweep; the jobs of a sweep are not listed one by one."""
    try:
        inside = [
            place
            # Links are not followed: they could lead anywhere, or round and round.
            for place in filter(_is_nameable, directory.iterdir())
            if place.is_dir() and not place.is_symlink()
        ]
    except OSError:
        return
    for place in inside:
        if any(_has_own_file(place, mark) for mark in _MARKS):
            yield place
        elif deep > 1:
            yield from _find_run_directories(place, deep - 1)


def _is_nameable(place: Path) -> bool:
    """Whether the name is text; one that is not cannot be put into an answer, nor asked for."""
    return not any("\ud800" <= letter <= "\udfff" for letter in place.name)


def _has_own_file(place: Path, name: str) -> bool:
    """Whether a run has a file of its own, not a link that leads elsewhere."""
    return (place / name).is_file() and not (place / name).is_symlink()


def _read_modified_time(place: Path) -> float:
    return max(
        ((place / name).stat().st_mtime for name in _MARKS if _has_own_file(place, name)),
        default=0.0,
    )


_MARKS = ("record.json", "store.sqlite")


def _summarise_run(runs: Path, place: Path) -> RunSummary:
    content = _read_run_record(place)
    record = _glance_at(content)
    store = _has_own_file(place, "store.sqlite")
    return RunSummary(
        name=place.relative_to(runs).as_posix(),
        kind="sweep" if store else _recognise_listed_kind(record, content),
        verdict=record.verdict or record.status,
        sentence=record.sentence or ("A sweep that is not finished." if store else ""),
        report=(place / "report.html").is_file(),
        when=_read_modified_time(place),
    )


def _glance_at(content: msgspec.Raw) -> _Glance:
    try:
        return msgspec.json.decode(content, type=_Glance)
    except msgspec.ValidationError as error:
        return _Glance(sentence=f"Its record cannot be read: {error}.")


def _recognise_listed_kind(record: _Glance, content: msgspec.Raw) -> str:
    names = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    # Curves with no queries are those of training, in records of every version.
    if "curve" in names and "queries" not in names:
        return "train"
    return recognise_kind(record.record, names)


def _read_run_record(place: Path) -> msgspec.Raw:
    """A record as JSON, or an object with a sentence in its place."""
    path = place / "record.json"
    if not _has_own_file(place, path.name):
        return _EMPTY
    try:
        # A page that hangs on one large record shows no run at all.
        content = read_file(path, "It has no record.", most=RECORD)
        msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        # Decoded in full, since what follows is handed on as it is.
        msgspec.json.decode(content)
        return msgspec.Raw(content.strip())
    except (InvalidInput, msgspec.DecodeError, RecursionError) as error:
        return _say(f"Its record cannot be read: {error}")


def _say(sentence: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"sentence": sentence}))


def show_run(runs: Path, name: str) -> ShownRun:
    """One run, all of it."""
    place = find_run_directory(runs, name)
    summary = structs.asdict(_summarise_run(runs, place))
    return ShownRun(**summary, record=_read_run_record(place), rows=_read_sweep_rows(place))


def _read_sweep_rows(place: Path) -> SweepTable | None:
    path = place / "store.sqlite"
    if not _has_own_file(place, path.name):
        return None
    try:
        flat = tabulate_rows(read_rows(path))
    except InvalidInput as error:
        return SweepTable(sentence=str(error))
    names = dict.fromkeys(name for row in flat for name in row if not _is_heavy(name))
    kept = {name: [_simplify_value(row.get(name)) for row in flat[:ROWS]] for name in names}
    return SweepTable(columns=kept, count=len(flat), left_out=max(0, len(flat) - ROWS))


def _is_heavy(name: str) -> bool:
    return any(part in _HEAVY for part in name.split("."))


def _simplify_value(value: Cell) -> Cell:
    """Numbers and words as they are, anything else as text."""
    if value is None or isinstance(value, int | float | str):
        return value
    return msgspec.json.encode(value).decode()


def read_run_report(runs: Path, name: str) -> bytes:
    """The report of a run."""
    path = find_run_directory(runs, name) / "report.html"
    try:
        # Even report.html may be a link.
        if path.resolve(strict=True).is_relative_to(runs.resolve(strict=True)):
            return read_file(path, "It is no file.", most=REPORT)
    except (OSError, InvalidInput):
        pass
    raise NotThere("This run has no report that can be shown.")


def find_stopped_run(runs: Path, name: str) -> Path:
    """The directory of a run of a target that was stopped.

    Raises:
        InvalidInput: there is none of that name.
    """
    try:
        return find_run_directory(runs, name, ("transcript.sqlite",))
    except NotThere as error:
        raise InvalidInput(f"there is no stopped run {name!r:.80} to go on with.") from error


def read_watched_result(runs: Path, name: str) -> msgspec.Raw | None:
    """What the page showed of a run when it ended; null where it was stopped, None of no run."""
    try:
        place = find_run_directory(runs, name, ("watched.json", "transcript.sqlite"))
        if not _has_own_file(place, "watched.json"):
            # A run of the command line was never watched.
            return None if _has_own_file(place, "record.json") else msgspec.Raw(b"null")
        content = read_file(place / "watched.json", "It was not watched.", most=REPORT)
        msgspec.json.decode(content)
    except (NotThere, InvalidInput, msgspec.DecodeError):
        return None
    return msgspec.Raw(content)


def find_run_directory(runs: Path, name: str, marks: tuple[str, ...] = _MARKS) -> Path:
    """The directory of a run, which holds one of the files `marks`.

    Raises:
        NotThere: it leads out of the directory of runs, through a link or otherwise, or holds no
            run.
    """
    parts = name.split("/")
    if (
        not name
        or len(parts) > DEEP
        # Refused by the words alone, before the disk is asked.
        or any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts)
    ):
        raise NotThere("There is no such run.")
    place = runs.joinpath(*parts)
    try:
        held = place.resolve(strict=True).is_relative_to(runs.resolve(strict=True))
        known = held and any(_has_own_file(place, mark) for mark in marks)
    except OSError:
        known = False
    if not known:
        raise NotThere("There is no such run.")
    return place
