"""The number format of answers: how large the errors are that it leaves of itself."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Vector

# Of the largest answer: what a model in float32 leaves of a sum over its hidden size.
ARITHMETIC = 16.0 * 2.0**-24
_DECIMALS = 6  # the most that are looked for
_UNIFORM = 1.0 / np.sqrt(12.0)  # standard deviation of what rounding to a step takes away
_LEAST = 64  # numbers that are no accident together
# Bits of what a number keeps: bfloat16, float16.
_FORMATS = (8, 11)
_WHOLE = 1e-9


def measure_format_error(answers: Matrix) -> float:
    """Standard deviation of the errors that the numbers of answers show; 0 where they show none.

    Numbers that are all whole multiples of a power of ten were rounded to decimals; numbers with
    few binary digits were cast. Finer formats leave what arithmetic leaves anyway.
    """
    numbers = np.abs(answers[np.isfinite(answers) & (answers != 0.0)])
    if len(numbers) < _LEAST:
        return 0.0
    for decimals in range(_DECIMALS + 1):
        # The first few tell most finer numbers already.
        if _are_whole(numbers[:_LEAST], decimals) and _are_whole(numbers, decimals):
            return float(_UNIFORM * 10.0**-decimals)
    mantissas, powers = np.frexp(numbers)
    for bits in _FORMATS:
        scaled = np.ldexp(mantissas, bits)
        if (scaled == np.rint(scaled)).all():
            steps = np.ldexp(1.0, powers - bits)
            return float(_UNIFORM * np.sqrt(np.mean(steps**2)))
    return 0.0


def _are_whole(numbers: Vector, decimals: int) -> bool:
    scaled = numbers * 10.0**decimals
    return bool((np.abs(scaled - np.rint(scaled)) <= _WHOLE * np.maximum(1.0, scaled)).all())
