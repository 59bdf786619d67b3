r"""All heads at once, fitted to answers with random errors of one size, and what these leave open.

Least squares over answers $f_i$ with independent errors of standard deviation s have the covariance
$s^2 (J^\top J)^{-1}$, J the derivatives of the answers by c, all W and all V. Its diagonal gives
the error bar of every entry; models drawn from it tell how far a prediction may be off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, PerSequence, Sequences, Stack, Vector
from keyhole.learners.several_heads.heads_fit import differentiate_answers
from keyhole.learners.several_heads.pairs import Unresolved
from keyhole.models import MultiHead
from keyhole.oracles.own_time import check_own_time

_STEPS = 40
_DAMPINGS = (0.0, 1e-6, 1e-4, 1e-2, 1.0, 100.0)  # of the diagonal, tried in turn
_STILL = 1e-9  # a gain in the misfit that is none
_DRAWS = 24

Asked = list[tuple[Stack, Matrix]]


@dataclass(frozen=True, eq=False, slots=True)
class FittedHeads:
    """A fitted model, and the triangular root of the covariance of its numbers.

    Args:
        model: the sum of heads.
        root: R with covariance $R R^T$, for c, then [W | V] of every head row by row.
    """

    model: MultiHead
    root: Matrix

    @property
    def bars(self) -> dict[str, Array]:
        """The standard error of every entry, by the name of its tensor."""
        errors = _move(self.model, np.sqrt((self.root**2).sum(axis=1)), 0.0)
        parts = {"W": errors.W, "V": errors.V}
        return parts if errors.c is None else parts | {"c": errors.c}

    def measure_spread(self, X: Sequences, rng: np.random.Generator) -> PerSequence:
        """Standard errors of the model's answers, the largest over the outputs."""
        middle = self.model(X)
        changes = self.root @ rng.normal(size=(self.root.shape[1], _DRAWS))
        squares = [(_move(self.model, change)(X) - middle) ** 2 for change in changes.T]
        return np.sqrt(np.mean(squares, axis=0).max(axis=1))


def fit_noisy_heads(model: MultiHead, asked: Asked, deviation: float) -> FittedHeads:
    """Levenberg-Marquardt steps from a model that is nearly right, and the covariance.

    Raises:
        Unresolved: the answers do not determine the model, or leave more than errors explain.
    """
    outputs = model.outputs
    c = np.zeros(outputs) if model.c is None else model.c
    model = MultiHead(model.W, model.V, None, c)
    misfit = _subtract_model(model, asked)
    for _ in range(_STEPS):
        check_own_time()
        J = _differentiate_sums(model, asked)
        normal, along = J.T @ J, J.T @ misfit
        tried = [_step(model, normal, along, damping) for damping in _DAMPINGS]
        left = [_subtract_model(each, asked) for each in tried]
        sizes = np.nan_to_num([float(each @ each) for each in left], nan=np.inf)
        best = int(np.argmin(sizes))
        before = float(misfit @ misfit)
        if not sizes[best] < before:
            break
        model, misfit = tried[best], left[best]
        if sizes[best] > (1.0 - _STILL) * before:
            break
    return FittedHeads(model, _find_root(_differentiate_sums(model, asked), misfit, deviation))


def _find_root(J: Matrix, misfit: Vector, deviation: float) -> Matrix:
    """The root of the covariance, where what is left is no more than errors."""
    spare = len(misfit) - J.shape[1]
    # Six standard deviations of a mean square, and room for few answers.
    allowed = 1.0 + 6.0 * np.sqrt(2.0 / max(spare, 1))
    if spare < 1 or misfit @ misfit > allowed * deviation**2 * spare:
        raise Unresolved
    sizes = np.sqrt((J * J).sum(axis=0))
    if not sizes.all():
        raise Unresolved
    R = np.linalg.qr(J / sizes, mode="r")
    try:
        inverse = np.asarray(np.linalg.inv(R), dtype=np.float64)
    except np.linalg.LinAlgError as singular:
        raise Unresolved from singular
    return deviation * inverse / sizes[:, None]


def _subtract_model(model: MultiHead, asked: Asked) -> Vector:
    return np.concatenate([(answers - model(X)).ravel() for X, answers in asked])


def _differentiate_sums(model: MultiHead, asked: Asked) -> Matrix:
    """Derivatives of all answers by c, then by [W | V] of every head row by row."""
    heads, width, outputs = model.V.shape
    units = np.ones((heads, 1, width + outputs))
    plain = MultiHead(model.W, model.V)
    parts = [
        np.concatenate(
            [
                np.broadcast_to(np.eye(outputs), (len(X), outputs, outputs)),
                differentiate_answers(plain, X, units),
            ],
            axis=2,
        ).reshape(len(X) * outputs, -1)
        for X, _ in asked
    ]
    return np.concatenate(parts)


def _step(model: MultiHead, normal: Matrix, along: Vector, damping: float) -> MultiHead:
    sizes = np.sqrt(np.diagonal(normal))
    sizes = np.where(sizes > 0, sizes, 1.0)
    scaled = normal / np.outer(sizes, sizes) + (damping + 1e-15) * np.eye(len(normal))
    return _move(model, np.asarray(np.linalg.solve(scaled, along / sizes)) / sizes)


def _move(model: MultiHead, change: Vector, share: float = 1.0) -> MultiHead:
    """The model times a share, and a change of its numbers."""
    heads, width, outputs = model.V.shape
    by_head = change[outputs:].reshape(heads, width, width + outputs)
    c = np.zeros(outputs) if model.c is None else model.c
    return MultiHead(
        share * model.W + by_head[..., :width],
        share * model.V + by_head[..., width:],
        None,
        share * c + change[:outputs],
    )
