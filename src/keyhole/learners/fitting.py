r"""One driver of damped least-squares steps (Levenberg, Marquardt), whatever is fitted.

A step solves $(J^\top J + \lambda S)\,\delta = J^\top r$. It is taken only where less is left: then
$\lambda$ is eased, and otherwise raised, so that steps go from Gauss-Newton's to short ones
downhill and back. How $\lambda$ moves and when to stop belongs to each fit and is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.oracles.own_time import check_own_time


@runtime_checkable
class Fitted(Protocol):
    """Parameters with the size of the residual that they leave."""

    @property
    def size(self) -> float:
        """What is left of the answers."""
        ...


_NOTHING = 1e-13  # singular values beside the largest that are none

State = TypeVar("State", bound=Fitted)


@dataclass(frozen=True, slots=True)
class Damping:
    """How the damping of a fit moves.

    Args:
        first: damping of the first step.
        eased: the next one after a step that was taken.
        raised: the next one after a step that was not.
    """

    first: float
    eased: Callable[[float], float]
    raised: Callable[[float], float]


def run_damped_steps(
    start: State,
    linearise: Callable[[State], Callable[[float], State | None]],
    damping: Damping,
    *,
    is_settled: Callable[[float, float, float], bool],
    steps: int,
) -> State:
    """The best parameters met from a start.

    Args:
        start: where to start.
        linearise: from parameters, the step of any damping: what is left there and its derivatives
            are worked out once, and None is returned where a step cannot be solved for.
        damping: how it moves.
        is_settled: from what was left before a step and after it, and the next damping, whether to
            stop.
        steps: how many steps are tried, at most.
    """
    best = start
    step_by = None
    now = damping.first
    for _ in range(steps):
        check_own_time()
        # Derivatives stay as they are while steps are refused: only the damping has moved.
        step_by = step_by or linearise(best)
        before = best.size
        trial = step_by(now)
        after = np.inf if trial is None else trial.size
        if trial is not None and after < before:
            best, step_by, now = trial, None, damping.eased(now)
        else:
            now = damping.raised(now)
        if is_settled(before, after, now):
            break
    return best


def solve_damped_equations(H: Matrix, g: Array, damping: float) -> Array:
    """H^-1 g with every diagonal entry raised by its share `damping`.

    Raises:
        LinAlgError: the matrix is not positive.
    """
    from scipy.linalg import cho_factor, cho_solve

    scale = np.sqrt(np.maximum(np.diag(H), 1e-300))
    scaled = H / scale / scale[:, None]
    scaled[np.diag_indices_from(scaled)] += damping
    rows = scale.reshape(-1, *(1,) * (g.ndim - 1))
    return cho_solve(cho_factor(scaled, check_finite=False), g / rows) / rows


@runtime_checkable
class Derivatives(Protocol):
    """Derivatives of answers by named arrays of parameters, multiplied and never formed."""

    def forward(self, step: dict[str, Array]) -> Matrix:
        """The change of answers for a change of parameters."""
        ...

    def backward(self, left: Matrix) -> dict[str, Array]:
        """The transpose."""
        ...

    def lengths(self) -> dict[str, Array]:
        """The length of every column."""
        ...


def solve_formed_step(
    slopes: Derivatives, left: Matrix, parts: tuple[str, ...]
) -> dict[str, Array]:
    """The change that leaves least, to the last digit, from a matrix formed column by column.

    Args:
        slopes: derivatives.
        left: what is left of the answers.
        parts: which parameters move; the others are given a change of zero.
    """
    lengths = slopes.lengths()
    zero = {name: np.zeros_like(array) for name, array in lengths.items()}
    places = [(name, place) for name in parts for place in np.ndindex(lengths[name].shape)]
    J = np.empty((left.size, len(places)))
    for column, (name, place) in enumerate(places):
        check_own_time()
        step = np.zeros_like(lengths[name])
        step[place] = 1 / lengths[name][place]
        J[:, column] = slopes.forward(zero | {name: step}).ravel()
    found = np.linalg.lstsq(J, left.ravel(), rcond=_NOTHING)[0]
    change = {name: array.copy() for name, array in zero.items()}
    for value, (name, place) in zip(found, places, strict=True):
        change[name][place] = value / lengths[name][place]
    return change


def solve_whole_step(
    slopes: Derivatives, left: Matrix, parts: tuple[str, ...], *, iterations: int
) -> dict[str, Array]:
    """The change of some parameters that leaves least, by LSMR with columns of length one.

    Args:
        slopes: derivatives.
        left: what is left of the answers.
        parts: which parameters move; the others are given a change of zero.
        iterations: at most.
    """
    from scipy.sparse.linalg import LinearOperator, lsmr

    lengths = slopes.lengths()
    zero = {name: np.zeros_like(array) for name, array in lengths.items()}
    ends = np.cumsum([lengths[name].size for name in parts])

    def unpack(vector: Vector) -> dict[str, Array]:
        pieces = np.split(vector, ends[:-1])
        own = {
            name: piece.reshape(lengths[name].shape) / lengths[name]
            for name, piece in zip(parts, pieces, strict=True)
        }
        return zero | own

    def pack(step: dict[str, Array]) -> Vector:
        return np.concatenate([(step[name] / lengths[name]).ravel() for name in parts])

    def multiply(vector: Vector) -> Vector:
        check_own_time()
        return slopes.forward(unpack(np.asarray(vector).ravel())).ravel()

    operator: Any = LinearOperator(
        (left.size, int(ends[-1])),
        matvec=multiply,
        rmatvec=lambda v: pack(slopes.backward(np.asarray(v).reshape(left.shape))),
        dtype=np.float64,
    )
    found: Any = lsmr(operator, left.ravel(), atol=1e-15, btol=1e-15, maxiter=iterations)
    return unpack(np.asarray(found[0]))


def solve_by_factor(A: Matrix, b: Vector, damping: float) -> Vector:
    """Least squares with columns of size 1 and a faint damping, which holds what is free still.

    The Cholesky factor of the damped normal equations makes every direction alike; LSMR then
    reaches what their square of a condition hides.
    """
    from scipy import linalg
    from scipy.sparse.linalg import LinearOperator, lsmr

    solve_triangular: Any = linalg.solve_triangular
    scale = np.linalg.norm(A, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    B = A / scale
    rows, columns = B.shape
    normal = B.T @ B
    normal[np.diag_indices(columns)] += damping
    factor = linalg.cholesky(normal, overwrite_a=True)
    faint = np.sqrt(damping)

    def multiply(x: Array) -> Array:
        z = solve_triangular(factor, x)
        return np.concatenate([B @ z, faint * z])

    def multiply_back(y: Array) -> Array:
        wanted = B.T @ y[:rows] + faint * y[rows:]
        return solve_triangular(factor, wanted, trans="T")

    make: Any = LinearOperator
    shape = (rows + columns, columns)
    whole = make(shape, matvec=multiply, rmatvec=multiply_back, dtype=np.float64)
    wanted = np.concatenate([b, np.zeros(columns)])
    found: Any = lsmr(whole, wanted, atol=1e-14, btol=1e-14, maxiter=30)
    return solve_triangular(factor, found[0]) / scale
