"""Attention layers as they are built: what of them answers determine, and how far two are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole.errors import InvalidInput
from keyhole.identify.heads import relative_distance
from keyhole.models import AttentionLayer, Wiring
from keyhole.models.layers.turning import count_turned


def layer_freedom(
    wiring: Wiring,
    width: int,
    *,
    heads: int,
    rank: int,
    outputs: int,
    displacements: int = 1,
    biased: bool = False,
) -> int:
    r"""Numbers that answers of a layer determine.

    A norm costs nothing: its gain goes into the maps, and a LayerNorm takes one dimension. Value
    and output maps leave an invertible map free, $r(D + o) - r^2$; so do queries and keys, but for
    what rotary positions turn: there only a complex number per pair is free. Heads that share keys
    and values share what is free too. Where queries and keys are normed, their maps are determined,
    and of the gains that heads share their products, or with turns all but a factor per pair. A
    table has a free constant per head. Of absolute positions a
    shift of all is lost in biases where there is no norm; equal entries are lost in a LayerNorm,
    but for what a residual shows of them.

    Args:
        wiring: how the layer is wired.
        width: size of a token.
        heads: number of heads.
        rank: size of a head.
        outputs: numbers per answer.
        displacements: entries of a table, or number of absolute positions.
        biased: whether there are biases.
    """
    D = width - (wiring.norm == "layer")
    groups = wiring.groups or heads
    turned = round(rank * (wiring.rotary_share or 1.0)) if wiring.positions == "rope" else 0
    rest = rank - turned
    added = {"table": displacements - 1, "alibi": 1}.get(wiring.positions or "none", 0)
    each = rank * (D + biased) + rank * outputs + added + bool(wiring.sinks)
    free = 0 if wiring.qk_norm else turned + rest**2
    gains = rank + turned // 2 if wiring.qk_norm else 0
    shared = rank * D - rank**2 + rank * D + turned * biased - free
    placed = 0
    if wiring.positions == "absolute":
        placed = displacements * width - _count_lost(wiring, width, displacements, biased)
    return heads * each + groups * shared + gains + (outputs if biased else 0) + placed


def _count_lost(wiring: Wiring, width: int, count: int, biased: bool) -> int:
    """Numbers of absolute positions that no answer shows."""
    if wiring.norm == "layer":
        return int(biased) if wiring.residual else count
    return width if wiring.norm != "rms" and biased else 0


@dataclass(frozen=True, slots=True)
class LayerDistance:
    """How far two attention layers are apart, heads matched.

    Args:
        values: largest relative distance of what matched heads make of a value.
        scores: the same of what their scores are made of.
        positions: the same of tables, slopes or position vectors.
        constant: relative distance of what is added to every answer.
        norm: relative distance of the eps of the norms, which is found from answers too.
        heads: number of heads of both.
    """

    values: float
    scores: float
    positions: float
    constant: float
    norm: float
    heads: tuple[int, int]

    @property
    def largest(self) -> float:
        """The worst of the parts; infinite when the numbers of heads differ."""
        if self.heads[0] != self.heads[1]:
            return float("inf")
        return max(self.values, self.scores, self.positions, self.constant, self.norm)


def layer_distance(a: AttentionLayer, b: AttentionLayer) -> LayerDistance:
    r"""Distance of two layers of one wiring modulo what answers do not determine.

    Gain and shift of a norm are folded into the maps. Of values $W_o W_v$ is compared, of scores
    $W_k^\top W_q$ and, of each pair that rotary positions turn, $\bar k_f^\top q_f$ with the rows
    as complex numbers; of a table all but its constant.

    Raises:
        InvalidInput: sizes or wirings differ, or queries and keys are normed.
    """
    _check_one_wiring(a, b)
    first, second = (_read_parts(layer) for layer in (a, b))
    pairs = _assign_layer_heads(first, second)
    return LayerDistance(
        *(
            max((relative_distance(x[i], y[j]) for i, j in pairs), default=0.0)
            for x, y in (
                (first.values, second.values),
                (first.scores, second.scores),
                _cut_alike(first.positions, second.positions),
            )
        ),
        constant=relative_distance(first.constant, second.constant),
        norm=relative_distance(*(np.array([layer.wiring.eps or 0.0]) for layer in (a, b))),
        heads=(a.heads, b.heads),
    )


@dataclass(frozen=True, eq=False, slots=True)
class _Parts:
    """What of each head is determined, one row a head, and what is added to answers."""

    values: Array
    scores: Array
    positions: Array
    constant: Array


def _check_one_wiring(a: AttentionLayer, b: AttentionLayer) -> None:
    if (a.width, a.outputs) != (b.width, b.outputs):
        raise InvalidInput(
            "layers to compare must have one width and one number of outputs; got"
            f" {(a.width, a.outputs)} and {(b.width, b.outputs)}."
        )
    told, other = a.wiring.told, b.wiring.told
    # How many heads share keys is seen in the maps themselves, and eps is measured.
    known = {*told, *other} - {"groups", "eps"}
    differing = sorted(name for name in known if told.get(name) != other.get(name))
    if differing:
        raise InvalidInput(
            f"layers of one wiring are compared; these differ in {', '.join(differing)}."
        )
    if a.wiring.qk_norm or a.wiring.sinks:
        raise InvalidInput("layers with sinks or normed queries and keys are not compared yet.")


def _read_parts(layer: AttentionLayer) -> _Parts:
    shared = layer.heads // layer.groups
    queries, keys, values = (
        fold_norm(layer, W, b)
        for W, b in ((layer.Wq, layer.bq), (layer.Wk, layer.bk), (layer.Wv, layer.bv))
    )
    keys, values = (np.repeat(part, shared, axis=0) for part in (keys, values))
    made = layer.Wo @ values
    scores = [_list_score_parts(layer, q, k).ravel() for q, k in zip(queries, keys, strict=True)]
    return _Parts(made[..., :-1], np.array(scores), *_read_added(layer, read_constant(layer)))


def read_constant(layer: AttentionLayer) -> Array:
    """What is added to every answer, biases of values included where weights sum to 1."""
    constant = np.zeros(layer.outputs) if layer.bo is None else layer.bo
    if layer.sinks is not None:
        return constant
    biases = fold_norm(layer, layer.Wv, layer.bv)[..., -1]
    shared = np.repeat(biases, layer.heads // layer.groups, axis=0)
    return constant + np.einsum("hor,hr->o", layer.Wo, shared)


def fold_norm(layer: AttentionLayer, W: Array, b: Array | None) -> Array:
    """Maps of what a norm leaves, the constant as the last column."""
    gain = np.ones(layer.width) if layer.gain is None else layer.gain
    shift = np.zeros(layer.width) if layer.shift is None else layer.shift
    if layer.positions is not None and layer.wiring.norm == "none":
        # A shift of all position vectors is lost in the biases: the first is taken as 0.
        shift = shift + layer.positions[0]
    folded = W * gain
    if layer.wiring.norm == "layer":
        folded = folded - folded.mean(axis=-1, keepdims=True)
    constant = W @ shift + (0.0 if b is None else b)
    return np.concatenate([folded, constant[..., None]], axis=-1)


def _list_score_parts(layer: AttentionLayer, q: Matrix, k: Matrix) -> Array:
    """What of a head's scores shows: a key bias of what is not turned is the same for all keys."""
    turned = 0
    if layer.wiring.positions == "rope":
        turned = count_turned(len(q), layer.wiring.rotary_share or 1.0)
    half = turned // 2
    pairs = [x[:half] + 1j * x[half:turned] for x in (k, q)]
    complex_parts = np.conj(pairs[0])[:, :, None] * pairs[1][:, None, :]
    still = k[turned:].T @ q[turned:]
    if layer.wiring.softcap is None:
        still = still[:-1]
    parts = (complex_parts.real, complex_parts.imag, still)
    return np.concatenate([part.ravel() for part in parts])


