"""Sweep files: grids and lists of jobs in TOML or JSON, with dotted keys."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, cast, get_type_hints

import msgspec

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import COMMANDS, Job
from keyhole.lab.runs.other_records import Figure
from keyhole.lab.runs.record_parts import Cell
from keyhole.lab.runs.tables import Row, flatten_table
from keyhole.lab.sweeps.expectations import Expectation, parse_expectation

KINDS = {name: command.job for name, command in COMMANDS.items() if command.swept}
# A typing error in a range should end in a sentence, not in a million jobs.
MOST = 100_000  # jobs of one sweep


class SweepFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A sweep file as it is written; what it holds is checked part by part."""

    job: str
    name: str | None = None
    about: str = ""
    base: Any = {}
    grid: Any = {}
    listed: Any = msgspec.field(name="list", default=None)
    figure: Any = None
    expect: Any = ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep file asks for.

    Args:
        name: what it is called.
        about: what it shows, in a sentence.
        kind: the kind of its jobs.
        jobs: its jobs.
        figure: how its records are drawn, where they are.
        expect: the ranges its records should land in.
    """

    name: str
    about: str
    kind: str
    jobs: tuple[Job, ...]
    figure: Figure | None
    expect: tuple[Expectation, ...]


def read_sweep(path: str) -> Sweep:
    """A sweep file, expanded.

    Raises:
        InvalidInput: it is missing, cannot be read, or asks for something that does not exist.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(
            f"no sweep file at {path}. Give a .toml or .json file; experiments/ holds some."
        )
    toml = file.suffix == ".toml"
    try:
        data: Any = (
            tomllib.loads(file.read_text()) if toml else msgspec.json.decode(file.read_bytes())
        )
    except (tomllib.TOMLDecodeError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{path} cannot be read as {'TOML' if toml else 'JSON'}: {error}."
        ) from error
    try:
        return _parse_sweep(data, file.stem)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def _parse_sweep(data: object, stem: str) -> Sweep:
    file = _convert_sweep(data)
    name = stem if file.name is None else file.name
    # The name becomes that of a directory.
    if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
        raise InvalidInput(
            f"the name of a sweep has letters, digits, '-', '_' and '.'; got {name!r}."
        )
    # Every job is checked before the first one runs.
    jobs = tuple(parse_job(file.job, entry) for entry in _expand_entries(file))
    expect = tuple(parse_expectation(one) for one in file.expect)
    figure = None if file.figure is None else parse_figure(file.figure)
    return Sweep(name, file.about, file.job, jobs, figure, expect)


def _convert_sweep(data: object) -> SweepFile:
    kinds = ", ".join(KINDS)
    if not isinstance(data, Mapping) or "job" not in data:
        raise InvalidInput(f"a sweep names its job, one of {kinds}.")
    names = SweepFile.__struct_encode_fields__
    if extra := sorted(set(map(str, cast("Iterable[object]", data))) - set(names)):
        raise InvalidInput(f"a sweep holds {', '.join(sorted(names))}; unknown {', '.join(extra)}.")
    try:
        return msgspec.convert(data, SweepFile)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{error} in a sweep.") from error


def parse_figure(given: object) -> Figure:
    """A figure that says which columns it draws.

    Raises:
        InvalidInput: it does not, or says what no figure has.
    """
    names = sorted(Figure.__struct_fields__)
    held: set[str] = set()
    if isinstance(given, Mapping):
        held = set(map(str, cast("Iterable[object]", given)))
    if not {"x", "y"} <= held:
        raise InvalidInput(
            "a figure names its columns x and y, such as job.model.width and record.ratio."
        )
    if unknown := sorted(held - set(names)):
        raise InvalidInput(f"a figure has {', '.join(names)}; unknown {', '.join(unknown)}.")
    try:
        figure = msgspec.convert(given, Figure)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{error} in a figure, which has {', '.join(names)}.") from error
    # A map without a value, or lines with one, is a mistake that would show an empty picture.
    if figure.kind not in ("lines", "map") or (figure.kind == "map") != (figure.value is not None):
        raise InvalidInput(
            "a figure's kind is lines or map, and a map names the column of its cells as value."
        )
    return figure


def _expand_entries(file: SweepFile) -> Iterator[Row]:
    """Base, then an entry of the list, then a point of the grid: later ones win."""
    base = flatten_table(file.base)
    grid = _expand_ranges(flatten_table(file.grid))
    entries: Any = [{}] if file.listed is None else file.listed
    if not isinstance(entries, list):
        raise InvalidInput(f"list holds tables, each [[list]]; got {entries!r}.")
    listed = [flatten_table(entry) for entry in cast("list[object]", entries)]
    count = len(listed) * prod(len(values) for values in grid.values())
    if not 0 < count <= MOST:
        raise InvalidInput(f"a sweep has 1 to {MOST:,} jobs; this one has {count:,}.")
    for entry in listed:
        for point in product(*grid.values()):
            yield base | entry | dict(zip(grid, point, strict=True))


def _expand_ranges(grid: Row) -> dict[str, list[Cell]]:
    """The values of every key; `seed.range = [0, 20]` stands for the whole numbers from 0 to 19."""
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InvalidInput(f"a grid gives a list of values for each key; {key} has {values!r}.")
    return {
        key.removesuffix(".range"): list(range(*values)) if key.endswith(".range") else values
        for key, values in cast("dict[str, list[Any]]", grid).items()
    }


def parse_job(kind: str, entry: Row) -> Job:
    """A job from dotted keys; names it does not have, and values of another type, are refused."""
    if kind not in KINDS:
        raise InvalidInput(f"a job is one of {', '.join(KINDS)}; got {kind!r}.")
    nested = _nest_keys(KINDS[kind], entry, kind)
    try:
        return msgspec.convert(nested, KINDS[kind])
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidInput(f"{error} in a {kind} job {entry}.") from error


def _nest_keys(kind: type[Any], entry: Row, where: str) -> dict[str, Cell | Row]:
    """Dotted keys such as model.width as tables of the fields that are dataclasses."""
    hints = get_type_hints(kind)
    names = {item.name for item in fields(kind)}
    if extra := sorted({key.partition(".")[0] for key in entry} - names):
        raise InvalidInput(f"{where} has no {', '.join(extra)}; it has {', '.join(sorted(names))}.")
    flat: dict[str, Cell | Row] = {key: value for key, value in entry.items() if "." not in key}
    for name in {key.partition(".")[0]: None for key in entry if "." in key}:
        inner: Row = {
            key.removeprefix(f"{name}."): value
            for key, value in entry.items()
            if key.startswith(f"{name}.")
        }
        # msgspec would pass over unknown names of a nested table.
        if is_dataclass(hints[name]):
            _nest_keys(hints[name], inner, f"{where}.{name}")
        flat[name] = inner
    return flat
