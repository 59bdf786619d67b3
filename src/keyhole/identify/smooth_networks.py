"""Smooth and gated networks: distance modulo what answers hide."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.errors import InvalidInput
from keyhole.models import Gated, ReluNet
from keyhole.models.last_token.activations import ACTIVATIONS
from keyhole.models.relu import choose_generic_direction, merge_hyperplanes

_IDLE = 1e-9  # units below this share of the largest jump answer nothing


@dataclass(frozen=True, slots=True)
class UnitDistance:
    """How far two networks of smooth or gated units are apart, units matched.

    Args:
        inner: largest distance of matched units before their activation: weights and bias, beside
            the longest.
        outer: the same for what the answers make of them.
        affine: relative distance of what is left, an affine map or a constant.
        hidden: number of units of both.
    """

    inner: float
    outer: float
    affine: float
    hidden: tuple[int, int]

    @property
    def largest(self) -> float:
        """The worst of the parts; infinite when the numbers of units differ."""
        if self.hidden[0] == self.hidden[1]:
            return max(self.inner, self.outer, self.affine)
        return float("inf")


@dataclass(frozen=True, eq=False, slots=True)
class Units:
    """Rows before the activation, rows after it, and what is left, each free of its gauge."""

    inner: Matrix
    outer: Matrix
    affine: Matrix


def smooth_distance(a: ReluNet, b: ReluNet) -> UnitDistance:
    r"""Distance of two networks of smooth units modulo order and the sides they are active on.

    $\phi(-z) = \phi(z) - z$, so that turning a unit round moves a linear part; pairs that are
    nothing but a linear part are no units.
    """
    _check_alike(a, b)
    return match_units(*(take_smooth_units(net) for net in (a, b)))


def gated_distance(a: Gated, b: Gated) -> UnitDistance:
    """Distance of two gated networks modulo order and a factor between (B, b) and C."""
    _check_alike(a, b)
    return match_units(*(take_gated_units(net) for net in (a, b)))


def _check_alike(a: ReluNet | Gated, b: ReluNet | Gated) -> None:
    kinds = [(net.width, net.outputs, net.activation) for net in (a, b)]
    if kinds[0] != kinds[1]:
        raise InvalidInput(
            "networks to compare must have one width, one number of outputs and one activation;"
            f" got {kinds[0]} and {kinds[1]}."
        )


def take_smooth_units(net: ReluNet) -> Units:
    """Units turned to one side, equal ones merged, idle ones left out."""
    acts = np.linalg.norm(net.W1, axis=1) > 0
    idle = net.W2[:, ~acts] @ ACTIVATIONS[net.activation](net.b1[~acts])
    W1, b1, W2 = net.W1[acts], net.b1[acts], net.W2[:, acts]
    # What is odd in a unit is half its own linear map, as in a ReLU.
    plain = replace(net, W1=W1, b1=b1, W2=W2, b2=net.b2 + idle, activation="relu").normal_form()
    side = np.where(W1 @ choose_generic_direction(net.width) < 0, -1.0, 1.0)
    inner, _, outer = merge_hyperplanes(
        np.column_stack([W1, b1]) * side[:, None], np.zeros(len(W1)), W2.T
    )
    size = np.linalg.norm(outer, axis=1) * np.linalg.norm(inner, axis=1)
    kept = size > _IDLE * size.max(initial=0.0)
    return Units(inner[kept], outer[kept], np.column_stack([plain.P, plain.q]))


def take_gated_units(net: Gated) -> Units:
    """Units whose other factor has length 1, on one side."""
    factors = np.column_stack([net.B, net.b])
    length = np.linalg.norm(factors, axis=1)
    side = np.where(net.B @ choose_generic_direction(net.width) < 0, -1.0, 1.0)
    scale = side * np.where(length > 0, length, 1.0)
    # Of a factor and its outputs only the product is determined.
    outer = np.column_stack([factors / scale[:, None], net.C.T * scale[:, None]])
    return Units(np.column_stack([net.A, net.a]), outer, net.c[:, None])


def match_units(f: Units, g: Units) -> UnitDistance:
    """Distance of two lists of units, each matched with one of the other."""
    from scipy.optimize import linear_sum_assignment

    inner, outer = _measure_gaps(f.inner, g.inner), _measure_gaps(f.outer, g.outer)
    at = linear_sum_assignment(np.minimum(inner, 1.0) + np.minimum(outer, 1.0))
    scale = max(float(np.linalg.norm(f.affine)), float(np.linalg.norm(g.affine))) or 1.0
    return UnitDistance(
        inner=float(inner[at].max(initial=0.0)),
        outer=float(outer[at].max(initial=0.0)),
        affine=float(np.linalg.norm(f.affine - g.affine)) / scale,
        hidden=(len(f.inner), len(g.inner)),
    )


def _measure_gaps(a: Matrix, b: Matrix) -> Matrix:
    """Distances of all rows, beside the longest."""
    lengths: Vector = np.linalg.norm(np.concatenate([a, b]), axis=1)
    longest = float(lengths.max(initial=0.0)) or 1.0
    return np.linalg.norm(a[:, None] - b, axis=2) / longest
