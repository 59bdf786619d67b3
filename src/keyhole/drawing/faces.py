"""How an object shows itself: one line in a terminal, words and pictures in a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole._files import write_atomically
from keyhole.drawing.describing import Axes, Heatmap
from keyhole.drawing.heatmaps import describe_signed_matrix, draw_heatmap
from keyhole.drawing.html import (
    Markup,
    element,
    format_number,
    format_table,
    join_markup,
)
from keyhole.drawing.plain_values import (
    Values,
    flatten_values,
    is_same,
    list_rows,
    list_values,
    make_frame,
)
from keyhole.errors import InvalidInput

if TYPE_CHECKING:
    from pandas import DataFrame

_SLICES = 4  # matrices of one array that are drawn
_PICTURES = 12  # of one object
_SHORT = 24  # letters of a word in one line
_NESTED = 60  # letters of a part in the line of the whole
_PARTS = 4  # objects of one field that are shown
_TALL = 2.0  # rows over columns
_STYLE = Markup(
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:64rem;"
    "margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}"
    "td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}"
)


class Face:
    """A dataclass that is shown by its fields: numbers as a table, arrays as pictures."""

    __slots__ = ()

    def __repr__(self) -> str:
        """One line: the class, with shapes instead of numbers."""
        return f"<{describe_shortly(self)}>"

    def _repr_html_(self) -> str:
        """What notebooks show: no script, and a style that travels with it."""
        # Plain text: marimo sends a subclass of it as an object, and shows nothing.
        return str(draw_face(self))

    @property
    def picture(self) -> Markup:
        """A drawing of the whole object, where its class has one."""
        return Markup()

    def __eq__(self, other: object) -> bool:
        """Whether the other is of this class, with the same numbers to the last bit."""
        return is_same(self, other) if isinstance(other, Face) else NotImplemented

    def __hash__(self) -> int:
        """Equal objects have equal shapes; numbers need not be read for that."""
        return hash(describe_shortly(self))

    def __copy__(self) -> Face:
        """The object itself: what cannot change needs no second one."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Face:
        """The object itself; copies of its arrays could be written to."""
        return self

    def to_dict(self) -> Values:
        """Every field by its name as numbers, words, lists and dictionaries, ready for JSON."""
        return list_values(self)

    def to_frame(self, name: str | None = None) -> DataFrame:
        """A table of pandas: the whole object as one row, or what one field holds.

        Args:
            name: of the field, as `W` (a row for every entry) or `conclusion` (one for every
                check); all fields side by side when absent, with dotted names and lists counted.

        Raises:
            InvalidInput: there is no such field, or pandas is not installed.
        """
        if name is None:
            return make_frame([flatten_values(list_values(self))])
        held = dict(_list_fields(self))
        if name not in held:
            raise InvalidInput(f"to_frame takes one of {', '.join(held)}; got {name!r}.")
        return make_frame(list(list_rows(held[name])))

    def page(self, path: str | Path | None = None) -> str:
        """What a notebook shows as a page of its own, which needs nothing beside it.

        Args:
            path: where the page is written; it is only returned when absent.
        """
        text = draw_document(describe_shortly(self), draw_face(self))
        if path is not None:
            write_atomically(Path(path), text.encode())
        return text

    def plot(self, name: str | None = None) -> Picture:
        """One array of the object as a picture, several side by side where it holds several.

        Args:
            name: of the field, as `W`, or `model.W` of a part; all arrays when absent.

        Raises:
            InvalidInput: there is no such array.
        """
        held = list(list_all_matrices(self))
        if not held:
            raise InvalidInput(
                f"plot draws arrays, and this {type(self).__name__} holds none: page() shows all"
                " of it."
            )
        helds = [
            describe_matrix(said, M) for said, M in held if name is None or _is_part(said, name)
        ]
        if not helds:
            known = sorted({_drop_slice(said) for said, _ in held})
            raise InvalidInput(
                f"plot needs the name of an array ({', '.join(known)}); got {name!r}."
            )
        return Picture(helds[:_PICTURES])


class Picture:
    """Matrices in colours that notebooks show as they are, and that can be kept as files."""

    def __init__(self, helds: Sequence[Heatmap]) -> None:
        """Keep what is shown."""
        self.helds = helds

    def _repr_html_(self) -> str:
        return str(lay_side_by_side([draw_heatmap(held) for held in self.helds]))

    def save(self, path: str | Path) -> None:
        """Write the picture as SVG, PNG (the cells alone) or CSV, by how the name ends.

        Raises:
            InvalidInput: the name ends in something else, or cannot be written.
        """
        from keyhole.drawing.saving import save_heatmaps

        save_heatmaps(self.helds, path)


def describe_shortly(one: object) -> str:
    """The class, and of each field a shape, a number or a word."""
    said = [
        f"{name} {told}"
        for name, value in _list_fields(one)
        if not _is_long(value) and (told := _tell_value(value))
    ]
    return ": ".join(part for part in (type(one).__name__, ", ".join(said)) if part)


