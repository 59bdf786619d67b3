"""Sweep files: grids and lists of jobs in TOML or JSON, with dotted keys."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, cast, get_type_hints

import msgspec

from keyhole._files import read_file, refuse_damage
from keyhole.errors import InvalidInput
from keyhole.lab.jobs import COMMANDS, Job
from keyhole.lab.runs.other_records import Figure
from keyhole.lab.runs.record_parts import Cell
from keyhole.lab.runs.tables import DEEPEST, Row, flatten_table
from keyhole.lab.sweeps.expectations import Expectation, parse_expectation

KINDS = {name: command.job for name, command in COMMANDS.items() if command.swept}
# A typing error in a range should end in a sentence, not in a million jobs.
MOST = 100_000  # jobs of one sweep
_BYTES = 16 << 20  # of a sweep file
_LONG_KEY = re.compile(r"""(?:["']?[\w-]*["']?[ \t]*\.[ \t]*){100}""")
# Beyond this a number is no seed and no size, and the ends of a range cannot be counted.
_FAR = 2**62


class SweepFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A sweep file as it is written; what it holds is checked part by part."""

    job: str
    name: str | None = None
    about: str = ""
    base: Any = {}
    grid: Any = {}
    listed: Any = msgspec.field(name="list", default=None)
    cross: Any = None
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
    content = read_file(
        file,
        f"no sweep file at {path}. Give a .toml or .json file; experiments/ holds some.",
        most=_BYTES,
    )
    toml = file.suffix == ".toml"
    with refuse_damage(path, f"sweep in {'TOML' if toml else 'JSON'}"):
        data = _parse_toml(content) if toml else msgspec.json.decode(content)
        return _parse_sweep(data, file.stem)


def _parse_toml(content: bytes) -> object:
    text = content.decode()
    # The time and memory that tomllib takes grow with the square of the parts of a key.
    if _LONG_KEY.search(text):
        raise InvalidInput(f"a key has at most {DEEPEST} parts between its dots.")
    return tomllib.loads(text)


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
    expect = tuple(parse_expectation(one) for one in _require_list("expect", file.expect))
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
    """Base, an entry of list, one of cross, a point of the grid: later ones win."""
    base = flatten_table(file.base)
    grid = _expand_ranges(flatten_table(file.grid))
    listed = _flatten_entries("list", file.listed)
    crossed = _flatten_entries("cross", file.cross)
    count = len(listed) * len(crossed) * prod(len(values) for values in grid.values())
    if not 0 < count <= MOST:
        raise InvalidInput(f"a sweep has 1 to {MOST:,} jobs; this one has {count:,}.")
    for entry, other in product(listed, crossed):
        for point in product(*grid.values()):
            yield base | entry | other | dict(zip(grid, point, strict=True))


def _flatten_entries(name: str, given: Any) -> list[Row]:
    """The entries of a list, with dotted keys; one that changes nothing where there is no list."""
    entries: list[Any] = [{}] if given is None else _require_list(name, given)
    return [flatten_table(entry) for entry in entries]


def _require_list(name: str, given: Any) -> list[Any]:
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"{name} holds tables, each [[{name}]]; got {given!r:.80}.")
    return list(cast("Sequence[Any]", given))


def _expand_ranges(grid: Row) -> dict[str, Sequence[Cell]]:
    """The values of every key; `seed.range = [0, 20]` stands for the whole numbers from 0 to 19."""
    expanded: dict[str, Sequence[Cell]] = {}
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InvalidInput(
                f"a grid gives a list of values for each key; {key} has {values!r:.80}."
            )
        name = key.removesuffix(".range")
        if name in expanded:
            raise InvalidInput(f"a grid gives {name} both as a list and as a range.")
        # Not a list yet: how many jobs there are is looked at before they are made.
        expanded[name] = values if name == key else _parse_range(key, values)
    return expanded


def _parse_range(key: str, ends: list[Any]) -> range:
    whole = all(type(end) is int and abs(end) < _FAR for end in ends)
    if not whole or not 1 <= len(ends) <= 3 or (len(ends) == 3 and ends[2] == 0):
        raise InvalidInput(
            f"{key} is [END], [START, END] or [START, END, STEP], whole numbers and a step other"
            f" than 0; got {ends!r:.80}."
        )
    return range(*ends)


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
    if both := sorted({key.partition(".")[0] for key in entry if "." in key} & set(flat)):
        raise InvalidInput(f"{where} gives {', '.join(both)} both as a value and as a table.")
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
