"""Attention behind a causal mask: every position sees itself and what stands before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import (
    Array,
    Bool,
    Float,
    Sequences,
    softmax,
)
from keyhole.models.attention import ProjectedHeads


def mark_visible(length: int) -> Bool[np.ndarray, "length length"]:
    """Whether a row may see a position: those up to its own."""
    return np.tri(length, dtype=bool)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class CausalAttention(ProjectedHeads):
    r"""A layer of summed heads in which row i attends to the tokens 1 .. i alone.

    $$F(X)_i = \sum_h \mathrm{softmax}(x_i Q_h K_h^\top X_{\le i}^\top) X_{\le i} V_h$$

    Its last row is that of the `SelfAttention` with the same weights.
    """

    def __call__(self, X: Sequences) -> Float[Array, "batch length outputs"]:
        """The new sequence."""
        queries, keys, values = self.project(X)
        scores = queries @ keys.swapaxes(-1, -2)
        weights = softmax(np.where(mark_visible(X.shape[1]), scores, -np.inf))
        return np.sum(weights @ values, axis=0)
