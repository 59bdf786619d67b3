r"""Even parts of smooth activations, $\phi(z) = z/2 + E(z)$, and their derivatives.

GELU has $E = z\,(\Phi(z) - \tfrac12)$; its tanh form and SiLU have $E = \tfrac12 z \tanh u(z)$.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array

_CUBE = 0.044715  # of the tanh form of GELU
_STEP = 1e-4  # of the third derivative, which only steers a search

Pair = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class EvenPart:
    """The even part of an activation.

    Args:
        bend: E and its first derivative.
        curve: its second derivative and, roughly, its third.
    """

    bend: Callable[[Array], Pair]
    curve: Callable[[Array], Pair]


def _bend_gelu(z: Array) -> Pair:
    from scipy.special import ndtr

    half = np.asarray(ndtr(z)) - 0.5
    return z * half, half + z * _bell(z)


def _curve_gelu(z: Array) -> Pair:
    bell = _bell(z)
    return bell * (2.0 - z**2), bell * (z**3 - 4.0 * z)


def _bell(z: Array) -> Array:
    return np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)


def _grow_gelu(z: Array) -> tuple[Array, Array, Array]:
    """The u of the tanh form of GELU, and its derivatives."""
    c = np.sqrt(2 / np.pi)
    return c * (z + _CUBE * z**3), c * (1 + 3 * _CUBE * z**2), 6 * c * _CUBE * z


def _grow_silu(z: Array) -> tuple[Array, Array, Array]:
    return z / 2, np.full_like(z, 0.5), np.zeros_like(z)


def _make_tanh_part(grow: Callable[[Array], tuple[Array, Array, Array]]) -> EvenPart:
    def bend(z: Array) -> Pair:
        u, first, _ = grow(z)
        tanh = np.tanh(u)
        return z * tanh / 2, tanh / 2 + z * (1 - tanh**2) * first / 2

    def curve_once(z: Array) -> Array:
        u, first, second = grow(z)
        tanh = np.tanh(u)
        return (1 - tanh**2) * (first + z * (second / 2 - tanh * first**2))

    def curve(z: Array) -> Pair:
        rate = (curve_once(z + _STEP) - curve_once(z - _STEP)) / (2 * _STEP)
        return curve_once(z), rate

    return EvenPart(bend, curve)


EVEN_PARTS = {
    "gelu": EvenPart(_bend_gelu, _curve_gelu),
    "gelu_tanh": _make_tanh_part(_grow_gelu),
    "silu": _make_tanh_part(_grow_silu),
}
