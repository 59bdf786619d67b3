r"""Sequences on which heads of a pre-norm block score as high, and as low, as they ever do.

What a norm leaves lies on a sphere, so that scores have a largest value, which ordinary tokens
seldom come near: there a cap on scores would act unseen. $n \mapsto K^\top q(n)$ and back, each put
on the sphere, climbs to it.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.solving import linalg
from keyhole.models import AttentionLayer, TransformerBlock
from keyhole.models.layers.turning import list_frequencies, turn_pairs

_STARTS = 24
_CLIMBS = 60
_PLACE = 2  # how far before the last token the other stands


def count_extreme_queries(heads: int) -> int:
    """Two sequences for every head."""
    return 2 * heads


def draw_extreme_sequences(model: TransformerBlock, rng: np.random.Generator) -> Array:
    """For every head a token of the largest and one of the least score, each beside another."""
    d, heads = model.width, model.attention
    centred = model.norm1.kind == "layer"
    gain, shift = model.norm1.spell_out(d)
    drawn: list[Matrix] = []
    for h in range(heads.heads):
        Q, K = heads.Wq[h] * gain, _turn(heads, heads.Wk[heads.find_group(h)] * gain)
        q = heads.Wq[h] @ shift + (0.0 if heads.bq is None else heads.bq[h])
        k = _turn(heads, heads.Wk[heads.find_group(h)] @ shift)
        for sign in (1.0, -1.0):
            y, n = _climb((Q, q), (sign * K, sign * k), centred, rng)
            drawn.append(np.array([n, rng.normal(size=d), y]))
    return np.array(drawn)


def _climb(
    queries: tuple[Matrix, Vector],
    keys: tuple[Matrix, Vector],
    centred: bool,
    rng: np.random.Generator,
) -> tuple[Vector, Vector]:
    """The last token and the other with the largest score."""
    (Q, q), (K, k) = queries, keys
    y = _put_on_sphere(rng.normal(size=(_STARTS, Q.shape[1])), centred)
    n = y
    for _ in range(_CLIMBS):
        n = _put_on_sphere((y @ Q.T + q) @ K, centred)
        y = _put_on_sphere((n @ K.T + k) @ Q, centred)
    best = int(np.argmax(np.sum((y @ Q.T + q) * (n @ K.T + k), axis=1)))
    return y[best], n[best]


def _turn(heads: AttentionLayer, keys: Array) -> Array:
    """Keys as the last token sees them from where they are asked."""
    if heads.wiring.positions != "rope":
        return keys
    rank, wiring = len(keys), heads.wiring
    angles = -_PLACE * list_frequencies(rank, wiring.rope_base or 1e4, wiring.rotary_share or 1.0)
    rows = keys.reshape(rank, -1).T
    return turn_pairs(rows, np.tile(angles, (len(rows), 1))).T.reshape(keys.shape)


def _put_on_sphere(n: Matrix, centred: bool) -> Matrix:
    """Vectors, less their means before a LayerNorm, of mean square 1."""
    n = n - n.mean(axis=1, keepdims=True) if centred else n
    length = np.maximum(linalg.norm(n, axis=1, keepdims=True), 1e-300)
    return np.sqrt(n.shape[1]) * n / length
