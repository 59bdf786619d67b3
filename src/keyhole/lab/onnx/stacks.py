"""Stacks of token maps and attention layers as ONNX graphs, read at the last token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from keyhole.constructions.shared.coded_tokens import CodedTokens, Perceptron
from keyhole.errors import InvalidInput
from keyhole.lab.onnx.graph import Graph, TensorProto
from keyhole.lab.onnx.sequences import add_tensor_rows
from keyhole.lab.onnx.token_maps import OUTPUTS, WIDTHS, WRITERS
from keyhole.models.attention import SelfAttention
from keyhole.models.layers.causal_attention import CausalAttention
from keyhole.models.linear import LinearAttention
from keyhole.models.stack import Block, Layer, TokenMap, Transformer
from keyhole.models.tensor import TensorAttention, TensorHeads


def add_stack(graph: Graph, model: Transformer) -> str:
    """Every block over the whole sequence, then the row of the last token."""
    rows = "tokens"
    for block in model.blocks:
        rows = _add_mapped_layer(graph, rows, block)
    rows = rows if model.out is None else _add_map(graph, rows, model.out)
    return graph.add("Gather", rows, graph.weight(np.array(-1)), axis=1)


def measure_stack(model: Transformer) -> tuple[int, int]:
    """Numbers of a token, and of an answer.

    Raises:
        InvalidInput: the stack begins or ends with a token map that has no form in ONNX.
    """
    first, out = model.blocks[0].map, model.out
    if isinstance(first, CodedTokens):
        width = first.plain + first.coded
    elif isinstance(first, Perceptron):
        width = len(first.W1)
    elif type(first) in WIDTHS:
        width = WIDTHS[type(first)](first)
    else:
        raise _refuse_map(first)
    if out is None:
        return width, model.blocks[-1].layer.outputs
    if isinstance(out, Perceptron):
        return width, (out.W2 if out.Wo is None else out.Wo).shape[1]
    if type(out) in OUTPUTS:
        return width, OUTPUTS[type(out)](out)
    raise _refuse_map(out)


def _refuse_map(token_map: TokenMap) -> InvalidInput:
    return InvalidInput(
        f"a Transformer with the token map {token_map.name!r} cannot be written as ONNX: it tries"
        " inputs one by one, or stands where it reads no tokens. The layers, model.blocks[i].layer,"
        " can be written one by one."
    )


def _add_map(graph: Graph, x: str, token_map: TokenMap) -> str:
    if isinstance(token_map, CodedTokens):
        return _add_coded_tokens(graph, x, token_map)
    if isinstance(token_map, Perceptron):
        return _add_perceptron(graph, x, token_map)
    if type(token_map) in WRITERS:
        return WRITERS[type(token_map)](graph, x, token_map)
    raise _refuse_map(token_map)


def _add_mapped_layer(graph: Graph, x: str, block: Block) -> str:
    tokens = _add_map(graph, x, block.map)
    if block.blank is not None:
        one = graph.add("Slice", tokens, *(graph.weight([k]) for k in (0, 1, 1)))
        blank = graph.add("Expand", graph.weight(block.blank[None, None]), graph.add("Shape", one))
        tokens = graph.add("Concat", blank, tokens, axis=1)
    rows = _add_sequence_layer(graph, tokens, block.layer)
    rows = graph.add("Add", rows, tokens) if block.residual else rows
    if block.blank is None:
        return rows
    return graph.add("Slice", rows, *(graph.weight([k]) for k in (1, 2**62, 1)))


def _add_sequence_layer(graph: Graph, x: str, layer: Layer) -> str:
    """A layer of summed heads, from sequences to sequences."""
    if isinstance(layer, TensorAttention | TensorHeads):
        heads = layer.heads if isinstance(layer, TensorHeads) else (layer,)
        return graph.add("Sum", *(add_tensor_rows(graph, x, head) for head in heads))
    if not isinstance(layer, SelfAttention | CausalAttention | LinearAttention):
        raise InvalidInput(
            f"a Transformer with a layer of {type(layer).__name__} cannot be written as ONNX;"
            " softmax, causal and linear attention, and attention of higher order, can."
        )
    weigh = _WEIGHERS[type(layer)]
    # A fourth axis for the heads: (batch, 1, length, width) times (heads, width, embed).
    apart = graph.add("Unsqueeze", x, graph.weight([1]))
    q, k, v = (graph.affine(apart, M) for M in (layer.Q, layer.K, layer.V))
    scores = graph.add("MatMul", q, graph.add("Transpose", k, perm=[0, 1, 3, 2]))
    heads = graph.add("MatMul", weigh(graph, scores), v)
    return graph.add("ReduceSum", heads, graph.weight([1]), keepdims=0)


def _weigh_all(graph: Graph, scores: str) -> str:
    return graph.add("Softmax", scores, axis=-1)


def _weigh_earlier(graph: Graph, scores: str) -> str:
    """Softmax over the tokens up to a row's own."""
    size = graph.add("Shape", scores)
    length = graph.add("Gather", size, graph.weight(np.array(3)), axis=0)
    zero, one = graph.weight(np.array(0)), graph.weight(np.array(1))
    at = graph.add("Range", zero, length, one)
    row = graph.add("Unsqueeze", at, graph.weight([1]))
    seen = graph.add("LessOrEqual", graph.add("Unsqueeze", at, graph.weight([0])), row)
    hidden = graph.weight(np.array(-np.inf))
    return _weigh_all(graph, graph.add("Where", seen, scores, hidden))


