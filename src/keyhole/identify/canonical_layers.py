"""The form that attention layers with one function share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole.identify.layers import fold_norm, read_constant, read_positions
from keyhole.models import AttentionLayer
from keyhole.models.layers.turning import count_turned

_LOST = 1e-13  # singular values below this share of the largest are rounding


def canonical_layer(layer: AttentionLayer) -> AttentionLayer:
    r"""The form that layers with one function share, but for heads that are alike or idle.

    Gain and shift of the norm are in the maps, which are blind to what the norm takes away. The
    products $W_o W_v$ and, of what is not turned, $W_k^\top W_q$ of a group are split evenly by
    their singular values; every pair that rotary positions turn has queries as large as keys and
    its largest key entry real. Biases of values are in the constant, and those of keys 0, where no
    answer shows them; tables begin with 0. Groups are sorted by the size of $W_o W_v$, and so are
    the heads of a group. Normed queries and keys are left as they are.
    """
    groups = sorted((_settle_group(layer, g) for g in range(layer.groups)), key=_measure_values)
    parts = {
        name: np.concatenate([getattr(group, name) for group in groups])
        for name in ("Wq", "bq", "Wo")
    }
    parts |= {name: np.array([getattr(group, name) for group in groups]) for name in _SHARED}
    order = [h for group in groups for h in group.order]
    constant, positions = read_constant(layer), None
    if layer.positions is not None:
        positions, shown = read_positions(layer, layer.positions)
        constant = constant + shown
    return replace(
        layer,
        **parts,
        **_settle_scores_added(layer, order),
        bo=constant,
        positions=positions,
        gain=None,
        shift=None,
    )


_SHARED = ("Wk", "bk", "Wv", "bv")


@dataclass(frozen=True, eq=False, slots=True)
class _SettledGroup:
    """The heads of one group in their order, and the maps that they share."""

    order: list[int]
    Wq: Array
    bq: Array
    Wk: Matrix
    bk: Array
    Wv: Matrix
    bv: Array
    Wo: Array


def _measure_values(group: _SettledGroup) -> float:
    return -float(np.linalg.norm(group.Wo @ group.Wv))


def _settle_group(layer: AttentionLayer, g: int) -> _SettledGroup:
    order = _sort_heads(layer, [h for h in range(layer.heads) if layer.find_group(h) == g])
    queries = fold_norm(layer, layer.Wq, layer.bq)[order]
    keys = fold_norm(layer, layer.Wk, layer.bk)[g]
    values = fold_norm(layer, layer.Wv, layer.bv)[g]
    if not layer.wiring.qk_norm:
        queries, keys = _settle_scores(layer, queries, keys)
    Wo, values = _settle_values(layer, layer.Wo[order], values)
    return _SettledGroup(
        order,
        queries[..., :-1],
        queries[..., -1],
        keys[:, :-1],
        keys[:, -1],
        values[:, :-1],
        values[:, -1],
        Wo,
    )


def _sort_heads(layer: AttentionLayer, heads: list[int]) -> list[int]:
    """The largest $W_o W_v$ first, behind the norm."""
    values = fold_norm(layer, layer.Wv, None)[..., :-1]
    return sorted(
        heads, key=lambda h: -float(np.linalg.norm(layer.Wo[h] @ values[layer.find_group(h)]))
    )


def _settle_values(layer: AttentionLayer, Wo: Array, values: Matrix) -> tuple[Array, Matrix]:
    """Output and value maps of a group, split evenly."""
    # Weights that sum to 1 make a bias of values a constant; sinks do not let them.
    if layer.sinks is None:
        values = np.concatenate([values[:, :-1], np.zeros((len(values), 1))], axis=1)
    right, left = _split_evenly(values, Wo.reshape(-1, Wo.shape[2]))
    return left.reshape(Wo.shape), right


def _settle_scores(layer: AttentionLayer, queries: Array, keys: Matrix) -> tuple[Array, Matrix]:
    """Queries and keys of a group: turned pairs of one size, the rest split evenly."""
    turned = 0
    if layer.wiring.positions == "rope":
        turned = count_turned(layer.rank, layer.wiring.rotary_share or 1.0)
    queries, keys = queries.copy(), keys.copy()
    # A bias of keys that are not turned adds the same to every score: caps and sinks show it.
    if layer.wiring.softcap is None and layer.sinks is None:
        keys[turned:, -1] = 0.0
    for f in range(turned // 2):
        _settle_pair(queries, keys, [f, f + turned // 2])
    rest = layer.rank - turned
    if rest == 0:
        return queries, keys
    beside = queries[:, turned:].swapaxes(1, 2).reshape(-1, rest)
    keys[turned:], beside = _split_evenly(keys[turned:], beside)
    queries[:, turned:] = beside.reshape(len(queries), -1, rest).swapaxes(1, 2)
    return queries, keys


def _settle_pair(queries: Array, keys: Matrix, at: Sequence[int]) -> None:
    r"""Multiply keys by c and queries by $1/\bar c$, in place, so that both are of one size."""
    k = keys[at[0]] + 1j * keys[at[1]]
    q = queries[:, at[0]] + 1j * queries[:, at[1]]
    sizes = float(np.linalg.norm(k)), float(np.linalg.norm(q))
    if min(sizes) == 0.0:
        return
    largest = k[np.argmax(np.abs(k))]
    c = np.sqrt(sizes[1] / sizes[0]) * np.conj(largest) / abs(largest)
    k, q = c * k, q / np.conj(c)
    keys[at[0]], keys[at[1]] = k.real, k.imag
    queries[:, at[0]], queries[:, at[1]] = q.real, q.imag


def _split_evenly(right: Matrix, left: Matrix) -> tuple[Matrix, Matrix]:
    """Factors of `left @ right` with one size, rows of `right` orthogonal, their peaks positive."""
    # Triangular factors keep the decomposition small and its last digits.
    Q, R = np.linalg.qr(left)
    P, S = np.linalg.qr(right.T)
    U, s, Vt = np.linalg.svd(R @ S.T)
    s = np.where(s > _LOST * s.max(), s, 0.0)
    rows, columns = Vt[: len(s)] @ P.T, Q @ U[:, : len(s)]
    peaks = np.sign(rows[np.arange(len(s)), np.abs(rows).argmax(axis=1)])
    sizes = peaks * np.sqrt(s)
    # A head may be larger than its maps have room: what is left of it is 0.
    even = np.zeros_like(right), np.zeros_like(left)
    even[0][: len(s)], even[1][:, : len(s)] = sizes[:, None] * rows, columns * sizes
    return even


def _settle_scores_added(layer: AttentionLayer, order: list[int]) -> dict[str, Array | None]:
    """Tables from 0 on, and sinks beside them."""
    table, sinks = layer.table, layer.sinks
    if table is not None and layer.wiring.positions == "table":
        first = table[:, :1]
        table = table - first
        sinks = None if sinks is None else sinks - first[:, 0]
    return {
        "table": None if table is None else table[order],
        "sinks": None if sinks is None else sinks[order],
    }
