r"""Gauss-Newton on all heads at once, for models that fresh queries almost confirm.

Isolating one head while another is nearly equal to it, or a thousand times weaker, costs digits
that soft answers of both still hold. With weights $\alpha_i$ and token values $v_i = V^\top x_i$ of
a head, and $f = \sum_i \alpha_i v_i$,
$$\partial f / \partial W = \sum_i \alpha_i (v_i - f)\, x_i x_N^\top, \qquad
\partial f / \partial V = \sum_i \alpha_i x_i.$$
The least-squares steps are truncated: what answers do not determine is left as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Matrix, Stack, Vector, rms, softmax
from keyhole.learners.verifying.informative_scales import choose_token_scales
from keyhole.learners.verifying.questions import shorten_to_bound
from keyhole.models import Head, MultiHead
from keyhole.oracles import Counted
from keyhole.oracles.own_time import check_own_time

LARGEST = 1200  # parameters; beyond that the dense step is slow
_LENGTHS = (2, 3, 4, 6)
_STEPS = 30
_DAMPINGS = 10.0 ** np.arange(-8, 1)  # of the largest singular value, tried in turn
_SUMMED = 64.0  # roundings of an answer of small scores, at most
_SETTLED = 8.0  # roundings: a misfit that is nothing else
_CLOSER = 4.0
_READ = 1e-13  # relative error of read-outs that plateaus told
_FITTED = 1e-10  # a misfit with which these are right


def polish_heads(
    oracle: Counted,
    model: MultiHead,
    roundoff: float,
    rng: np.random.Generator,
    *,
    bound: float | None = None,
) -> MultiHead:
    """The model fitted to fresh sequences, with tokens within the bound."""
    return fit_heads_jointly(model, ask_soft_sequences(oracle, model, rng, bound=bound), roundoff)


def ask_soft_sequences(
    oracle: Counted, model: MultiHead, rng: np.random.Generator, *, bound: float | None = None
) -> list[tuple[Stack, Matrix]]:
    """Fresh sequences at which every head is soft in turn."""
    fresh = _draw_soft_sequences(model, count_soft_sequences(model), rng)
    return [(X, oracle.ask(X.copy())) for X in shorten_to_bound(fresh, bound)]


def count_soft_sequences(model: MultiHead) -> int:
    """Half as many answers again as there are parameters: what is left over tells a misfit."""
    return -(-3 * _count_parameters(model) // (2 * model.outputs)) + 16


def fit_small_model(
    model: MultiHead, asked: list[tuple[Stack, Matrix]], roundoff: float
) -> MultiHead:
    """The model fitted to answers, where there are some and it is not too large for that."""
    return fit_heads_jointly(model, asked, roundoff) if asked and is_small_model(model) else model


def fit_heads_jointly(
    model: MultiHead, asked: list[tuple[Stack, Matrix]], roundoff: float
) -> MultiHead:
    """The model after damped least-squares steps, as long as they help."""
    smallest_first = (64 * roundoff, *_DAMPINGS)
    # Large damping leaves what answers hardly determine; small damping follows narrow valleys.
    careful, left = _descend(model, asked, smallest_first[::-1])
    if left <= _SETTLED * roundoff:
        return careful
    bold, misfit = _descend(model, asked, smallest_first)
    return bold if misfit < left / _CLOSER else careful


def fit_heads_near_readouts(
    model: MultiHead, asked: list[tuple[Stack, Matrix]], roundoff: float
) -> MultiHead:
    """The model fitted to answers and to its own read-outs, which were read on plateaus.

    Answers tell how nearly equal heads share their sum far less than the plateau between them.
    """
    anchor = Anchor(model.V, roundoff / _READ)
    fitted, left = _descend(model, asked, (64 * roundoff, *_DAMPINGS), anchor)
    # Read-outs that no W goes with were read wrongly.
    return fitted if left <= _FITTED else fit_heads_jointly(model, asked, roundoff)


@dataclass(frozen=True, eq=False, slots=True)
class Anchor:
    """Read-outs that a fit keeps to, and the weight of their changes beside those of answers."""

    V: Stack
    weight: float


def _descend(
    model: MultiHead,
    asked: list[tuple[Stack, Matrix]],
    dampings: tuple[float, ...],
    anchor: Anchor | None = None,
) -> tuple[MultiHead, float]:
    """The model after steps with the first damping that helps, and the root mean square left."""
    best = model
    misfit = _measure_misfit(model, asked, anchor)
    for _ in range(_STEPS):
        steps = _Steps.at(best, asked, misfit, anchor)
        for damping in dampings:
            check_own_time()
            candidate = steps.take(damping)
            now = _measure_misfit(candidate, asked, anchor)
            if np.linalg.norm(now) < 0.9 * np.linalg.norm(misfit):
                break
        # No damping helps: what is left is rounding, or another valley.
        else:
            break
        best, misfit = candidate, now
    return best, rms(misfit)


def _draw_soft_sequences(model: MultiHead, count: int, rng: np.random.Generator) -> list[Stack]:
    """Batches of every length and of the scale of every head in turn."""
    biases = [None] * len(model.W) if model.h is None else model.h
    heads = [Head(W, V, h) for W, V, h in zip(model.W, model.V, biases, strict=True)]
    scales = np.array([s for head in heads for s in choose_token_scales(head, rng=rng)[:3]])
    share = -(-count // len(_LENGTHS))
    lengths = rng.permutation(np.resize(scales, share))[:, None, None] / np.sqrt(model.width)
    return [lengths * rng.normal(size=(share, length, model.width)) for length in _LENGTHS]


def _measure_misfit(
    model: MultiHead, asked: list[tuple[Stack, Matrix]], anchor: Anchor | None = None
) -> Vector:
    """Answers less those of the model, in units of their sizes; then what read-outs changed by."""
    parts = [
        (answers - model(X)) / _measure_answer_sizes(model, X)[:, None] for X, answers in asked
    ]
    if anchor is not None:
        parts.append(anchor.weight * (anchor.V - model.V) / np.abs(anchor.V).max())
    return np.concatenate([part.ravel() for part in parts])


def _measure_answer_sizes(model: MultiHead, X: Stack) -> Vector:
    """Token values; more where scores of long tokens cancel, whose rounding an answer shows."""
    by = model.yardstick(X, EPS)
    size = np.maximum(by.size, by.rounding / (_SUMMED * EPS))
    return np.where(size > 0, size, 1.0)


@dataclass(frozen=True, eq=False, slots=True)
class _Steps:
    """All damped steps from one model; every weight is measured by the size of its array.

    A score bias is the score weight of a further coordinate that is one in every last token.
    """

    model: MultiHead
    sizes: Stack
    along: Vector
    values: Vector
    basis: Matrix

    @classmethod
    def at(
        cls,
        model: MultiHead,
        asked: list[tuple[Stack, Matrix]],
        misfit: Vector,
        anchor: Anchor | None = None,
    ) -> _Steps:
        """From the singular values of the derivatives."""
        sizes = _measure_weights(model)
        blocks = [
            differentiate_answers(model, X, sizes) / _measure_answer_sizes(model, X)[:, None, None]
            for X, _ in asked
        ]
        J = np.concatenate([block.reshape(-1, block.shape[2]) for block in blocks])
        if anchor is not None:
            J = np.concatenate([J, _differentiate_readouts(model, sizes, anchor)])
        left, values, basis = np.linalg.svd(J, full_matrices=False)
        return cls(model, sizes, left.T @ misfit, values, basis)

    def take(self, damping: float) -> MultiHead:
        """The model after a step; what answers determine less than the damping stays as it was."""
        s = self.values
        floor = damping * s.max(initial=0.0)
        share = np.where(s > floor, s / (s * s + floor**2), 0.0)
        return self._move(self.basis.T @ (share * self.along))

    def _move(self, change: Vector) -> MultiHead:
        """The model with scaled changes: of every head [W | h | V], then of U."""
        model, sizes = self.model, self.sizes
        heads, d, o = model.V.shape
        by_head = change[: heads * d * sizes.shape[2]].reshape(heads, d, -1) * sizes
        h = None if model.h is None else model.h + by_head[..., d]
        U = model.U
        if U is not None:
            U = U + sizes[..., -o:].max() * change[-U.size :].reshape(U.shape)
        return MultiHead(model.W + by_head[..., :d], model.V + by_head[..., -o:], h, model.c, U)


def _differentiate_readouts(model: MultiHead, sizes: Stack, anchor: Anchor) -> Matrix:
    """Derivatives of what read-outs changed by, one row per entry of V."""
    heads, width, outputs = model.V.shape
    all_sizes = np.zeros((*sizes.shape[:1], width, sizes.shape[2]))
    all_sizes[..., -outputs:] = anchor.weight / np.abs(anchor.V).max()
    scaled = (all_sizes * sizes).reshape(heads * width, -1)
    rows = np.diag(scaled.ravel())[scaled.ravel() > 0]
    further = 0 if model.U is None else model.U.size
    return np.pad(rows, ((0, 0), (0, further)))


def _measure_weights(model: MultiHead) -> Stack:
    """The largest entry of W, of h and of V of every head, in the columns of [W | h | V]."""
    h = [] if model.h is None else [model.h[..., None]]
    parts = [
        np.repeat(np.abs(part).max(axis=(1, 2), keepdims=True), part.shape[2], axis=2)
        for part in (model.W, *h, model.V)
    ]
    return np.concatenate(parts, axis=2)


def differentiate_answers(model: MultiHead, X: Stack, sizes: Stack) -> Stack:
    """Derivatives of every answer by every scaled parameter, (batch, outputs, parameters)."""
    n, o = len(X), model.outputs
    last = X[:, -1]
    h = np.zeros((len(model.W), model.width)) if model.h is None else model.h
    factors = np.concatenate([last, np.ones((n, int(model.h is not None)))], axis=1)
    parts: list[np.ndarray] = []
    for k, (W, V) in enumerate(zip(model.W, model.V, strict=True)):
        alpha = softmax(np.einsum("bnd,bd->bn", X, last @ W.T + h[k]))
        mean = np.einsum("bn,bnd->bd", alpha, X)
        values = X @ V
        spread = np.einsum("bn,bno,bnd->bod", alpha, values - (mean @ V)[:, None], X)
        by_scores = spread[..., None] * factors[:, None, None]
        by_V = np.einsum("bd,op->bodp", mean, np.eye(o))
        by_head = np.concatenate([by_scores, by_V], axis=3) * sizes[k]
        parts.append(by_head.reshape(n, o, -1))
    if model.U is not None:
        by_U = np.einsum("bd,op->bodp", last, np.eye(o)).reshape(n, o, -1)
        parts.append(sizes[..., -o:].max() * by_U)
    return np.concatenate(parts, axis=2)


def keep_acting_heads(model: MultiHead, faint: float = 1e-12) -> MultiHead:
    """The heads that act beyond rounding: a fit may move one head's read-out to another."""
    sizes = np.abs(model.V).max(axis=(1, 2), initial=0.0)
    kept = sizes > faint * sizes.max(initial=0.0)
    h = None if model.h is None else model.h[kept]
    return MultiHead(model.W[kept], model.V[kept], h, model.c, model.U)


def is_small_model(model: MultiHead | None) -> bool:
    """Whether there are few enough parameters to fit all of them at once."""
    return model is not None and _count_parameters(model) <= LARGEST


def _count_parameters(model: MultiHead) -> int:
    return sum(part.size for part in (model.W, model.V, model.h, model.U) if part is not None)
