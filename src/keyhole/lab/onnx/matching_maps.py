"""Token maps of matching units as ONNX graphs: angles, slots, and what is read from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from keyhole.constructions.matching.adjacency import CycleLabels, RowSlots
from keyhole.constructions.matching.closed_walks import EdgeAngles
from keyhole.constructions.matching.one_window import PlacedSlots, WindowLabels, find_middles
from keyhole.constructions.matching.positions import encode_positions
from keyhole.constructions.matching.successors import PairAngles, Successors
from keyhole.constructions.matching.waves import Angles
from keyhole.constructions.matching.windows import PairLabels, ValueSlots, mark_slots
from keyhole.lab.onnx.columns import (
    clip_numbers,
    count_whole,
    drop_axis,
    fill_columns,
    join_columns,
    look_up,
    mark_above,
    place_rows,
    scale_numbers,
    take_columns,
    turn_residues,
)
from keyhole.lab.onnx.graph import Graph, TensorProto


def add_angles(graph: Graph, x: str, token_map: Angles) -> str:
    """Numbers as angles, then a 1 and a 0."""
    waves = turn_residues(
        graph, count_whole(graph, drop_axis(graph, take_columns(graph, x, 0))), token_map
    )
    return join_columns(graph, waves, fill_columns(graph, x, 1.0, 0.0))


def add_edge_angles(graph: Graph, x: str, token_map: EdgeAngles) -> str:
    """The angles of both nodes, then a 1 and a 0."""
    ends = [
        turn_residues(
            graph, count_whole(graph, drop_axis(graph, take_columns(graph, x, end))), token_map
        )
        for end in (0, 1)
    ]
    return join_columns(graph, *ends, fill_columns(graph, x, 1.0, 0.0))


def add_successors(graph: Graph, x: str, token_map: Successors) -> str:
    """Codes of the own place and the next, x / M, a 1, and room for two numbers."""
    places = np.arange(token_map.positions - 1)
    codes = np.concatenate(
        [encode_positions(places + k, token_map.positions, token_map.harmonics) for k in (0, 1)],
        axis=1,
    )
    own = scale_numbers(graph, take_columns(graph, x, 0), 1.0 / token_map.modulus)
    return join_columns(
        graph, place_rows(graph, x, codes), own, fill_columns(graph, x, 1.0, 0.0, 0.0)
    )


def add_pair_angles(graph: Graph, x: str, token_map: PairAngles) -> str:
    """The angle of the own number, and of its sum with the next."""
    numbers = [
        graph.add(
            "Round",
            scale_numbers(graph, clip_numbers(graph, take_columns(graph, x, k), -1.0, 2.0), M),
        )
        for k, M in ((-4, float(token_map.modulus)), (-2, float(token_map.modulus)))
    ]
    present = mark_above(graph, take_columns(graph, x, -1), 0.5)
    both = graph.add("Add", *numbers)
    asking, found = (
        turn_residues(graph, count_whole(graph, drop_axis(graph, part)), token_map)
        for part in (numbers[0], both)
    )
    found = graph.add("Mul", found, present)
    return join_columns(
        graph, asking, found, fill_columns(graph, x, 1.0), present, fill_columns(graph, x, 0.0)
    )


def add_value_slots(graph: Graph, x: str, token_map: ValueSlots) -> str:
    """The code of a place, the number in its slot, and what is carried along."""
    places = np.arange(token_map.positions)
    codes = encode_positions(places, token_map.positions, token_map.harmonics)
    value = scale_numbers(graph, take_columns(graph, x, 0), 1.0 / token_map.modulus)
    slot = place_rows(graph, x, mark_slots(token_map.positions, token_map.slots))
    held = [graph.add("Mul", value, slot), *[slot] * token_map.presence]
    carried = _share_place(graph, x, places) if isinstance(token_map, PlacedSlots) else value
    return join_columns(graph, place_rows(graph, x, codes), *held, carried)


def _share_place(graph: Graph, x: str, places: Any) -> str:
    """The place of every token over their number."""
    size = graph.add("Gather", graph.add("Shape", x), graph.weight(np.array(1)), axis=0)
    length = graph.add("Cast", size, to=TensorProto.DOUBLE)
    return graph.add("Div", place_rows(graph, x, places[:, None].astype(np.float64)), length)


def add_pair_labels(graph: Graph, x: str, token_map: PairLabels) -> str:
    """1 where two gathered numbers complete the own one to 0 modulo M."""
    slots, M = token_map.slots, float(token_map.modulus)
    value = take_columns(graph, x, *range(slots))
    share, present = graph.weight(1.0 / slots), fill_columns(graph, x, *[1.0] * slots)
    if token_map.presence:
        held = take_columns(graph, x, *range(slots, 2 * slots))
        filled = graph.add("Greater", held, graph.weight(1.0 / (2 * slots)))
        present = graph.add("Cast", filled, to=TensorProto.DOUBLE)
        share = graph.add("Where", filled, held, graph.weight(1.0))
    number = clip_numbers(graph, graph.add("Div", value, share), -1.0, 2.0)
    number = graph.add("Round", scale_numbers(graph, number, M))
    own = graph.add("Unsqueeze", take_columns(graph, x, -1), graph.weight([3]))
    asked = graph.add("Round", scale_numbers(graph, own, M))
    sums = graph.add("Add", _pair(graph, "Add", number), asked)
    # What is left of a sum that is no multiple is at least 1.
    left = graph.add(
        "Sub", sums, scale_numbers(graph, graph.add("Round", scale_numbers(graph, sums, 1 / M)), M)
    )
    fits = graph.add("Less", graph.add("Abs", left), graph.weight(0.5))
    fits = graph.add("Cast", fits, to=TensorProto.DOUBLE)
    fits = graph.add("Mul", fits, _pair(graph, "Mul", present))
    return mark_above(
        graph,
        graph.add(
            "ReduceMax", graph.add("ReduceMax", fits, axes=[3], keepdims=0), axes=[2], keepdims=1
        ),
        0.5,
    )


def _pair(graph: Graph, kind: str, x: str) -> str:
    """Every number of a token with every other."""
    rows, columns = (graph.add("Unsqueeze", x, graph.weight([axis])) for axis in (3, 2))
    return graph.add(kind, rows, columns)


def add_window_labels(graph: Graph, x: str, token_map: WindowLabels) -> str:
    """The same for the owner of a window, which its mean place tells."""
    slots = 2 * token_map.radius + 1
    middles = find_middles(token_map.length, token_map.radius)
    place = scale_numbers(graph, take_columns(graph, x, -1), float(token_map.length))
    passed = graph.add("Greater", place, graph.weight((middles[1:] + middles[:-1]) / 2))
    owner = graph.add(
        "ReduceSum", graph.add("Cast", passed, to=TensorProto.INT64), graph.weight([2]), keepdims=0
    )
    slot = look_up(graph, mark_slots(token_map.length, slots), owner)
    value, presence = (
        graph.add("ReduceSum", graph.add("Mul", part, slot), graph.weight([2]), keepdims=1)
        for part in (
            take_columns(graph, x, *range(slots)),
            take_columns(graph, x, *range(slots, 2 * slots)),
        )
    )
    there = graph.add("Greater", presence, graph.weight(0.0))
    share = graph.add("Where", there, presence, graph.weight(1.0))
    own = clip_numbers(graph, graph.add("Div", value, share), -1.0, 2.0)
    gathered = join_columns(graph, take_columns(graph, x, *range(2 * slots)), own)
    return add_pair_labels(graph, gathered, PairLabels(token_map.modulus, slots, 1))


def add_row_slots(graph: Graph, x: str, token_map: RowSlots) -> str:
    """The code of a row, the row in its slot, and its number."""
    n = token_map.nodes
    number = count_whole(graph, drop_axis(graph, take_columns(graph, x, n)))
    codes = encode_positions(np.arange(n), n + 1, token_map.harmonics)
    slot = graph.add("Unsqueeze", look_up(graph, np.eye(n), number), graph.weight([3]))
    row = graph.add("Unsqueeze", take_columns(graph, x, *range(n)), graph.weight([2]))
    rows = graph.add("Reshape", graph.add("Mul", slot, row), graph.weight([0, 0, n * n]))
    own = scale_numbers(graph, take_columns(graph, x, n), 1.0 / n)
    return join_columns(graph, look_up(graph, codes, number), rows, own)


def add_cycle_labels(graph: Graph, x: str, token_map: CycleLabels) -> str:
    """1 where a node is on a closed walk of four edges that takes none twice."""
    n = token_map.nodes
    square = graph.weight([0, 0, n, n])
    step = graph.add("Reshape", take_columns(graph, x, *range(n * n)), square)
    step = graph.add("Mul", mark_above(graph, step, 1.0 / (2 * n)), graph.weight(1.0 - np.eye(n)))
    other = graph.add("Transpose", step, perm=[0, 1, 3, 2])
    both = graph.add("Mul", step, other)
    there, back = (graph.add("MatMul", part, part) for part in (step, both))
    own = clip_numbers(
        graph, scale_numbers(graph, take_columns(graph, x, n * n), float(n)), 0.0, n - 1.0
    )
    mine = look_up(graph, np.eye(n), count_whole(graph, own))
    leave, retrace = (graph.add("MatMul", mine, part) for part in (there, back))
    arrive = graph.add("MatMul", mine, graph.add("Transpose", there, perm=[0, 1, 3, 2]))
    walks = graph.add("Sub", graph.add("Mul", leave, arrive), retrace)
    others = graph.add("Sub", graph.weight(1.0), mine)
    most = graph.add("ReduceMax", graph.add("Mul", walks, others), axes=[3], keepdims=0)
    return mark_above(graph, most, 0.5)