def _weigh_by_score(graph: Graph, scores: str) -> str:
    return scores


_WEIGHERS: dict[type[Any], Callable[[Graph, str], str]] = {
    SelfAttention: _weigh_all,
    CausalAttention: _weigh_earlier,
    LinearAttention: _weigh_by_score,
}


def _add_coded_tokens(graph: Graph, x: str, token_map: CodedTokens) -> str:
    parts = list[str]()
    if token_map.plain:
        parts.append(graph.add("Gather", x, graph.weight(list(range(token_map.plain))), axis=2))
    if token_map.coded:
        parts.append(_add_codes(graph, x, token_map))
    coded = graph.add("Concat", *parts, axis=2)
    coded = coded if token_map.mixing is None else graph.affine(coded, token_map.mixing)
    if token_map.places is not None:
        return graph.add("Add", coded, graph.weight(token_map.places))
    return _append_constants(graph, coded, [1.0, 0.0]) if token_map.flagged else coded


def _add_codes(graph: Graph, x: str, token_map: CodedTokens) -> str:
    """Columns that are whole numbers as their codes, -1 as zeros."""
    columns = list(range(token_map.plain, token_map.plain + token_map.coded))
    named = graph.add("Round", graph.add("Gather", x, graph.weight(columns), axis=2))
    # -1 would be the last row: below, row 0 is the one of zeros.
    table = np.vstack([np.zeros((1, token_map.codes.shape[1])), token_map.codes])
    moved = graph.add("Relu", graph.add("Add", named, graph.weight(1.0)))
    at = graph.add("Cast", moved, to=TensorProto.INT64)
    coded = graph.add("Gather", graph.weight(table), at, axis=0)
    return graph.add("Reshape", coded, graph.weight([0, 0, token_map.coded * table.shape[1]]))


def _append_constants(graph: Graph, x: str, constants: list[float]) -> str:
    """Tokens with the same numbers behind each."""
    size = graph.add("Shape", x)
    places = graph.add("Slice", size, graph.weight([0]), graph.weight([2]))
    shape = graph.add("Concat", places, graph.weight([len(constants)]), axis=0)
    flags = graph.add("Expand", graph.weight(np.array(constants)), shape)
    return graph.add("Concat", x, flags, axis=2)


def _add_perceptron(graph: Graph, x: str, net: Perceptron) -> str:
    hidden = graph.add("Relu", graph.affine(x, net.W1, net.b1))
    h = graph.add("Add", x, graph.affine(hidden, net.W2, net.b2))
    if net.Wo is None or net.bo is None:
        return h
    h = graph.affine(h, net.Wo, net.bo)
    return h if net.squash == "none" else graph.add("Sigmoid", h)
