"""Feed-forward networks cut out of the ONNX graph of PP-OCRv4, run by onnxruntime in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trained.wheels import OCR_GRAPH, member

BLOCKS = (79, 83)  # the first of the two linear maps of each


def carve_ocr_networks(wheel: Path) -> list[CarvedNetwork]:
    """The two networks of SiLU units, as the recogniser itself computes them."""
    import onnx

    model = onnx.load_model_from_string(member(wheel, OCR_GRAPH))
    return [CarvedNetwork(_cut_out(model, first)) for first in BLOCKS]


def _cut_out(model: Any, first: int) -> bytes:
    """A model of the nodes from one linear map to the bias of the next."""
    from onnx import TensorProto, helper

    made_by = {name: node for node in model.graph.node for name in node.output}
    reader = {name: node for node in model.graph.node for name in node.input}
    entry = reader[f"linear_{first}.w_0"].input[0]
    leaving = reader[f"linear_{first + 1}.b_0"].output[0]
    weights = {one.name: one for one in model.graph.initializer}
    needed: list[Any] = []
    todo = [leaving]
    while todo:
        name = todo.pop()
        node = made_by.get(name)
        if name == entry or node is None or any(node is one for one in needed):
            continue
        needed.append(node)
        todo += node.input
    graph = helper.make_graph(
        [node for node in model.graph.node if any(node is one for one in needed)],
        "feed-forward network",
        [helper.make_tensor_value_info(entry, TensorProto.FLOAT, ["batch", None])],
        [helper.make_tensor_value_info(leaving, TensorProto.FLOAT, ["batch", None])],
        [weights[name] for node in needed for name in node.input if name in weights],
    )
    cut = helper.make_model(graph, opset_imports=model.opset_import)
    cut.ir_version = model.ir_version
    return bytes(cut.SerializeToString())


class CarvedNetwork:
    """Answers of a cut-out graph to the last token."""

    def __init__(self, model: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        (self.entry,) = (one.name for one in self.session.get_inputs())

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Answers, in the float32 numbers that they are."""
        asked = X[:, -1].astype(np.float32)
        return np.asarray(self.session.run(None, {self.entry: asked})[0], dtype=np.float64)
