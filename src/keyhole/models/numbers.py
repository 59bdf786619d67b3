r"""Number formats, and layers evaluated as if every number were held in one.

A format is emulated in float64: a matrix product is computed there and its result is rounded. That
is how wide accumulators behave; hardware that also rounds every partial sum does worse.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import FORMATS, Array, Float, Sequences, check_sequences
from keyhole.errors import InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.layers.causal_attention import CausalAttention, mark_visible
from keyhole.models.tensor import (
    Partial,
    TensorAttention,
    TensorHeads,
    group_sequences,
    join_partials,
    multiply_rows,
)


@runtime_checkable
class NumberFormat(Protocol):
    """A finite set of numbers and the map to the nearest of them."""

    @property
    def name(self) -> str:
        """The word `number_format` reads it from."""
        ...

    @property
    def bits(self) -> float:
        """Bits of one number; infinite where nothing is rounded."""
        ...

    @property
    def spacing(self) -> float:
        """Distance from 1 to the next number."""
        ...

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest number."""
        ...

    @property
    def fixed(self) -> tuple[int, int] | None:
        """Bits of the least fixed-point format that holds every number; None where none does."""
        ...

    def round(self, numbers: Array) -> Array:
        """The nearest numbers of the format, ties to even."""
        ...


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Multiples of 2^-fraction from -2^integer to just below 2^integer; others saturate.

    Args:
        integer: bits before the point, I.
        fraction: bits after the point, F; a number takes p = I + F + 1 bits, its sign included.
    """

    integer: int
    fraction: int

    def __post_init__(self) -> None:
        # Beyond 53 bits float64, in which formats are emulated, would round by itself.
        if self.integer < 0 or self.fraction < 0 or self.bits > 53:
            raise InvalidInput(
                "fixed point needs integer and fraction bits >= 0, at most 52 together (float64"
                f" carries them); got {self.integer} and {self.fraction}."
            )

    @property
    def name(self) -> str:
        """The word `number_format` reads it from."""
        return f"fixed:{self.integer}.{self.fraction}"

    @property
    def bits(self) -> int:
        """I + F + 1."""
        return self.integer + self.fraction + 1

    @property
    def spacing(self) -> float:
        """Distance between neighbours, everywhere."""
        return 2.0**-self.fraction

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest number."""
        return -(2.0**self.integer), 2.0**self.integer - self.spacing

    @property
    def fixed(self) -> tuple[int, int]:
        """Integer and fraction bits."""
        return self.integer, self.fraction

    def round(self, numbers: Array) -> Array:
        """The nearest numbers of the format, ties to even, saturating."""
        least, greatest = self.range
        return np.rint(np.clip(numbers, least, greatest) / self.spacing) * self.spacing


@dataclass(frozen=True, slots=True)
class FloatingPoint:
    """An IEEE format or bfloat16, subnormal numbers included.

    Args:
        name: f64, f32, f16 or bf16.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in FORMATS:
            raise InvalidInput(
                f"floating-point formats are {', '.join(FORMATS)}; got {self.name!r}."
            )

    @property
    def bits(self) -> int:
        """Bits of one number: sign, exponent and fraction."""
        form = FORMATS[self.name]
        return form.digits + (2 * form.largest + 1).bit_length()

    @property
    def spacing(self) -> float:
        """Distance from 1 to the next number."""
        return 2.0 * FORMATS[self.name].roundoff

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest finite number."""
        greatest = math.ldexp(2.0 - self.spacing, FORMATS[self.name].largest)
        return -greatest, greatest

    @property
    def fixed(self) -> tuple[int, int]:
        """Integer and fraction bits of the least fixed-point format that holds every number."""
        form = FORMATS[self.name]
        # From the largest number down to the last bit of the smallest subnormal.
        return form.largest + 1, form.digits - 1 - form.least

    def round(self, numbers: Array) -> Array:
        """The nearest numbers of the format, ties to even.

        Raises:
            InvalidInput: a number overflows: a softmax of infinite scores would mean nothing.
        """
        rounded = FORMATS[self.name].cast(numbers)
        if not np.isfinite(rounded).all():
            raise InvalidInput(
                f"{self.name} holds numbers up to {self.range[1]:.6g}; got"
                f" {np.abs(numbers).max():.6g}. Take a wider format, or scale down."
            )
        return rounded


