r"""Sequences on which heads of a pre-norm block score as high, and as low, as they ever do.

What a norm leaves lies on a sphere, so that scores have a largest value, which ordinary tokens
seldom come near: there a cap on scores would act unseen. $n \mapsto K^\top q(n)$ and back, each put
on the sphere, climbs to it.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.solving import linalg
from keyhole.models import TransformerBlock

_STARTS = 24
_CLIMBS = 60


def count_extreme_queries(heads: int) -> int:
    """Two sequences for every head."""
    return 2 * heads


def draw_extreme_sequences(model: TransformerBlock, rng: np.random.Generator) -> Array:
    """For every head a token of the largest and one of the least score, each beside another."""
    d, heads = model.width, model.attention
    gain, shift = model.norm1.spell_out(d)
    drawn: list[Matrix] = []
    for h in range(heads.heads):
        Q, K = heads.Wq[h] * gain, heads.Wk[heads.find_group(h)] * gain
        q = heads.Wq[h] @ shift + (0.0 if heads.bq is None else heads.bq[h])
        k = heads.Wk[heads.find_group(h)] @ shift
        for sign in (1.0, -1.0):
            y, n = _climb((Q, q), (sign * K, sign * k), rng)
            drawn.append(np.array([n, rng.normal(size=d), y]))
    return np.array(drawn)


def _climb(
    queries: tuple[Matrix, Vector], keys: tuple[Matrix, Vector], rng: np.random.Generator
) -> tuple[Vector, Vector]:
    """The last token and the other with the largest score."""
    (Q, q), (K, k) = queries, keys
    y = _put_on_sphere(rng.normal(size=(_STARTS, Q.shape[1])))
    n = y
    for _ in range(_CLIMBS):
        n = _put_on_sphere((y @ Q.T + q) @ K)
        y = _put_on_sphere((n @ K.T + k) @ Q)
    best = int(np.argmax(np.sum((y @ Q.T + q) * (n @ K.T + k), axis=1)))
    return y[best], n[best]


def _put_on_sphere(n: Matrix) -> Matrix:
    """Vectors less their means, of mean square 1."""
    centred = n - n.mean(axis=1, keepdims=True)
    length = np.maximum(linalg.norm(centred, axis=1, keepdims=True), 1e-300)
    return np.sqrt(n.shape[1]) * centred / length
