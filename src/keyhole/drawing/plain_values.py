"""Objects as values that other tools take: numbers, words, lists and dictionaries."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from keyhole.errors import InvalidInput

if TYPE_CHECKING:
    from pandas import DataFrame

Values = dict[str, Any]  # by name: numbers, words, lists and dictionaries of such


def list_values(one: object) -> Values:
    """Every field of a dataclass by its name; what begins with an underscore is its own affair."""
    told = [part.name for part in fields(cast(Any, one)) if not part.name.startswith("_")]
    return {name: simplify(getattr(one, name)) for name in told}


def simplify(value: Any) -> Any:
    """A value without classes: arrays as nested lists, members of enumerations by their names."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {str(simplify(key)): simplify(part) for key, part in pairs}
    if isinstance(value, tuple | list | set | frozenset):
        return [simplify(part) for part in cast("list[Any]", value)]
    if is_dataclass(value) and not isinstance(value, type):
        return list_values(value)
    return str(value)


def is_same(a: Any, b: Any) -> bool:
    """Whether two values are equal to the last bit, arrays and what is inside objects included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return _is_same_array(cast(Any, a), b)
    if is_dataclass(a) and not isinstance(a, type):
        return all(is_same(getattr(a, part.name), getattr(b, part.name)) for part in fields(a))
    if isinstance(a, Mapping):
        mine, theirs = cast("Mapping[Any, Any]", a), cast("Mapping[Any, Any]", b)
        return mine.keys() == theirs.keys() and all(is_same(mine[key], theirs[key]) for key in mine)
    if isinstance(a, tuple | list):
        mine, theirs = cast("list[Any]", a), cast("list[Any]", b)
        return len(mine) == len(theirs) and all(map(is_same, mine, theirs))
    return bool(a == b)


def _is_same_array(a: Any, b: Any) -> bool:
    numbers = a.dtype.kind in "fc"  # only these can be equal to nothing, not even to themselves
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=numbers)


def make_frame(rows: Sequence[Values]) -> DataFrame:
    """Rows as a table of pandas, which is loaded now.

    Raises:
        InvalidInput: pandas is not installed.
    """
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise InvalidInput(
            "to_frame needs pandas: pip install pandas; to_dict gives the same without it."
        ) from error
    return pandas.DataFrame.from_records(list(rows))


def flatten_values(values: Values, prefix: str = "") -> Values:
    """Numbers and words with dotted names; lists are counted, since a cell holds one value."""
    flat: Values = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten_values(cast("Values", value), f"{prefix}{name}.")
        elif isinstance(value, list):
            flat[f"{prefix}{name}"] = len(cast("list[Any]", value))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def list_rows(value: Any) -> Iterator[Values]:
    """What a field holds, one row each: entries of an array, parts of a list, keys of a mapping."""
    plain = simplify(value)
    if hasattr(value, "__array__"):
        for place, entry in np.ndenumerate(np.asarray(value)):
            yield {**{f"index_{k}": i for k, i in enumerate(place)}, "value": entry}
    elif isinstance(value, Mapping):
        yield from ({"name": name, "value": one} for name, one in plain.items())
    elif isinstance(plain, dict):
        yield flatten_values(cast("Values", plain))
    else:
        for part in cast("list[Any]", plain if isinstance(plain, list) else [plain]):
            row = cast("Values", part) if isinstance(part, dict) else {"value": part}
            yield flatten_values(row)