@dataclass(frozen=True, slots=True)
class Unrounded:
    """No format: nothing is rounded but by the float64 arithmetic that evaluates."""

    name: str = "exact"
    bits: float = math.inf
    spacing: float = 0.0
    range: tuple[float, float] = (-math.inf, math.inf)
    fixed: None = None

    def round(self, numbers: Array) -> Array:
        """The numbers themselves."""
        return numbers


def number_format(name: str | NumberFormat) -> NumberFormat:
    """The format a word names: f64, f32, f16, bf16, exact, or fixed:INTEGER.FRACTION bits.

    Raises:
        InvalidInput: there is no such format.
    """
    if not isinstance(name, str):
        return name
    if name == "exact":
        return Unrounded()
    if name in FORMATS:
        return FloatingPoint(name)
    if parts := re.fullmatch(r"fixed:(\d{1,3})\.(\d{1,3})", name):
        return FixedPoint(int(parts[1]), int(parts[2]))
    raise InvalidInput(
        f"number formats are {', '.join(FORMATS)}, exact, and fixed:I.F with I integer and F"
        f" fraction bits; got {name!r}."
    )


Evaluated = SelfAttention | CausalAttention | TensorAttention | TensorHeads


def evaluate(
    layer: Evaluated,
    X: Sequences,
    form: str | NumberFormat,
    *,
    inner: bool = True,
) -> Float[Array, "batch length outputs"]:
    """The new sequence when numbers are held in a format.

    Rounded are XQ, XK, XV and the outputs of heads, which the bit counts of [SHT23] speak of, and
    by default also tokens, weights, products of keys and of values (from order 3 on), scores and
    softmax weights. The softmax itself is computed in float64 on the rounded scores.

    Args:
        layer: a self-attention layer, masked or not, or one of any order, of one head or several.
        X: tokens.
        form: the format, or its name.
        inner: whether to round what no bit count speaks of.

    Raises:
        InvalidInput: X does not fit, or a number overflows a floating-point format (fixed point
            saturates).
    """
    check_sequences(X, layer.width)
    form = number_format(form)
    # The bit counts of [SHT23] speak of what leaves a matrix, not of what happens inside.
    inside = form if inner else Unrounded()
    masked = isinstance(layer, CausalAttention)
    outputs = [
        form.round(_evaluate_unit(unit, inside.round(X), form, inside, masked))
        for unit in _list_units(layer)
    ]
    return form.round(np.sum(outputs, axis=0))


def _list_units(layer: Evaluated) -> list[TensorAttention]:
    """The heads of a layer, each as a unit."""
    if isinstance(layer, TensorHeads):
        return list(layer.heads)
    if isinstance(layer, TensorAttention):
        return [layer]
    return [
        TensorAttention(Q, (K,), (V,)) for Q, K, V in zip(layer.Q, layer.K, layer.V, strict=True)
    ]


def _evaluate_unit(
    unit: TensorAttention, X: Sequences, form: NumberFormat, inside: NumberFormat, masked: bool
) -> Array:
    """One unit's output before rounding: one pass for partitions, one for rounded weights."""
    queries, *keys = (form.round(X @ inside.round(P)) for P in (unit.Q, *unit.K))
    values = [form.round(X @ inside.round(V)) for V in unit.V]
    output = np.zeros((*X.shape[:2], unit.outputs))
    visible = mark_visible(X.shape[1])
    for chosen, blocks in group_sequences(X.shape[1], len(X), X.shape[1] ** len(keys)):

        def scores(block: range, chosen: slice = chosen) -> Array:
            products = inside.round(multiply_rows(keys, chosen, block))
            given = inside.round(queries[chosen] @ products.swapaxes(-1, -2))
            return np.where(visible[:, block], given, -np.inf) if masked else given

        whole = join_partials(
            Partial.of(scores(block), multiply_rows(values, chosen, block)[..., :0])
            for block in blocks()
        )
        for block in blocks():
            weights = inside.round(
                np.exp(scores(block) - whole.top[..., None]) / whole.total[..., None]
            )
            output[chosen] += weights @ inside.round(multiply_rows(values, chosen, block))
    return output
