r"""Numpy's linear algebra, and Gauss-Newton steps whose derivatives are never formed.

Derivatives of fits of networks are sums of products,

$$(J x)_p = (1 - Q Q^\top)\Big[\sum_j D_j\, s_{pj}\, (\nu_p X_j) + \sum_t G_{tp} F_t n_{tp}\Big],$$

X_j the unknowns of a unit, F_t those of what stands before it, Q what was eliminated. LSMR needs
their products with vectors alone. Beside the Cholesky factors of single units, and of the mean of
$G^\top G$ times that of $n n^\top$, condition numbers are below ten at any width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.oracles.own_time import check_own_time

linalg: Any = np.linalg  # whose types are wider than those of the arrays here

_ITERATIONS = 1000
_SOLVED = 1e-8  # of the gradient, that a step may leave
_RIDGE = 1e-10  # of a block's mean diagonal: directions that nothing shows

Product = Callable[[Vector], Vector]


@dataclass(frozen=True, eq=False, slots=True)
class UnitSlopes:
    """Derivatives by the weights of units.

    Args:
        slopes: of the units (points x units).
        nu: what weights are multiplied by (points x c).
        D: what units add to answers (units x outputs).
    """

    slopes: Matrix
    nu: Matrix
    D: Matrix


@dataclass(frozen=True, eq=False, slots=True)
class Following:
    """How units move with what stands before them, so that they see little of it.

    Args:
        left: L, and
        right: R, where units move by L F R.
        G: what then is left of the derivatives by F, nearly.
    """

    left: Matrix
    right: Matrix
    G: Array


@dataclass(frozen=True, eq=False, slots=True)
class FrontSlopes:
    """Derivatives by a matrix F: $G_p F n_p$ at every point.

    Args:
        G: (points x outputs x e).
        n: (points x f).
        following: how units move with F.
    """

    G: Array
    n: Matrix
    following: Following | None = None

    def __post_init__(self) -> None:
        # Products of einsum lie in memory in any order, which makes each matmul eight times slower.
        object.__setattr__(self, "G", np.ascontiguousarray(self.G))

    def whiten(self) -> tuple[Matrix, Matrix]:
        """Scales of F from both sides."""
        G = self.G if self.following is None else self.following.G
        flat = G.reshape(-1, G.shape[2])
        return whiten(flat.T @ flat / len(G)), whiten(self.n.T @ self.n)


class StructuredSlopes:
    """Derivatives at some points, off the columns of Q."""

    def __init__(self, Q: Matrix, units: UnitSlopes, fronts: Sequence[FrontSlopes]) -> None:
        self.Q, self.units, self.fronts = Q, units, fronts
        self.shape = len(units.nu), units.D.shape[1]
        sizes = [(len(units.D), units.nu.shape[1])]
        self.sizes = sizes + [(part.G.shape[2], part.n.shape[1]) for part in fronts]

    def solve(self, left: Matrix, damping: float) -> list[Matrix]:
        """The step of the units (units x c), then of every F (e x f)."""
        own = np.array([whiten(N) for N in self._list_unit_blocks()])
        both = [part.whiten() for part in self.fronts]

        def scale(x: Vector) -> Vector:
            units, *rest = self._split(x)
            units = np.einsum("kij,kj->ki", own, units)
            rest = [A @ F @ C.T for (A, C), F in zip(both, rest, strict=True)]
            for part, F in zip(self.fronts, rest, strict=True):
                if part.following is not None:
                    units = units + part.following.left @ F @ part.following.right
            return join_parts([units, *rest])

        def scale_back(x: Vector) -> Vector:
            units, *rest = self._split(x)
            for at, part in enumerate(self.fronts):
                if part.following is not None:
                    rest[at] = rest[at] + part.following.left.T @ units @ part.following.right.T
            rest = [A.T @ F @ C for (A, C), F in zip(both, rest, strict=True)]
            return join_parts([np.einsum("kji,kj->ki", own, units), *rest])

        step = solve_scaled_steps(
            lambda x: self._multiply(scale(x)),
            lambda y: scale_back(self._multiply_back(y)),
            left.ravel(),
            damping,
            unknowns=sum(a * b for a, b in self.sizes),
        )
        return self._split(scale(step))

    def _list_unit_blocks(self) -> Array:
        """Products of the derivatives by one unit with themselves (units x c x c)."""
        slopes, nu, D = self.units.slopes, self.units.nu, self.units.D
        blocks = np.empty((len(D), nu.shape[1], nu.shape[1]))
        for j, size in enumerate(np.sum(D**2, axis=1)):
            table = self._take_off(slopes[:, j, None] * nu)
            blocks[j] = size * (table.T @ table)
        return blocks

    def _take_off(self, seen: Matrix) -> Matrix:
        return seen - self.Q @ (self.Q.T @ seen)

    def _split(self, x: Vector) -> list[Matrix]:
        parts = np.split(x, np.cumsum([a * b for a, b in self.sizes])[:-1])
        return [part.reshape(size) for part, size in zip(parts, self.sizes, strict=True)]

    def _multiply(self, x: Vector) -> Vector:
        units, *rest = self._split(x)
        made = (self.units.slopes * (self.units.nu @ units.T)) @ self.units.D
        for part, F in zip(self.fronts, rest, strict=True):
            made += (part.G @ (part.n @ F.T)[..., None])[..., 0]
        return self._take_off(made).ravel()

    def _multiply_back(self, y: Vector) -> Vector:
        off = self._take_off(y.reshape(self.shape))
        parts = [(self.units.slopes * (off @ self.units.D.T)).T @ self.units.nu]
        for part in self.fronts:
            parts.append((off[:, None] @ part.G)[:, 0].T @ part.n)
        return join_parts(parts)


def solve_scaled_steps(
    multiply: Product, multiply_back: Product, left: Vector, damping: float, *, unknowns: int
) -> Vector:
    """The damped least squares solution, from products with the derivatives and their transpose.

    Args:
        multiply: derivatives, by unknowns scaled to be about orthonormal, times a vector.
        multiply_back: their transpose times a vector.
        left: what they should make.
        damping: as of the normal equations of scaled unknowns.
        unknowns: how many there are.
    """
    from scipy.sparse import linalg as scipy_linalg

    solving: Any = scipy_linalg

    def timed(x: Vector) -> Vector:
        check_own_time()
        return multiply(x)

    J = solving.LinearOperator(
        (len(left), unknowns), matvec=timed, rmatvec=multiply_back, dtype=np.float64
    )
    return solving.lsmr(
        J,
        left,
        damp=np.sqrt(damping),
        atol=_SOLVED,
        btol=_SOLVED,
        conlim=0,
        maxiter=_ITERATIONS,
    )[0]


def whiten(N: Matrix) -> Matrix:
    """The R with $R^T N R = 1$, but for directions in which N is next to nothing."""
    held = N + _RIDGE * max(np.trace(N) / len(N), 1e-300) * np.eye(len(N))
    return linalg.inv(linalg.cholesky(held)).T


def join_parts(parts: Sequence[Array]) -> Vector:
    """All entries of some arrays in one vector."""
    return np.concatenate([part.ravel() for part in parts])
