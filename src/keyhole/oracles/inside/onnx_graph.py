"""Attention, networks and norms in an ONNX graph, found by how its nodes are joined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

try:
    import onnx as _onnx
    from onnx import helper as _helper
    from onnx import numpy_helper as _numpy_helper
    from onnx import shape_inference as _inference
except ImportError as missing:
    raise ImportError("reading an ONNX file needs onnx: pip install 'keyhole[onnx]'.") from missing

onnx: Any = _onnx  # its types are partial
helper: Any = _helper
numpy_helper: Any = _numpy_helper
inference: Any = _inference

_LINEAR = ("MatMul", "Gemm")
# Nodes that multiply scores by values themselves; the first takes tokens and one joined matrix.
_WHOLE = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
_MOVING = ("Transpose", "Reshape", "Cast", "Identity", "Squeeze", "Dropout", "Unsqueeze")
_BENT = ("Relu", "Gelu", "Erf", "Tanh", "Sigmoid", "Softplus", "Mul", "Div", "Pow", "Sqrt", "Add")
_BENT += ("Sub", "Identity", "Cast", "FastGelu", "QuickGelu", "Dropout", "Swish")
NORMS = {
    "LayerNormalization": "layer",
    "SkipLayerNormalization": "layer",
    "RMSNormalization": "rms",
    "SimplifiedLayerNormalization": "rms",
    "SkipSimplifiedLayerNormalization": "rms",
}


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a graph: the tensor that enters it, the one that leaves it, and its projections.

    Args:
        node: the node it was found by.
        enters: the tensors that enter; several where queries and keys come from different ones.
        leaves: the tensor that leaves.
        first: the projections behind the tensors that enter.
        last: the projection in front of the one that leaves; None where there is none.
        activations: types of the nodes between the projections of a network.
    """

    node: Any
    enters: tuple[str, ...]
    leaves: str
    first: tuple[Any, ...]
    last: Any = None
    activations: frozenset[str] = frozenset()