def _read_added(layer: AttentionLayer, constant: Array) -> tuple[Array, Array]:
    """Tables without their constant, slopes, or vectors; with what is left of the constant."""
    if layer.positions is not None:
        vectors, shown = read_positions(layer, layer.positions)
        return np.repeat(vectors.reshape(1, -1), layer.heads, axis=0), constant + shown
    if layer.table is None:
        return np.zeros((layer.heads, 0)), constant
    slopes = layer.wiring.positions == "alibi"
    return (layer.table if slopes else layer.table - layer.table[:, :1]), constant


def read_positions(layer: AttentionLayer, vectors: Matrix) -> tuple[Matrix, Array | float]:
    """Position vectors as far as they show, and what a residual adds of the rest."""
    residual = bool(layer.wiring.residual)
    if layer.wiring.norm == "none":
        return vectors - vectors[0], vectors[0] if residual else 0.0
    if layer.wiring.norm == "rms":
        return vectors, 0.0
    # Equal entries are lost in the norm; a residual carries them, those of the first a constant.
    lost = vectors[:1].mean() if residual else vectors.mean(axis=1, keepdims=True)
    return vectors - lost, float(lost) if residual else 0.0


def _cut_alike(x: Array, y: Array) -> tuple[Array, Array]:
    """Tables up to the displacement that both know."""
    known = min(x.shape[1], y.shape[1])
    return x[:, :known], y[:, :known]


def _assign_layer_heads(a: _Parts, b: _Parts) -> list[tuple[int, int]]:
    from scipy.optimize import linear_sum_assignment

    cost = np.array(
        [
            [
                relative_distance(V, T) + relative_distance(S, R)
                for T, R in zip(b.values, b.scores, strict=True)
            ]
            for V, S in zip(a.values, a.scores, strict=True)
        ]
    )
    rows, columns = linear_sum_assignment(cost)
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True)]
