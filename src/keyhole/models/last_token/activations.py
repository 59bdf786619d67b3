"""Activations of hidden units, by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keyhole._arrays import Array


def _gelu(z: Array) -> Array:
    # Imported here: ReLU networks need no scipy.
    from scipy.special import ndtr

    return z * ndtr(z)


def _silu(z: Array) -> Array:
    from scipy.special import expit

    return z * expit(z)


def _gelu_tanh(z: Array) -> Array:
    from scipy.special import expit

    # (1 + tanh y)/2 = 1/(1 + exp(-2y)), which stays exact where the tanh is -1.
    y: Array = 2 * np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)
    return z * np.asarray(expit(y))


def _softplus(z: Array) -> Array:
    return np.logaddexp(0.0, z)


def _relu(z: Array) -> Array:
    return np.maximum(z, 0.0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": _relu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "softplus": _softplus,
}
