"""Rotary positions: the turns of pairs of a head by displacement."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Array, Float, Indices, Vector
from keyhole.errors import InvalidInput


def list_displacements(length: int) -> Indices:
    """How far back from the last token each token stands."""
    return np.arange(length - 1, -1, -1, dtype=np.intp)


def count_turned(rank: int, share: float) -> int:
    """How many entries of a head of size `rank` are turned.

    Raises:
        InvalidInput: they do not fall into pairs.
    """
    turned = round(rank * share)
    if turned % 2 or turned < 2 or abs(turned - rank * share) > 1e-6:
        raise InvalidInput(
            f"rotary positions turn pairs: a share of {share:g} of a head of size {rank} must be an"
            " even number of entries. Choose another rank or rotary_share."
        )
    return turned


def list_frequencies(rank: int, base: float, share: float = 1.0) -> Vector:
    r"""The angle by which each pair turns per step, $\theta_f = b^{-2f/r}$."""
    turned = count_turned(rank, share)
    return base ** (-2.0 * np.arange(turned // 2) / turned)


def turn_pairs(
    vectors: Float[Array, "*rest length rank"], angles: Float[Array, "length pairs"]
) -> Float[Array, "*rest length rank"]:
    r"""Vectors with the pairs (f, f + p) turned by an angle each, p the number of pairs.

    $$(a, b) \mapsto (a \cos\phi - b \sin\phi,\; b \cos\phi + a \sin\phi)$$
    """
    pairs = angles.shape[-1]
    first, second, rest = np.split(vectors, [pairs, 2 * pairs], axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
