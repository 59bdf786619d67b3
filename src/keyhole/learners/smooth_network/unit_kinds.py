r"""The kinds of smooth unit, each by what it lacks beside two straight lines.

Every kind here has $\phi(z) - \phi(-z) = z$, so that $\phi(z) = \max(z, 0) - \lambda(|z|)$ with one
function $\lambda$ on the half line: GELU $u\,\Phi(-u)$, SiLU $u/(1 + e^u)$, softplus $-\log(1 +
e^{-u})$. A unit of width 1/s is $\phi(s r)/s$, whatever its activation multiplies z by: Swish with
any beta, softplus with any sharpness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.models import AbsAffine, ReluNet

_ROOT = np.sqrt(2 / np.pi)
_CUBIC = 0.044715  # of the tanh form of GELU
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class UnitKind:
    """A kind of unit.

    Args:
        lacks: lambda at u >= 0.
        slope: its derivative.
    """

    lacks: Callable[[Array], Array]
    slope: Callable[[Array], Array]

    def share(self, u: Array) -> Array:
        """What is lacking u widths away, beside the distance: it falls with u."""
        return self.lacks(u) / u

    def invert_share(self, share: Array) -> Array:
        """How many widths away a unit lacks that share of the distance, by bisection."""
        low = np.full(np.shape(share), -20.0)
        high = np.full(np.shape(share), 5.0)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            beyond = np.abs(self.share(np.exp(middle))) < np.abs(share)
            high = np.where(beyond, middle, high)
            low = np.where(beyond, low, middle)
        return np.exp((low + high) / 2)


def _normal_tail(u: Array) -> Array:
    from scipy.special import ndtr

    return np.asarray(ndtr(-u))


def _logistic_tail(u: Array) -> Array:
    from scipy.special import expit

    return np.asarray(expit(-u))


def _tanh_tail(u: Array) -> Array:
    return _logistic_tail(2 * _ROOT * (u + _CUBIC * u**3))


def _slope_of_gelu(u: Array) -> Array:
    return _normal_tail(u) - u * np.exp(-u * u / 2) / np.sqrt(2 * np.pi)


def _slope_of_tanh_gelu(u: Array) -> Array:
    tail = _tanh_tail(u)
    return tail - u * tail * (1 - tail) * 2 * _ROOT * (1 + 3 * _CUBIC * u * u)


def _slope_of_silu(u: Array) -> Array:
    tail = _logistic_tail(u)
    return tail - u * tail * (1 - tail)


UNIT_KINDS: dict[str, UnitKind] = {
    "gelu": UnitKind(lambda u: u * _normal_tail(u), _slope_of_gelu),
    "gelu_tanh": UnitKind(lambda u: u * _tanh_tail(u), _slope_of_tanh_gelu),
    "silu": UnitKind(lambda u: u * _logistic_tail(u), _slope_of_silu),
    "softplus": UnitKind(lambda u: -np.log1p(np.exp(-u)), _logistic_tail),
}


@dataclass(frozen=True, eq=False, slots=True)
class SmoothForm:
    r"""What values determine of a smooth network: a normal form with a width for every unit.

    $$g(x) = \sum_j D_j \Big(\tfrac12 |r_j| - \lambda(s_j |r_j|)/s_j\Big) + P x + q, \qquad
      r_j = n_j x - t_j$$

    Not determined: order, the sign of each (n, t).

    Args:
        lines: n, t, D, P and q: what is left far from all hyperplanes.
        s: one over the width of each unit.
        kind: of all units.
    """

    lines: AbsAffine
    s: Vector
    kind: str

    def points(self, x: Matrix) -> Matrix:
        """Answers to points."""
        apart = np.abs(x @ self.lines.n.T - self.lines.t)
        lacking = UNIT_KINDS[self.kind].lacks(apart * self.s) / self.s
        return self.lines.points(x) - lacking @ self.lines.D

    def network(self) -> ReluNet:
        """The same function as units alone.

        A network that has units only is found by flipping some of them, and otherwise what is
        linear becomes pairs of units.
        """
        plain = self.lines.unfold().net
        s = np.concatenate([self.s, np.ones(plain.hidden - len(self.s))])
        return ReluNet(plain.W1 * s[:, None], plain.b1 * s, plain.W2 / s, plain.b2, self.kind)
