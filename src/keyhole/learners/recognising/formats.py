"""The number format that all answers share, as seen."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import FORMATS, Array
from keyhole.learners.findings import Recognition
from keyhole.oracles import Imperfection

# Fewer different numbers than this may share a format by chance.
_ENOUGH = 4
_MOST_LEVELS = 3
_MOST_DECIMALS = 9
# Beyond so many units of the last decimal float64 itself has few further digits.
_FINE = 2.0**40
# Decimals come after the narrow formats: few of their numbers need many decimals.
_NARROW = ("bf16", "f16")


def see_format(answers: Array) -> str:
    """`labels`, `bf16`, `f16`, `decimals K`, `f32` or `f64`."""
    numbers = np.unique(answers)
    if 1 < len(numbers) <= _MOST_LEVELS and (numbers == np.rint(numbers)).all():
        return "labels"
    telling = numbers[np.abs(numbers) % 1.0 != 0.0]
    for name in _NARROW:
        if _are_all_in_format(telling, name):
            return name
    decimals = _count_decimals(numbers)
    if decimals is not None:
        return f"decimals {decimals}"
    return "f32" if _are_all_in_format(telling, "f32") else "f64"


def is_at_end(answer: Array, name: str) -> bool:
    """Whether an answer is the largest number of its format, where casts that saturate end."""
    if name not in ("f32", *_NARROW):
        return False
    form = FORMATS[name]
    largest = 2.0**form.largest * (2.0 - 2.0 ** (1 - form.digits))
    return bool((np.abs(answer) >= largest).any())


def describe_format(name: str) -> Imperfection:
    """What answers of such a format lack."""
    if name.startswith("decimals"):
        return Imperfection.decimals(int(name.split()[1]))
    return Imperfection(levels=2) if name == "labels" else Imperfection.cast(name)


def describe_seen(seen: Recognition) -> Imperfection:
    """What answers were seen to lack: digits, or sameness, of which the size is not known."""
    if seen.label == "non-deterministic":
        return Imperfection(noise=float("nan"))
    return describe_format(seen.format)


def _are_all_in_format(numbers: Array, name: str) -> bool:
    return len(numbers) >= _ENOUGH and bool((FORMATS[name].cast(numbers) == numbers).all())


def _count_decimals(numbers: Array) -> int | None:
    """The least number of decimals that all numbers keep, None where none does."""
    for count in range(_MOST_DECIMALS + 1):
        fine = numbers[(np.abs(numbers) < _FINE * 10.0**-count) & (numbers != 0.0)]
        if len(fine) >= _ENOUGH and (np.round(fine, count) == fine).all():
            return count
    return None
