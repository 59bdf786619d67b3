"""Rows of a store as flat tables: CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from keyhole.drawing.html import format_number
from keyhole.errors import InvalidInput
from keyhole.lab.runs.store import StoredRow
from keyhole.models.files import write_atomically

Table = list[dict[str, Any]]


def flatten_table(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    # Files of users come through here, whatever their types say.
    if not isinstance(table, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"base, grid and the entries of list are tables; got {table!r}.")
    rows: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = cast(Mapping[str, Any], value)
            rows |= flatten_table(inner, f"{prefix}{key}.")
        else:
            rows[f"{prefix}{key}"] = value
    return rows


def tabulate_rows(rows: Iterable[StoredRow]) -> Table:
    """One flat dictionary per row: key, state, reason, job.*, record.* and about.*."""
    return [
        {"key": row.key, "state": row.state, "reason": row.reason}
        | flatten_table({"job": row.job, "record": row.record or {}, "about": row.about})
        for row in rows
    ]


def _list_columns(rows: Table) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _encode_cell(value: Any) -> Any:
    # A list has no place in a cell; as JSON it can be read back.
    return msgspec.json.encode(value).decode() if isinstance(value, list) else value


def _encode_csv(rows: Table) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, _list_columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _encode_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _encode_json_lines(rows: Table) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _encode_parquet(rows: Table) -> bytes:
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InvalidInput(
            "--export parquet needs pyarrow: pip install 'keyhole[parquet]'."
        ) from error
    names = _list_columns(rows)
    columns = {name: _unify_types([_encode_cell(row.get(name)) for row in rows]) for name in names}
    held = io.BytesIO()
    parquet.write_table(arrow.table(columns), held)
    return held.getvalue()


def _unify_types(values: list[Any]) -> list[Any]:
    """A column of one type: numbers stay numbers, anything mixed becomes text."""
    kinds: set[type[Any]] = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    # Columns of Arrow have one type: whole numbers among others become floats, the rest text.
    common = float if kinds <= {int, float} else str
    return [value if value is None else common(value) for value in values]


FORMATS: dict[str, Callable[[Table], bytes]] = {
    "csv": _encode_csv,
    "json": _encode_json_lines,
    "parquet": _encode_parquet,
}


def check_formats(names: Iterable[str]) -> None:
    """Raise unless rows can be written in every format named."""
    for name in names:
        if name not in FORMATS:
            raise InvalidInput(f"--export takes {', '.join(FORMATS)}; got {name!r}.")


def export_rows(rows: Table, directory: Path, names: Iterable[str]) -> list[str]:
    """Write rows to rows.NAME for each format, and say where."""
    # Everything is encoded before the first file is written: all exports or none.
    paths = [(directory / f"rows.{name}", FORMATS[name](rows)) for name in names]
    for path, content in paths:
        write_atomically(path, content)
    return [str(path) for path, _ in paths]


_LONGEST = 160  # characters of a value that are shown


def format_value(value: Any) -> str:
    """A value of a record for a person."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = "none" if value is None else str(value)
        if len(text) > _LONGEST:
            return f"{text[:_LONGEST]} ... ({len(text):,} characters)"
        return text
    return format_number(value)
