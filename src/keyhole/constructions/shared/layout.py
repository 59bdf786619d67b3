"""Weights written by meaning: named ranges of coordinates, and blocks between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from keyhole._arrays import Array, Matrix, freeze_array
from keyhole.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Layout:
    """Named ranges of coordinates, one after the other.

    Args:
        ranges: where each name lies.
    """

    ranges: Mapping[str, slice]

    @classmethod
    def of(cls, **sizes: int) -> Layout:
        """Ranges of those sizes, in the order given."""
        ends = np.cumsum([0, *sizes.values()])
        places = (slice(int(a), int(b)) for a, b in pairwise(ends))
        return cls(dict(zip(sizes, places, strict=True)))

    @property
    def width(self) -> int:
        """Coordinates altogether."""
        return max((place.stop for place in self.ranges.values()), default=0)

    def size(self, name: str) -> int:
        """Coordinates of one range."""
        place = self[name]
        return place.stop - place.start

    def __getitem__(self, name: str) -> slice:
        if name not in self.ranges:
            raise InvalidInput(f"there is no block {name!r}; there are {', '.join(self.ranges)}.")
        return self.ranges[name]


@dataclass(frozen=True, eq=False, slots=True)
class Weights:
    """A matrix from one layout to another, zero but for the blocks placed in it.

    Args:
        rows: the layout of tokens.
        columns: the layout of what they are mapped to.
        array: the entries.
    """

    rows: Layout
    columns: Layout
    array: Matrix

    @classmethod
    def zeros(cls, rows: Layout, columns: Layout) -> Weights:
        """No block placed yet."""
        return cls(rows, columns, freeze_array(np.zeros((rows.width, columns.width))))

    def place(self, row: str, column: str, block: Any) -> Weights:
        """The same with one block filled: by a matrix, or a multiple of the identity."""
        shape = self.rows.size(row), self.columns.size(column)
        filled: Array = np.asarray(block, dtype=np.float64)
        if filled.ndim == 0:
            filled = filled * np.eye(*shape)
        if filled.shape != shape:
            raise InvalidInput(f"the block {row}, {column} has shape {shape}; got {filled.shape}.")
        array = self.array.copy()
        array[self.rows[row], self.columns[column]] = filled
        return Weights(self.rows, self.columns, freeze_array(array))
