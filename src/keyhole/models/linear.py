"""Attention without softmax, which attention is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import (
    Array,
    Float,
    Sequences,
)
from keyhole.models.attention import ProjectedHeads


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class LinearAttention(ProjectedHeads):
    r"""A sequence-to-sequence layer of summed heads whose scores are the weights.

    $$F(X) = \sum_h X Q_h K_h^\top X^\top X V_h$$

    Only $Q_h K_h^\top$ and $V_h$ enter, each up to a factor.
    """

    def __call__(self, X: Sequences) -> Float[Array, "batch length outputs"]:
        """The new sequence."""
        queries, keys, values = self.project(X)
        return np.sum(queries @ (keys.swapaxes(-1, -2) @ values), axis=0)
