"""Attention behind a causal mask: every position sees itself and what stands before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import (
    Array,
    Bool,
    Float,
    Sequences,
    check_finite,
    check_sequences,
    check_shape,
    freeze_array,
    softmax,
)
from keyhole.drawing.faces import Face


def mark_visible(length: int) -> Bool[np.ndarray, "length length"]:
    """Whether a row may see a position: those up to its own."""
    return np.tri(length, dtype=bool)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class CausalAttention(Face):
    r"""A layer of summed heads in which row i attends to the tokens 1 .. i alone.

    $$F(X)_i = \sum_h \mathrm{softmax}(x_i Q_h K_h^\top X_{\le i}^\top) X_{\le i} V_h$$

    Its last row is that of the `SelfAttention` with the same weights.
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
        scores = queries @ keys.swapaxes(-1, -2)
        weights = softmax(np.where(mark_visible(X.shape[1]), scores, -np.inf))
        return np.sum(weights @ values, axis=0)
