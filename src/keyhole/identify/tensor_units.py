"""Units of third order: distance modulo what answers hide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Stack
from keyhole.errors import InvalidInput
from keyhole.models import TensorAttention
from keyhole.models.layers.tensor_row import TensorRow


@dataclass(frozen=True, slots=True)
class TensorDistance:
    """How far two units of third order are apart, both places exchanged where that is nearer.

    Args:
        scores: largest difference of T, beside its largest entry.
        values: the same for the products of value vectors, of all outputs.
    """

    scores: float
    values: float

    @property
    def largest(self) -> float:
        """The worse of the two."""
        return max(self.scores, self.values)


def tensor_distance(
    a: TensorRow | TensorAttention, b: TensorRow | TensorAttention
) -> TensorDistance:
    """Distance of two units of third order modulo exchanging both places, and how T splits.

    Raises:
        InvalidInput: widths or outputs differ, or an order is not 3.
    """
    first, second = (one if isinstance(one, TensorRow) else TensorRow(one) for one in (a, b))
    sizes = [(one.width, one.outputs) for one in (first, second)]
    if sizes[0] != sizes[1]:
        raise InvalidInput(
            "units to compare must have one width and one number of outputs; got"
            f" {sizes[0]} and {sizes[1]}."
        )
    T, S = first.expand(), second.expand()
    V, U = (_multiply_values(one) for one in (first, second))
    straight = TensorDistance(_compare(T, S), _compare(V, U))
    swapped = S.transpose(0, 2, 1), U.transpose(0, 2, 1)
    exchanged = TensorDistance(_compare(T, swapped[0]), _compare(V, swapped[1]))
    return min(straight, exchanged, key=lambda distance: distance.largest)


def _multiply_values(row: TensorRow) -> Stack:
    """The products of both value vectors, one matrix for every output."""
    return np.einsum("ao,bo->oab", *row.unit.V)


def _compare(a: Array, b: Array) -> float:
    largest = max(float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0))) or 1.0
    return float(np.abs(a - b).max(initial=0.0)) / largest