def draw_document(title: str, body: Markup) -> str:
    """A page that needs nothing beside it, light or dark as the system prefers."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width"),
        element("title", title),
        element("style", _STYLE),
    )
    page = element("html", head, element("body", element("main", body)), lang="en")
    return f"<!doctype html>{page}"


def draw_face(one: object) -> Markup:
    """A sentence where the object has one, its numbers as a table, its arrays as pictures."""
    rows = [
        (name.replace("_", " "), told)
        for name, value in _list_fields(one)
        if _is_word(value) and (told := _tell_value(value))
    ]
    matrices = list(list_matrices(one))
    shown = [draw_matrix(name, M) for name, M in matrices[:_PICTURES]]
    left = len(matrices) - len(shown)
    sentence = getattr(one, "sentence", "")
    return join_markup(
        element("p", element("b", type(one).__name__), f" {sentence}" if sentence else ""),
        getattr(one, "picture", ""),
        format_table(rows) if rows else "",
        lay_side_by_side(shown) if shown else "",
        element("p", f"{left:,} more matrices are not drawn; plot(name) draws them.")
        if left
        else "",
        *(_draw_parts(name, value) for name, value in _list_fields(one)),
    )


def _draw_parts(name: str, value: Any) -> Markup:
    """What a field holds that has a face of its own, or rows of a table."""
    if isinstance(value, Face):
        return draw_face(value)
    parts = list(cast("list[Any]", value)) if isinstance(value, tuple | list) else []
    if not parts or not all(is_dataclass(part) for part in parts):
        return Markup("")
    if all(isinstance(part, Face) for part in parts):
        left = len(parts) - _PARTS
        more = element("p", f"{left:,} more of {name} are not drawn.") if left > 0 else ""
        return join_markup(*map(draw_face, parts[:_PARTS]), more)
    columns = [part.name for part in fields(parts[0])]
    rows = [tuple(_tell_value(getattr(part, column)) for column in columns) for part in parts]
    return join_markup(element("p", name.replace("_", " ")), format_table(rows, tuple(columns)))


def list_matrices(one: object) -> Iterator[tuple[str, Matrix]]:
    """Every array of an object as matrices with names; a vector is one row."""
    for name, value in _list_fields(one):
        array = _read_array(value)
        if array is None or not array.size:
            continue
        if array.ndim <= 2:
            yield name, np.atleast_2d(array)
            continue
        stacked = array.reshape(-1, *array.shape[-2:])
        for k, M in enumerate(stacked[:_SLICES]):
            yield f"{name}[{k}]", M


def list_all_matrices(one: object) -> Iterator[tuple[str, Matrix]]:
    """The matrices of an object and of its parts, these with dotted names."""
    yield from list_matrices(one)
    for name, value in _list_fields(one):
        if isinstance(value, Face):
            yield from ((f"{name}.{said}", M) for said, M in list_all_matrices(value))
        elif isinstance(value, tuple | list):
            parts = enumerate(cast("Sequence[Any]", value))
            faces = [(k, part) for k, part in parts if isinstance(part, Face)]
            for k, part in faces:
                yield from ((f"{name}[{k}].{said}", M) for said, M in list_all_matrices(part))


def draw_matrix(name: str, M: Matrix) -> Markup:
    """One matrix in colours, its size in words; a tall one lies down."""
    return draw_heatmap(describe_matrix(name, M))


def describe_matrix(name: str, M: Matrix) -> Heatmap:
    """What `draw_matrix` draws."""
    rows, columns = M.shape
    if rows > _TALL * columns:
        title = f"{name}, {rows:,} x {columns:,}, transposed"
        return describe_signed_matrix(title, M.T, name=name, axes=Axes("column", "row"))
    title = f"{name}, {rows:,} x {columns:,}"
    return describe_signed_matrix(title, M, name=name, axes=Axes("row", "column"))


def lay_side_by_side(pictures: list[Markup]) -> Markup:
    """Side by side, as many as the notebook is wide."""
    return element("div", *pictures, style="display:flex;flex-wrap:wrap;gap:1rem")


def _is_part(said: str, name: str) -> bool:
    whole = _drop_slice(said)
    return name in (said, whole) or whole.endswith(f".{name}")


def _drop_slice(said: str) -> str:
    """The name of an array, of which one matrix has a number behind it."""
    return re.sub(r"\[\d+\]$", "", said)


def _list_fields(one: object) -> list[tuple[str, Any]]:
    if not is_dataclass(one):
        return []
    values = [(part.name, getattr(one, part.name)) for part in fields(one)]
    return [
        (name, value) for name, value in values if value is not None and not name.startswith("_")
    ]


def _is_array(value: object) -> bool:
    return hasattr(value, "__array__")


def _read_array(value: Any) -> Array | None:
    """Numbers that are drawn; a matrix in factors is multiplied out."""
    if not _is_array(value):
        return None
    array: Array = np.asarray(value)
    real = array.dtype.kind in "fiu" and array.ndim >= 1
    return array.astype(np.float64) if real and np.isfinite(array).all() else None


def _is_long(value: object) -> bool:
    if isinstance(value, Enum):
        return False
    return value is False or (isinstance(value, str) and len(value) > _SHORT)


def _is_word(value: object) -> bool:
    return isinstance(value, str | int | float | Enum)


def _tell_value(value: Any) -> str:
    """A value in a few letters; nothing where it has no short form."""
    if _is_array(value):
        return " x ".join(f"{size:,}" for size in value.shape)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool | int | float):
        return str(value) if isinstance(value, bool) else format_number(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Face):
        told = describe_shortly(value)
        return f"({told if len(told) <= _NESTED else type(value).__name__})"
    if isinstance(value, tuple | list | Mapping):
        return f"of {count:,}" if (count := len(cast("Sized", value))) else ""
    return ""
