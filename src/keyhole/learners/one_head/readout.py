r"""What the shortest queries tell: c, the read-out V, a residual U, and whether a bias acts.

With $\alpha = \sigma(x \cdot h)$: $f([0]) = c$, $f([x]) = c + (V+U)^\top x$, $f([x;0]) = c + \alpha
V^\top x$ and $f([-x;0]) = c - (1-\alpha) V^\top x$. So $f([x;0]) - f([-x;0]) = V^\top x$ whatever h
and U are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Answers, Array, Float, Matrix, Sequences, Vector, find_power_of_two
from keyhole.errors import BadAnswer
from keyhole.learners.base import Counterexample
from keyhole.oracles import Counted

# Lengths at which a bias is looked for, the first that the target bears: a small one shows far out.
_LARGE = (2.0**60, 2.0**10, 1.0)


class NotAHead(Exception):
    """An answer that no single head gives; carried to the verdict as its counterexample."""

    def __init__(self, counterexample: Counterexample) -> None:
        super().__init__()
        self.counterexample = counterexample


class Scattered(Exception):
    """The target answered the same question differently, by `gap`."""

    def __init__(self, gap: float) -> None:
        super().__init__()
        self.gap = gap


@dataclass(frozen=True, eq=False, slots=True)
class Readout:
    """What is read without attention.

    Args:
        V: read-out.
        U: residual read-out of the last token, or None when none acts.
        c: constant.
        biased: whether a score bias h acts.
        probe: one sequence asked on the way, with its answer: asked again when doubts arise.
    """

    V: Float[Array, "width outputs"]
    U: Float[Array, "width outputs"] | None
    c: Vector
    biased: bool
    probe: tuple[Sequences, Answers]

    @property
    def blind(self) -> bool:
        """Whether attention has no effect because V is zero."""
        return not self.V.any()

    @property
    def total(self) -> Matrix:
        """V + U, what a single token is read with."""
        return self.V if self.U is None else self.V + self.U

    def size(self, y: Matrix) -> Answers:
        """What the rounding of `base` is relative to: the same sum with nothing cancelling."""
        return np.abs(y) @ np.abs(self.total) + np.abs(self.c)

    def base(self, y: Matrix) -> Answers:
        """What each token of `y` answers alone."""
        return y @ self.total + self.c


def _append_zero_token(x: Matrix) -> Sequences:
    return np.stack([x, np.zeros_like(x)], axis=1)


def _ask_opposite_pair(oracle: Counted, x: Vector) -> tuple[Vector, Vector, float]:
    """f([Lx;0]), f([-Lx;0]) and L, for the largest L the target bears."""
    both = np.stack([x, -x])
    for L in _LARGE[:-1]:
        try:
            return *oracle.ask(_append_zero_token(L * both)), L
        except BadAnswer:
            continue
    return *oracle.ask(_append_zero_token(_LARGE[-1] * both)), _LARGE[-1]


def measure_readout(oracle: Counted, *, roundoff: float = EPS, rng: np.random.Generator) -> Readout:
    """Read c, V and U from d + 5 queries.

    A residual costs d more, a residual and a score bias 2d.

    Raises:
        NotAHead: single tokens are not answered by an affine function.
        Scattered: the same question was answered differently.
    """
    d = oracle.width
    c = oracle.ask(np.zeros((1, 1, d)))[0]
    x = rng.normal(size=d)
    x /= np.linalg.norm(x)
    plus, minus, L = _ask_opposite_pair(oracle, x)
    along = (plus - minus) / L
    floor = 64 * roundoff * (np.abs(plus).max() + np.abs(minus).max()) / L
    seen = float(np.abs(along).max())
    blind = not seen > floor
    uneven = np.abs((plus + minus) / 2 - c).max() / L
    biased = not blind and bool(uneven > max(floor, 1e4 * roundoff * seen))
    size = float(np.abs(c).max())
    # Tokens so long that their values are not small beside the constant.
    s = 1.0 if blind or size == 0 else max(1.0, find_power_of_two(size / seen))
    alone = _ask_twice(oracle, s * x, roundoff)
    gap = np.abs((alone[0] - c) / s - along).max()
    residual = bool(gap > 1e4 * roundoff * seen + 64 * roundoff * size / s)
    V, U = _read_matrices(oracle, c, s, blind=blind, biased=biased, residual=residual)
    readout = Readout(V, U, c, biased, (s * x[None, None], alone))
    _check_affine(readout, roundoff)
    return readout


def _ask_twice(oracle: Counted, x: Vector, roundoff: float) -> Answers:
    """The answer to a single token, asked twice in one call.

    Raises:
        Scattered: the two answers differ by more than rounding.
    """
    first, second = oracle.ask(np.stack([x, x])[:, None])
    gap = float(np.abs(first - second).max())
    if gap > max(1e-11, 64 * roundoff) * float(max(np.abs(first).max(), np.abs(x).max())):
        raise Scattered(gap)
    return first[None]


def _read_matrices(
    oracle: Counted, c: Vector, s: float, *, blind: bool, biased: bool, residual: bool
) -> tuple[Matrix, Matrix | None]:
    basis = s * np.eye(oracle.width)
    total = (oracle.ask(basis[:, None]) - c) / s
    if blind:
        return np.zeros_like(total), total if total.any() else None
    if not residual:
        return total, None
    plus = oracle.ask(_append_zero_token(basis))
    # Without a bias the two tokens share evenly, and one half need not be asked.
    V = (plus - oracle.ask(_append_zero_token(-basis))) / s if biased else 2 * (plus - c) / s
    return V, total - V


def _check_affine(readout: Readout, roundoff: float) -> None:
    X, answer = readout.probe
    predicted = readout.base(X[:, 0])
    scale = float((np.abs(X[0]).T * np.abs(readout.total)).sum(axis=0).max())
    constant = np.abs(readout.c).max()
    allowed = max(1e-9, 1e3 * roundoff) * scale + 1e2 * roundoff * constant
    if not np.abs(answer - predicted).max() <= allowed:
        raise NotAHead(Counterexample(X[0], answer[0], predicted[0]))
