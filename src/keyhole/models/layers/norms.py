"""What a norm makes of tokens, and how far rounding moves it."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Array


def measure_spread(x: Array, norm: str, eps: float) -> tuple[Array, Array]:
    r"""Tokens less what the norm subtracts, and what it divides them by.

    $$\sqrt{\mathrm{mean}\, x^2 + \epsilon}, \qquad \sqrt{\mathrm{var}\, x + \epsilon}$$
    """
    if norm == "none":
        return x, np.ones((*x.shape[:-1], 1))
    centred = x - x.mean(axis=-1, keepdims=True) if norm == "layer" else x
    # Scaled first, so that the square of a huge token does not overflow.
    largest = np.abs(centred).max(axis=-1, keepdims=True, initial=1.0)
    square = np.mean((centred / largest) ** 2, axis=-1, keepdims=True)
    return centred, largest * np.sqrt(square + (np.sqrt(eps) / largest) ** 2)


def normalise(x: Array, norm: str, eps: float) -> Array:
    """Tokens behind a norm without gain and shift; 0 stays 0 where eps is 0 too."""
    centred, spread = measure_spread(x, norm, eps)
    return centred / np.where(spread > 0, spread, 1.0)
