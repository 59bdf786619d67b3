"""Whole Transformer blocks as ONNX graphs, read at the last token."""

from __future__ import annotations

from keyhole.lab.onnx.attention_layers import add_attention_layer, add_norm
from keyhole.lab.onnx.graph import Graph
from keyhole.models.blocks.norm import Norm
from keyhole.models.blocks.transformer_block import TransformerBlock
from keyhole.models.registry import load_model_part


def add_block(graph: Graph, last: str, block: TransformerBlock) -> str:
    """A block of any style."""
    r = add_attention_layer(graph, last, block.front)
    add_network = load_model_part(block.network, "export")
    if block.style == "pre":
        inner = _norm_answers(graph, r, block.norm2)
        return graph.add("Add", r, add_network(graph, inner, block.network))
    y = _norm_answers(graph, r, block.norm1)
    summed = graph.add("Add", y, add_network(graph, y, block.network))
    return _norm_answers(graph, summed, block.norm2)


def _norm_answers(graph: Graph, x: str, norm: Norm) -> str:
    return add_norm(graph, x, norm.kind, norm.eps, norm.gain, norm.shift)
