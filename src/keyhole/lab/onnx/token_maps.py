"""Every token map of constructions as ONNX: those of sets, and the table of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole.constructions.matching.adjacency import CycleLabels, RowSlots
from keyhole.constructions.matching.closed_walks import EdgeAngles
from keyhole.constructions.matching.one_window import PlacedSlots, WindowLabels
from keyhole.constructions.matching.successors import PairAngles, Successors
from keyhole.constructions.matching.waves import Angles
from keyhole.constructions.matching.windows import PairLabels, ValueSlots
from keyhole.constructions.pointers.composing import IndexPointers, ValuePointers
from keyhole.constructions.pointers.gathering import PlacedValues, WholeAnswers
from keyhole.constructions.pointers.hopping import (
    DoublingPointers,
    PreviousPointers,
    SymbolAngles,
)
from keyhole.constructions.pointers.pointed_rows import FetchedBits
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.constructions.split_sets.split_queries import SplitQueries
from keyhole.errors import InvalidInput
from keyhole.lab.onnx.columns import (
    MOST_ROWS,
    clip_numbers,
    count_whole,
    drop_axis,
    join_columns,
    look_up,
    shift_numbers,
    take_columns,
)
from keyhole.lab.onnx.graph import Graph
from keyhole.lab.onnx.matching_maps import (
    add_angles,
    add_cycle_labels,
    add_edge_angles,
    add_pair_angles,
    add_pair_labels,
    add_row_slots,
    add_successors,
    add_value_slots,
    add_window_labels,
)
from keyhole.lab.onnx.pointer_maps import (
    add_doubling_pointers,
    add_fetched_bits,
    add_index_pointers,
    add_placed_values,
    add_previous_pointers,
    add_symbol_angles,
    add_value_pointers,
    add_whole_answers,
)
from keyhole.tasks.pointing import count_answer_bits

_MOST_SETS = 20_000  # whose queries are computed for a table


def _add_sets(
    graph: Graph, x: str, token_map: SetQueries | SplitQueries, keys: Matrix, queries: Matrix
) -> str:
    """Vector, key, and what a table says of the positions that are named, in their order."""
    d, q, n = token_map.dimension, token_map.q, token_map.length
    named = graph.add("Round", take_columns(graph, x, *range(d, d + q)))
    # Every tuple is a number in base n + 1, the digit of no position being 0.
    places = shift_numbers(graph, clip_numbers(graph, named, -1.0, n - 1.0), 1.0)
    powers = graph.weight((n + 1.0) ** np.arange(q)[::-1])
    number = graph.add("ReduceSum", graph.add("Mul", places, powers), graph.weight([2]), keepdims=0)
    own = count_whole(
        graph, drop_axis(graph, clip_numbers(graph, take_columns(graph, x, d + q), 0.0, n - 1.0))
    )
    vector = take_columns(graph, x, *range(d))
    asked = look_up(graph, queries, count_whole(graph, number))
    return join_columns(graph, vector, look_up(graph, keys, own), asked)


def _tabulate_sets(
    token_map: SetQueries | SplitQueries, solve: Callable[[tuple[int, ...]], Array], width: int
) -> Matrix:
    """What a query is for every tuple of positions; zeros where a tuple names none or one twice.

    Raises:
        InvalidInput: there are too many.
    """
    n, q = token_map.length, token_map.q
    if (n + 1) ** q > MOST_ROWS or math.comb(n, q) > _MOST_SETS:
        raise InvalidInput(
            f"queries of sets are written as ONNX as a table of all {q} of {n} positions, up to"
            f" {MOST_ROWS:,} tuples and {_MOST_SETS:,} sets: this is beyond it. The layers,"
            " model.blocks[i].layer, can be written one by one."
        )
    known: dict[tuple[int, ...], Array] = {}
    table = np.zeros(((n + 1) ** q, width))
    for row, digits in enumerate(product(range(-1, n), repeat=q)):
        members = tuple(sorted(j for j in digits if j >= 0))
        if members and len(set(members)) == len(members):
            if members not in known:
                known[members] = solve(members)
            table[row] = known[members]
    return table


def add_set_queries(graph: Graph, x: str, token_map: SetQueries) -> str:
    """Vector and key of a token, and the query of its set."""
    width = token_map.keys.shape[1]
    queries = _tabulate_sets(token_map, lambda members: token_map.query(members).scaled, width)
    return _add_sets(graph, x, token_map, token_map.keys, queries)


def add_split_queries(graph: Graph, x: str, token_map: SplitQueries) -> str:
    """Vector and key of a token, and a query for every part of its set."""
    d, q = token_map.dimension, token_map.q
    size = 2 * token_map.members

    def read(rows: Array) -> Matrix:
        return token_map(rows[None])[0][:, d:]

    def solve(members: tuple[int, ...]) -> Array:
        if len(members) < q:
            return np.zeros(size * token_map.heads)
        return read(np.array([[*[0.0] * d, *members, 0.0]]))[0, size:]

    places = np.arange(token_map.length, dtype=np.float64)[:, None]
    rows = np.concatenate([np.zeros((len(places), d + q)), places], axis=1)
    queries = _tabulate_sets(token_map, solve, size * token_map.heads)
    return _add_sets(graph, x, token_map, read(rows)[:, :size], queries)


# How a map is written, by its class.
WRITERS: Mapping[type[Any], Callable[[Graph, str, Any], str]] = {
    Angles: add_angles,
    EdgeAngles: add_edge_angles,
    Successors: add_successors,
    PairAngles: add_pair_angles,
    ValueSlots: add_value_slots,
    PlacedSlots: add_value_slots,
    PairLabels: add_pair_labels,
    WindowLabels: add_window_labels,
    RowSlots: add_row_slots,
    CycleLabels: add_cycle_labels,
    IndexPointers: add_index_pointers,
    ValuePointers: add_value_pointers,
    PreviousPointers: add_previous_pointers,
    SymbolAngles: add_symbol_angles,
    DoublingPointers: add_doubling_pointers,
    FetchedBits: add_fetched_bits,
    PlacedValues: add_placed_values,
    WholeAnswers: add_whole_answers,
    SetQueries: add_set_queries,
    SplitQueries: add_split_queries,
}
# Numbers of a token that a map reads, where a stack may begin with it.
WIDTHS: Mapping[type[Any], Callable[[Any], int]] = {
    **dict.fromkeys((Angles, Successors, ValueSlots, PlacedSlots), lambda one: 1),
    **dict.fromkeys((ValuePointers, PreviousPointers, PlacedValues), lambda one: 1),
    **dict.fromkeys((EdgeAngles, IndexPointers), lambda one: 2),
    RowSlots: lambda one: one.nodes + 1,
    **dict.fromkeys((SetQueries, SplitQueries), lambda one: one.dimension + one.q + 1),
}
# Numbers of an answer, where a stack may end with it.
OUTPUTS: Mapping[type[Any], Callable[[Any], int]] = {
    **dict.fromkeys((PairLabels, WindowLabels, CycleLabels), lambda one: 1),
    FetchedBits: lambda one: count_answer_bits(one.values),
    WholeAnswers: lambda one: count_answer_bits(one.symbols),
}
