r"""All weights of a unit fitted to answers to generic sequences.

With p the softmax weights of pairs, $\partial F_o = \sum_{ij} p_{ij} (a_i b_j - F_o)\,\partial
T(y, x_i, x_j) + \sum_{ij} p_{ij}\,\partial(a_i b_j)$: the derivative by T is $y \otimes G_o$ with
$G_o = X^\top [p \circ (a b^\top - F_o)] X$, and columns of a sum of products follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Stack, Vector, softmax
from keyhole.models import TensorAttention
from keyhole.models.layers.tensor_row import TensorRow
from keyhole.oracles.own_time import check_own_time

_STEPS = 6


@dataclass(frozen=True, eq=False, slots=True)
class _Slopes:
    """What an answer moves by, per entry of every tensor; outputs beside questions."""

    answers: Matrix
    rows: Matrix


def refine_unit(row: TensorRow, X: Stack, answers: Matrix, *, keys: bool) -> TensorRow:
    """Gauss-Newton steps from a unit that is nearly right, on answers to sequences of one length.

    Args:
        row: the unit to begin with.
        X: sequences.
        answers: to them.
        keys: whether keys move; not where they name all pairs of coordinates, and Q holds all of T.
    """
    unit = row.unit
    best, least = unit, float(np.abs(row(X) - answers).max())
    for _ in range(_STEPS):
        check_own_time()
        slopes = _differentiate(unit, X, keys)
        left = (answers - slopes.answers).ravel()
        # A factor that moves between columns changes nothing: the shortest step leaves it alone.
        lengths = np.linalg.norm(slopes.rows, axis=0)
        lengths = np.where(lengths > 0, lengths, 1.0)
        step = np.linalg.lstsq(slopes.rows / lengths, left, rcond=1e-13)[0] / lengths
        unit = _move(unit, step, keys)
        gap = float(np.abs(TensorRow(unit)(X) - answers).max())
        if not np.isfinite(gap):
            break
        if gap < least:
            best, least = unit, gap
    return TensorRow(best)


def _differentiate(unit: TensorAttention, X: Stack, keys: bool) -> _Slopes:
    y = X[:, -1]
    queries = y @ unit.Q
    k1, k2 = (X @ K for K in unit.K)
    a, b = (X @ V for V in unit.V)
    scores = np.einsum("ne,nie,nje->nij", queries, k1, k2, optimize=True)
    p = softmax(scores.reshape(len(X), -1)).reshape(scores.shape)
    F = np.einsum("nij,nio,njo->no", p, a, b, optimize=True)
    # p (a b' - F), by output, then taken to the coordinates of tokens
    pull = p[..., None] * (a[:, :, None] * b[:, None] - F[:, None, None])
    by_second = np.einsum("nijo,nje->nioe", pull, k2, optimize=True)
    by_first = np.einsum("nijo,nie->njoe", pull, k1, optimize=True)
    both = np.einsum("nioe,nie->noe", by_second, k1)
    parts = [np.einsum("nd,noe->node", y, both)]
    if keys:
        parts += [
            np.einsum("nid,nioe,ne->node", X, by_second, queries, optimize=True),
            np.einsum("njd,njoe,ne->node", X, by_first, queries, optimize=True),
        ]
    parts += [
        _spread(np.einsum("nij,njo,nid->nod", p, b, X, optimize=True)),
        _spread(np.einsum("nij,nio,njd->nod", p, a, X, optimize=True)),
    ]
    count = F.size
    return _Slopes(F, np.concatenate([part.reshape(count, -1) for part in parts], axis=1))


def _spread(own: Array) -> Array:
    """Derivatives by the values: an output moves with its own column alone."""
    outputs = own.shape[1]
    return own[..., None] * np.eye(outputs)[None, :, None]


def _move(unit: TensorAttention, step: Vector, keys: bool) -> TensorAttention:
    tensors = (unit.Q, *unit.K, *unit.V) if keys else (unit.Q, *unit.V)
    ends = np.cumsum([tensor.size for tensor in tensors])[:-1]
    Q, *others = (
        tensor + part.reshape(tensor.shape)
        for tensor, part in zip(tensors, np.split(step, ends), strict=True)
    )
    K = others[:-2] if keys else unit.K
    return TensorAttention(Q, tuple(K), tuple(others[-2:]))
