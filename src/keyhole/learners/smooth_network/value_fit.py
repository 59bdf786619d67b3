r"""All parameters of a smooth network at once, from values near the origin.

$g(x) = \sum_j A_j \phi(w_j x + b_j) + L x + q$ is linear in A, L and q, with one design for all
outputs, so that these are solved for and only $(w_j, b_j)$ are searched (variable projection,
Kaufman's form). With $F = [\phi'(z_{ij}) (x_i, 1)]$ and Q the projection away from the design, the
normal matrix is $(A^\top A)_{jj'} (F^\top Q F)_{ja, j'a'}$: its cost does not grow with the number
of outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from keyhole._arrays import Array, Matrix, Vector, pin_one_thread, rms
from keyhole.learners.fitting import Damping, run_damped_steps
from keyhole.learners.smooth_network.unit_kinds import UNIT_KINDS, SmoothForm
from keyhole.models import AbsAffine
from keyhole.models.last_token.activations import ACTIVATIONS

_STEPS = 12
_DAMPING = Damping(1e-14, lambda now: now / 10, lambda now: 1e3 * now)
_ROUNDING = 1e-13  # a residual below this is not made smaller by damping
_DONE = 1e-14  # nor this by another step
SEARCHED = 6_000  # numbers searched together, at most; beyond, only the linear part is solved for


@dataclass(frozen=True, eq=False, slots=True)
class Smooth:
    """Units and the rest: rows of `linear` belong to units, to coordinates of x, and to 1."""

    activation: str
    w: Matrix
    b: Vector
    linear: Matrix

    @property
    def A(self) -> Matrix:
        """Weights of the units, one row each."""
        return self.linear[: len(self.b)]

    def normal_form(self) -> SmoothForm:
        """The same function with unit normals, jumps and widths."""
        size = np.linalg.norm(self.w, axis=1)
        n = self.w / size[:, None]
        t = -self.b / size
        D = self.A * size[:, None]
        P = self.linear[len(size) : -1].T + D.T @ n / 2
        q = self.linear[-1] - t @ D / 2
        return SmoothForm(AbsAffine(n, t, D, P, q), size, self.activation)


@dataclass(frozen=True, eq=False, slots=True)
class _State:
    """A model with its linear part solved for.

    Args:
        model: units, and the linear part that leaves least.
        basis: orthonormal columns of the design.
        residual: what is left.
        z: what each unit is applied to.
        size: of the residual, beside the answers.
    """

    model: Smooth
    basis: Matrix
    residual: Matrix
    z: Matrix
    size: float


def differentiate_activation(activation: str, z: Array) -> Array:
    """The derivative of a smooth activation."""
    return np.heaviside(z, 0.5) - np.sign(z) * UNIT_KINDS[activation].slope(np.abs(z))


def fit_smooth_units(
    activation: str, w: Matrix, b: Vector, x: Matrix, y: Matrix
) -> tuple[Smooth, float]:
    """Gauss-Newton steps with Levenberg's damping; the best model met and its relative residual."""
    with pin_one_thread(), np.errstate(all="ignore"):
        best = _solve_linear_part(activation, w, b, x, y)
        if 0 < w.size + b.size <= SEARCHED:
            # The normal matrix is made anew for each damping: it is factored in its own place.
            best = run_damped_steps(
                best,
                lambda here: lambda damping: _take_step(here, x, y, damping),
                _DAMPING,
                is_settled=_is_settled,
                steps=_STEPS,
            )
    return best.model, best.size


def _is_settled(before: float, after: float, _damping: float) -> bool:
    """Whether the residual is rounding, and another step would not lower it."""
    return min(before, after) < _DONE or (after > 0.5 * before and before < _ROUNDING)


def _take_step(here: _State, x: Matrix, y: Matrix, damping: float) -> _State | None:
    step = _solve_unit_step(here, x, damping)
    if step is None:
        return None
    model = here.model
    moved = model.w + step[:, :-1], model.b + step[:, -1]
    return _solve_linear_part(model.activation, *moved, x, y)


def _solve_linear_part(activation: str, w: Matrix, b: Vector, x: Matrix, y: Matrix) -> _State:
    z = x @ w.T + b
    design = np.hstack([ACTIVATIONS[activation](z), x, np.ones((len(z), 1))])
    scale = np.linalg.norm(design, axis=0) + 1e-300
    design /= scale
    U, S, V = np.linalg.svd(design, full_matrices=False)
    kept = 1e-15 * S[0] < S
    U, S, V = U[:, kept], S[kept], V[kept]
    linear = np.zeros((len(scale), y.shape[1]))
    residual = y
    # Once more for what rounding left.
    for _ in range(2):
        linear = linear + V.T @ (U.T @ residual / S[:, None])
        residual = y - design @ linear
    size = rms(residual) / max(rms(y), 1e-300)
    return _State(Smooth(activation, w, b, linear / scale[:, None]), U, residual, z, size)


def _solve_unit_step(state: _State, x: Matrix, damping: float) -> Matrix | None:
    """The change of (w, b), one row per unit; None where the normal matrix is not positive."""
    from scipy.linalg import cho_factor, cho_solve

    A = state.model.A
    bend = differentiate_activation(state.model.activation, state.z)
    inputs = np.column_stack([x, np.ones(len(x))])
    normal = _build_normal_matrix(A, bend, inputs, state.basis)
    pull = np.einsum("ij,ia->ja", (state.residual @ A.T) * bend, inputs).ravel()
    scale = np.sqrt(np.diag(normal)) + 1e-300
    normal /= scale
    normal /= scale[:, None]
    normal[np.diag_indices_from(normal)] += damping
    try:
        factor = cho_factor(normal, lower=True, overwrite_a=True)
    except (np.linalg.LinAlgError, ValueError):
        return None
    step: Vector = np.array(cast(Any, cho_solve)(factor, pull / scale)) / scale
    return step.reshape(len(A), -1) if np.isfinite(step).all() else None


def _build_normal_matrix(A: Matrix, bend: Matrix, inputs: Matrix, basis: Matrix) -> Matrix:
    count, k = bend.shape
    p = inputs.shape[1]
    F = (bend[:, :, None] * inputs[:, None]).reshape(count, -1)
    # Twice is enough: what one projection leaves in the space is its rounding.
    for _ in range(2):
        F -= basis @ (basis.T @ F)
    blocks = (F.T @ F).reshape(k, p, k, p)
    blocks *= (A @ A.T)[:, None, :, None]
    return blocks.reshape(k * p, k * p)
