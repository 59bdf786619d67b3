r"""Pairs of tokens at which every softmax is soft.

On $[a y + b x; a y]$ head h gives its first token the share $\sigma(b\,x^\top(a W_h y + h_h))$, so
$$g(x, y) = (F - c - a\,y^\top B)/b = \sum_h \sigma(b\,x^\top(a W_h y + h_h))\, V_h^\top x.$$
Only the product $p = ab$ matters where no score bias acts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.joint_heads.hard_pairs import LoneTokens, Unseparated
from keyhole.oracles import Counted

_LONGER = 2.0**6  # b / a: a short y costs no digits in y.B
_FIRST = 2.0**-20  # the product looked at first
_SEEN = 5e-3  # departure from the even mean, over the largest plateau, that separates heads
_AIM = 0.1
_RAISE = 2.0**24  # of the product, at most, in one step
_FAR = 0.4  # a departure at which softmaxes may be hard
_PROBES = 12


@dataclass(frozen=True, eq=False, slots=True)
class SoftPairs:
    """Pairs of tokens of moderate length."""

    oracle: Counted
    lone: LoneTokens

    def ask(self, x: Vector, y: Vector, a: float, b: float) -> Vector:
        """The answer g of one pair."""
        return self.ask_pairs(x[None], a * y[None], np.full(1, b))[0]

    def ask_pairs(self, x: Matrix, last: Matrix, b: Vector) -> Matrix:
        """The answers g of pairs, whose last tokens are given as they are asked."""
        X = np.stack([last + b[:, None] * x, last], axis=1)
        return (self.oracle.ask(X) - self.lone.answer(last)) / b[:, None]


def take_shares(logits: Array) -> Array:
    """Shares of a first token with the given score differences."""
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def invert_shares(shares: Array) -> Array:
    """Score differences of shares; not a number outside 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(shares / (1.0 - shares))


def split_product(product: float) -> tuple[float, float]:
    """The lengths a and b of y and x with the given product."""
    b = float(np.sqrt(product * _LONGER))
    return product / b, b


def find_soft_answer(pairs: SoftPairs, x: Vector, y: Vector, ends: Matrix) -> tuple[Vector, float]:
    """g(x, y) where some head leans visibly and not all are hard, and the product it was asked at.

    Args:
        pairs: how to ask.
        x: the token of the half circle.
        y: any last token.
        ends: plateaus at both ends of the half circle, whose mean is the even one.

    Raises:
        Unseparated: nothing leans at any length.
    """
    even = ends.mean(axis=0)
    size = float(np.abs(ends).max())
    # Where both ends answer nothing there is no plateau to lean away from.
    if size == 0.0:
        raise Unseparated("Both ends of the half circle answer zero.")
    product = _FIRST
    low, high = 0.0, np.inf
    for _ in range(_PROBES):
        g = pairs.ask(x, y, *split_product(product))
        away = float(np.abs(g - even).max()) / size
        if _SEEN <= away <= _FAR:
            return g, product
        if away < _SEEN:
            low = product
            raised = product * min(_AIM / max(away, 1e-300), _RAISE)
            product = raised if raised < high else float(np.sqrt(low * high))
        else:
            high = product
            product = float(np.sqrt(low * high)) if low > 0 else product / _RAISE
    raise Unseparated("No score acts on a pair of random tokens.")
