"""Run directories as they are found: the record, and what kind of run it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from keyhole.errors import InvalidInput

OTHER = "other"
T = TypeVar("T")
# A record is of the first kind all of whose names it has.
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
# What reading a damaged record raises; anything else is a bug and must be seen.
_UNDRAWN = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)


class SavedRun(NamedTuple):
    """A run as its directory holds it.

    Args:
        directory: where it is.
        kind: demo, learn, audit, twins, build, bound, sweep, train, or other.
        data: its record.
    """

    directory: Path
    kind: str
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What to call it beside others."""
        return self.directory.name or str(self.directory)


def read_run(path: str) -> SavedRun:
    """The run in a directory, or the one whose record.json is named.

    Raises:
        InvalidInput: there is no record, or it cannot be read.
    """
    place = Path(path)
    # People paste the path of the record as often as that of the directory.
    directory = place.parent if place.name == "record.json" else place
    file = directory / "record.json"
    if not file.is_file():
        there = "holds no record.json" if directory.is_dir() else "is not a directory"
        raise InvalidInput(
            f"{directory} {there}. Give the directory of a run, such as runs/TIME-NAME."
        )
    try:
        data: object = msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise InvalidInput(
            f"{file} cannot be read as JSON ({error}). Run the command that wrote it again."
        ) from error
    if not isinstance(data, dict):
        raise InvalidInput(f"{file} holds no JSON object. Run the command that wrote it again.")
    held = cast(dict[str, Any], data)
    return SavedRun(directory, recognise_kind(held), held)


def recognise_kind(data: Mapping[str, Any]) -> str:
    """What kind of run a record is of."""
    return next(
        (kind for kind, names in _SIGNS.items() if all(name in data for name in names)), OTHER
    )


def guard_drawing(run: SavedRun, draw: Callable[..., T], *arguments: Any) -> T:
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
