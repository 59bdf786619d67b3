"""Columns of tokens in an ONNX graph: taken, rounded, looked up, put side by side.

Runtimes lack cosines in float64: what a map makes of a whole number is computed here for every
number it may be, and the graph looks it up.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole.constructions.matching.waves import Wavy, evaluate_waves
from keyhole.errors import InvalidInput
from keyhole.lab.onnx.graph import Graph, TensorProto

MOST_ROWS = 2**20  # of a table


def take_columns(graph: Graph, x: str, *columns: int) -> str:
    """Columns of tokens, side by side."""
    return graph.add("Gather", x, graph.weight(list(columns)), axis=2)


def count_whole(graph: Graph, numbers: str) -> str:
    """Numbers as whole ones, to look up with."""
    return graph.add("Cast", graph.add("Round", numbers), to=TensorProto.INT64)


def scale_numbers(graph: Graph, x: str, factor: float) -> str:
    """Numbers times a factor."""
    return graph.add("Mul", x, graph.weight(factor))


def shift_numbers(graph: Graph, x: str, step: float) -> str:
    """Numbers plus a step."""
    return graph.add("Add", x, graph.weight(step))


def clip_numbers(graph: Graph, x: str, low: float, high: float) -> str:
    """Numbers between two ends."""
    return graph.add("Clip", x, graph.weight(low), graph.weight(high))


def look_up(graph: Graph, table: Array, at: str) -> str:
    """The rows of a table that whole numbers name."""
    return graph.add("Gather", graph.weight(table), at, axis=0)


def drop_axis(graph: Graph, x: str) -> str:
    """Tokens of one number as that number."""
    return graph.add("Squeeze", x, graph.weight([2]))


def join_columns(graph: Graph, *parts: str) -> str:
    """Columns side by side."""
    return graph.add("Concat", *parts, axis=2)


def fill_columns(graph: Graph, x: str, *constants: float) -> str:
    """The same numbers for every token."""
    return graph.add(
        "Add", scale_numbers(graph, take_columns(graph, x, 0), 0.0), graph.weight([*constants])
    )


def place_rows(graph: Graph, x: str, table: Matrix) -> str:
    """For every token the row of a table that its place in the sequence names."""
    size = graph.add("Shape", x)
    length = graph.add("Slice", size, graph.weight([1]), graph.weight([2]))
    rows = graph.add("Slice", graph.weight(table), graph.weight([0]), length, graph.weight([0]))
    return graph.add("Add", scale_numbers(graph, take_columns(graph, x, 0), 0.0), rows)


def mark_above(graph: Graph, x: str, limit: float) -> str:
    """1 where a number is larger, else 0."""
    larger = graph.add("Greater", x, graph.weight(limit))
    return graph.add("Cast", larger, to=TensorProto.DOUBLE)


def tabulate_waves(token_map: Wavy) -> Matrix:
    """Cosines, then sines, of every residue."""
    if token_map.modulus > MOST_ROWS:
        raise InvalidInput(
            f"angles are written as ONNX up to a modulus of {MOST_ROWS:,}; got"
            f" {token_map.modulus:,}."
        )
    residues = np.arange(token_map.modulus)
    waves = evaluate_waves(residues, token_map.modulus, token_map.frequencies)
    return np.concatenate(waves, axis=-1)


def turn_residues(graph: Graph, whole: str, token_map: Wavy) -> str:
    """Whole numbers as angles."""
    at = graph.add("Mod", whole, graph.weight(np.array(token_map.modulus)))
    return look_up(graph, tabulate_waves(token_map), at)
