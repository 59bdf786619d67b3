r"""Scores fitted to every answer of a run, once the network behind them is known.

With weights $a = \mathrm{softmax}(X(Wy + h))$, mean $\bar x = \sum_i a_i x_i$ and covariance $C =
\sum_i a_i (x_i - \bar x) x_i^\top$, a change of the scores moves what the network is given by

$$\delta z = V^\top C\,(\delta W\, y + \delta h),$$

and the answer by the network's slope there; beside a residual $z = y + V^\top(\bar x - y)$
gives the change by V. Each answer is weighed by its own rounding, so that
long tokens, which magnify an error of W, tell most of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Stack, Vector, rms, softmax
from keyhole.models import AbsAffine, Head, OneLayer
from keyhole.models.transformer import Network
from keyhole.oracles.own_time import check_own_time

_STEPS = 3
_MOST_NUMBERS = 1200  # of W and h, beyond which a dense solve takes too long
_EACH = 6  # answers per number fitted, at most
_LEAST_BY_DIFFERENCES = 1e-8  # the same where slopes are differences
_DIFFERENCE = 1e-5  # for slopes of smooth networks, beside the points
_LEAST = 1e-13  # of the largest singular value, below which answers do not determine a direction


def refine_scores(
    model: OneLayer, kept: list[tuple[Stack, Matrix]], *, rng: np.random.Generator
) -> OneLayer:
    """The layer with W, h and its mixing after a few Gauss-Newton steps; as it is where none helps.

    Args:
        model: the layer as it was measured.
        kept: questions with their answers, one pair of arrays per length.
        rng: chooses among more answers than are needed.
    """
    numbers = model.width * (model.width * (1 + model.residual) + (model.head.h is not None))
    if numbers > _MOST_NUMBERS:
        return model
    asked = _choose_answers(kept, _EACH * numbers, rng)
    best, misfit = model, _measure_misfit(model, asked)
    for _ in range(_STEPS):
        check_own_time()
        candidate = _take_step(best, asked)
        now = _measure_misfit(candidate, asked)
        if not np.linalg.norm(now) < 0.9 * np.linalg.norm(misfit):
            break
        best, misfit = candidate, now
    return best


def _choose_answers(
    kept: list[tuple[Stack, Matrix]], most: int, rng: np.random.Generator
) -> list[tuple[Stack, Matrix]]:
    """Answers to several tokens, evenly from every length where there are too many."""
    longer = [(X, y) for X, y in kept if X.shape[1] > 1]
    share = max(1, most // max(1, len(longer)))
    chosen: list[tuple[Stack, Matrix]] = []
    for X, y in longer:
        rows = rng.permutation(len(X))[:share]
        chosen.append((X[rows], y[rows]))
    return chosen


def _measure_misfit(model: OneLayer, asked: list[tuple[Stack, Matrix]]) -> Vector:
    """Gaps in units of what rounding explains."""
    parts = [((y - model(X)) / _measure_unit(model, X)).ravel() for X, y in asked]
    return np.concatenate([np.zeros(0), *parts])


def _measure_unit(model: OneLayer, X: Stack) -> Matrix:
    rounding = model.yardstick(X, EPS).rounding[:, None]
    return np.maximum(rounding, 1e-300)


def _take_step(model: OneLayer, asked: list[tuple[Stack, Matrix]]) -> OneLayer:
    rows = np.concatenate([_differentiate(model, X) for X, _ in asked])
    right = _measure_misfit(model, asked)
    sizes = np.linalg.norm(rows, axis=0)
    scaled = rows / np.where(sizes > 0, sizes, 1.0)
    least = _LEAST if isinstance(model.net, AbsAffine) else _LEAST_BY_DIFFERENCES
    step = np.linalg.lstsq(scaled, right, rcond=least)[0] / np.where(sizes > 0, sizes, 1.0)
    return replace(model, head=_move_scores(model.head, step))


def _move_scores(head: Head, step: Vector) -> Head:
    d = head.width
    W, step = np.asarray(head.W) + step[: d * d].reshape(d, d), step[d * d :]
    h, step = (None, step) if head.h is None else (head.h + step[:d], step[d:])
    if head.U is None:
        return replace(head, W=W, h=h)
    V = head.V + step.reshape(d, -1)
    return replace(head, W=W, h=h, V=V, U=-V)


def _differentiate(model: OneLayer, X: Stack) -> Matrix:
    """Rows of derivatives by W, h and V, one per number answered, in units of rounding."""
    head = model.head
    a = softmax(head.scores(X))
    mean = np.einsum("bn,bnd->bd", a, X)
    C = np.einsum("bn,bnp,bnq->bpq", a, X - mean[:, None], X)
    z = head(X) + (X[:, -1] if model.residual else 0.0)
    slopes = _measure_slopes(model.net, z) / _measure_unit(model, X)[..., None]
    by_query = (slopes @ head.V.T) @ C
    parts = [by_query[..., None] * X[:, None, None, -1]]
    if head.h is not None:
        parts.append(by_query)
    if head.U is not None:
        parts.append((mean - X[:, -1])[:, None, :, None] * slopes[:, :, None])
    return np.hstack([part.reshape(len(X) * model.outputs, -1) for part in parts])


def _measure_slopes(net: Network, z: Matrix) -> Stack:
    """Slopes of a network at points, of a piecewise linear one off its hyperplanes."""
    if isinstance(net, AbsAffine):
        signs = np.sign(z @ net.n.T - net.t)
        return net.P + np.einsum("bk,km,kd->bmd", signs, net.D / 2, net.n)
    step = _DIFFERENCE * max(rms(z), 1e-300)
    moved = step * np.eye(net.width)
    ahead, back = (
        net.points((z[:, None] + side * moved).reshape(-1, net.width)) for side in (1, -1)
    )
    return ((ahead - back) / (2 * step)).reshape(len(z), net.width, -1).transpose(0, 2, 1)
