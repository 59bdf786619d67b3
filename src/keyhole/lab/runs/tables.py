"""Rows of a store as flat tables: CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from keyhole._files import write_atomically
from keyhole.drawing.html import format_number
from keyhole.errors import InvalidInput
from keyhole.lab.runs.record_parts import Cell
from keyhole.lab.runs.records import Envelope, encode_record
from keyhole.lab.runs.store import StoredRow

Row = dict[str, Cell]
Table = list[Row]
DEEPEST = 16  # tables in tables
# Spreadsheets take a cell that begins so for a formula, and may run it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def flatten_table(table: object, prefix: str = "", deep: int = DEEPEST) -> Row:
    """Nested tables as one, with dotted keys; `deep` tables may stand in each other.

    Raises:
        InvalidInput: it is no table, or too deep a one.
    """
    # Files of users come through here, whatever they hold.
    if not isinstance(table, Mapping):
        raise InvalidInput(f"base, grid and the entries of list are tables; got {table!r:.80}.")
    if deep < 1:
        raise InvalidInput(f"tables stand at most {DEEPEST} deep in each other; {prefix} is one.")
    rows: Row = {}
    for key, value in cast("Mapping[str, Cell | Mapping[Any, Any]]", table).items():
        if isinstance(value, Mapping):
            rows |= flatten_table(value, f"{prefix}{key}.", deep - 1)
        else:
            rows[f"{prefix}{key}"] = value
    return rows


def flatten_record(record: Envelope) -> Row:
    """The fields of a record, with dotted names."""
    return flatten_table(msgspec.json.decode(encode_record(record)))


def tabulate_rows(rows: Iterable[StoredRow]) -> Table:
    """One flat dictionary per row: key, state, reason, job.*, record.* and about.*."""
    return [_tabulate_row(row) for row in rows]


def _tabulate_row(row: StoredRow) -> Row:
    record = b"{}" if row.record is None else row.record
    parts = {"job": row.job, "record": record, "about": msgspec.json.encode(row.about)}
    flat: Row = {"key": row.key, "state": row.state, "reason": row.reason}
    for name, held in parts.items():
        flat |= flatten_table(msgspec.json.decode(held), f"{name}.")
    return flat


def _list_columns(rows: Table) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _encode_cell(value: Cell) -> Cell:
    # A list has no place in a cell; as JSON it can be read back.
    return msgspec.json.encode(value).decode() if isinstance(value, list) else value


def _encode_csv(rows: Table) -> bytes:
    text = io.StringIO()
    names = _list_columns(rows)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_quote_formula, names))
    writer.writerows(
        [_quote_formula(_encode_cell(row.get(name))) for name in names] for row in rows
    )
    return text.getvalue().encode()


def _quote_formula(value: Cell) -> Cell:
    """The cell with a quotation mark in front where it is text that a spreadsheet would run."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


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


def _unify_types(values: list[Cell]) -> list[Cell]:
    """A column of one type: numbers stay numbers, anything mixed becomes text."""
    kinds: set[type[Any]] = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    # Columns of Arrow have one type: whole numbers among others become floats, the rest text.
    if kinds <= {int, float}:
        return [float(value) if isinstance(value, int) else value for value in values]
    return [None if value is None else str(value) for value in values]


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


def format_value(value: Cell) -> str:
    """A value of a record for a person."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = "none" if value is None else str(value)
        if len(text) > _LONGEST:
            return f"{text[:_LONGEST]} ... ({len(text):,} characters)"
        return text
    return format_number(value)
