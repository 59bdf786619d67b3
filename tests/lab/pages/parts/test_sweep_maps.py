"""Maps and lines of sweeps: shares counted, and lines put where numbers lie."""

import re

import pytest
from msgspec import structs

from keyhole.lab.pages.parts.sweep_maps import draw_sweep_map, measure_cells, place_value
from keyhole.lab.pages.sweep_page import group_values, trace_known_lines
from keyhole.lab.runs.other_records import Figure


def test_figures_of_lines_take_columns_of_lists_and_lines_that_are_known():
    rows = [{"x": [1, 2], "y": [[1.0, 2.0], [3.0, 4.0]], "known": [5.0, 6.0]}]
    figure = Figure(x="x", y="y", lines={"theory": "known"})
    assert group_values(rows, figure) == {"": {1.0: [1.0, 3.0], 2.0: [2.0, 4.0]}}
    (line,) = trace_known_lines(rows, figure)
    assert [(p.x, p.y) for p in line.points] == [(1.0, 5.0), (2.0, 6.0)]


def test_a_map_counts_shares_and_puts_its_line_where_numbers_lie():
    rows = [
        {"a": x, "b": y, "c": "yes" if x > y else "no"}
        for x in (1, 2, 4)
        for y in (1, 3)
        for _ in range(2)
    ]
    boundary = [(1, 1), (3, 2), (9, 9)]
    figure = Figure(x="a", y="b", value="c", value_equals="yes", boundary=boundary)
    held = measure_cells(rows, figure)
    assert held.z == {(1, 1): 0, (1, 3): 0, (2, 1): 1, (2, 3): 0, (4, 1): 1, (4, 3): 1}
    assert place_value(held.x, 3) == pytest.approx(
        2 / 3
    )  # half-way between the middles of the second and third of three
    drawn = draw_sweep_map(rows, figure)
    assert drawn.count("<title>") == 6
    # what lies outside is left out
    assert re.search(r'class="line limit" [^>]* d="M[\d.]+ [\d.]+L[\d.]+ [\d.]+"/>', drawn)
    assert "No row" in draw_sweep_map(rows, structs.replace(figure, value="nothing"))
