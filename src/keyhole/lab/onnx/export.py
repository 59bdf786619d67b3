"""Models as ONNX graphs in float64, with free batch and length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Array
from keyhole._files import write_atomically
from keyhole.errors import InvalidInput
from keyhole.lab.onnx.graph import Graph, TensorProto, checker, helper
from keyhole.lab.onnx.normal_share import add_normal_share
from keyhole.lab.onnx.stacks import add_stack, measure_stack
from keyhole.models import (
    AbsAffine,
    Factored,
    Gated,
    Head,
    MultiHead,
    OneLayer,
    ReluNet,
    SelfAttention,
)
from keyhole.models.layers.token_heads import TokenHeads
from keyhole.models.registry import load_model_part
from keyhole.models.stack import Transformer

# Pinned: a newer onnx must not write files that older runtimes refuse.
_OPSET, _FILE_VERSION = 17, 9
# The tanh form of GELU is z sigma(2 sqrt(2/pi) (z + 0.044715 z^3)).
_TWICE_ROOT = np.array(2 * np.sqrt(2 / np.pi))
_CUBIC = np.array(0.044715)


def _add_attention(graph: Graph, last: str, W: Array, V: Array, h: Array | None) -> str:
    """softmax(X (W x_N + h))^T X V."""
    scores = graph.add("Einsum", "tokens", graph.affine(last, W.T, h), equation="bnd,bd->bn")
    weights = graph.add("Softmax", scores, axis=-1)
    return graph.affine(graph.add("Einsum", weights, "tokens", equation="bn,bnd->bd"), V)


def add_head(graph: Graph, last: str, head: Head) -> str:
    """A head at the last token."""
    W = head.W.A @ head.W.B.T if isinstance(head.W, Factored) else head.W
    return _add_bypass(graph, last, _add_attention(graph, last, W, head.V, head.h), head)


def _add_bypass(graph: Graph, last: str, answers: str, model: Head | MultiHead) -> str:
    """What is added past the heads: a residual and a constant."""
    if model.U is not None:
        answers = graph.add("Add", answers, graph.affine(last, model.U))
    return answers if model.c is None else graph.add("Add", answers, graph.weight(model.c))


def add_heads(graph: Graph, last: str, heads: MultiHead) -> str:
    """A sum of heads at the last token."""
    biases = [None] * len(heads.W) if heads.h is None else heads.h
    each = [
        _add_attention(graph, last, W, V, h)
        for W, V, h in zip(heads.W, heads.V, biases, strict=True)
    ]
    return _add_bypass(graph, last, graph.add("Sum", *each), heads)


def add_normal_form(graph: Graph, x: str, net: AbsAffine) -> str:
    """The sum of D/2 |n x - t|, and an affine part."""
    bends = graph.affine(graph.add("Abs", graph.affine(x, net.n.T, -net.t)), net.D / 2)
    return graph.add("Add", bends, graph.affine(x, net.P.T, net.q))


def add_network(graph: Graph, x: str, net: ReluNet) -> str:
    """A network with one hidden layer."""
    hidden = graph.affine(x, net.W1.T, net.b1)
    return graph.affine(_add_activation(graph, hidden, net.activation), net.W2.T, net.b2)


def add_gated_network(graph: Graph, x: str, net: Gated) -> str:
    """A network whose hidden layer is gated."""
    gates = _add_activation(graph, graph.affine(x, net.A.T, net.a), net.activation)
    return graph.affine(graph.add("Mul", gates, graph.affine(x, net.B.T, net.b)), net.C.T, net.c)


def _add_activation(graph: Graph, z: str, activation: str) -> str:
    """An activation, by operations that runtimes have in float64."""
    if activation == "gelu":
        return graph.add("Mul", z, add_normal_share(graph, z))
    if activation == "silu":
        return graph.add("Mul", z, graph.add("Sigmoid", z))
    if activation == "gelu_tanh":
        return graph.add("Mul", z, graph.add("Sigmoid", _add_gelu_argument(graph, z)))
    if activation == "softplus":
        return _add_softplus(graph, z)
    return graph.add("Relu", z)


def _add_gelu_argument(graph: Graph, z: str) -> str:
    """2 sqrt(2/pi) (z + 0.044715 z^3)."""
    cube = graph.add("Mul", graph.add("Mul", z, z), graph.add("Mul", z, graph.weight(_CUBIC)))
    return graph.add("Mul", graph.add("Add", z, cube), graph.weight(_TWICE_ROOT))


def _add_softplus(graph: Graph, z: str) -> str:
    """max(z, 0) + log(1 + exp(-|z|))."""
    small = graph.add("Exp", graph.add("Neg", graph.add("Abs", z)))
    tail = graph.add("Log", graph.add("Add", small, graph.weight(np.array(1.0))))
    return graph.add("Add", graph.add("Relu", z), tail)


def add_one_layer(graph: Graph, last: str, layer: OneLayer) -> str:
    """A head before a network."""
    inputs = add_head(graph, last, layer.head)
    return _add_model(
        graph, graph.add("Add", inputs, last) if layer.residual else inputs, layer.net
    )


def _add_model(graph: Graph, last: str, model: Any) -> str:
    add = load_model_part(model, "export")
    if add is None:
        raise InvalidInput(f"a {type(model).__name__} cannot be written as ONNX.")
    return add(graph, last, model)


def export_onnx(model: Any, path: str | Path) -> None:
    """Write a model as ONNX: `tokens` (batch, length, width) to `answers` (batch, outputs).

    A model on token ids takes whole numbers (batch, length) and answers a logit for each.

    Args:
        model: a head, several heads, a network, a one-layer Transformer; or, read at its last
            token, a layer of any wiring, a whole block, attention of higher order, a fully
            connected or a recurrent network, a one-layer language model, or a stack of layers with
            their token maps. Maps that try inputs one by one become tables.
        path: the file to write.

    Raises:
        InvalidInput: the model is of another kind, or a table would have more than 2^20 rows.
    """
    model = model.read_last() if isinstance(model, SelfAttention) else model
    graph = Graph()
    if isinstance(model, Transformer):
        width, outputs = measure_stack(model)
        answers = add_stack(graph, model)
    else:
        width, outputs = model.width, model.outputs
        last = graph.add("Gather", "tokens", graph.weight(np.array(-1)), axis=1)
        answers = _add_model(graph, last, model)
    graph.add("Identity", answers)
    # The name is the contract of whoever asks the file.
    graph.nodes[-1].output[0] = "answers"
    # Ids are whole numbers, as the runtimes of language models take them.
    ids = isinstance(model, TokenHeads)
    form, shape = (TensorProto.INT64, []) if ids else (TensorProto.DOUBLE, [width])
    taken = helper.make_tensor_value_info("tokens", form, ["batch", "length", *shape])
    given = helper.make_tensor_value_info("answers", TensorProto.DOUBLE, ["batch", outputs])
    made = helper.make_model(
        helper.make_graph(graph.nodes, "keyhole", [taken], [given], graph.weights),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_FILE_VERSION,
        producer_name="keyhole",
    )
    check: Any = checker
    # A file that no runtime opens must not be written.
    check.check_model(made)
    write_atomically(Path(path), made.SerializeToString())
