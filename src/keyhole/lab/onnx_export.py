"""Models as ONNX graphs in float64, with free batch and length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Array
from keyhole.errors import InvalidInput
from keyhole.models import AbsAffine, Factored, Head, MultiHead, OneLayer, ReluNet, SelfAttention
from keyhole.models.files import write_atomically

try:
    from onnx import TensorProto, checker, helper, numpy_helper
except ImportError as missing:
    raise ImportError("writing an ONNX file needs onnx: pip install 'keyhole[onnx]'.") from missing

_OPSET, _FILE_VERSION = 17, 9


class _Graph:
    """Nodes and weights, in the order they are needed."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, values: Any) -> str:
        name = f"weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, order="C"), name))
        return name

    def add(self, kind: str, *inputs: str, **options: Any) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **options))
        return name

    def affine(self, x: str, M: Array, c: Array | None = None) -> str:
        """X M + c."""
        product = self.add("MatMul", x, self.weight(M))
        return product if c is None else self.add("Add", product, self.weight(c))


def _attention(graph: _Graph, last: str, W: Array, V: Array, h: Array | None) -> str:
    """softmax(X (W x_N + h))^T X V."""
    scores = graph.add("Einsum", "tokens", graph.affine(last, W.T, h), equation="bnd,bd->bn")
    weights = graph.add("Softmax", scores, axis=-1)
    return graph.affine(graph.add("Einsum", weights, "tokens", equation="bn,bnd->bd"), V)


def _head(graph: _Graph, last: str, head: Head) -> str:
    W = head.W.A @ head.W.B.T if isinstance(head.W, Factored) else head.W
    answers = _attention(graph, last, W, head.V, head.h)
    if head.U is not None:
        answers = graph.add("Add", answers, graph.affine(last, head.U))
    return answers if head.c is None else graph.add("Add", answers, graph.weight(head.c))


def _heads(graph: _Graph, last: str, heads: MultiHead) -> str:
    biases = [None] * len(heads.W) if heads.h is None else heads.h
    each = [_attention(graph, last, W, V, h) for W, V, h in zip(heads.W, heads.V, biases, strict=True)]
    answers = graph.add("Sum", *each)
    return answers if heads.c is None else graph.add("Add", answers, graph.weight(heads.c))


def _network(graph: _Graph, x: str, net: ReluNet | AbsAffine) -> str:
    if isinstance(net, AbsAffine):
        bends = graph.affine(graph.add("Abs", graph.affine(x, net.n.T, -net.t)), net.D / 2)
        return graph.add("Add", bends, graph.affine(x, net.P.T, net.q))
    hidden = graph.affine(x, net.W1.T, net.b1)
    if net.activation == "gelu":
        raise InvalidInput("a network of GELU units cannot be written as ONNX: its runtime has no float64 for them.")
    active = graph.add("Relu", hidden)
    if net.activation == "silu":
        active = graph.add("Mul", hidden, graph.add("Sigmoid", hidden))
    return graph.affine(active, net.W2.T, net.b2)


def _one_layer(graph: _Graph, last: str, layer: OneLayer) -> str:
    inputs = _head(graph, last, layer.head)
    return _network(graph, graph.add("Add", inputs, last) if layer.residual else inputs, layer.net)


def _answers(graph: _Graph, last: str, model: Any) -> str:
    if isinstance(model, Head):
        return _head(graph, last, model)
    if isinstance(model, MultiHead):
        return _heads(graph, last, model)
    if isinstance(model, OneLayer):
        return _one_layer(graph, last, model)
    if isinstance(model, ReluNet | AbsAffine):
        return _network(graph, last, model)
    raise InvalidInput(f"a {type(model).__name__} cannot be written as ONNX.")


def export_onnx(model: Any, path: str | Path) -> None:
    """Write a model as an ONNX file: `tokens` (batch, length, width) to `answers` (batch, outputs), in float64.

    Args:
        model: a head, several heads, a layer (read at its last token), a network or a one-layer Transformer.
        path: the file to write.

    Raises:
        InvalidInput: the model is of another kind, or its activation has no float64 in ONNX runtimes.
    """
    model = model.read_last() if isinstance(model, SelfAttention) else model
    graph = _Graph()
    last = graph.add("Gather", "tokens", graph.weight(np.array(-1)), axis=1)
    graph.add("Identity", _answers(graph, last, model))
    graph.nodes[-1].output[0] = "answers"
    taken = helper.make_tensor_value_info("tokens", TensorProto.DOUBLE, ["batch", "length", model.width])
    given = helper.make_tensor_value_info("answers", TensorProto.DOUBLE, ["batch", model.outputs])
    made = helper.make_model(
        helper.make_graph(graph.nodes, "keyhole", [taken], [given], graph.weights),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_FILE_VERSION,
        producer_name="keyhole",
    )
    check: Any = checker
    check.check_model(made)
    write_atomically(Path(path), made.SerializeToString())
