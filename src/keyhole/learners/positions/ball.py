r"""The ball behind a norm: which token to send so that the layer reads a given vector.

$n = x/\sqrt{\mathrm{mean}\,x^2 + \epsilon}$ fills the open ball $|n|^2 < d$, and $x = n
\sqrt{\epsilon/(1 - |n|^2/d)}$ is read as n. Behind a LayerNorm n sums to zero, and is told by d - 1
coordinates. The zero token is read as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Stack


@dataclass(frozen=True, eq=False, slots=True)
class NormBall:
    """Vectors that a layer can be made to read.

    Args:
        basis: coordinates of such vectors, one column each (width x dimension).
        norm: none, rms or layer.
        eps: of the norm.
    """

    basis: Matrix
    norm: str
    eps: float

    @classmethod
    def of(cls, width: int, norm: str, eps: float) -> NormBall:
        """The ball behind a norm; without one there is no bound."""
        if norm != "layer":
            return cls(np.eye(width), norm, eps)
        columns = np.column_stack([np.ones(width), np.eye(width)[:, 1:]])
        return cls(np.linalg.qr(columns)[0][:, 1:], norm, eps)

    @property
    def dimension(self) -> int:
        """Coordinates of a vector."""
        return self.basis.shape[1]

    def send(self, n: Stack) -> Stack:
        """Tokens that are read as these vectors."""
        if self.norm == "none":
            return n
        inside = 1.0 - (n**2).sum(axis=-1, keepdims=True) / len(self.basis)
        return (n * np.sqrt(self.eps / inside)) @ self.basis.T

    def draw(self, *shape: int, size: float, rng: np.random.Generator) -> Array:
        """Vectors of a share of the radius, in random directions."""
        drawn = rng.normal(size=(*shape, self.dimension))
        radius = size * np.sqrt(self.dimension)
        return radius * drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)
