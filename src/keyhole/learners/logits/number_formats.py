"""The number format of answers: how large the errors are that it leaves of itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Vector, rms

# Of the largest answer: what a model in float32 leaves of a sum over its hidden size.
ARITHMETIC = 16.0 * 2.0**-24
_DECIMALS = 6  # the most that are looked for
_UNIFORM = 1.0 / np.sqrt(12.0)  # standard deviation of what rounding to a step takes away
_LEAST = 64  # numbers that are no accident together
# Bits of what a number keeps: bfloat16, float16.
_FORMATS = (8, 11)
_WHOLE = 1e-9


@dataclass(frozen=True, slots=True)
class FormatError:
    r"""What a number format leaves of answers.

    Errors of variance $s_{pi}^2$, drawn alone, have singular values up to about $\max_p |s_p| +
    \max_i |s_i|$ (rows and columns of s), where equal ones reach $\sigma(\sqrt V + \sqrt n)$.

    Args:
        deviation: its standard deviation, over all answers.
        spread: how much further its singular values reach than if it were equal everywhere.
    """

    deviation: float = 0.0
    spread: float = 1.0


def measure_format_error(answers: Matrix) -> FormatError:
    """The errors that the numbers of answers show of their format; none where they show none.

    Numbers that are all whole multiples of a power of ten were rounded to decimals; numbers with
    few binary digits were cast. Finer formats leave what arithmetic leaves anyway.
    """
    numbers = np.abs(answers[np.isfinite(answers) & (answers != 0.0)])
    if len(numbers) < _LEAST:
        return FormatError()
    for decimals in range(_DECIMALS + 1):
        # The first few tell most finer numbers already.
        if _are_whole(numbers[:_LEAST], decimals) and _are_whole(numbers, decimals):
            return FormatError(float(_UNIFORM * 10.0**-decimals))
    mantissas, powers = np.frexp(answers)
    for bits in _FORMATS:
        scaled = np.ldexp(mantissas, bits)
        if (scaled == np.rint(scaled)).all():
            steps = np.where(answers == 0.0, 0.0, np.ldexp(1.0, powers - bits))
            return FormatError(float(_UNIFORM * rms(steps)), _measure_spread(steps))
    return FormatError()


def _measure_spread(steps: Matrix) -> float:
    """How far errors of such sizes reach, of equal ones as large altogether."""
    rows, columns = (np.sqrt((steps**2).mean(axis=axis)).max() for axis in (1, 0))
    return float(max(rows, columns) / rms(steps))


def _are_whole(numbers: Vector, decimals: int) -> bool:
    scaled = numbers * 10.0**decimals
    return bool((np.abs(scaled - np.rint(scaled)) <= _WHOLE * np.maximum(1.0, scaled)).all())
