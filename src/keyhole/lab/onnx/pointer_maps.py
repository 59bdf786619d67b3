"""Token maps of constructions that follow pointers, as ONNX graphs."""

from __future__ import annotations

from itertools import product

import numpy as np

from keyhole._arrays import Matrix
from keyhole.constructions.matching.positions import encode_positions
from keyhole.constructions.matching.waves import Angles
from keyhole.constructions.pointers.composing import IndexPointers, ValuePointers
from keyhole.constructions.pointers.gathering import PlacedValues, WholeAnswers
from keyhole.constructions.pointers.hopping import (
    STATE,
    DoublingPointers,
    Hops,
    PreviousPointers,
    SymbolAngles,
)
from keyhole.constructions.pointers.pointed_rows import FetchedBits
from keyhole.errors import InvalidInput
from keyhole.lab.onnx.columns import (
    MOST_ROWS,
    clip_numbers,
    count_whole,
    drop_axis,
    fill_columns,
    join_columns,
    look_up,
    mark_above,
    place_rows,
    scale_numbers,
    shift_numbers,
    take_columns,
    turn_residues,
)
from keyhole.lab.onnx.graph import Graph, TensorProto
from keyhole.tasks.pointing import spell_in_bits


def _write_rows(
    graph: Graph, own: str, pointers: str, state: str, codes: Matrix, levels: int, size: int
) -> str:
    """Pointed rows from whole numbers: own position, what it points to, what it is known by."""
    numbers = graph.add("Cast", own, to=TensorProto.DOUBLE)
    share = graph.add("Unsqueeze", scale_numbers(graph, numbers, 1.0 / levels), graph.weight([2]))
    named = [look_up(graph, codes, at) for at in (own, pointers)]
    return join_columns(graph, *named, share, state, fill_columns(graph, state, *[0.0] * size))


def _count_places(graph: Graph, x: str, positions: int) -> str:
    """1 for the first token, 2 for the second, and so on."""
    table = np.arange(1.0, positions + 1.0)[:, None]
    return count_whole(graph, drop_axis(graph, place_rows(graph, x, table)))


def _point(graph: Graph, number: str, positions: int) -> str:
    """The place behind a number, within the circle."""
    return count_whole(
        graph, clip_numbers(graph, shift_numbers(graph, number, 1.0), 0.0, positions - 1.0)
    )


def add_index_pointers(graph: Graph, x: str, token_map: IndexPointers) -> str:
    """Rows that point to the place their token names."""
    positions = token_map.positions
    named = graph.add("Round", drop_axis(graph, take_columns(graph, x, 1)))
    codes = encode_positions(np.arange(positions), positions, token_map.harmonics)
    state = scale_numbers(graph, take_columns(graph, x, 0), 1.0 / token_map.levels)
    own = _count_places(graph, x, positions)
    pointers = _point(graph, named, positions)
    return _write_rows(graph, own, pointers, state, codes, token_map.levels, 1)


def recover_levels(graph: Graph, x: str, levels: int) -> str:
    """Multiples of 1/levels as whole numbers that are still float64."""
    return graph.add("Round", scale_numbers(graph, clip_numbers(graph, x, 0.0, 1.0), float(levels)))


def add_value_pointers(graph: Graph, x: str, token_map: ValuePointers) -> str:
    """Rows that point to the place their value, or the fetched one, names."""
    levels = positions = 2 * token_map.symbols + 2
    codes = encode_positions(np.arange(positions), positions, token_map.harmonics)
    if token_map.fetched:
        held = [
            drop_axis(graph, recover_levels(graph, take_columns(graph, x, k), levels))
            for k in (-3, -2, -1)
        ]
        own, value = count_whole(graph, held[0]), held[1]
        pointer = shift_numbers(graph, held[2], float(token_map.symbols))
    else:
        own = _count_places(graph, x, positions)
        value = pointer = graph.add("Round", drop_axis(graph, take_columns(graph, x, 0)))
    state = graph.add("Unsqueeze", scale_numbers(graph, value, 1.0 / levels), graph.weight([2]))
    return _write_rows(graph, own, _point(graph, pointer, positions), state, codes, levels, 1)


def add_previous_pointers(graph: Graph, x: str, token_map: PreviousPointers) -> str:
    """Rows that point to the place before them."""
    positions = token_map.length + 1
    codes = encode_positions(np.arange(positions), positions, token_map.harmonics)
    symbol = shift_numbers(graph, graph.add("Round", take_columns(graph, x, 0)), 1.0)
    known = join_columns(
        graph,
        fill_columns(graph, x, 0.0, 0.0),
        scale_numbers(graph, symbol, 1.0 / token_map.levels),
    )
    own = _count_places(graph, x, positions)
    before = graph.add("Sub", own, graph.weight(np.array(1)))
    return _write_rows(graph, own, before, known, codes, token_map.levels, STATE)


