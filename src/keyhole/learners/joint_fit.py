r"""Gauss-Newton on all heads at once, for models that fresh queries almost confirm.

Isolating one head while another is nearly equal to it, or a thousand times weaker, costs digits that soft answers of
both still hold. With weights $\alpha_i$ and token values $v_i = V^\top x_i$ of a head, and $f = \sum_i \alpha_i v_i$,
$$\partial f / \partial W = \sum_i \alpha_i (v_i - f)\, x_i x_N^\top, \qquad
\partial f / \partial V = \sum_i \alpha_i x_i.$$
The least-squares steps are truncated: what answers do not determine is left as it was.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, softmax
from keyhole.learners.verify import inside, token_scales
from keyhole.models import Head, MultiHead
from keyhole.oracles import Counted

LARGEST = 1200  # parameters; beyond that the dense step is slow
_LENGTHS = (2, 3, 4, 6)
_STEPS = 8


def polished(
    oracle: Counted, model: MultiHead, roundoff: float, rng: np.random.Generator, *, bound: float | None = None
) -> MultiHead:
    """The model fitted to fresh sequences, half as many again as it has parameters, with tokens within the bound."""
    parameters = model.W.size + model.V.size
    fresh = _sequences(model, -(-3 * parameters // (2 * model.outputs)) + 16, rng)
    asked = [(X, oracle.ask(X.copy())) for X in inside(fresh, bound)]
    best, misfit = model, _misfit(model, asked)
    for _ in range(_STEPS):
        candidate = _step(best, asked, roundoff)
        now = _misfit(candidate, asked)
        if not np.linalg.norm(now) < 0.9 * np.linalg.norm(misfit):
            break
        best, misfit = candidate, now
    return best


def _sequences(model: MultiHead, count: int, rng: np.random.Generator) -> list[Stack]:
    """Batches of every length and of the scale of every head in turn."""
    scales = np.array([s for W, V in zip(model.W, model.V, strict=True) for s in token_scales(Head(W, V), rng=rng)[:3]])
    share = -(-count // len(_LENGTHS))
    lengths = rng.permutation(np.resize(scales, share))[:, None, None] / np.sqrt(model.width)
    return [lengths * rng.normal(size=(share, length, model.width)) for length in _LENGTHS]


def _misfit(model: MultiHead, asked: list[tuple[Stack, Matrix]]) -> Vector:
    """Answers less those of the model, in units of token values."""
    parts = [(answers - model(X)) / _unit(model, X)[:, None] for X, answers in asked]
    return np.concatenate([part.ravel() for part in parts])


def _unit(model: MultiHead, X: Stack) -> Vector:
    size = model.magnitude(X)
    return np.where(size > 0, size, 1.0)


def _step(model: MultiHead, asked: list[tuple[Stack, Matrix]], roundoff: float) -> MultiHead:
    """One least-squares step; W is measured by its own size, so is V."""
    heads, d, o = model.V.shape
    sizes = [np.abs(part).max(axis=(1, 2), keepdims=True) for part in (model.W, model.V)]
    blocks = [_slopes(model, X, sizes[0], sizes[1]) / _unit(model, X)[:, None, None] for X, _ in asked]
    J = np.concatenate([block.reshape(-1, block.shape[2]) for block in blocks])
    change = np.linalg.lstsq(J, _misfit(model, asked), rcond=64 * roundoff)[0].reshape(heads, d, d + o)
    return MultiHead(model.W + sizes[0] * change[..., :d], model.V + sizes[1] * change[..., d:], None, model.c)


def _slopes(model: MultiHead, X: Stack, w: Stack, v: Stack) -> Stack:
    """Derivatives of every answer by every scaled parameter, (batch, outputs, parameters)."""
    n, o = len(X), model.outputs
    parts: list[np.ndarray] = []
    for h, (W, V) in enumerate(zip(model.W, model.V, strict=True)):
        alpha = softmax(np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T))
        mean = np.einsum("bn,bnd->bd", alpha, X)
        values = X @ V
        spread = np.einsum("bn,bno,bnd->bod", alpha, values - (mean @ V)[:, None], X)
        by_W = w[h] * spread[..., None] * X[:, None, None, -1]
        by_V = v[h] * np.einsum("bd,op->bodp", mean, np.eye(o))
        parts.append(np.concatenate([by_W, by_V], axis=3).reshape(n, o, -1))
    return np.concatenate(parts, axis=2)
