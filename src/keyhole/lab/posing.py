"""From the words of a job to a task, and to a number format."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from keyhole._arrays import Array
from keyhole.errors import InvalidInput
from keyhole.lab.jobs import Posing
from keyhole.tasks import Task, task_named


def posed(name: str, job: Posing, **known: Any) -> Task:
    """The task a job names; sizes in `known` are used where the job does not give them."""
    given = {
        "length": job.length,
        "q": job.q,
        "dimension": job.width,
        "at_most": job.at_most or None,
        "modulus": job.modulus,
        "radius": job.radius,
        "nodes": job.nodes,
    }
    own = {"dimension" if key == "width" else key: value for key, value in known.items()}
    return task_named(name, **{key: own.get(key) if value is None else value for key, value in given.items()})


@dataclass(frozen=True, slots=True)
class Held:
    """How numbers are held.

    Args:
        bits: bits of a number; infinite for real numbers.
        fixed: integer and fraction bits of a fixed-point format that holds every number; None where any split may be.
        rounding: numbers to the nearest that is held; None where nothing is rounded.
    """

    bits: float = inf
    fixed: tuple[int, int] | None = None
    rounding: Callable[[Array], Array] | None = None


_FLOATS = {"f64": (64, (1024, 1074)), "f32": (32, (128, 149)), "f16": (16, (16, 24)), "bf16": (16, (128, 133))}
_CASTS = {"f64": np.float64, "f32": np.float32, "f16": np.float16}


def format_of(dtype: str | None, bits: int | None = None) -> Held:
    """The number format a job names: a word, a number of bits, or neither for real numbers.

    Raises:
        InvalidInput: there is no such format, or both were given.
    """
    if dtype is None:
        return Held() if bits is None else Held(float(bits))
    if bits is not None:
        raise InvalidInput(f"give --bits or --dtype, not both; got {bits} and {dtype}.")
    if dtype in _FLOATS:
        return Held(float(_FLOATS[dtype][0]), _FLOATS[dtype][1], _cast(dtype))
    parts = re.fullmatch(r"fixed:(\d{1,2})\.(\d{1,2})", dtype)
    if parts is None:
        raise InvalidInput(f"--dtype is {', '.join(_FLOATS)} or fixed:I.F; got {dtype!r}.")
    integer, fraction = int(parts[1]), int(parts[2])
    return Held(integer + fraction + 1.0, (integer, fraction), _fixed(integer, fraction))


def _fixed(integer: int, fraction: int) -> Callable[[Array], Array]:
    step = 2.0**-fraction
    return lambda x: np.rint(np.clip(x, -(2.0**integer), 2.0**integer - step) / step) * step


def _cast(dtype: str) -> Callable[[Array], Array]:
    if dtype == "bf16":
        return lambda x: (
            (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
        )
    return lambda x: x.astype(_CASTS[dtype]).astype(np.float64)
