"""Sequence models as ONNX graphs, read at the last token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keyhole.errors import InvalidInput
from keyhole.lab.onnx.graph import Graph, TensorProto, helper
from keyhole.models.baselines import STATES, UNROUNDED, Cell, Mlp, Recurrent
from keyhole.models.layers.tensor_row import TensorRow
from keyhole.models.layers.token_heads import TokenHeads
from keyhole.models.tensor import TensorAttention, TensorHeads

_LETTERS = "nkpqrstuvw"  # one for every position of a tuple


def add_tensor_attention(graph: Graph, last: str, unit: TensorAttention) -> str:
    """One softmax over all tuples of positions, and the average of their products of values."""
    row = graph.add("Unsqueeze", last, graph.weight([1]))
    return graph.add("Squeeze", _add_tuples(graph, row, "tokens", unit), graph.weight([1]))


def add_tensor_rows(graph: Graph, tokens: str, unit: TensorAttention) -> str:
    """The same for every token of a sequence."""
    return _add_tuples(graph, tokens, tokens, unit)


def _add_tuples(graph: Graph, asking: str, tokens: str, unit: TensorAttention) -> str:
    if len(unit.K) > len(_LETTERS):
        raise InvalidInput(
            f"attention of order {unit.order} cannot be written as ONNX; {len(_LETTERS) + 1} is the"
            " most."
        )
    at = _LETTERS[: len(unit.K)]
    keys = [graph.affine(tokens, K) for K in unit.K]
    values = [graph.affine(tokens, V) for V in unit.V]
    tuples = ",".join(f"b{letter}e" for letter in at)
    query = graph.affine(asking, unit.Q)
    scores = graph.add("Einsum", query, *keys, equation=f"bie,{tuples}->bi{at}")
    flat = graph.add("Reshape", scores, graph.weight([0, 0, -1]))
    shares = graph.add("Reshape", graph.add("Softmax", flat, axis=-1), graph.add("Shape", scores))
    tuples = ",".join(f"b{letter}o" for letter in at)
    return graph.add("Einsum", shares, *values, equation=f"bi{at},{tuples}->bio")


def add_tensor_row(graph: Graph, last: str, row: TensorRow) -> str:
    """The unit that is read: every graph answers at the last token."""
    return add_tensor_attention(graph, last, row.unit)


def add_tensor_heads(graph: Graph, last: str, layer: TensorHeads) -> str:
    """The answers of all heads, added up."""
    return graph.add("Sum", *(add_tensor_attention(graph, last, head) for head in layer.heads))


def add_token_heads(graph: Graph, last: str, model: TokenHeads) -> str:
    """A one-layer language model: its heads on the one-hot forms of ids."""
    del last
    each: list[str] = []
    for scores, values in zip(model.scores, model.values, strict=True):
        # The score of every earlier id for the last one: a row of S for each, its last column.
        asking = graph.add("Gather", "tokens", graph.weight(np.array(-1)), axis=1)
        rows = graph.add("Gather", graph.weight(scores.T), asking, axis=0)
        column = graph.add("GatherElements", rows, "tokens", axis=1)
        weights = graph.add("Softmax", column, axis=-1)
        read = graph.add("Gather", graph.weight(values), "tokens", axis=0)
        each.append(graph.add("Einsum", weights, read, equation="bn,bnv->bv"))
    return graph.add("Sum", *each)


def add_mlp(graph: Graph, last: str, model: Mlp) -> str:
    """All tokens side by side through the network; the rows of the last token."""
    x = graph.add("Flatten", _encode_tokens(graph, model), axis=1)
    for k, (W, b) in enumerate(zip(model.W, model.b, strict=True)):
        rows = slice(-model.outputs, None) if k + 1 == len(model.W) else slice(None)
        x = graph.affine(x if k == 0 else graph.add("Relu", x), W[rows].T, b[rows])
    return x


def add_recurrent(graph: Graph, last: str, model: Recurrent) -> str:
    """A scan over the tokens that carries the state; an affine map of the last top layer."""
    tokens = _encode_tokens(graph, model)
    batch = graph.add("Gather", graph.add("Shape", "tokens"), graph.weight([0]), axis=0)
    size = graph.add("Concat", batch, graph.weight([model.remembered]), axis=0)
    tokens = graph.add("Concat", *[tokens] * model.passes, axis=1) if model.passes > 1 else tokens
    zero = helper.make_tensor("zero", TensorProto.DOUBLE, [1], [0.0])
    start = graph.add("ConstantOfShape", size, value=zero)
    body = _make_scan_body(model)
    ends = {"num_scan_inputs": 1, "scan_input_axes": [1], "body": body}
    state = graph.add("Scan", start, tokens, **ends)
    units = model.cells[-1].units
    # Answers come from h of the last cell, which stands first in its part of the state.
    top = model.remembered - STATES[model.cell] * units
    return graph.affine(_slice_columns(graph, state, top, top + units), model.Wo.T, model.bo)


def _encode_tokens(graph: Graph, model: Mlp | Recurrent) -> str:
    """Tokens as the model reads them: positions as codes, no position (-1) as zeros."""
    if model.codes is None:
        return "tokens"
    rest = [k for k in range(model.width) if k not in model.z]
    named = graph.add("Round", graph.add("Gather", "tokens", graph.weight(rest), axis=2))
    # -1 would be the last row: it is looked up as 0, and blanked out below.
    known = graph.add("Cast", graph.add("Relu", named), to=TensorProto.INT64)
    coded = graph.add("Gather", graph.weight(model.codes), known, axis=0)
    there = graph.add("Unsqueeze", graph.add("Less", graph.weight(-0.5), named), graph.weight([3]))
    coded = graph.add("Where", there, coded, graph.weight(0.0))
    flat = graph.add("Reshape", coded, graph.weight([0, 0, len(rest) * model.codes.shape[1]]))
    return graph.add(
        "Concat", graph.add("Gather", "tokens", graph.weight(list(model.z)), axis=2), flat, axis=2
    )


def _slice_columns(graph: Graph, x: str, start: int, end: int) -> str:
    return graph.add("Slice", x, graph.weight([start]), graph.weight([end]), graph.weight([1]))


def _make_scan_body(model: Recurrent) -> Any:
    """The body of the scan: the state behind one more token."""
    # Names of a graph inside another must not be those of the outer one.
    graph = Graph(prefix="step_")
    x = "token"
    after = list[str]()
    start = 0
    add = _add_gru if model.cell == "gru" else _add_lstm
    for cell in model.cells:
        held = _slice_columns(graph, "state", start, start + STATES[model.cell] * cell.units)
        parts = add(graph, cell, held, x)
        after += parts
        x = parts[0]
        start += STATES[model.cell] * cell.units
    state = graph.add("Concat", *after, axis=1) if len(after) > 1 else after[0]
    graph.add("Identity", _round_state(graph, model, state))
    graph.nodes[-1].output[0] = "next"
    sizes = {"state": model.remembered, "token": model.inputs, "next": model.remembered}
    ends = {
        name: helper.make_tensor_value_info(name, TensorProto.DOUBLE, [None, size])
        for name, size in sizes.items()
    }
    return helper.make_graph(
        graph.nodes, "step", [ends["state"], ends["token"]], [ends["next"]], graph.weights
    )


def _split_gates(graph: Graph, x: str, units: int, count: int) -> Sequence[str]:
    return [_slice_columns(graph, x, k * units, (k + 1) * units) for k in range(count)]


def _add_gru(graph: Graph, cell: Cell, h: str, x: str) -> list[str]:
    r, u, n = _split_gates(graph, graph.affine(x, cell.Wx.T, cell.bx), cell.units, 3)
    rh, uh, nh = _split_gates(graph, graph.affine(h, cell.Wh.T, cell.bh), cell.units, 3)
    keep, let = (graph.add("Sigmoid", graph.add("Add", a, b)) for a, b in ((u, uh), (r, rh)))
    new = graph.add("Tanh", graph.add("Add", n, graph.add("Mul", let, nh)))
    return [graph.add("Add", new, graph.add("Mul", keep, graph.add("Sub", h, new)))]


def _add_lstm(graph: Graph, cell: Cell, held: str, x: str) -> list[str]:
    h, c = _split_gates(graph, held, cell.units, 2)
    both = graph.add(
        "Add", graph.affine(x, cell.Wx.T, cell.bx), graph.affine(h, cell.Wh.T, cell.bh)
    )
    i, f, g, o = _split_gates(graph, both, cell.units, 4)
    kept = graph.add("Mul", graph.add("Sigmoid", f), c)
    c = graph.add("Add", kept, graph.add("Mul", graph.add("Sigmoid", i), graph.add("Tanh", g)))
    return [graph.add("Mul", graph.add("Sigmoid", o), graph.add("Tanh", c)), c]


def _round_state(graph: Graph, model: Recurrent, state: str) -> str:
    """The nearest state on the grid."""
    if model.state_bits == UNROUNDED:
        return state
    # The grid has 2^bits points from -range to range.
    levels = 2.0**model.state_bits - 1.0
    cut = graph.add(
        "Clip",
        graph.add("Div", state, graph.weight(model.state_range)),
        graph.weight(-1.0),
        graph.weight(1.0),
    )
    half = graph.add("Div", graph.add("Add", cut, graph.weight(1.0)), graph.weight(2.0))
    whole = graph.add("Round", graph.add("Mul", half, graph.weight(levels)))
    between = graph.add(
        "Sub", graph.add("Mul", whole, graph.weight(2.0 / levels)), graph.weight(1.0)
    )
    return graph.add("Mul", between, graph.weight(model.state_range))
