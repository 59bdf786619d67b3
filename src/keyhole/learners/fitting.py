r"""All parameters of a ReLU network in normal form at once, from values: Levenberg-Marquardt steps.

With $s_{ij}$ the side of hyperplane j that point i is on, $g(x) = \tfrac12 \sum_j D_j |n_j x - t_j|
+ P x + q$ changes by

$$\delta g(x_i) = \tfrac12 \sum_j \big( D_j s_{ij} (\delta n_j x_i - \delta t_j) + |n_j x_i - t_j|\, \delta D_j \big)
  + \delta P x_i + \delta q .$$

The length of $n_j$ is free: it trades with $D_j$, and damping keeps it where it is. The normal
matrix is summed up over chunks of points, so that only as much room is taken as it needs itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector, pin_one_thread, rms
from keyhole.models import AbsAffine

MOST = 5_000  # parameters at most: the normal matrix takes 8 bytes for each pair
_CHUNK = 1024
_STEPS = 12


def count_parameters(width: int, *, hidden: int, outputs: int) -> int:
    """Numbers that are fitted, the free length of every normal included."""
    return hidden * (width + 1 + outputs) + outputs * (width + 1)


@dataclass(frozen=True, eq=False, slots=True)
class Normal:
    """The normal equations of a model: matrix, right-hand side, and the root mean square of what is
    left.

    Args:
        H: J^T J, parameters ordered as the rows (n_j, t_j, D_j) of all hyperplanes, then P and q
            for each output.
        g: J^T r.
        left: root mean square of the residual r.
    """

    H: Matrix
    g: Vector
    left: float


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
    flat[:, output, :d], flat[:, output, d] = x, 1.0
    return np.hstack([bent.reshape(len(x), -1), flat.reshape(len(x), -1)])


def build_normal_equations(model: AbsAffine, x: Matrix, y: Matrix) -> Normal:
    """Normal equations of a model at points with their answers."""
    from scipy.linalg.blas import dsyrk

    size = count_parameters(model.width, hidden=model.hidden, outputs=model.outputs)
    H, g, left = np.zeros((size, size), order="F"), np.zeros(size), y - model.points(x)
    for i in range(0, len(x), _CHUNK):
        for output in range(model.outputs):
            J = differentiate_output(model, x[i : i + _CHUNK], output)
            H = dsyrk(1.0, J.T, 1.0, H, overwrite_c=1)
            g += J.T @ left[i : i + _CHUNK, output]
    return Normal(np.triu(H) + np.triu(H, 1).T, g, rms(left))


def move_parameters(model: AbsAffine, step: Vector) -> AbsAffine:
    """The model with its parameters changed."""
    k, d, m = model.hidden, model.width, model.outputs
    bent, flat = (
        step[: k * (d + 1 + m)].reshape(k, d + 1 + m),
        step[k * (d + 1 + m) :].reshape(m, d + 1),
    )
    n, t, D = model.n + bent[:, :d], model.t + bent[:, d], model.D + bent[:, d + 1 :]
    return AbsAffine(n, t, D, model.P + flat[:, :d], model.q + flat[:, d])


def solve_damped_equations(H: Matrix, g: Array, damping: float) -> Array:
    """H^-1 g with every diagonal entry raised by its share `damping`.

    Raises:
        LinAlgError: the matrix is not positive.
    """
    from scipy.linalg import cho_factor, cho_solve

    scale = np.sqrt(np.maximum(np.diag(H), 1e-300))
    scaled = H / scale / scale[:, None]
    scaled[np.diag_indices_from(scaled)] += damping
    shape = (-1,) + (1,) * (g.ndim - 1)
    return cho_solve(
        cho_factor(scaled, check_finite=False), g / scale.reshape(shape)
    ) / scale.reshape(shape)


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
    with pin_one_thread(), np.errstate(all="ignore"):
        left, here = rms(y - model.points(x)), None
        for _ in range(steps):
            if left <= enough or damping > 1e3:
                break
            here = build_normal_equations(model, x, y) if here is None else here
            try:
                trial = move_parameters(model, solve_damped_equations(here.H, here.g, damping))
                after = rms(y - trial.points(x))
            except (np.linalg.LinAlgError, ValueError):
                trial, after = model, np.inf
            if not after < left:
                damping = max(damping * 100, 1e-12)
                continue
            settled, model, left, here = after > 0.99 * left, trial, after, None
            damping /= 10
            if settled:
                break
    return model, left
