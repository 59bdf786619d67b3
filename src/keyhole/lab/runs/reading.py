"""Run directories as they are found: the record, typed by its kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from keyhole._files import read_file
from keyhole.errors import InvalidInput
from keyhole.lab.jobs import COMMANDS
from keyhole.lab.runs.other_records import OtherRecord
from keyhole.lab.runs.records import FORMAT, Envelope, R_co, RunRecord
from keyhole.lab.runs.tables import flatten_table

OTHER = "other"
T = TypeVar("T")
# Records of format 1 do not say what they are of: the first kind all of whose names they have.
_SIGNS: dict[str, tuple[str, ...]] = {
    "demo": ("stops", "queries", "verdict"),
    "audit": ("policies", "error_of"),
    "twins": ("twins", "model"),
    "build": ("frontier", "construction", "certificate"),
    "bound": ("inequalities", "verdict"),
    "sweep": ("expectations", "jobs", "store"),
    "train": ("model_kind", "errors", "lines"),
    "learn": ("verdict", "queries", "class"),
}
# What drawing a record raises whose files beside it do not fit; anything else is a bug.
_UNDRAWN = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)


class _Header(msgspec.Struct):
    """What is read of a record before its kind is known."""

    record: str | None = None
    record_format: int = 1
    version: str = ""
    python: str = ""
    numpy: str = ""


@dataclass(frozen=True, slots=True)
class SavedRun(Generic[R_co]):
    """A run as its directory holds it.

    Args:
        directory: where it is.
        data: its record.
    """

    directory: Path
    data: R_co

    @property
    def kind(self) -> str:
        """The command it is a run of, or other."""
        return self.data.kind

    @property
    def name(self) -> str:
        """What to call it beside others."""
        return self.directory.name or str(self.directory)


def read_run(path: str) -> SavedRun[Any]:
    """The run in a directory, or the one whose record.json is named.

    Raises:
        InvalidInput: there is no record, or it cannot be read.
    """
    place = Path(path)
    # People paste the path of the record as often as that of the directory.
    directory = place.parent if place.name == "record.json" else place
    file = directory / "record.json"
    there = "holds no record.json" if os.path.isdir(directory) else "is not a directory"
    content = read_file(
        file, f"{directory} {there}. Give the directory of a run, such as runs/TIME-NAME."
    )
    try:
        return SavedRun(directory, read_record(content))
    except InvalidInput as error:
        raise InvalidInput(f"{file} {error}") from error


def read_record(content: bytes) -> Envelope:
    """A record from its JSON, of whatever format and kind.

    Raises:
        InvalidInput: it is no record, a damaged one, or one of a newer format.
    """
    try:
        names = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        header = msgspec.json.decode(content, type=_Header)
        _check_format(header)
        return _decode_record(content, header, recognise_kind(header.record, names))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = f"cannot be read as JSON ({error})"
        if isinstance(error, msgspec.ValidationError):
            whole = content.lstrip().startswith(b"{")
            what = f"is damaged: {error}" if whole else "holds no JSON object"
        raise InvalidInput(f"{what}. Run the command that wrote it again.") from error


def _check_format(header: _Header) -> None:
    if header.record_format > FORMAT:
        by = f", {header.version}" if header.version else ""
        raise InvalidInput(
            f"is of format {header.record_format}, and this keyhole reads formats up to"
            f" {FORMAT}. Read it with the version that wrote it{by}, or a later one."
        )


def recognise_kind(said: str | None, names: Collection[str]) -> str:
    """The kind that a record says it is of; for one of format 1, that which its names show."""
    if said is not None:
        return said if said in COMMANDS else OTHER
    return next((kind for kind, signs in _SIGNS.items() if all(s in names for s in signs)), OTHER)


def _decode_record(content: bytes, header: _Header, kind: str) -> Envelope:
    if kind == OTHER:
        fields = flatten_table(msgspec.json.decode(content))
        sentence = str(fields.get("sentence") or "")
        record: Envelope = OtherRecord(fields=fields, sentence=sentence)
    else:
        record = msgspec.json.decode(content, type=COMMANDS[kind].load("record"))
    # What a record does not say of its making is not known, and not what is made today.
    made = {"version": header.version, "record_format": header.record_format}
    if isinstance(record, RunRecord):
        made |= {"python": header.python, "numpy": header.numpy}
    return msgspec.structs.replace(record, **made)


def guard_drawing(run: SavedRun[Any], draw: Callable[..., T], *arguments: Any) -> T:
    """What a function makes of a run; a damaged record ends in a sentence, not in a traceback.

    Raises:
        InvalidInput: the record is not what a run of its kind writes.
    """
    try:
        return draw(*arguments)
    except InvalidInput as error:
        raise InvalidInput(f"{run.directory} cannot be drawn: {error}") from error
    except _UNDRAWN as error:
        raise InvalidInput(
            f"{run.directory / 'record.json'} is damaged, or was written by another version: "
            f"{type(error).__name__} {error}. Run the command that wrote it again."
        ) from error
