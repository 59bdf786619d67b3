"""Attention without softmax, which attention is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import (
    Array,
    Float,
    Sequences,
    check_finite,
    check_sequences,
    check_shape,
    freeze_array,
)
from keyhole.drawing.faces import Face


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class LinearAttention(Face):
    r"""A sequence-to-sequence layer of summed heads whose scores are the weights.

    $$F(X) = \sum_h X Q_h K_h^\top X^\top X V_h$$

    Only $Q_h K_h^\top$ and $V_h$ enter, each up to a factor.
    """

    Q: Float[Array, "heads width embed"]
    K: Float[Array, "heads width embed"]
    V: Float[Array, "heads width outputs"]

    def __post_init__(self) -> None:
        for name in ("Q", "K", "V"):
            object.__setattr__(self, name, freeze_array(getattr(self, name)))
            check_finite(name, getattr(self, name))
        check_shape("Q", self.Q, (None, None, None))
        check_shape("K", self.K, self.Q.shape)
        check_shape("V", self.V, (*self.Q.shape[:2], None))

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.Q.shape[1]

    @property
    def outputs(self) -> int:
        """Numbers answered per position."""
        return self.V.shape[2]

    def __call__(self, X: Sequences) -> Float[Array, "batch length outputs"]:
        """The new sequence."""
        check_sequences(X, self.width)
        queries, keys, values = (np.einsum("bnd,hdm->hbnm", X, P) for P in (self.Q, self.K, self.V))
        return np.sum(queries @ (keys.swapaxes(-1, -2) @ values), axis=0)
