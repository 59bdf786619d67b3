"""Figures of sweeps: several values a row, lines that are known beforehand, and maps."""

import re

import pytest

import keyhole
from keyhole.lab import sweep_map
from keyhole.lab.sweep_page import check_figure, page, pairs

MAP = {"kind": "map", "x": "job.q", "y": "job.m", "value": "record.error"}
DATA = {"name": "n", "sentence": "s", "about": "", "expectations": [], "failures": [], "file": "f", "run": "r"}


def rows(table):
    return [{"job.q": q, "job.m": m, "record.error": error} for (q, m), error in table.items()]


@pytest.mark.parametrize(
    ("x", "y", "points"),
    [
        (1, 2, [(1, 2)]),
        (1, [2, 3], [(1, 2), (1, 3)]),
        ([1, 2], [3, 4], [(1, 3), (2, 4)]),
        ([1, 2], [[3, 4], [5, 6]], [(1, 3), (2, 4), (1, 5), (2, 6)]),
        (1, None, []),
        (1, [2, None, float("nan")], [(1, 2)]),
        ("one", 2, []),
    ],
)
def test_a_row_gives_one_point_or_several(x, y, points):
    assert pairs(x, y) == points


def test_known_lines_are_drawn_dashed_through_medians():
    table = [{"a": x, "b": [x, x + 1.0], "line": 2.0 * x} for x in (1, 2, 3)]
    text = page(DATA, table, {"x": "a", "y": "b", "lines": {"twice": "line", "nowhere": "absent"}})
    assert text.count('class="dashed"') == 1
    assert ">twice</text>" in text
    assert "nowhere" not in text


def test_a_map_has_a_cell_for_each_pair_and_a_table_with_the_same_numbers():
    text = page(DATA, rows({(1, 2): 0.5, (1, 4): 0.25, (2, 2): 1.0, (2, 4): 0.75}), MAP)
    assert text.count("<rect") == 4
    for number in ("0.5", "0.25", "0.75"):
        assert text.count(f">{number}<") == 2


def test_cells_are_medians_over_rows():
    table = rows({(1, 2): 0.5}) + rows({(1, 2): 0.7}) + rows({(1, 2): 0.9})
    assert ">0.7<" in sweep_map.picture(table, MAP)


def test_larger_values_are_brighter():
    text = sweep_map.picture(rows({(1, 1): 0.0, (2, 1): 0.5, (3, 1): 1.0}), MAP)
    colours = [sum(map(int, found)) for found in re.findall(r"rgb\((\d+),(\d+),(\d+)\)", text)]
    assert colours == sorted(colours)
    assert len(set(colours)) == 3


def test_a_boundary_goes_through_the_cells_it_names():
    table = rows({(q, m): 0.1 for q in (1, 2) for m in (2, 4)})
    text = sweep_map.picture(table, MAP | {"boundary": [[1, 2], [2, 4], [9, 9]], "boundary_name": "theory"})
    path = re.search(r'class="boundary" d="M([\d. ]+)L([\d. ]+)"', text)
    centres = [
        re.search(r'text x="([\d.]+)" y="([\d.]+)" text-anchor="middle" style', part) for part in text.split("<g>")[1:]
    ]
    first, last = ([float(x) for x in path.group(k).split()] for k in (1, 2))
    assert first[0] == pytest.approx(float(centres[0].group(1)), abs=0.2)
    assert first[1] == pytest.approx(float(centres[0].group(2)) - 4, abs=0.2)
    assert last[1] == pytest.approx(float(centres[3].group(2)) - 4, abs=0.2)
    assert ">theory<" in text


def test_a_map_without_numbers_says_so():
    assert "No row has numbers" in sweep_map.picture([{"job.q": 1}], MAP)


@pytest.mark.parametrize("figure", [{"x": "a", "y": "b", "kind": "map"}, {"x": "a", "y": "b", "value": "c"}])
def test_a_map_names_its_value_and_only_a_map_does(figure):
    with pytest.raises(keyhole.InvalidInput, match="a map names the column"):
        check_figure(figure)
