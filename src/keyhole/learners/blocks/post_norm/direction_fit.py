r"""Lone tokens of ordinary size: the token map of a post-norm block to the last digit.

$$s_p \varphi_p = T + P (g \circ \nu) + \sum_j D_j \phi(w_j \nu + \beta_j), \qquad
\nu = \mathrm{norm}(K x + b)$$

with one unknown length $s_p$ per answer. The gain between residual and network leaves no rotation
of $\nu$ free, so that w, $\beta$, g, K, b and s are determined, K and b up to one factor. D and T
are eliminated as in `lone_fit`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.lone_fit import SecondNorm
from keyhole.learners.blocks.post_norm.direction_rest import DirectionMap
from keyhole.learners.blocks.solving import (
    Following,
    FrontSlopes,
    StructuredSlopes,
    UnitSlopes,
    linalg,
)
from keyhole.models.last_token.even_parts import EVEN_PARTS
from keyhole.oracles.own_time import check_own_time

_STEPS = 14
_DAMPING = 1e-13
_SMALL = 3e-14  # what rounding leaves
_NEARLY = 1e-11
_ERRORS = 30.0  # of an answer, that a fit may leave


@dataclass(frozen=True, eq=False, slots=True)
class Front:
    """What a lone token becomes before the first norm: K x + b (dimension x width)."""

    K: Matrix
    b: Vector


@dataclass(frozen=True, eq=False, slots=True)
class TokenMap:
    """What a post-norm block makes of a lone token, by directions.

    Args:
        front: before the first norm.
        behind: behind it.
        lengths: of h at the tokens of a fit.
    """

    front: Front
    behind: DirectionMap
    lengths: Vector


@dataclass(frozen=True, eq=False, slots=True)
class Turned:
    """h at some tokens, and its slopes by what the first norm is given.

    Args:
        norm: the first norm.
        h: the map (tokens x dimension).
        slopes: (tokens x dimension x dimension).
    """

    norm: SecondNorm
    h: Matrix
    slopes: Array


class TokenModel:
    """The map behind the first norm, evaluated."""

    def __init__(self, basis: Matrix, eps: float, error: float = 0.0) -> None:
        self.basis, self.eps, self.width = basis, eps, len(basis)
        # Of answers, as far as it is more than rounding of float64.
        self.error = error

    def excuse(self, small: float) -> float:
        """What a fit may leave of answers: a share, or what their errors explain."""
        return max(small, _ERRORS * self.error)

    def bend(self, behind: DirectionMap, u: Matrix) -> tuple[SecondNorm, Matrix, Matrix]:
        """The norm, values of the units and their slopes."""
        norm = SecondNorm.at(u, self.width, self.eps)
        E, slope = EVEN_PARTS[behind.activation].bend(z := norm.nu @ behind.w.T + behind.beta)
        return norm, z / 2 + E, slope + 0.5

    def skip(self, behind: DirectionMap) -> Matrix:
        """What goes past the network (dimension x dimension)."""
        return self.basis.T @ (behind.gain[:, None] * self.basis)

    def turn(self, behind: DirectionMap, u: Matrix) -> Turned:
        """H and its slopes at what the first norm is given."""
        norm, phi, slope = self.bend(behind, u)
        h = behind.T + norm.nu @ self.skip(behind).T + phi @ behind.D
        return Turned(norm, h, self.slope(behind, norm, slope))

    def slope(self, behind: DirectionMap, norm: SecondNorm, slope: Matrix) -> Array:
        """Slopes of h by what the norm is given (p x o x D)."""
        rows = self.list_rows(behind, slope)
        return norm.turn_back(rows + self.skip(behind), self.width)

    def list_rows(self, behind: DirectionMap, slope: Matrix) -> Array:
        """Slopes of what units add, by what they are given (p x o x D)."""
        return np.einsum("pk,ko,ka->poa", slope, behind.D, behind.w, optimize=True)


class DirectionFit:
    """Damped Gauss-Newton on lone answers."""

    def __init__(self, model: TokenModel, x: Matrix, phi: Matrix) -> None:
        self.model, self.x, self.phi = model, x, phi

    def start(self, K: Matrix, behind: DirectionMap, few: int) -> TokenMap:
        """The constant before the first norm, from a few tokens, and all lengths."""
        front = Front(K, self._settle_constant(K, behind, few))
        h = self.model.turn(behind, self.x @ K.T + front.b).h
        return TokenMap(front, behind, np.einsum("pd,pd->p", h, self.phi))

    def _settle_constant(self, K: Matrix, behind: DirectionMap, few: int) -> Vector:
        x, phi = self.x[:few], self.phi[:few]
        b, damping = np.zeros(len(K)), 1e-3
        left, J = leave_directions(self.model.turn(behind, x @ K.T + b), phi)
        for _ in range(40):
            check_own_time()
            cost = float(linalg.norm(left))
            N = np.einsum("poa,pob->ab", J, J)
            N += damping * np.diag(np.diag(N))
            trial = b + linalg.solve(N, np.einsum("poa,po->a", J, left))
            moved = leave_directions(self.model.turn(behind, x @ K.T + trial), phi)
            after = float(linalg.norm(moved[0]))
            if after < cost:
                b, (left, J) = trial, moved
                damping *= 0.2
                if after > 0.999 * cost:
                    break
            else:
                damping *= 5.0
                if damping > 1e6:
                    break
        return b

    def fit(self, held: TokenMap) -> tuple[TokenMap, float]:
        """The map, and what it leaves beside the answers."""
        held, left = self._project(held)
        damping = _DAMPING
        for _ in range(_STEPS):
            check_own_time()
            trial, after = self._project(self._step(held, damping))
            if after < left:
                gained = after < 0.5 * left
                held, left = trial, after
                damping = max(damping * 0.1, _DAMPING)
                if left < _SMALL or (not gained and left < self.model.excuse(_NEARLY)):
                    break
            else:
                if left < self.model.excuse(_NEARLY) or damping > 1e-2:
                    break
                damping *= 100
        return held, left

    def _design(self, held: TokenMap) -> tuple[Matrix, Matrix, SecondNorm, Matrix]:
        """Columns of D and T, what they should make, the norm, and slopes of the units."""
        u = self.x @ held.front.K.T + held.front.b
        norm, phi, slope = self.model.bend(held.behind, u)
        design = np.column_stack([phi, np.ones(len(phi))])
        wanted = held.lengths[:, None] * self.phi - norm.nu @ self.model.skip(held.behind).T
        return design, wanted, norm, slope

    def _project(self, held: TokenMap) -> tuple[TokenMap, float]:
        """D and T that leave least, and what they leave."""
        design, wanted, _, _ = self._design(held)
        solved = linalg.lstsq(design, wanted, rcond=None)[0]
        left = linalg.norm(wanted - design @ solved) / linalg.norm(held.lengths)
        behind = replace(held.behind, D=solved[:-1], T=solved[-1])
        return replace(held, behind=behind), float(left)

    def _step(self, held: TokenMap, damping: float) -> TokenMap:
        design, wanted, norm, slope = self._design(held)
        Q = linalg.qr(design)[0]
        left = wanted - Q @ (Q.T @ wanted)
        nu = np.column_stack([norm.nu, np.ones(len(norm.nu))])
        slopes = StructuredSlopes(
            Q, UnitSlopes(slope, nu, held.behind.D), self._slope_front(held, norm, slope)
        )
        return self._move(held, slopes.solve(left, damping))

    def _slope_front(self, held: TokenMap, norm: SecondNorm, slope: Matrix) -> list[FrontSlopes]:
        """Derivatives by K and b, by gain and by lengths."""
        basis, count = self.model.basis, len(self.x)
        rows = self.model.list_rows(held.behind, slope)
        G = norm.turn_back(rows + self.model.skip(held.behind), self.model.width)
        # Units that turn back as K turns see it no more: what is left is the way past them.
        following = Following(
            -held.behind.w,
            self._read_back(held.front),
            G - rows / norm.spread[:, None, None],
        )
        by_gain = np.einsum("io,pi,ig->pog", basis, norm.nu @ basis.T, basis, optimize=True)
        return [
            FrontSlopes(G, np.column_stack([self.x, np.ones(count)]), following),
            FrontSlopes(by_gain, np.ones((count, 1))),
            FrontSlopes(-self.phi[..., None], np.eye(count)),
        ]

    def _read_back(self, front: Front) -> Matrix:
        """From what K is multiplied by to what it makes of that (width + 1 x dimension + 1)."""
        back = np.zeros((self.model.width + 1, len(front.K) + 1))
        back[:-1, :-1] = linalg.pinv(front.K)
        return back

    def _move(self, held: TokenMap, step: list[Matrix]) -> TokenMap:
        units, front, gain, lengths = step
        behind = replace(
            held.behind,
            w=held.behind.w + units[:, :-1],
            beta=held.behind.beta + units[:, -1],
            gain=held.behind.gain + self.model.basis @ gain[:, 0],
        )
        front = Front(held.front.K + front[:, :-1], held.front.b + front[:, -1])
        return TokenMap(front, behind, held.lengths + lengths[0])


def leave_directions(seen: Turned, phi: Matrix) -> tuple[Matrix, Array]:
    """What is left of directions, and slopes of directions by what the first norm is given."""
    lengths = linalg.norm(seen.h, axis=1)
    made = seen.h / lengths[:, None]
    along = np.einsum("po,poa->pa", made, seen.slopes)
    slopes = seen.slopes - made[:, :, None] * along[:, None]
    return phi - made, slopes / lengths[:, None, None]
