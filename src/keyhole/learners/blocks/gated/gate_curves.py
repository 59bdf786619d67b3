r"""How gated units act along L, from second differences at points that share one direction.

At $p = R(\cos\phi\, q + \sin\phi\, l)$ the gate of a unit is at $z = s t + \beta$ with $t = R
\sin\phi\, \hat g l$ known, and the other factor at $R \sin\phi\,(\hat u l + \rho\, \hat g l) +
\gamma$ where $u = \hat u + \rho\, \hat g$ on L. Second differences show $2 c s\, \psi'(z)$ for
$(\hat g v)(\hat u v)$, three unknowns, and for $(\hat g v)^2$ what is linear in $\rho$ and
$\gamma$ once those are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.gated.gate_pairs import GatePairs
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_reads import ANGLE, LENGTHS, Reads, Shape, fit_shapes
from keyhole.learners.blocks.unit_slices import Slices, flatten_symmetric
from keyhole.models.last_token.even_parts import EVEN_PARTS, EvenPart, Pair

_BOTH_WAYS: Vector = np.concatenate([LENGTHS, -LENGTHS])


@dataclass(frozen=True, eq=False, slots=True)
class GateCurves:
    """What gated units are along L.

    Args:
        g: their gates on L (units x m).
        u: what these are multiplied by on L.
        beta: arguments of the gates where l is 0.
        gamma: the same of the others.
        D: what units add to answers (units x outputs).
        left: what the worst of them does not explain, beside its largest value.
        activation: of the gates.
    """

    g: Matrix
    u: Matrix
    beta: Vector
    gamma: Vector
    D: Matrix
    left: float
    activation: str


def find_gate_curves(
    slices: Slices, pairs: GatePairs, reads: Reads, radius: float, kinds: tuple[str, ...]
) -> GateCurves:
    """Lengths, offsets and sizes of the units; of the activations the one that explains best."""
    outer = _find_outer(slices, pairs)
    read = [
        _solve_coefficients(v, second, pairs, outer)
        for v, second in zip(reads.v, reads.second, strict=True)
    ]
    squares, products = np.array(read).transpose(1, 2, 0)
    reach = radius * np.sin(ANGLE)
    t, others = reach * pairs.g @ reads.l.T, reach * pairs.u @ reads.l.T
    fits = {
        kind: fit_shapes(t, products, _list_slope(EVEN_PARTS[kind]), _BOTH_WAYS) for kind in kinds
    }
    # The median: a unit that was not found says nothing of the others.
    best = min(fits, key=lambda kind: float(np.median(fits[kind][:, 3])))
    s, beta, size, left = fits[best].T
    c = size / (2 * s)
    rest = _Rest(t, others, s, beta, EVEN_PARTS[best])
    rho, gamma = np.array([rest.solve(j, squares[j] / c[j]) for j in range(len(s))]).T
    return GateCurves(
        s[:, None] * pairs.g,
        pairs.u + rho[:, None] * pairs.g,
        beta,
        gamma,
        c[:, None] * outer,
        float(left.max()),
        best,
    )


def _find_outer(slices: Slices, pairs: GatePairs) -> Matrix:
    """The direction in which every unit moves answers (units x outputs)."""
    count = len(pairs)
    known = np.concatenate([*_list_matrices(pairs), np.eye(slices.split.m)[None]])
    shares = slices.parts @ linalg.pinv(flatten_symmetric(known))
    both = np.concatenate([shares[..., :count], shares[..., count : 2 * count]])
    return linalg.svd(both.transpose(2, 0, 1), full_matrices=False)[2][:, 0]


def _list_matrices(pairs: GatePairs) -> tuple[Array, Array]:
    crossed = np.einsum("ki,kj->kij", pairs.g, pairs.u)
    return np.einsum("ki,kj->kij", pairs.g, pairs.g), (crossed + crossed.swapaxes(1, 2)) / 2


def _solve_coefficients(v: Matrix, second: Matrix, pairs: GatePairs, outer: Matrix) -> Matrix:
    """Of one point the coefficients of squares and of products, one vector for all v aside."""
    along, other = v @ pairs.g.T, v @ pairs.u.T
    outputs = outer.shape[1]
    rows = [np.einsum("vk,ko->vok", part, outer) for part in (along**2, along * other)]
    rows.append(np.tile(np.eye(outputs), (len(v), 1, 1)))
    whole = np.concatenate(rows, axis=2).reshape(second.size, -1)
    solved = linalg.lstsq(whole, second.ravel(), rcond=None)[0]
    return solved[: 2 * len(pairs)].reshape(2, -1)


def _list_slope(even: EvenPart) -> Shape:
    """The slope of an activation, and the slope of that."""

    def shape(z: Array) -> Pair:
        return even.bend(z)[1] + 0.5, even.curve(z)[0]

    return shape


@dataclass(frozen=True, eq=False, slots=True)
class _Rest:
    """What squares show once the gates are known."""

    t: Matrix
    others: Matrix
    s: Vector
    beta: Vector
    even: EvenPart

    def solve(self, j: int, squares: Vector) -> Vector:
        """The rho and gamma of a unit."""
        s, t = self.s[j], self.t[j]
        z = s * t + self.beta[j]
        curve = s**2 * self.even.curve(z)[0]
        slope = 2 * s * (self.even.bend(z)[1] + 0.5)
        design = np.column_stack([curve * t + slope, curve])
        return linalg.lstsq(design, squares - curve * self.others[j], rcond=None)[0]
