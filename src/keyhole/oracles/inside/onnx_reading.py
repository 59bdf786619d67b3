"""What is inside an ONNX file, and one layer cut out of its graph as an oracle.

A layer is cut where its tokens enter its projections, and where its output projection ends. The cut
is sound because nothing else enters: the sub-graph is made of that tensor and of constants. Where
masks or sizes come from the inputs of the whole model, those are fed with ids of zero, masks of one
and numbered positions of the question's shape. Answers (batch, length, outputs) are read at the
last position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Answers, Sequences
from keyhole._files import find_file
from keyhole.errors import InvalidInput
from keyhole.oracles.base import Imperfection
from keyhole.oracles.inside.described import AttentionPart, Inside, NetworkPart, NormPart, Part
from keyhole.oracles.inside.naming import suggest_layers
from keyhole.oracles.inside.onnx_graph import NORMS, Cut, Graph, inference, onnx
from keyhole.oracles.local import Local
from keyhole.oracles.onnx_file import load_session

_TYPES = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}
_NUMBERS = {"f32": np.float32, "f16": np.float16, "f64": np.float64}
_LENGTH = 6  # of the sequence that tells whether order matters


def look_inside_onnx(path: str) -> Inside:
    """Attention layers, networks and norms of an ONNX file.

    Raises:
        InvalidInput: there is no such file, or it is no ONNX.
    """
    graph = _read_graph(path)
    parts: list[Part] = []
    for name, cut in _name_cuts(graph).items():
        parts.append(_describe(graph, name, cut))
    for node in graph.model.graph.node:
        if node.op_type in NORMS:
            parts.append(_describe_norm(graph, node))
    return Inside("onnx", tuple(parts))


def carve_onnx_layer(path: str, name: str) -> CarvedLayer:
    """One layer of an ONNX file as an oracle, read at its last position.

    Raises:
        InvalidInput: there is no such layer, or it cannot be cut out.
    """
    graph = _read_graph(path)
    cuts = _name_cuts(graph)
    if name not in cuts:
        raise InvalidInput(suggest_layers(name, list(cuts)))
    return CarvedLayer(graph, name, cuts[name])


def _read_graph(path: str) -> Graph:
    find_file(Path(path), f"no ONNX file at {path}. Check the path.")
    try:
        model = onnx.load(path)
        # Nodes without what they take, or that take what they give, would be followed for ever.
        onnx.checker.check_model(path)
        return Graph(inference.infer_shapes(model, data_prop=True))
    # What a damaged file raises depends on where it is damaged.
    except Exception as error:
        raise InvalidInput(f"{path} cannot be read as ONNX: {str(error)[:300]}") from error


def _name_cuts(graph: Graph) -> dict[str, Cut]:
    """Layers by name: the scope their nodes share, numbered where that is not theirs alone."""
    cuts: dict[str, Cut] = {}
    for kind, found in (("attention", graph.find_attention()), ("network", graph.find_networks())):
        for place, cut in enumerate(found):
            scope = _name_scope(cut) or f"{kind}.{place}"
            cuts[scope if scope not in cuts else f"{scope}.{kind}.{place}"] = cut
    return cuts


def _name_scope(cut: Cut) -> str:
    """The way to the layer, where exporters wrote it into the names of its nodes."""
    names = [node.name for node in (cut.node, *cut.first, cut.last) if node is not None]
    parts = [re.split(r"[/]", name.strip("/")) for name in names]
    shared: list[str] = []
    for words in zip(*(way[:-1] for way in parts), strict=False):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    return ".".join(shared)


def _describe(graph: Graph, name: str, cut: Cut) -> AttentionPart | NetworkPart:
    sizes = [graph.read_projection(node) for node in cut.first]
    width = sizes[0][0] if sizes and sizes[0][0] else (graph.shapes.get(cut.enters[0]) or (0,))[-1]
    dtype = _TYPES.get(graph.types.get(cut.enters[0], 11), "other")
    outputs = graph.read_projection(cut.last)[1] if cut.last is not None else None
    layout = ", ".join(node.name or node.op_type for node in (*cut.first, cut.last) if node)
    if cut.activations:
        return NetworkPart(
            name=name,
            layout=layout,
            width=width or 0,
            hidden=sizes[0][1] or 0,
            outputs=outputs or 0,
            activation=_name_activation(cut.activations),
            gated=len(cut.first) == 2,
            dtype=dtype,
        )
    trouble, positions = _try_layer(graph, name, cut)
    heads = _find_heads(graph, cut)
    rows = sizes[0][1] if sizes else None
    return AttentionPart(
        name=name,
        layout=layout,
        width=width or 0,
        heads=heads,
        head_size=rows // heads if rows and heads and len(cut.first) == 3 else None,
        outputs=outputs,
        cross=len(cut.enters) > 1,
        positions="unknown" if positions else "none",
        trouble=trouble,
        dtype=dtype,
    )


def _name_activation(types: frozenset[str]) -> str:
    # The nodes that exporters write an activation out in.
    signs = {"Relu": "relu", "Erf": "gelu", "Gelu": "gelu", "Tanh": "gelu_tanh"}
    signs |= {"FastGelu": "gelu_tanh", "Sigmoid": "silu", "Softplus": "softplus"}
    return next((word for sign, word in signs.items() if sign in types), "unknown")


def _find_heads(graph: Graph, cut: Cut) -> int | None:
    said = next((a.i for a in cut.node.attribute if a.name in ("num_heads", "q_num_heads")), None)
    scores = graph.shapes.get(cut.node.input[0], ()) if cut.node.op_type == "Softmax" else ()
    return said or (scores[1] if len(scores) == 4 else None)


def _try_layer(graph: Graph, name: str, cut: Cut) -> tuple[str, bool]:
    """Why a layer cannot be asked, and whether the order of earlier tokens changes its answers."""
    if len(cut.enters) > 1:
        return "", False
    try:
        layer = CarvedLayer(graph, name, cut)
        X = np.random.default_rng(0).normal(size=(1, _LENGTH, layer.width))
        moved = X[:, [1, 3, 0, 4, 2, 5]]
        plain, other = layer.ask(np.concatenate([X, moved]))
    # Runtimes raise anything; it is said of this layer, and the others are told all the same.
    except Exception as error:
        return str(error)[:300], False
    allowed = 1e3 * layer.imperfection.roundoff * float(np.abs(plain).max())
    return "", float(np.abs(plain - other).max()) > allowed


def _describe_norm(graph: Graph, node: Any) -> NormPart:
    shape = graph.shapes.get(node.input[1], ())
    eps = next((float(a.f) for a in node.attribute if a.name == "epsilon"), 1e-5)
    return NormPart(
        name=node.name.strip("/").replace("/", "."),
        width=(shape[-1] if shape else None) or 0,
        norm=NORMS[node.op_type],
        eps=eps,
        dtype=_TYPES.get(graph.types.get(node.input[0], 11), "other"),
    )


@dataclass(slots=True)
class CarvedLayer:
    """A layer cut out of an ONNX graph, run by onnxruntime and read at its last position.

    Args:
        graph: the whole graph.
        name: of the layer.
        cut: where it is cut.
    """

    graph: Graph
    name: str
    cut: Cut
    inner: Local = field(init=False, repr=False)
    _session: Any = field(init=False, repr=False)
    _format: str = field(init=False)

    def __post_init__(self) -> None:
        if len(self.cut.enters) != 1:
            raise InvalidInput(
                f"{self.name} takes keys or values from other tokens than its queries: keyhole"
                " recovers self-attention."
            )
        enters = self.cut.enters[0]
        self._format = _TYPES.get(self.graph.types.get(enters, 0), "")
        if self._format not in _NUMBERS:
            raise InvalidInput(
                f"{self.name} takes numbers of a type that onnxruntime has no room for."
            )
        self._session = load_session(_extract(self.graph, self.name, self.cut), self.name)
        sizes = [self.graph.read_projection(node)[0] for node in self.cut.first]
        known = self.graph.shapes.get(enters) or (None,)
        self.inner = Local(self._answer, next((size for size in (*sizes, known[-1]) if size), None))

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.inner.width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer; None before the first answer."""
        return self.inner.outputs

    @property
    def imperfection(self) -> Imperfection:
        """Rounding of the type that the layer takes."""
        return Imperfection.cast(self._format)

    def ask(self, X: Sequences) -> Answers:
        """Run the sub-graph once on the whole batch."""
        return self.inner.ask(X)

    def _answer(self, X: Any) -> Any:
        tokens = np.ascontiguousarray(X, dtype=_NUMBERS[self._format])
        fed = {
            taken.name: tokens if taken.name == self.cut.enters[0] else _fill_input(taken, X)
            for taken in self._session.get_inputs()
        }
        answers = self._session.run(None, fed)[0]
        if answers.ndim != 3:
            raise InvalidInput(
                f"{self.name} answers shape {answers.shape} when cut out, not (batch, length,"
                " outputs)."
            )
        return answers[:, -1]


