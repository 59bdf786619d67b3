r"""Sums of heads on sequences of two tokens: one number per head and query.

With $B = \sum_h V_h$, sequences $[y + t x; y]$ answer $B \cdot y + t\,G$ (plus a constant), where
$$G(x, y) = \tfrac12 (B - \sum_h D_h) \cdot x + \sum_h (D_h \cdot x)\, s(t\, x^\top W_h y),$$
s is the logistic function and $D_h = V_h$. A head with W = 0 fits with D = 0, a mirror pair W, -W
counts as one head with D = V - V', and (D, W) may be replaced by (-D, -W): pairs of tokens tell no
more. The product $\tau$ of the lengths of x and y decides how steep s is; the unit of G is that of
one read-out, whatever $\tau$.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Indices, Mask, Matrix, Stack, Vector, find_power_of_two
from keyhole.learners.base import Jumps
from keyhole.learners.joint_heads.hard_pairs import LoneTokens
from keyhole.oracles import Counted

_RATIO = 2.0**-13  # |y| / |x|: a short y costs no digits in y.B
_SEEN = 2.0**12  # a departure of so many roundings is no accident
_SOFT = 0.05  # relative departure from the even mean that is proportional to tau
_LARGEST = 1e40  # a product of lengths at which no effect means W = 0
_PROBES = 40


class Unresolved(Exception):
    """The heads were not separated by this choice of x and circle; another may do."""


@dataclass(frozen=True, eq=False, slots=True)
class Pairs:
    """Queries of two tokens, decoded as far as the sum over heads.

    Args:
        oracle: what is asked.
        B: sum of all read-outs, in `units`.
        c: constant of the answers.
        units: size of each output, so that none hides another.
        roundoff: relative rounding of answers.
        level: no x is shorter than this, so that the constant hides nothing.
    """

    oracle: Counted
    B: Matrix
    c: Vector
    units: Vector
    roundoff: float
    level: float

    def lengths(self, tau: Vector) -> tuple[Vector, Vector]:
        """Lengths of x, a power of two, and of y."""
        sx = np.maximum(round_to_powers(np.sqrt(tau / _RATIO)), self.level)
        return sx, tau / sx

    def ask(self, X: Matrix, Y: Matrix, tau: Vector | float, copies: int = 1) -> Matrix:
        """G of every row, with `copies` of the token y + t x."""
        sx, sy = self.lengths(np.broadcast_to(np.asarray(tau, dtype=np.float64), len(X)))
        y = Y * sy[:, None]
        tokens = np.stack([*[y + X * sx[:, None]] * copies, y], axis=1)
        return ((self.oracle.ask(tokens) - self.c) / self.units - y @ self.B) / sx[:, None]

    def jumps(self, x: Vector, angles: Vector, J: Matrix) -> Jumps:
        """Steps on a half circle of y from a value that its end mirrors, in numbers of answers."""
        return Jumps(angles, J * self.units, (x @ self.B - J.sum(axis=0)) / 2 * self.units)

    @property
    def saturation(self) -> float:
        """A logit at which a head is on or off to rounding, with room for a few units."""
        return float(np.log(1.0 / self.roundoff)) + 8.0


def start_pairs(oracle: Counted, lone: LoneTokens, roundoff: float) -> Pairs:
    """Pairs of a target whose lone tokens were read."""
    size = float(np.abs(lone.B).max()) or 1.0
    # Beside a constant the read-outs keep their digits only where tokens are long.
    level = find_power_of_two(2.0**10 * float(np.abs(lone.c).max()) / size)
    return Pairs(oracle, lone.B, lone.c, np.ones(len(lone.c)), roundoff, level)


def scale_outputs(pairs: Pairs, X: Matrix, Y: Matrix, tau: float) -> Pairs:
    """The same queries with every output measured by the largest value of hard answers."""
    G = pairs.ask(X, Y, tau)
    largest = np.abs(G).max(axis=0)
    units = round_to_powers(np.where(largest > 0, largest, 1.0))
    return replace(pairs, B=pairs.B / units, units=pairs.units * units)


def find_soft_scale(pairs: Pairs, X: Matrix, Y: Matrix) -> float | None:
    r"""The product of lengths at which the steepest head begins to act; None when nothing acts.

    With $\tau \to 0$ the answer is the even mean, G = B.x/2, and departs from it in proportion to
    $\tau$.

    Raises:
        Unresolved: no product of lengths shows a proportional departure.
    """
    low, high = 0.0, np.inf
    tau = 1.0
    even = X @ pairs.B / 2
    size = np.abs(even).max(axis=0)
    for _ in range(_PROBES):
        G = pairs.ask(X, Y, tau)
        # The mean itself may be nothing, and then only answers tell how large an output is.
        size = np.maximum(size, np.abs(G).max(axis=0))
        away = float((np.abs(G - even) / np.where(size > 0, size, 1.0)).max())
        if _SEEN * pairs.roundoff <= away <= _SOFT:
            return find_power_of_two(tau * _SOFT / away)
        if away > _SOFT:
            high = tau
            tau = float(np.sqrt(low * tau)) if low > 0 else tau * 1e-6
        elif tau >= _LARGEST:
            return None
        else:
            low = tau
            tau = float(np.sqrt(tau * high)) if high < np.inf else tau * 1e6
    raise Unresolved


def isolate_own_part(G: Matrix, total: Matrix, b: Stack, on: Matrix | Mask, h: Indices) -> Matrix:
    """What head h[n] adds to row n, from 0 to D.x, when every other head e is on by on[n, e].

    Args:
        G: what was answered.
        total: B.x of every row.
        b: D_e.x of every row and head.
        on: shares of the other heads; those of h itself are not looked at.
        h: which head is read, per row.
    """
    others = np.array(on, dtype=np.float64)
    others[np.arange(len(G)), h] = 0.0
    return G - (total - b.sum(axis=1)) / 2 - np.einsum("nh,nho->no", others, b)


def read_own_logits(G: Matrix, total: Matrix, b: Stack, on: Matrix | Mask, h: Indices) -> Vector:
    """The logit of head h[n] in row n; not a number where that head reads nothing.

    Arguments are those of `isolate_own_part`.
    """
    J = b[np.arange(len(G)), h]
    own = isolate_own_part(G, total, b, on, h)
    with np.errstate(invalid="ignore"):
        return log_odds((own * J).sum(axis=1) / (J * J).sum(axis=1))


def logistic(a: Array) -> Array:
    """s(a) = 1 / (1 + exp(-a)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * a))


def log_odds(share: Array) -> Array:
    """The logit of a share; not finite where the share is not between 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(share / (1.0 - share))


def is_readable(logits: Array, limit: float) -> Mask:
    """Whether logits lie within the limit; NaN never does."""
    return np.abs(logits) <= limit


def round_to_powers(values: Array) -> Array:
    """Nearest powers of two, so that scaling rounds nothing."""
    return np.exp2(np.round(np.log2(values)))


def normalise_rows(vectors: Array) -> Array:
    """Rows of length one."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
