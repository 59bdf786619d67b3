r"""All parameters of a ReLU network in normal form at once, from values.

With $s_{ij}$ the side of hyperplane j that point i is on, $g(x) = \tfrac12 \sum_j D_j |n_j x - t_j|
+ P x + q$ changes by

$$\delta g(x_i) = \tfrac12 \sum_j \big( D_j s_{ij} (\delta n_j x_i - \delta t_j)
  + |n_j x_i - t_j|\, \delta D_j \big) + \delta P x_i + \delta q .$$

The length of $n_j$ is free: it trades with $D_j$, and damping keeps it where it is. The normal
matrix is summed up over chunks of points, so that only as much room is taken as it needs itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Vector, pin_one_thread, rms
from keyhole.learners.fitting import Damping, run_damped_steps, solve_damped_equations
from keyhole.models import AbsAffine

MOST = 5_000  # parameters at most: the normal matrix takes 8 bytes for each pair
_CHUNK = 1024  # points whose derivatives are held at once
_STEPS = 12
_STIFFEST = 1e3  # damping at which steps have become too short to help


def count_parameters(width: int, *, hidden: int, outputs: int) -> int:
    """Numbers that are fitted, the free length of every normal included."""
    return hidden * (width + 1 + outputs) + outputs * (width + 1)


@dataclass(frozen=True, eq=False, slots=True)
class Normal:
    """The normal equations of a model.

    Args:
        H: J^T J, parameters ordered as the rows (n_j, t_j, D_j) of all hyperplanes, then P and q
            for each output.
        g: J^T r.
    """

    H: Matrix
    g: Vector


def differentiate_output(model: AbsAffine, x: Matrix, output: int) -> Matrix:
    """Derivatives of one output by all parameters, one row per point."""
    k, d, m = model.hidden, model.width, model.outputs
    offset = x @ model.n.T - model.t
    bent = np.zeros((len(x), k, d + 1 + m))
    slope = np.sign(offset) * model.D[:, output] / 2
    bent[:, :, :d] = slope[..., None] * x[:, None]
    bent[:, :, d] = -slope
    bent[:, :, d + 1 + output] = np.abs(offset) / 2
    flat = np.zeros((len(x), m, d + 1))
    flat[:, output, :d] = x
    flat[:, output, d] = 1.0
    return np.hstack([bent.reshape(len(x), -1), flat.reshape(len(x), -1)])


def build_normal_equations(model: AbsAffine, x: Matrix, y: Matrix) -> Normal:
    """Normal equations of a model at points with their answers."""
    from scipy.linalg.blas import dsyrk

    size = count_parameters(model.width, hidden=model.hidden, outputs=model.outputs)
    H = np.zeros((size, size), order="F")
    g = np.zeros(size)
    left = y - model.points(x)
    for i in range(0, len(x), _CHUNK):
        for output in range(model.outputs):
            J = differentiate_output(model, x[i : i + _CHUNK], output)
            H = dsyrk(1.0, J.T, 1.0, H, overwrite_c=1)
            g += J.T @ left[i : i + _CHUNK, output]
    # dsyrk sums up one triangle only.
    return Normal(np.triu(H) + np.triu(H, 1).T, g)


def move_parameters(model: AbsAffine, step: Vector) -> AbsAffine:
    """The model with its parameters changed."""
    k, d, m = model.hidden, model.width, model.outputs
    bent = step[: k * (d + 1 + m)].reshape(k, d + 1 + m)
    flat = step[k * (d + 1 + m) :].reshape(m, d + 1)
    return AbsAffine(
        model.n + bent[:, :d],
        model.t + bent[:, d],
        model.D + bent[:, d + 1 :],
        model.P + flat[:, :d],
        model.q + flat[:, d],
    )


@dataclass(frozen=True, eq=False, slots=True)
class _FittedModel:
    """A model and the root mean square of what it leaves."""

    model: AbsAffine
    size: float


def fit_parameters(
    model: AbsAffine,
    x: Matrix,
    y: Matrix,
    *,
    steps: int = _STEPS,
    damping: float = 1e-12,
    enough: float = 0.0,
) -> tuple[AbsAffine, float]:
    """The best model met from here, and the root mean square of what it leaves.

    Args:
        model: where to start.
        x: points.
        y: answers there.
        steps: how many steps, at most.
        damping: of the first step.
        enough: residual at which to stop.
    """

    def linearise(here: _FittedModel) -> Callable[[float], _FittedModel | None]:
        equations = build_normal_equations(here.model, x, y)
        return lambda damping: _take_step(here.model, equations, damping, x, y)

    def is_settled(before: float, after: float, damping: float) -> bool:
        slow = 0.99 * before < after < before
        return slow or min(before, after) <= enough or damping > _STIFFEST

    moving = Damping(damping, lambda now: now / 10, lambda now: max(now * 100, 1e-12))
    with pin_one_thread(), np.errstate(all="ignore"):
        best = _FittedModel(model, rms(y - model.points(x)))
        if not (best.size <= enough or damping > _STIFFEST):
            best = run_damped_steps(best, linearise, moving, is_settled=is_settled, steps=steps)
    return best.model, best.size


def _take_step(
    model: AbsAffine, equations: Normal, damping: float, x: Matrix, y: Matrix
) -> _FittedModel | None:
    try:
        moved = move_parameters(model, solve_damped_equations(equations.H, equations.g, damping))
        return _FittedModel(moved, rms(y - moved.points(x)))
    except (np.linalg.LinAlgError, ValueError):
        return None