def _extract(graph: Graph, name: str, cut: Cut) -> bytes:
    """The sub-graph as a model of its own.

    Raises:
        InvalidInput: the library cannot cut it out.
    """
    from onnx.utils import Extractor

    extractor: Any = Extractor(graph.model)
    others = [value.name for value in graph.model.graph.input if value.name not in graph.constant]
    needed = [other for other in others if other != cut.enters[0]]
    needed = [other for other in needed if _is_needed(graph, other, cut)]
    try:
        return extractor.extract_model([cut.enters[0], *needed], [cut.leaves]).SerializeToString()
    # A tensor of unknown shape, or an operator it does not know.
    except Exception as error:
        raise InvalidInput(
            f"{name} cannot be cut out of the graph ({str(error)[:200]}): export the layer by"
            " itself, with tokens (batch, length, width) as its input."
        ) from error


def _is_needed(graph: Graph, source: str, cut: Cut) -> bool:
    """Whether the layer depends on an input of the whole model by another way than its tokens."""
    seen = {*cut.enters}
    open_ends = [cut.leaves]
    while open_ends:
        name = open_ends.pop()
        if name == source:
            return True
        node = graph.makers.get(name)
        if name not in seen and node is not None:
            seen.add(name)
            open_ends += list(node.input)
    return False


def _fill_input(taken: Any, X: Any) -> Any:
    """Zeros for ids, ones for masks, numbers for positions, one for each token."""
    batch, length, _ = X.shape
    if len(taken.shape or ()) != 2:
        raise InvalidInput(
            f"the layer depends on the input {taken.name} of shape {taken.shape}, which nobody can"
            " guess: export the layer by itself."
        )
    dtype = {"tensor(int32)": np.int32, "tensor(bool)": np.bool_}.get(taken.type, np.int64)
    if "mask" in taken.name:
        return np.ones((batch, length), dtype=dtype)
    if "position" in taken.name:
        return np.tile(np.arange(length, dtype=dtype), (batch, 1))
    return np.zeros((batch, length), dtype=dtype)
