r"""When a gap of an attention layer is not rounding.

As in `models.yardsticks`, absolute values entry by entry. A norm moves $n_i$ by a few
$e\,\nu_i$ with $\nu_i = |g| (|x_i| + |p_i| + |\bar x_i|)/\sigma_i + |s|$: what it subtracts may
cancel. Queries, keys and values are then as those of tokens of size $\nu$: with $Q = |W_q|\nu_N +
|b_q|$ and $K_i = |W_k|\nu_i + |b_k|$ rounding moves a score by a few $e S_i$, $S_i = Q^\top K_i/
\sqrt r + |T(N-i)|$, and a value by a few $e T_i$, $T_i = |W_o|(|W_v|\nu_i + |b_v|)$. An angle of
$\Delta$ steps is rounded too: with rotary positions $S_i$ is $(1 + \Delta)$ times as large. A norm
of queries and keys divides by their spread, as the first norm does. Heads add up, and the residual
adds $4e(|x_N| + |p_N|)$.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keyhole._arrays import Array, Float, Matrix, Sequences
from keyhole.models.layers.layer_maps import LayerMaps
from keyhole.models.layers.norms import measure_spread
from keyhole.models.layers.turning import list_displacements
from keyhole.models.yardsticks import Reach, Yardstick, blur_entries, bound_mixture


def measure_layer(layer: LayerMaps, X: Sequences, eps: float) -> Yardstick:
    """The yardstick of a layer, per sequence."""
    return reach_layer(layer, X, eps).summarise()


def reach_layer(layer: LayerMaps, X: Sequences, eps: float) -> Reach:
    """The same per output, for what stands behind the layer."""
    scores = layer.logits(X)
    n = layer.normed(X)
    values = layer.values(n)
    sizes = _bound_tokens(layer, X)
    total = _measure_bypass(layer, X, eps)
    for h in range(layer.heads):
        size = np.abs(values[:, layer.find_group(h)] @ layer.Wo[h].T).max(axis=1)
        fine, coarse = (
            bound_mixture(
                scores[:, h],
                _bound_scores(layer, h, n, sizes, known),
                _bound_values(layer, h, sizes, known),
                eps,
            )
            for known in (np.abs, blur_entries)
        )
        total += Reach(size, fine, coarse)
    return total


def _bound_tokens(layer: LayerMaps, X: Sequences) -> Sequences:
    """Sizes of the tokens behind the norm as their rounding goes by."""
    size, placed = np.abs(X), X
    if layer.positions is not None:
        at = layer.positions[: X.shape[1]]
        size, placed = size + np.abs(at), placed + at
    if layer.wiring.norm == "layer":
        size = size + size.mean(axis=-1, keepdims=True)
    _, spread = measure_spread(placed, layer.wiring.norm or "none", layer.wiring.eps or 0.0)
    size = size / np.where(spread > 0, spread, 1.0)
    size = size if layer.gain is None else size * np.abs(layer.gain)
    return size if layer.shift is None else size + np.abs(layer.shift)


def _measure_bypass(layer: LayerMaps, X: Sequences, eps: float) -> Reach:
    """What the residual and the constant add; a constant adds to no size."""
    none = np.zeros((len(X), layer.outputs))
    steady = none if layer.bo is None else none + np.abs(layer.bo)
    if not layer.wiring.residual:
        return Reach(none, 4.0 * eps * steady, 4.0 * eps * steady)
    last = np.abs(X[:, -1])
    at = 0.0 if layer.positions is None else np.abs(layer.positions[X.shape[1] - 1])
    rounding = 4.0 * eps * (last + at + steady)
    return Reach(last, rounding, rounding)


def _bound_scores(
    layer: LayerMaps,
    h: int,
    n: Sequences,
    sizes: Sequences,
    known: Callable[[Array], Array],
) -> Float[Array, "batch length"]:
    """The S of the formula above."""
    g = layer.find_group(h)
    bq = None if layer.bq is None else layer.bq[h]
    bk = None if layer.bk is None else layer.bk[g]
    Q = _bound_vectors(layer, n[:, -1:], sizes[:, -1:], layer.Wq[h], bq, layer.q_gain, known)
    K = _bound_vectors(layer, n, sizes, layer.Wk[g], bk, layer.k_gain, known)
    S = (K @ Q.swapaxes(1, 2))[..., 0] / np.sqrt(layer.rank)
    displaced = list_displacements(sizes.shape[1])
    if layer.wiring.positions == "rope":
        S = S * (1.0 + displaced)
    if layer.table is None:
        return S
    alibi = layer.wiring.positions == "alibi"
    return S + np.abs(layer.table[h] * displaced if alibi else layer.table[h, displaced])


def _bound_vectors(
    layer: LayerMaps,
    n: Sequences,
    sizes: Sequences,
    W: Matrix,
    b: Array | None,
    gain: Array | None,
    known: Callable[[Array], Array],
) -> Float[Array, "batch length rank"]:
    """Sizes of queries or keys of a head, as their rounding goes by."""
    size = sizes @ known(W).T + (0.0 if b is None else known(b))
    if not layer.wiring.qk_norm:
        return size
    vectors = n @ W.T + (0.0 if b is None else b)
    _, spread = measure_spread(vectors, "rms", layer.wiring.eps or 0.0)
    size = size / np.where(spread > 0, spread, 1.0)
    return size if gain is None else size * np.abs(gain)


def _bound_values(
    layer: LayerMaps, h: int, sizes: Sequences, known: Callable[[Array], Array]
) -> Float[Array, "batch length outputs"]:
    """The T of the formula above."""
    g = layer.find_group(h)
    values = sizes @ known(layer.Wv[g]).T
    values = values if layer.bv is None else values + known(layer.bv[g])
    return values @ known(layer.Wo[h]).T
