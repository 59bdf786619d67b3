r"""A post-norm block asked with lone tokens: a map from a sphere to a sphere.

A lone token x becomes $u = K x + b$ before the first norm, K the residual and the value maps of all
heads, so that a huge one lets $\nu = \sqrt d\,K x/|K x|$ be chosen. Answers read back through the
last norm are $\varphi = h(\nu)/|h(\nu)|$. All vectors are told by their d - 1 coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Array, Matrix
from keyhole.learners.blocks.far_tokens import Stencil
from keyhole.learners.blocks.post_norm.output_norm import OutputNorm
from keyhole.learners.blocks.solving import linalg
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

# Answers do not grow with the token: nothing is lost but what overflows in a score.
FAR = 1e8
# Answers to huge tokens keep all digits here, so that differences may be nearer than before a norm.
_FINE = Stencil(4e-4, rate=1e-6)


@dataclass(frozen=True, eq=False, slots=True)
class TokenSphere:
    """A block by directions: `send` are the tokens that a direction is asked by.

    Args:
        oracle: the block.
        norm: its last norm.
        send: from coordinates behind the first norm to tokens (width x dimension).
    """

    oracle: Counted
    norm: OutputNorm
    send: Matrix

    @property
    def dimension(self) -> int:
        """Coordinates of a token behind the norm."""
        return self.norm.basis.shape[1]

    @property
    def outputs(self) -> int:
        """Coordinates of an answer."""
        return self.norm.basis.shape[1]

    @property
    def radius(self) -> float:
        """Of the sphere behind the first norm."""
        return float(np.sqrt(len(self.norm.basis)))

    @property
    def stencil(self) -> Stencil:
        """As answers are declared."""
        error = find_error(self.oracle)
        return Stencil.suit(error) if error > 0 else _FINE

    def ask(self, X: Array) -> Matrix:
        """Directions that sequences are answered by."""
        return self.norm.read(self.oracle.ask(X))

    def ask_lone(self, y: Matrix) -> Matrix:
        """Directions that points of the sphere are answered by."""
        return self.ask((FAR * y @ self.send.T)[:, None])


def find_error(oracle: Oracle) -> float:
    """The relative error that is declared of answers; 0 where they have all digits."""
    declared = read_imperfection(oracle).roundoff
    return declared if declared > EPS else 0.0


def invert_front(K: Matrix) -> Matrix:
    """Tokens that a map before the first norm sends to each direction."""
    return linalg.pinv(K)
