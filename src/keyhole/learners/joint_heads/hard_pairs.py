r"""Pairs of tokens so long that every softmax is hard: each head becomes a switch.

On $[L(y + x); L y]$ with L huge, head h looks at its first token alone where $a_h = x^\top W_h y >
0$ and at its second alone where $a_h < 0$; a score bias, which grows like L where these grow like
$L^2$, does not matter. With $c + x^\top B$ the answer to a lone token x, $B = U + \sum_h V_h$,
$$G(x, y) = (F - c - L\,y^\top B)/L = \sum_{h : a_h > 0} V_h^\top x$$
whatever the residual U is: the last token is carried past the heads in both terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector, find_power_of_two, pin_one_thread
from keyhole.errors import BadAnswer
from keyhole.oracles import Counted

_LENGTHS = (2.0**40, 2.0**20, 2.0**10)  # the first that the target bears
_LONG = 2.0**20  # a length at which y may be shorter than x
_SHORTER = 2.0**-6
_OUTWEIGHED = 2.0**4  # a constant so many times the read-out costs no digits


class Unseparated(Exception):
    """The heads could not be told apart; the message says how that showed."""


class Dependent(Unseparated):
    """Read-outs that depend linearly on each other: no half circle tells shares of heads apart."""


@dataclass(frozen=True, eq=False, slots=True)
class LoneTokens:
    """What lone tokens tell.

    Args:
        c: the constant.
        B: the sum of the residual and all read-outs.
        roundoff: largest relative rounding of answers.
    """

    c: Vector
    B: Matrix
    roundoff: float = EPS

    @property
    def coarse(self) -> bool:
        """Whether answers are coarser than float64."""
        return self.roundoff > EPS

    def allow(self, share: float, roundings: float) -> float:
        """A share that is nothing beside float64, or so many roundings of coarser answers."""
        return max(share, roundings * self.roundoff)

    def answer(self, y: Matrix) -> Matrix:
        """What each token of `y` answers alone."""
        return self.c + y @ self.B


def read_lone_tokens(oracle: Counted) -> LoneTokens:
    """The constant and what is linear, from d + 1 queries; one more beside a large constant."""
    basis = np.eye(oracle.width)
    c, first = oracle.ask(np.stack([0.0 * basis[0], basis[0]])[:, None])
    size = float(np.abs(first - c).max())
    constant = float(np.abs(c).max())
    # Beside a constant read-outs keep their digits only where tokens are long.
    if size == 0.0 or constant <= _OUTWEIGHED * size:
        rest = oracle.ask(basis[1:, None]) if len(basis) > 1 else np.zeros((0, len(c)))
        return LoneTokens(c, np.concatenate([first[None], rest]) - c)
    length = find_power_of_two(constant / size)
    return LoneTokens(c, (oracle.ask(length * basis[:, None]) - c) / length)


@dataclass(frozen=True, eq=False, slots=True)
class HardPairs:
    """Pairs of tokens so long that every softmax is hard."""

    oracle: Counted
    lone: LoneTokens
    length: float

    @property
    def last_length(self) -> float:
        """Length given to y: a short y costs no digits, and long tokens are hard all the same."""
        return self.length * (_SHORTER if self.length >= _LONG else 1.0)

    def ask(self, x: Matrix, y: Matrix, copies: int = 1) -> Matrix:
        """G for every row; with more copies of the first token a plain mean leans to it."""
        last = self.last_length * y
        X = np.stack([*[last + self.length * x] * copies, last], axis=1)
        return (self.oracle.ask(X) - self.lone.answer(last)) / self.length


@dataclass(frozen=True, eq=False, slots=True)
class HalfCircle:
    """A half circle of last tokens, and the token they are paired with."""

    x: Vector
    y: Matrix

    @classmethod
    def random(cls, width: int, rng: np.random.Generator) -> HalfCircle:
        """A random one: x of length 1 and two orthonormal y."""
        with pin_one_thread():
            turn = np.linalg.qr(rng.normal(size=(width, min(2, width))))[0].T
        # Where there is but one direction, the half circle shrinks to a segment through 0.
        if width == 1:
            turn = np.vstack([turn, 0 * turn])
        x = rng.normal(size=width)
        return cls(x / np.linalg.norm(x), turn)

    def at(self, angles: Vector) -> Matrix:
        """Last tokens at the given angles."""
        return np.cos(angles)[:, None] * self.y[0] + np.sin(angles)[:, None] * self.y[1]


def find_hard_pairs(
    oracle: Counted, lone: LoneTokens, x: Matrix, y: Matrix
) -> tuple[HardPairs, Matrix]:
    """Pairs at the largest length the target bears, and what it answers to the given ones.

    Raises:
        Unseparated: it bears none that makes a softmax hard.
    """
    for length in _LENGTHS:
        pairs = HardPairs(oracle, lone, length)
        try:
            return pairs, pairs.ask(x, y)
        except BadAnswer:
            continue
    raise Unseparated(
        "The target takes no tokens so long that each head puts all its weight on one."
    )


def measure_rounding(pairs: HardPairs, size: float) -> float:
    """Norm of the rounding of G, where its values are of the given size."""
    lone = pairs.lone
    constant = float(np.linalg.norm(lone.c)) / pairs.length
    return lone.roundoff * (size + float(np.linalg.norm(lone.B)) + constant)


def measure_grain(lone: LoneTokens, values: Matrix, move: float) -> float:
    """What rounding of coarse answers adds to a change of such values per unit of move."""
    return lone.roundoff * float(np.abs(values).max()) / move if lone.coarse else 0.0
