"""Attention layers as they are built as ONNX graphs, read at the last token."""

from __future__ import annotations

from typing import Any

import numpy as np

from keyhole._arrays import Array
from keyhole.lab.onnx.graph import Graph, TensorProto
from keyhole.models.layers.attention_layer import AttentionLayer
from keyhole.models.layers.turning import list_frequencies


def add_attention_layer(graph: Graph, last: str, layer: AttentionLayer) -> str:
    """A layer of any wiring; lengths that it has no positions for are refused by the runtime."""
    del last  # of the bare tokens: here it is read behind positions and norm
    placed = _add_positions(graph, layer)
    n = _add_layer_norm(graph, placed, layer)
    weights = _add_weights(graph, n, layer)
    mixed = graph.add("MatMul", weights, _add_vectors(graph, n, layer.Wv, layer.bv))
    joined = graph.add("Reshape", mixed, graph.weight([0, layer.heads * layer.Wo.shape[2]]))
    # Heads are joined and added up by one matrix, (heads x rank) x outputs.
    Wo = layer.Wo.swapaxes(1, 2).reshape(-1, layer.outputs)
    answers = graph.affine(joined, Wo, layer.bo)
    if layer.wiring.residual:
        answers = graph.add("Add", answers, _take_last(graph, placed))
    return answers


def _take_last(graph: Graph, tokens: str) -> str:
    return graph.add("Gather", tokens, graph.weight(np.array(-1)), axis=1)


def _add_length(graph: Graph) -> str:
    """The number of tokens."""
    sizes = graph.add("Shape", "tokens")
    return graph.add("Gather", sizes, graph.weight(np.array(1)), axis=0)


def _add_displacements(graph: Graph, backwards: bool = True) -> str:
    """Numbers of tokens that follow each token, or that precede it."""
    zero, one = (graph.weight(np.array(k)) for k in (0, 1))
    length = _add_length(graph)
    steps = graph.add("Range", zero, length, one)
    # Subtracted also forwards: onnxruntime turns a look-up by a bare Range into a slice, which is
    # empty backwards, and cut or repeated silently where there are too few rows.
    first = graph.add("Sub", length, one) if backwards else zero
    return graph.add("Abs", graph.add("Sub", first, steps))


def _add_positions(graph: Graph, layer: AttentionLayer) -> str:
    """Tokens with what their positions add."""
    if layer.positions is None:
        return "tokens"
    numbers = _add_displacements(graph, backwards=False)
    at = graph.add("Gather", graph.weight(layer.positions), numbers, axis=0)
    return graph.add("Add", "tokens", at)


def _add_layer_norm(graph: Graph, x: str, layer: AttentionLayer) -> str:
    """Tokens as queries, keys and values read them."""
    wiring = layer.wiring
    return add_norm(graph, x, wiring.norm or "none", wiring.eps or 0.0, layer.gain, layer.shift)


def add_norm(
    graph: Graph, x: str, kind: str, eps: float, gain: Array | None, shift: Array | None
) -> str:
    """Vectors, along the last axis, behind a norm."""
    if kind == "none":
        return x
    if kind == "layer":
        x = graph.add("Sub", x, graph.add("ReduceMean", x, axes=[-1], keepdims=1))
    n = _scale_rows(graph, _divide_by_spread(graph, x, eps), gain)
    return n if shift is None else graph.add("Add", n, graph.weight(shift))


def _divide_by_spread(graph: Graph, x: str, eps: float) -> str:
    """Vectors over the root of their mean square and eps; 0 stays 0."""
    one = graph.weight(np.array(1.0))
    # Scaled first, as in `models.layers.norms`: the square of a huge token would overflow.
    top = graph.add("ReduceMax", graph.add("Abs", x), axes=[-1], keepdims=1)
    largest = graph.add("Max", top, one)
    scaled = graph.add("Div", x, largest)
    square = graph.add("ReduceMean", graph.add("Mul", scaled, scaled), axes=[-1], keepdims=1)
    share = graph.add("Div", graph.weight(np.array(eps)), graph.add("Mul", largest, largest))
    spread = graph.add("Mul", largest, graph.add("Sqrt", graph.add("Add", square, share)))
    there = graph.add("Less", graph.weight(np.array(0.0)), spread)
    return graph.add("Div", x, graph.add("Where", there, spread, one))


def _scale_rows(graph: Graph, vectors: str, gain: Array | None) -> str:
    return vectors if gain is None else graph.add("Mul", vectors, graph.weight(gain))


def _add_vectors(graph: Graph, n: str, W: Array, b: Array | None) -> str:
    """Keys or values: batch x groups x length x rank."""
    groups, r, width = W.shape
    flat = graph.affine(n, W.reshape(-1, width).T, None if b is None else b.ravel())
    split = graph.add("Reshape", flat, graph.weight([0, 0, groups, r]))
    return graph.add("Transpose", split, perm=[0, 2, 1, 3])


def _norm_heads(graph: Graph, vectors: str, layer: AttentionLayer, gain: Array | None) -> str:
    if not layer.wiring.qk_norm:
        return vectors
    return _scale_rows(graph, _divide_by_spread(graph, vectors, layer.wiring.eps or 0.0), gain)


