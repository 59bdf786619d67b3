r"""A block asked with a huge last token: what is behind it stands still.

With $x_N = S y$, y on the sphere $|y|^2 = d$ of what a LayerNorm leaves, and S large the second
norm sees y alone but for $O(1/S)$: $f - x_N = a(n_1, .., y) + g(y) + O(1/S)$. Differences of such
answers with one y are those of the attention; those of lone tokens are those of a network on the
sphere. All vectors are told by their d - 1 coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import EPS, Array, Matrix
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.positions.ball import NormBall
from keyhole.oracles import Counted

# Larger ones lose digits of answers, smaller ones show the network behind the attention.
FAR = 1e5


@dataclass(frozen=True, slots=True)
class Stencil:
    """How differences are taken.

    Args:
        step: of the radius.
        reach: steps to both sides; two leave errors of the fourth order, one of the second.
        rate: of the radius, the step of one-sided first differences.
    """

    step: float
    reach: int = 1
    rate: float = 1e-5

    @classmethod
    def suit(cls, roundoff: float) -> Stencil:
        """For answers of such a relative error: the coarser they are, the wider."""
        return _FINE if roundoff <= EPS else cls(roundoff ** (1 / 6), 2, roundoff**0.5)


_FINE = Stencil(2e-3)


@runtime_checkable
class SphereMap(Protocol):
    """A target asked at points of the sphere that a norm leaves of lone tokens."""

    @property
    def dimension(self) -> int:
        """Coordinates of a point."""
        ...

    @property
    def outputs(self) -> int:
        """Numbers of an answer."""
        ...

    @property
    def radius(self) -> float:
        """Of the sphere."""
        ...

    @property
    def stencil(self) -> Stencil:
        """How its differences are taken."""
        ...

    def ask_lone(self, y: Matrix) -> Matrix:
        """Answers at points."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class FarTokens:
    """A block whose last token is huge.

    Args:
        oracle: the block.
        ball: coordinates behind its norms.
    """

    oracle: Counted
    ball: NormBall

    @property
    def dimension(self) -> int:
        """Coordinates of a token behind the norm."""
        return self.ball.dimension

    @property
    def outputs(self) -> int:
        """Numbers of an answer."""
        return len(self.ball.basis)

    @property
    def radius(self) -> float:
        """Of the sphere that the last token lies on."""
        return float(np.sqrt(len(self.ball.basis)))

    @property
    def stencil(self) -> Stencil:
        """Differences of answers to huge tokens want all digits."""
        return _FINE

    def ask_lone(self, y: Matrix) -> Matrix:
        """Answers to lone tokens on the sphere, less the tokens."""
        return self.ask_behind(np.zeros((len(y), 0, y.shape[1])), y)

    def ask_behind(self, n: Array, y: Matrix) -> Matrix:
        """Answers to tokens that are read as n, then a huge one in the direction y."""
        last = FAR * y @ self.ball.basis.T
        X = np.concatenate([self.ball.send(n), last[:, None]], axis=1)
        return self.oracle.ask(X) - last

    def draw_on_sphere(self, count: int, rng: np.random.Generator) -> Matrix:
        """Random points of the sphere."""
        drawn = rng.normal(size=(count, self.dimension))
        return self.radius * drawn / linalg.norm(drawn, axis=1, keepdims=True)

    def draw_inside(self, *shape: int, size: float, rng: np.random.Generator) -> Array:
        """Random vectors of a share of the radius."""
        drawn = rng.normal(size=(*shape, self.dimension))
        return size * self.radius * drawn / linalg.norm(drawn, axis=-1, keepdims=True)
