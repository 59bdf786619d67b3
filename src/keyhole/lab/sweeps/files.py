"""Sweep files: grids and lists of jobs in TOML or JSON, with dotted keys."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import msgspec

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import KINDS, Job
from keyhole.lab.pages.sweep_page import check_figure
from keyhole.lab.runs.tables import flatten_table
from keyhole.lab.sweeps.expectations import check_expectation

# A typing error in a range should end in a sentence, not in a million jobs.
MOST = 100_000  # jobs of one sweep
_KEYS = {"name", "about", "job", "base", "grid", "list", "figure", "expect"}


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep file asks for.

    Args:
        name: what it is called.
        about: what it shows, in a sentence.
        kind: the kind of its jobs.
        entries: the fields of each job, nested.
        figure: how its records are drawn, where they are.
        expect: the ranges its records should land in.
    """

    name: str
    about: str
    kind: str
    entries: tuple[Mapping[str, Any], ...]
    figure: Mapping[str, Any] | None
    expect: tuple[Mapping[str, Any], ...]


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


def _parse_sweep(data: Any, stem: str) -> Sweep:
    if not isinstance(data, dict) or "job" not in data:
        raise InvalidInput(f"a sweep names its job, one of {', '.join(KINDS)}.")
    table: dict[str, Any] = dict(data)  # pyright: ignore[reportUnknownArgumentType]
    if extra := sorted(set(table) - _KEYS):
        raise InvalidInput(f"a sweep holds {', '.join(sorted(_KEYS))}; unknown {', '.join(extra)}.")
    name = str(table.get("name", stem))
    # The name becomes that of a directory.
    if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
        raise InvalidInput(
            f"the name of a sweep has letters, digits, '-', '_' and '.'; got {name!r}."
        )
    entries = tuple(_nest_keys(entry) for entry in _expand_entries(table))
    for entry in entries:
        # Every job is checked before the first one runs.
        parse_job(table["job"], entry)
    expect = tuple(table.get("expect", ()))
    figure = table.get("figure")
    for one in expect:
        check_expectation(one)
    if figure is not None:
        check_figure(figure)
    return Sweep(name, str(table.get("about", "")), table["job"], entries, figure, expect)


def _expand_entries(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Base, then an entry of the list, then a point of the grid: later ones win."""
    base = flatten_table(table.get("base", {}))
    grid = _expand_ranges(flatten_table(table.get("grid", {})))
    entries: Any = table.get("list", [{}])
    if not isinstance(entries, list):
        raise InvalidInput(f"list holds tables, each [[list]]; got {entries!r}.")
    listed = [flatten_table(entry) for entry in cast(list[Any], entries)]
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InvalidInput(f"a grid gives a list of values for each key; {key} has {values!r}.")
    count = len(listed) * prod(len(values) for values in grid.values())
    if not 0 < count <= MOST:
        raise InvalidInput(f"a sweep has 1 to {MOST:,} jobs; this one has {count:,}.")
    for entry in listed:
        for point in product(*grid.values()):
            yield base | entry | dict(zip(grid, point, strict=True))


def _expand_ranges(grid: dict[str, Any]) -> dict[str, Any]:
    """Keys such as `seed.range = [0, 20]` as the list of whole numbers they stand for."""
    return {
        key.removesuffix(".range"): list(range(*values)) if key.endswith(".range") else values
        for key, values in grid.items()
    }


def _nest_keys(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested tables."""
    tree: dict[str, Any] = {}
    for key, value in rows.items():
        *path, last = key.split(".")
        at = tree
        for name in path:
            # Dotted keys such as model.width reach into fields that are dataclasses.
            at = at.setdefault(name, {})
        at[last] = value
    return tree


def parse_job(kind: str, entry: Mapping[str, Any]) -> Job:
    """A job from plain data; names it does not have, and values of another type, are refused."""
    if kind not in KINDS:
        raise InvalidInput(f"a job is one of {', '.join(KINDS)}; got {kind!r}.")
    _check_field_names(KINDS[kind], entry, kind)
    try:
        return msgspec.convert(dict(entry), KINDS[kind])
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidInput(f"{error} in a {kind} job {dict(entry)}.") from error


def _check_field_names(cls: type[Any], entry: Mapping[str, Any], where: str) -> None:
    hints = get_type_hints(cls)
    names = {item.name for item in fields(cls)}
    if extra := sorted(set(entry) - names):
        raise InvalidInput(f"{where} has no {', '.join(extra)}; it has {', '.join(sorted(names))}.")
    for name, value in entry.items():
        # msgspec would pass over unknown names of a nested table.
        inner = next((t for t in (hints[name], *get_args(hints[name])) if is_dataclass(t)), None)
        if isinstance(inner, type) and isinstance(value, Mapping):
            _check_field_names(inner, value, f"{where}.{name}")  # pyright: ignore[reportUnknownArgumentType]
