"""Shape aliases, freezing, stable softmax, rounding to number formats, and border checks."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np
from threadpoolctl import ThreadpoolController

from keyhole.errors import InvalidInput

# Shapes are checked where jaxtyping is loaded first, as in a test run. Elsewhere they are words for
# the reader, and loading it would take longer than a small recovery.
if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
else:

    class _Shaped:
        """An array with a shape in words: the array."""

        def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
            return item[0]

    Bool = Float = Int = _Shaped

# numpy's NDArray is no class since numpy 2.5, and shapes can be told only of classes.
Array = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]
Sequences = Float[Array, "batch length width"]
Answers = Float[Array, "batch outputs"]
Matrix = Float[Array, "_ _"]
Vector = Float[Array, "_"]
Stack = Float[Array, "_ _ _"]
PerSequence = Float[Array, "batch"]
Mask = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]
Indices = np.ndarray[tuple[Any, ...], np.dtype[np.intp]]
# What public functions take for `rng`; everything inside takes generators.
Rng = np.random.Generator | int | np.integer[Any]

EPS = float(np.finfo(np.float64).eps)


def freeze_array(value: Any) -> Array:
    """A read-only float64 copy of `value`."""
    array = np.array(value, dtype=np.float64)
    array.setflags(write=False)
    return array


def as_generator(rng: object) -> np.random.Generator:
    """The generator itself, or `numpy.random.default_rng` of a whole number.

    Raises:
        InvalidInput: it is neither; without a seed no run could be repeated.
    """
    if isinstance(rng, np.random.Generator):
        return rng
    # True and False are ints, and almost certainly a mistake here.
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(cast(Any, rng)))
    needed = "rng must be a numpy.random.Generator or a whole number from 0 on"
    raise InvalidInput(f"{needed}; got {rng!r}. Pass rng=0, or any other number.")


@cache
def _find_thread_pools() -> ThreadpoolController:
    return ThreadpoolController()


def pin_one_thread() -> AbstractContextManager[Any]:
    """Linear algebra inside runs on one thread, so that it rounds the same each time."""
    return cast(Any, _find_thread_pools()).limit(limits=1, user_api="blas")


class Scratch:
    """Room for one large array at a time, used again unless somebody kept it.

    Fresh pages cost more than filling them.
    """

    def __init__(self) -> None:
        self._room = np.empty(0)

    def array(self, shape: tuple[int, ...]) -> Array:
        """An array of that shape, not initialised, that nobody else holds."""
        size = math.prod(shape)
        # The attribute and the argument hold two; anybody else still looks at the numbers.
        kept = sys.getrefcount(self._room) > 2
        if kept or self._room.size < size:
            self._room = np.empty(size)
        return self._room[:size].reshape(shape)


def softmax(scores: Array) -> Array:
    r"""Softmax over the last axis, computed so that it cannot overflow.

    $$\mathrm{softmax}(s)_i = e^{s_i - \max s} / \sum_j e^{s_j - \max s}$$
    """
    # A difference beyond the largest number is weight 0 all the same
    with np.errstate(over="ignore"):
        weights = scores - scores.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format.

    Args:
        digits: binary digits of a number, the leading one included.
        least: exponent of the smallest normal number, 2^least.
        largest: exponent above which numbers overflow.
        via: the wider format that numbers are rounded to first, where they are rounded twice.
    """

    digits: int
    least: int
    largest: int
    via: Format | None = None

    @property
    def roundoff(self) -> float:
        """Largest relative error of rounding a normal number."""
        return 2.0**-self.digits

    @property
    def grain(self) -> float:
        """Spacing of the smallest numbers, below which no difference is kept."""
        return 2.0 ** (self.least - self.digits + 1)

    def cast(self, numbers: Array) -> Array:
        """The nearest numbers of the format, ties to even; below 2^least they are evenly spaced."""
        if self.via is not None:
            numbers = self.via.cast(numbers)
        # Below the least exponent numbers are subnormal: their spacing no longer shrinks.
        exponent = np.maximum(np.frexp(numbers)[1] - 1, self.least) - (self.digits - 1)
        rounded = np.ldexp(np.rint(np.ldexp(numbers, -exponent)), exponent)
        finite = np.abs(rounded) < 2.0**self.largest * 2.0
        return np.where(finite, rounded, np.copysign(np.inf, numbers))


FORMATS = {
    "f64": Format(53, -1022, 1023),
    "f32": Format(24, -126, 127),
    "f16": Format(11, -14, 15),
    "bf16": Format(8, -126, 127),
}


def rms(values: Array) -> float:
    """Root mean square, 0 for an empty array, without overflow."""
    if values.size == 0:
        return 0.0
    flat = values.ravel()
    largest = max(abs(float(flat.max())), abs(float(flat.min())))
    # Dividing by it would make 0 and infinity into NaN.
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    scaled = flat / largest
    return largest * math.sqrt(float(scaled @ scaled) / len(flat))


def find_power_of_two(value: float) -> float:
    """The power of two nearest to `value` (0 for 0), so that scaling by it rounds nothing."""
    return 2.0 ** round(math.log2(value)) if value > 0 else 0.0


def check_sequences(X: Array, width: int) -> None:
    """Raise unless `X` is a batch of sequences, at least one token long, of `width`-vectors."""
    if X.ndim != 3 or X.shape[-1] != width or X.shape[1] < 1:
        hint = " Add a leading batch axis: X[None]." if X.ndim == 2 else ""
        raise InvalidInput(
            f"queries must have shape (batch, length >= 1, {width}); got {tuple(X.shape)}.{hint}"
        )


@runtime_checkable
class Shaped(Protocol):
    """Anything that knows its shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        ...


def check_shape(name: str, array: Shaped, shape: tuple[int | None, ...]) -> None:
    """Raise unless `array` has `shape`, where None admits any size."""
    if len(array.shape) != len(shape) or any(
        w is not None and w != g for w, g in zip(shape, array.shape, strict=True)
    ):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        wanted = f"({sizes}{',' * (len(shape) == 1)})"
        raise InvalidInput(f"{name} must have shape {wanted}; got {tuple(array.shape)}.")


def check_finite(name: str, array: Array) -> None:
    """Raise unless every number in `array` is finite."""
    if not np.isfinite(array).all():
        raise InvalidInput(
            f"{name} must be finite; {int((~np.isfinite(array)).sum())} of its numbers are not."
        )
