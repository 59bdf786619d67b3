"""Where the rows of a sweep should land: statistics of a column against a range."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec

from keyhole.errors import InvalidInput
from keyhole.lab.pages.parts.column_words import spell_column, spell_statistic
from keyhole.lab.runs.other_records import Landing
from keyhole.lab.runs.record_parts import Cell
from keyhole.lab.runs.tables import Row, Table

STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "max": max,
    "min": min,
}


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a statistic of a column should land.

    Args:
        value: the column.
        statistic: median, mean, max or min.
        where: columns and the values they must have, of rows that count.
        equals: the share of values that are this is taken, instead of a statistic.
        at_least: the lower end of the range.
        at_most: its upper end.
        about: what it means, for whoever reads the file.
    """

    value: str
    statistic: str | None = None
    where: dict[str, Cell] = {}
    equals: Cell = None
    at_least: float | None = None
    at_most: float | None = None
    about: str = ""


def judge_expectations(rows: Table, expected: tuple[Expectation, ...]) -> list[Landing]:
    """Each expectation against the rows that are there."""
    return [_judge_expectation(rows, one) for one in expected]


def parse_expectation(given: object) -> Expectation:
    """An expectation that says what it looks at and where that should land.

    Raises:
        InvalidInput: it does not.
    """
    try:
        one = msgspec.convert(given, Expectation)
    except msgspec.ValidationError as error:
        raise _refuse_expectation(given, f"{error}") from error
    # An expectation without a range is met by anything.
    if one.at_least is None and one.at_most is None:
        raise _refuse_expectation(given, "it has no range")
    if one.equals is None and one.statistic not in STATISTICS:
        raise _refuse_expectation(given, "it counts nothing")
    return one


def _refuse_expectation(given: object, why: str) -> InvalidInput:
    return InvalidInput(
        f"an expectation has a value (a column), a statistic ({', '.join(STATISTICS)}) or an"
        " `equals` whose share is taken, at_most or at_least, and perhaps where and about; got"
        f" {given!r} ({why})."
    )


def _judge_expectation(rows: Table, one: Expectation) -> Landing:
    found = [row[one.value] for row in rows if one.value in row and _is_among(row, one)]
    measured = _measure_statistic(found, one)
    low = float("-inf") if one.at_least is None else one.at_least
    high = float("inf") if one.at_most is None else one.at_most
    return Landing(
        sentence=_describe_expectation(one),
        measured=measured,
        met=measured is not None and low <= measured <= high,
    )


def _is_among(row: Row, one: Expectation) -> bool:
    return all(row.get(name) == value for name, value in one.where.items())


def _measure_statistic(found: list[Cell], one: Expectation) -> float | None:
    if one.equals is not None:
        return statistics.fmean(value == one.equals for value in found) if found else None
    # Cells may hold one number per seed: each counts.
    each = [number for value in found for number in (value if isinstance(value, list) else [value])]
    numbers = [float(value) for value in each if isinstance(value, int | float)]
    return STATISTICS[str(one.statistic)](numbers) if numbers else None


def _describe_expectation(one: Expectation) -> str:
    if one.equals is None:
        what = spell_statistic(str(one.statistic), one.value)
    else:
        what = f"share of jobs whose {spell_column(one.value)} is {one.equals}"
    among = " and ".join(f"{spell_column(name)} is {value}" for name, value in one.where.items())
    ends = (("at least", one.at_least), ("at most", one.at_most))
    bounds = [f"{name} {end:g}" for name, end in ends if end is not None]
    return f"{what}{f', where {among}' if among else ''}: {' and '.join(bounds)}"