def _read_hops(graph: Graph, x: str, token_map: Hops) -> list[str]:
    """Own position, what a row is known by, what it fetched: seven numbers, tokens of one each."""
    top = token_map.levels - 1.0
    return [
        clip_numbers(
            graph, recover_levels(graph, take_columns(graph, x, k), token_map.levels), 0.0, top
        )
        for k in range(-1 - 2 * STATE, 0)
    ]


def add_symbol_angles(graph: Graph, x: str, token_map: SymbolAngles) -> str:
    """Rows that ask by the angle of their symbol."""
    own, _, _, asked, _, _, before = _read_hops(graph, x, token_map)
    circle = Angles(token_map.symbols, np.ones(1))
    ask, found = (
        turn_residues(
            graph, count_whole(graph, drop_axis(graph, shift_numbers(graph, number, -1.0))), circle
        )
        for number in (asked, before)
    )
    there = mark_above(graph, before, 0.5)
    far = scale_numbers(graph, graph.add("Sub", graph.weight(1.0), there), -float(token_map.length))
    rank = graph.add("Add", graph.add("Mul", there, own), far)
    share = 1.0 / token_map.levels
    state = [
        fill_columns(graph, x, 0.0),
        *(scale_numbers(graph, number, share) for number in (own, asked)),
    ]
    parts = [ask, fill_columns(graph, x, 1.0), graph.add("Mul", found, there), rank]
    parts += [scale_numbers(graph, own, share), *state, fill_columns(graph, x, *[0.0] * STATE)]
    return join_columns(graph, *parts)


def add_doubling_pointers(graph: Graph, x: str, token_map: DoublingPointers) -> str:
    """Rows that point to one of two places that were found."""
    own, _, _, _, first, far, symbol = _read_hops(graph, x, token_map)
    near = own if token_map.first else first
    positions = token_map.length + 1
    codes = encode_positions(np.arange(positions), positions, token_map.harmonics)
    last = float(token_map.length)
    place, pointer = (
        count_whole(graph, drop_axis(graph, clip_numbers(graph, number, 0.0, last)))
        for number in (own, far if token_map.later else near)
    )
    state = scale_numbers(graph, join_columns(graph, near, far, symbol), 1.0 / token_map.levels)
    return _write_rows(graph, place, pointer, state, codes, token_map.levels, STATE)


def add_fetched_bits(graph: Graph, x: str, token_map: FetchedBits) -> str:
    """The binary digits of what was fetched."""
    found = drop_axis(graph, recover_levels(graph, take_columns(graph, x, -1), token_map.levels))
    at = count_whole(graph, clip_numbers(graph, found, 0.0, token_map.values - 1.0))
    return look_up(graph, spell_in_bits(np.arange(token_map.values), token_map.values), at)


def add_placed_values(graph: Graph, x: str, token_map: PlacedValues) -> str:
    """The code of a place, the value in a slot of its own, and the place."""
    # A token has a slot for every token: the circle has one place more than they are.
    length = token_map.positions - 1
    places = np.arange(length)
    codes = encode_positions(places, token_map.positions, token_map.harmonics)
    value = scale_numbers(graph, take_columns(graph, x, 0), 1.0 / token_map.levels)
    slots = graph.add("Mul", value, place_rows(graph, x, np.eye(length)))
    own = place_rows(graph, x, places[:, None] / token_map.levels)
    return join_columns(graph, place_rows(graph, x, codes), slots, own)


def add_whole_answers(graph: Graph, x: str, token_map: WholeAnswers) -> str:
    """The answer to every input there is, looked up.

    Raises:
        InvalidInput: there are too many.
    """
    n, s = token_map.length, token_map.symbols
    if n * s**n > MOST_ROWS:
        raise InvalidInput(
            f"answers to all inputs of {n} tokens and {s} symbols are written as ONNX as a table of"
            f" {MOST_ROWS:,} rows at most: this is beyond it. The layers, model.blocks[i].layer,"
            " can be written one by one."
        )
    levels = max(n, s)
    inputs = np.array(list(product(range(s), repeat=n)), dtype=np.float64)
    rows = np.concatenate([inputs / (levels * n), np.zeros((len(inputs), 1))], axis=1)
    each = [np.concatenate([rows[:, :-1], 0.0 * rows[:, -1:] + k / levels], 1) for k in range(n)]
    # An input is a number in base s, the place that asks its last digit, in base n.
    table = np.stack([token_map(part[None])[0] for part in each], axis=1)
    tokens = scale_numbers(graph, take_columns(graph, x, *range(n)), float(n))
    tokens = clip_numbers(graph, recover_levels(graph, tokens, levels), 0.0, s - 1.0)
    powers = graph.weight(float(s) ** np.arange(n)[::-1] * n)
    number = graph.add("ReduceSum", graph.add("Mul", tokens, powers), graph.weight([2]), keepdims=0)
    own = scale_numbers(graph, drop_axis(graph, take_columns(graph, x, n)), float(levels))
    own = clip_numbers(graph, graph.add("Round", own), 0.0, n - 1.0)
    at = count_whole(graph, graph.add("Add", number, own))
    return look_up(graph, table.reshape(len(inputs) * n, -1), at)
