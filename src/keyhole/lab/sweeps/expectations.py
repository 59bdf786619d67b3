"""Where the rows of a sweep should land: statistics of a column against a range."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from keyhole.errors import InvalidInput
from keyhole.lab.runs.tables import Table

STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "max": max,
    "min": min,
}
_KEYS = {"value", "statistic", "where", "equals", "at_most", "at_least", "about"}


@dataclass(frozen=True, slots=True)
class Landing:
    """One expectation and what came.

    Args:
        sentence: the expectation in words.
        measured: the statistic; nothing where no row has the column.
        met: whether it lies in the range.
    """

    sentence: str
    measured: float | None
    met: bool


def judge_expectations(rows: Table, expected: tuple[Mapping[str, Any], ...]) -> list[Landing]:
    """Each expectation against the rows that are there."""
    return [_judge_expectation(rows, one) for one in expected]


def check_expectation(one: Mapping[str, Any]) -> None:
    """Raise unless an expectation says what it looks at and where that should land."""
    unknown = sorted(set(one) - _KEYS)
    # An expectation without a range is met by anything.
    ranged = {"at_most", "at_least"} & set(one)
    counted = "equals" in one or one.get("statistic") in STATISTICS
    if unknown or "value" not in one or not ranged or not counted:
        raise InvalidInput(
            f"an expectation has a value (a column), a statistic ({', '.join(STATISTICS)}) or an"
            " `equals` whose share is taken, at_most or at_least, and perhaps where and about; got"
            f" {dict(one)}."
        )


def _judge_expectation(rows: Table, one: Mapping[str, Any]) -> Landing:
    where: Mapping[str, Any] = one.get("where", {})
    found = [row[one["value"]] for row in rows if one["value"] in row and _is_among(row, where)]
    measured = _measure_statistic(found, one)
    low, high = one.get("at_least", float("-inf")), one.get("at_most", float("inf"))
    return Landing(
        _describe_expectation(one, where),
        measured,
        measured is not None and low <= measured <= high,
    )


def _is_among(row: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    return all(row.get(name) == value for name, value in where.items())


def _measure_statistic(found: list[Any], one: Mapping[str, Any]) -> float | None:
    if "equals" in one:
        return statistics.fmean(value == one["equals"] for value in found) if found else None
    # Cells may hold one number per seed: each counts.
    each = [
        one
        for value in found
        for one in (cast(list[Any], value) if isinstance(value, list) else [value])
    ]
    numbers = [float(value) for value in each if isinstance(value, int | float)]
    return STATISTICS[one["statistic"]](numbers) if numbers else None


def _describe_expectation(one: Mapping[str, Any], where: Mapping[str, Any]) -> str:
    if "equals" in one:
        what = f"share of {one['value']} = {one['equals']}"
    else:
        what = f"{one['statistic']} of {one['value']}"
    among = "".join(f", {name} = {value}" for name, value in where.items())
    bounds = [
        f"{name.replace('_', ' ')} {one[name]:g}" for name in ("at_least", "at_most") if name in one
    ]
    return f"{what}{among}: {' and '.join(bounds)}"