def _add_queries(graph: Graph, n: str, layer: AttentionLayer) -> str:
    """Queries of the last token, divided by the root of r and the cap.

    They are batch x groups x heads of a group x rank.
    """
    bq = None if layer.bq is None else layer.bq.ravel()
    flat = graph.affine(_take_last(graph, n), layer.Wq.reshape(-1, layer.width).T, bq)
    shape = [0, layer.groups, layer.heads // layer.groups, layer.rank]
    split = graph.add("Reshape", flat, graph.weight(shape))
    normed = _norm_heads(graph, split, layer, layer.q_gain)
    # One factor per entry: onnxruntime joins a single one with the product behind it, in float32.
    factor = 1.0 / (np.sqrt(layer.rank) * (layer.wiring.softcap or 1.0))
    return _scale_rows(graph, normed, np.full(layer.rank, factor))


def _add_keys(graph: Graph, n: str, layer: AttentionLayer) -> str:
    """Keys, turned as seen from the last position: batch x groups x length x rank."""
    keys = _norm_heads(graph, _add_vectors(graph, n, layer.Wk, layer.bk), layer, layer.k_gain)
    if layer.wiring.positions != "rope":
        return keys
    wiring = layer.wiring
    theta = list_frequencies(layer.rank, wiring.rope_base or 1.0, wiring.rotary_share or 1.0)
    steps = graph.add("Cast", _add_displacements(graph), to=TensorProto.DOUBLE)
    column = graph.add("Unsqueeze", steps, graph.weight([1]))
    return _turn_pairs(graph, keys, graph.add("Mul", column, graph.weight(-theta)), len(theta))


def _turn_pairs(graph: Graph, vectors: str, angles: str, pairs: int) -> str:
    """Pairs (f, f + pairs) turned by their angles; what is behind them stays."""
    a, b = (_slice_last(graph, vectors, k * pairs, (k + 1) * pairs) for k in (0, 1))
    rest = _slice_last(graph, vectors, 2 * pairs, None)
    cos, sin = graph.add("Cos", angles), graph.add("Sin", angles)
    first = graph.add("Sub", graph.add("Mul", a, cos), graph.add("Mul", b, sin))
    second = graph.add("Add", graph.add("Mul", b, cos), graph.add("Mul", a, sin))
    return graph.add("Concat", first, second, rest, axis=-1)


def _slice_last(graph: Graph, x: str, start: int, end: int | None) -> str:
    """Entries of the last axis from start to end; to the last where there is no end."""
    stop = np.iinfo(np.int64).max if end is None else end
    return graph.add("Slice", x, graph.weight([start]), graph.weight([stop]), graph.weight([-1]))


def _add_weights(graph: Graph, n: str, layer: AttentionLayer) -> str:
    """Weights of the tokens: batch x groups x heads of a group x length."""
    keys = graph.add("Transpose", _add_keys(graph, n, layer), perm=[0, 1, 3, 2])
    scores = graph.add("MatMul", _add_queries(graph, n, layer), keys)
    if layer.wiring.softcap is not None:
        cap = graph.weight(np.array(layer.wiring.softcap))
        scores = graph.add("Mul", graph.add("Tanh", scores), cap)
    scores = _mask_window(graph, _bias_scores(graph, scores, layer), layer)
    if layer.sinks is None:
        return graph.add("Softmax", scores, axis=-1)
    return _add_softmax_with_sinks(graph, scores, layer)


def _bias_scores(graph: Graph, scores: str, layer: AttentionLayer) -> str:
    """Scores with what displacement adds."""
    if layer.table is None:
        return scores
    each = layer.table.reshape(layer.groups, -1, layer.table.shape[1])
    displaced = _add_displacements(graph)
    if layer.wiring.positions == "alibi":
        steps = graph.add("Cast", displaced, to=TensorProto.DOUBLE)
        return graph.add("Sub", scores, graph.add("Mul", graph.weight(each), steps))
    return graph.add("Add", scores, graph.add("Gather", graph.weight(each), displaced, axis=2))


def _mask_window(graph: Graph, scores: str, layer: AttentionLayer) -> str:
    """Scores, minus infinity outside the window."""
    if layer.wiring.window is None:
        return scores
    limit = graph.weight(np.array(layer.wiring.window))
    near = graph.add("Less", _add_displacements(graph), limit)
    return graph.add("Where", near, scores, graph.weight(np.array(-np.inf)))


def _add_softmax_with_sinks(graph: Graph, scores: str, layer: AttentionLayer) -> str:
    """Softmax over tokens and one sink per head, which is then left out."""
    held: Any = layer.sinks
    each = graph.weight(held.reshape(layer.groups, -1, 1))
    batch = graph.add("Slice", graph.add("Shape", scores), graph.weight([0]), graph.weight([1]))
    shape = graph.add(
        "Concat", batch, graph.weight([layer.groups, layer.heads // layer.groups, 1]), axis=0
    )
    with_sinks = graph.add("Concat", scores, graph.add("Expand", each, shape), axis=-1)
    return _slice_last(graph, graph.add("Softmax", with_sinks, axis=-1), 0, -1)
