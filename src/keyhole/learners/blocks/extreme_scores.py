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
_FARTHEST = 48  # the same where positions turn queries and keys, at most


def count_extreme_queries(heads: int) -> int:
    """Two sequences for every head."""
    return 2 * heads


def draw_extreme_sequences(model: TransformerBlock, rng: np.random.Generator) -> Array:
    """For every head a token of the largest and one of the least score, each beside another."""
    d, heads = model.width, model.attention
    centred = model.norm1.kind == "layer"
    gain, shift = model.norm1.spell_out(d)
    places = range(1, _FARTHEST + 1) if heads.wiring.positions == "rope" else [_PLACE]
    drawn: list[Matrix] = []
    for h in range(heads.heads):
        Q, K = heads.Wq[h] * gain, heads.Wk[heads.find_group(h)] * gain
        q = heads.Wq[h] @ shift + (0.0 if heads.bq is None else heads.bq[h])
        k = heads.Wk[heads.find_group(h)] @ shift
        place = max(places, key=lambda at: float(linalg.norm(Q.T @ _turn(heads, K, at), 2)))
        K, k = _turn(heads, K, place), _turn(heads, k, place)
        for sign in (1.0, -1.0):
            y, n = _climb((Q, q), (sign * K, sign * k), centred, rng)
            X = rng.normal(size=(places[-1] + 1, d))
            X[-1], X[-1 - place] = y, n
            drawn.append(X)
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


def _turn(heads: AttentionLayer, keys: Array, place: int) -> Array:
    """Keys as the last token sees them from so far."""
    if heads.wiring.positions != "rope":
        return keys
    rank, wiring = len(keys), heads.wiring
    angles = -place * list_frequencies(rank, wiring.rope_base or 1e4, wiring.rotary_share or 1.0)
    rows = keys.reshape(rank, -1).T
    return turn_pairs(rows, np.tile(angles, (len(rows), 1))).T.reshape(keys.shape)


def _put_on_sphere(n: Matrix, centred: bool) -> Matrix:
    """Vectors, less their means before a LayerNorm, of mean square 1."""
    n = n - n.mean(axis=1, keepdims=True) if centred else n
    length = np.maximum(linalg.norm(n, axis=1, keepdims=True), 1e-300)
    return np.sqrt(n.shape[1]) * n / length
