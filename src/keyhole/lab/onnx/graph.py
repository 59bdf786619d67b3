"""Nodes and weights of an ONNX graph, written one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from keyhole._arrays import Array

try:
    from onnx import TensorProto, checker, helper, numpy_helper
except ImportError as missing:
    raise ImportError("writing an ONNX file needs onnx: pip install 'keyhole[onnx]'.") from missing

__all__ = ["Graph", "TensorProto", "checker", "helper"]


class Graph:
    """Nodes and weights, in the order they are needed.

    Args:
        prefix: in front of every name; a graph inside another needs names of its own.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, values: Any) -> str:
        """The name under which an array is kept."""
        name = f"{self.prefix}weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, order="C"), name))
        return name

    def add(self, kind: str, *inputs: str, **options: Any) -> str:
        """The name of what an operation gives."""
        name = f"{self.prefix}{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **options))
        return name

    def affine(self, x: str, M: Array, c: Array | None = None) -> str:
        """X M + c."""
        product = self.add("MatMul", x, self.weight(M))
        return product if c is None else self.add("Add", product, self.weight(c))
