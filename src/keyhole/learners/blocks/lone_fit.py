r"""Lone tokens of ordinary size: network, value sum and constant to the last digit.

$$f(x) - x = M n + T + \sum_j D_j \phi(w_j \nu + \beta_j), \qquad
\nu = \mathrm{norm}(x + b + M n), \quad n = \mathrm{norm}(x)$$

D and T are eliminated (variable projection): residual and derivatives are projected off the values
of the units and the constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.solving import (
    FrontSlopes,
    StructuredSlopes,
    UnitSlopes,
    linalg,
)
from keyhole.learners.positions.ball import NormBall
from keyhole.models.last_token.even_parts import EVEN_PARTS
from keyhole.models.layers.norms import normalise
from keyhole.oracles.own_time import check_own_time

_STEPS = 12
_DAMPING = 1e-13
_SMALL = 1e-13  # what rounding leaves

_Map = TypeVar("_Map")


@dataclass(frozen=True, eq=False, slots=True)
class LoneMap:
    """What a lone token becomes, by coordinates behind the norms.

    Args:
        w: weights of the units (units x dimension).
        beta: biases.
        D: what they add to answers (units x outputs).
        T: constant of the answers.
        M: what the attention makes of a lone token (outputs x dimension).
        b: the constant that the second norm sees (dimension).
        activation: of the units.
    """

    w: Matrix
    beta: Vector
    D: Matrix
    T: Vector
    M: Matrix
    b: Vector
    activation: str


@dataclass(frozen=True, eq=False, slots=True)
class LoneAnswers:
    """Lone tokens and their answers, less the tokens."""

    x: Matrix
    answers: Matrix


@dataclass(frozen=True, eq=False, slots=True)
class SecondNorm:
    """What the second norm makes of vectors, by coordinates, and its slopes.

    Args:
        nu: vectors behind the norm.
        spread: what they were divided by.
    """

    nu: Matrix
    spread: Vector

    @classmethod
    def at(cls, r: Matrix, width: int, eps: float) -> SecondNorm:
        """The norm of vectors r."""
        spread = np.sqrt((r**2).sum(axis=1) / width + eps)
        return cls(r / spread[:, None], spread)

    def turn_back(self, rows: Array, width: int) -> Array:
        """Rows times the slopes of the norm (batch x rows x dimension)."""
        along = np.einsum("pra,pa->pr", rows, self.nu) / width
        return (rows - along[..., None] * self.nu[:, None]) / self.spread[:, None, None]


class LoneFit:
    """Damped Gauss-Newton on lone answers."""

    def __init__(self, ball: NormBall, lone: LoneAnswers) -> None:
        self.width = len(ball.basis)
        self.eps = ball.eps
        self.basis = ball.basis
        self.n = normalise(lone.x, "layer", ball.eps) @ ball.basis
        self.x = lone.x @ ball.basis
        self.answers = lone.answers

    def settle_constant(self, held: LoneMap) -> LoneMap:
        """The constant before the second norm, all else as it is."""
        cost = self._measure_constant(held)
        for _ in range(30):
            check_own_time()
            norm, phi, slope = self._bend(held)
            left = self.answers - self.n @ held.M.T - held.T - phi @ held.D
            G = self._slope_outputs(held, norm, slope)
            step = linalg.lstsq(G.reshape(-1, len(held.b)), left.ravel(), rcond=None)[0]
            for share in 0.5 ** np.arange(8):
                trial = replace(held, b=held.b + share * step)
                after = self._measure_constant(trial)
                if after < cost:
                    break
            else:
                return held
            settled = after > 0.999 * cost
            held, cost = trial, after
            if settled:
                break
        return held

    def _measure_constant(self, held: LoneMap) -> float:
        _, phi, _ = self._bend(held)
        return float(linalg.norm(self.answers - self.n @ held.M.T - held.T - phi @ held.D))

    def _bend(self, held: LoneMap) -> tuple[SecondNorm, Matrix, Matrix]:
        """The second norm, values of the units and their slopes."""
        r = self.x + held.b + (self.n @ held.M.T) @ self.basis
        norm = SecondNorm.at(r, self.width, self.eps)
        z = norm.nu @ held.w.T + held.beta
        E, slope = EVEN_PARTS[held.activation].bend(z)
        return norm, z / 2 + E, slope + 0.5

    def _slope_outputs(self, held: LoneMap, norm: SecondNorm, slope: Matrix) -> Array:
        """Derivatives of the network's answers by what its norm is given (p x o x D)."""
        rows = np.einsum("pk,ko,ka->poa", slope, held.D, held.w, optimize=True)
        return norm.turn_back(rows, self.width)

    def fit(self, held: LoneMap) -> tuple[LoneMap, float]:
        """The map, and what it leaves beside the answers."""
        return descend(
            *self._project(held), lambda at, damping: self._project(self._step(at, damping))
        )

    def _design(self, held: LoneMap) -> tuple[Matrix, Matrix, SecondNorm, Matrix]:
        norm, phi, slope = self._bend(held)
        design = np.column_stack([phi, np.ones(len(phi))])
        return design, self.answers - self.n @ held.M.T, norm, slope

    def _project(self, held: LoneMap) -> tuple[LoneMap, float]:
        """D and T that leave least, and what they leave."""
        design, wanted, _, _ = self._design(held)
        solved = linalg.lstsq(design, wanted, rcond=None)[0]
        left = linalg.norm(wanted - design @ solved) / linalg.norm(self.answers)
        return replace(held, D=solved[:-1], T=solved[-1]), float(left)

    def _step(self, held: LoneMap, damping: float) -> LoneMap:
        design, wanted, norm, slope = self._design(held)
        Q = linalg.qr(design)[0]
        left = wanted - Q @ (Q.T @ wanted)
        nu = np.column_stack([norm.nu, np.ones(len(norm.nu))])
        slopes = StructuredSlopes(
            Q, UnitSlopes(slope, nu, held.D), self._slope_front(held, norm, slope)
        )
        units, M, b, across = slopes.solve(left, damping)
        return replace(
            held,
            w=held.w + units[:, :-1],
            beta=held.beta + units[:, -1],
            M=held.M + self.basis @ M + np.ones((self.width, 1)) @ across,
            b=held.b + b[:, 0],
        )

    def _slope_front(self, held: LoneMap, norm: SecondNorm, slope: Matrix) -> list[FrontSlopes]:
        """Derivatives by M, as far as the norm sees it, by b, and by the rest of M."""
        G = self._slope_outputs(held, norm, slope)
        unseen = np.ones((len(G), self.width, 1))
        return [
            FrontSlopes(G + self.basis, self.n),
            FrontSlopes(G, np.ones((len(G), 1))),
            FrontSlopes(unseen, self.n),
        ]


def descend(
    held: _Map,
    left: float,
    step: Callable[[_Map, float], tuple[_Map, float]],
    *,
    small: float = _SMALL,
) -> tuple[_Map, float]:
    """Damped steps for as long as each leaves less, and what is left.

    Args:
        held: where they begin.
        left: what it leaves.
        step: the next map and what that leaves, from a map and the damping.
        small: what is left at most where they end.
    """
    damping = _DAMPING
    for _ in range(_STEPS):
        check_own_time()
        trial, after = step(held, damping)
        if after < left:
            gained = after < 0.5 * left
            held, left = trial, after
            damping = max(damping * 0.1, _DAMPING)
            if left < small or not gained:
                break
        else:
            if left < 1e-11 or damping > 1e-2:
                break
            damping *= 100
    return held, left
