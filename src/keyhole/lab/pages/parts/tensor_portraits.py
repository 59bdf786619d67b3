"""Pictures of a recovered unit of higher order: its scores and values as answers determine them."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Indices, Matrix, Stack
from keyhole.drawing.describing import Axes
from keyhole.drawing.heatmaps import draw_signed_heatmap
from keyhole.drawing.html import Markup, element, format_number, format_section, join_pictures
from keyhole.lab.pages.parts.recovered_matrices import describe_standing
from keyhole.lab.runs.recovery_records import RecoveryRecord
from keyhole.models.layers.tensor_row import TensorRow
from keyhole.models.tensor import TensorAttention

_SHOWN = 8  # slices of T and outputs that are drawn
_PLACES = Axes("coordinate in the second place", "coordinate in the first place")
_COLUMNS = Axes("column", "token coordinate i")


def draw_tensor_portrait(data: RecoveryRecord, row: TensorRow) -> Markup:
    """Slices of T and products of values of a unit of order 3; of other orders the weights held."""
    unit = row.unit
    title = (
        f"A unit of order {unit.order} on tokens of width {unit.width:,}, {describe_standing(data)}"
    )
    if unit.order != 3:
        return format_section(title, join_pictures(*_draw_held_weights(unit)))
    note = element("p", _describe_slices(data, unit))
    scores = [_draw_slice(unit, int(i)) for i in pick_largest_slices(row)]
    values = [_draw_values(o, V) for o, V in enumerate(multiply_values(unit)[:_SHOWN], start=1)]
    return format_section(title, note, join_pictures(*scores), join_pictures(*values))


def pick_largest_slices(row: TensorRow) -> Indices:
    """The coordinates of y whose slices of T are largest, in their own order."""
    sizes = np.linalg.norm(row.expand(), axis=(1, 2))
    return np.sort(np.argsort(-sizes, kind="stable")[:_SHOWN])


def multiply_values(unit: TensorAttention) -> Stack:
    """The product of both value vectors, output by output; a factor between them is free."""
    return np.einsum("ao,bo->oab", *unit.V)


def _draw_slice(unit: TensorAttention, i: int) -> Markup:
    T = (unit.K[0] * unit.Q[i]) @ unit.K[1].T
    return draw_signed_heatmap(
        f"T at coordinate {i + 1} of y, of norm {_measure(T)}", T, name="T", axes=_PLACES
    )


def _draw_values(output: int, V: Matrix) -> Markup:
    words = f"values of output {output}, of norm {_measure(V)}"
    return draw_signed_heatmap(words, V, name="V", axes=_PLACES)


def _draw_held_weights(unit: TensorAttention) -> list[Markup]:
    named = {"Q": unit.Q}
    named |= {f"K{k}": K for k, K in enumerate(unit.K, start=1)}
    named |= {f"V{k}": V for k, V in enumerate(unit.V, start=1)}
    return [
        draw_signed_heatmap(f"{name}, of norm {_measure(part)}", part.T, name=name, axes=_COLUMNS)
        for name, part in named.items()
    ]


def _measure(part: Matrix) -> str:
    return format_number(float(np.linalg.norm(part)))


def _describe_slices(data: RecoveryRecord, unit: TensorAttention) -> str:
    """What is drawn, what answers leave free, and what is left out."""
    products = (
        ""
        if data.rank is None
        else f" T is a sum of {data.rank:,} product{'s' * (data.rank != 1)}."
    )
    left = f" The {_SHOWN} largest slices are drawn." if unit.width > _SHOWN else ""
    more = f" The first {_SHOWN} outputs are drawn." if unit.outputs > _SHOWN else ""
    return (
        "A pair of tokens a, b has the score T(y, a, b); a slice of T is what one coordinate of y"
        " adds to it. Values are the products of the two value vectors of an output. Both places"
        f" may be exchanged in all pictures at once.{products}{left}{more}"
    )