@dataclass(slots=True)
class Graph:
    """A graph with who makes and who takes each tensor, and which are the same for all inputs."""

    model: Any
    makers: dict[str, Any] = field(init=False)
    takers: dict[str, list[Any]] = field(init=False)
    constant: set[str] = field(init=False)
    shapes: dict[str, tuple[int | None, ...]] = field(init=False)
    types: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.makers = {out: node for node in graph.node for out in node.output}
        self.takers = {}
        self.constant = {tensor.name for tensor in graph.initializer}
        for node in graph.node:
            for name in node.input:
                self.takers.setdefault(name, []).append(node)
            # Nodes stand in order: whatever is made of constants alone is one.
            if all(not name or name in self.constant for name in node.input):
                self.constant |= set(node.output)
        values = [*graph.value_info, *graph.input, *graph.output]
        self.types = {value.name: value.type.tensor_type.elem_type for value in values}
        self.shapes = {value.name: _read_dims(value) for value in values}
        self.shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}

    def follow_only(self, tensor: str) -> Any:
        """The node that takes a tensor, where only one does."""
        takers = self.takers.get(tensor, [])
        return takers[0] if len(takers) == 1 else None

    def is_projection(self, node: Any) -> bool:
        """Whether a node multiplies tokens by a matrix of the model."""
        fixed = [name in self.constant for name in node.input[:2]]
        return node.op_type in _LINEAR and fixed == [False, True]

    def find_projections(self, tensor: str, bent: bool = False) -> list[Any]:
        """The projections that a tensor is made of, the nearest on every way back."""
        found: list[Any] = []
        seen = {tensor}
        open_ends = [tensor]
        while open_ends:
            node = self.makers.get(open_ends.pop())
            # Sizes are no data, and of a network only activations stand between projections.
            if node is None or node.op_type == "Shape":
                continue
            if self.is_projection(node):
                found += [] if any(node is one for one in found) else [node]
                continue
            if bent and node.op_type not in _BENT:
                return []
            taken = [name for name in node.input if name and name not in self.constant]
            taken = taken[:1] if node.op_type in _MOVING else taken
            open_ends += [name for name in taken if name not in seen]
            seen |= set(taken)
        return found

    def read_projection(self, node: Any) -> tuple[int | None, int | None]:
        """Numbers that a projection takes and gives, where shapes tell."""
        shape = self.shapes.get(node.input[1], ())
        if len(shape) != 2:
            return None, None
        turned = any(a.name == "transB" and a.i for a in node.attribute)
        return (shape[1], shape[0]) if turned else (shape[0], shape[1])

    def end_behind(self, tensor: str) -> tuple[str, Any]:
        """The tensor behind the projection that takes a tensor, its bias added; and the node."""
        node = self.follow_only(tensor)
        while node is not None and node.op_type in _MOVING:
            tensor = node.output[0]
            node = self.follow_only(tensor)
        if node is None or not self.is_projection(node):
            return tensor, None
        tensor = node.output[0]
        behind = self.follow_only(tensor)
        # Only what the model adds to every token is the projection's own, and no residual.
        while behind is not None and (self._adds_constant(behind) or behind.op_type == "Reshape"):
            tensor = behind.output[0]
            behind = self.follow_only(tensor)
        return tensor, node

    def _adds_constant(self, node: Any) -> bool:
        return node.op_type == "Add" and any(name in self.constant for name in node.input)

    def find_attention(self) -> Iterator[Cut]:
        """Softmax between two products, and nodes that are attention by themselves."""
        for node in self.model.graph.node:
            if node.op_type in _WHOLE:
                yield from self._cut_whole(node)
            elif node.op_type == "Softmax":
                yield from self._cut_softmax(node)

    def _cut_whole(self, node: Any) -> Iterator[Cut]:
        leaves, last = self.end_behind(node.output[0])
        # Of Microsoft's Attention the second input is the joined matrix, not keys.
        if len(node.input) > 1 and node.input[1] in self.constant:
            yield Cut(node, (node.input[0],), leaves, (), last)
            return
        first = [one for name in node.input[:3] for one in self.find_projections(name)]
        yield self._join(node, first, leaves, last)

    def _cut_softmax(self, node: Any) -> Iterator[Cut]:
        mixing = self.follow_only(node.output[0])
        while mixing is not None and mixing.op_type in ("Cast", "Dropout", "Identity"):
            mixing = self.follow_only(mixing.output[0])
        product = self._find_product(node.input[0])
        # A softmax that nothing is weighed by is the end of a classifier.
        if mixing is None or product is None or mixing.op_type not in ("MatMul", "Einsum"):
            return
        values = [name for name in mixing.input if name not in node.output]
        ends = [*product.input, *values]
        first = [one for name in ends for one in self.find_projections(name)]
        leaves, last = self.end_behind(mixing.output[0])
        if first:
            yield self._join(node, first, leaves, last)

    def _join(self, node: Any, first: list[Any], leaves: str, last: Any) -> Cut:
        enters = tuple(dict.fromkeys(one.input[0] for one in first))
        return Cut(node, enters, leaves, tuple(first), last)

    def _find_product(self, tensor: str) -> Any:
        """The product of queries and keys that scores are made of."""
        open_ends = [tensor]
        for _ in range(64):
            node = self.makers.get(open_ends.pop()) if open_ends else None
            if node is None and not open_ends:
                return None
            if node is None:
                continue
            live = [name for name in node.input if name and name not in self.constant]
            if node.op_type in ("MatMul", "Einsum", "Gemm") and len(live) == 2:
                return node
            # A mask is added or chosen: the scores may be on either side of it.
            open_ends += reversed(live)
        return None

    def find_networks(self) -> Iterator[Cut]:
        """Two projections with nothing but activations between them."""
        for node in self.model.graph.node:
            if not self.is_projection(node):
                continue
            first = self.find_projections(node.input[0], bent=True)
            enters = tuple(dict.fromkeys(one.input[0] for one in first))
            between = self._list_between(node.input[0], first)
            if len(enters) == 1 and len(first) in (1, 2) and between & set(_BENT[:6]):
                leaves, _ = self.end_behind(node.input[0])
                yield Cut(first[0], enters, leaves, tuple(first), node, frozenset(between))

    def _list_between(self, tensor: str, first: list[Any]) -> set[str]:
        """Types of the nodes between projections and a tensor."""
        types: set[str] = set()
        ends = {out for one in first for out in one.output}
        open_ends = [tensor]
        seen = set(ends)
        while open_ends:
            name = open_ends.pop()
            node = self.makers.get(name)
            if name in seen or node is None:
                continue
            seen.add(name)
            types.add(node.op_type)
            open_ends += [one for one in node.input if one and one not in self.constant]
        return types


def _read_dims(value: Any) -> tuple[int | None, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
