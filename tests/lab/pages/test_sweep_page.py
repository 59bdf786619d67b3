"""Figures of sweeps: several values a row, lines that are known beforehand, and maps."""

import re
from typing import get_args

import msgspec
import pytest
from msgspec import structs

from keyhole.lab.pages.parts.column_words import spell_column
from keyhole.lab.pages.parts.sweep_maps import draw_sweep_map
from keyhole.lab.pages.sweep_page import count_failures, draw_sweep_page, pair_values
from keyhole.lab.runs.other_records import (
    Figure,
    JobCounts,
    SweepRecord,
    TransitionRecord,
    TrialRecord,
)
from keyhole.lab.runs.recovery_records import AuditRecord, LearnRecord, PlanRecord
from keyhole.lab.runs.task_records import AttackRecord, BoundRecord, BuildRecord, TrainRecord

MAP = Figure(kind="map", x="job.q", y="job.m", value="record.error")
RECORDS = (
    *(TrialRecord, TransitionRecord, LearnRecord, PlanRecord, AuditRecord),
    *(BuildRecord, BoundRecord, AttackRecord, TrainRecord),
)
DATA = SweepRecord(
    name="n",
    sentence="s",
    about="",
    jobs=JobCounts(total=0, done=0, failed=0),
    expectations=[],
    failures=[],
    store="r/store.sqlite",
    file="f",
    run="r",
)


def rows(table):
    return [{"job.q": q, "job.m": m, "record.error": error} for (q, m), error in table.items()]


@pytest.mark.parametrize(
    ("x", "y", "points"),
    [
        (1, 2, [(1, 2)]),
        (1, [2, 3], [(1, 2), (1, 3)]),
        ([1, 2], [3, 4], [(1, 3), (2, 4)]),
        ([1, 2], [[3, 4], [5, 6]], [(1, 3), (2, 4), (1, 5), (2, 6)]),
        ([1, 2], 3, [(1, 3), (2, 3)]),
        (1, None, []),
        (1, [2, None, float("nan")], [(1, 2)]),
        ("one", 2, []),
    ],
)
def test_a_row_gives_one_point_or_several(x, y, points):
    assert pair_values(x, y) == points


def test_known_lines_are_drawn_dashed_through_medians():
    table = [{"a": x, "b": [x, x + 1.0], "line": 2.0 * x} for x in (1, 2, 3)]
    text = draw_sweep_page(
        DATA, table, Figure(x="a", y="b", lines={"twice": "line", "nowhere": "absent"})
    )
    assert text.count('class="line limit"') == 1
    assert ">twice</text>" in text
    assert "nowhere" not in text


def test_five_series_look_different():
    table = [{"a": x, "b": x * k, "of": f"model {k}"} for x in (1, 2) for k in range(1, 6)]
    text = draw_sweep_page(DATA, table, Figure(x="a", y="b", series="of"))
    assert len(set(re.findall(r'class="(line \w+)"', text))) == 5


def test_a_map_has_a_cell_for_each_pair_and_a_table_with_the_same_numbers():
    text = draw_sweep_page(DATA, rows({(1, 2): 0.5, (1, 4): 0.25, (2, 2): 1.0, (2, 4): 0.75}), MAP)
    assert text.count("<title>") - text.count("<title>keyhole") == 4
    for number in ("0.5", "0.25", "0.75"):
        assert f"median error {number}</title>" in text
        assert f">{number}</td>" in text


def test_cells_of_a_map_meet_without_a_seam():
    table = rows({(q, m): 0.1 * q + m for q in range(1, 7) for m in range(1, 10)})
    text = str(draw_sweep_map(table, MAP))
    cells = re.findall(r'<rect class="cell"[^>]* x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', text)
    row = min(y for _, y, _ in cells)
    across = sorted((float(x), float(w)) for x, y, w in cells if y == row)[:6]
    assert [f"{x + w:.1f}" for x, w in across[:5]] == [f"{x:.1f}" for x, _ in across[1:]]


def test_cells_are_medians_over_rows():
    table = rows({(1, 2): 0.5}) + rows({(1, 2): 0.7}) + rows({(1, 2): 0.9})
    assert ">0.7</td>" in draw_sweep_map(table, MAP)


def _brightness(colour):
    if colour.startswith("#"):
        return sum(int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return sum(map(int, re.findall(r"\d+", colour)))


def test_larger_values_are_brighter():
    text = draw_sweep_map(rows({(1, 1): 0.0, (2, 1): 0.5, (3, 1): 1.0}), MAP)
    found = re.findall(
        r'</title><rect class="cell" style="fill:(#\w+|rgb\([^)]*\))"',
        text,
    )
    colours = [_brightness(colour) for colour in found]
    assert colours == sorted(colours)
    assert len(set(colours)) == 3


def test_axes_and_lines_are_named_in_words_where_a_file_names_none():
    table = [
        {"job.model.width": x, "record.fresh_error.max": 1.0 / x, "job.heads": h}
        for x in (2, 4)
        for h in (1, 4)
    ]
    figure = Figure(x="job.model.width", y="record.fresh_error.max", series="job.heads")
    text = draw_sweep_page(DATA, table, figure)
    for words in ("model width", "largest error on fresh questions", "heads 1", "heads 4"):
        assert f">{words}</text>" in text
    named = Figure(
        x="job.model.width",
        y="record.fresh_error.max",
        series="job.heads",
        series_names={"4": "four"},
    )
    assert ">four</text>" in draw_sweep_page(DATA, table, named)


def _list_columns(kind, prefix="record"):
    """Columns of a record's fields, and of the fields of its parts."""
    for field in msgspec.structs.fields(kind):
        yield f"{prefix}.{field.encode_name}"
        for part in (field.type, *get_args(field.type)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield from _list_columns(part, f"{prefix}.{field.encode_name}")


def test_every_field_of_a_record_is_named_in_words():
    columns = [column for kind in RECORDS for column in _list_columns(kind)]
    assert {"record.verdict", "record.queries.total", "record.error"} <= set(columns)
    for column in columns:
        words = spell_column(column)
        assert words
        assert not re.search(r"[._]|^(record|job)$", words), (column, words)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("record.error", "error"),
        ("record.error.max", "largest error"),
        ("record.accuracy.median", "median share of labels right"),
        ("record.ratio", "queries per parameter"),
        ("job.ratio", "ratio"),
        ("job.model.rank", "model rank"),
        ("record.degrees_of_freedom", "degrees of freedom"),
    ],
)
def test_columns_are_said_as_a_reader_would(column, words):
    assert spell_column(column) == words


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"value_equals": "EXACT"}, "share of jobs whose verdict is EXACT"),
        ({"value": "record.error", "value_at_most": 0.01}, "error is at most 0.01"),
    ],
)
def test_a_map_of_shares_says_whose(asked, words):
    table = [{"job.q": 1, "job.m": 2, "record.verdict": "EXACT", "record.error": 0.5}]
    figure = Figure(
        **{"kind": "map", "x": "job.q", "y": "job.m", "value": "record.verdict"} | asked
    )
    text = draw_sweep_map(table, figure)
    assert words in text
    assert "record." not in text


def test_panels_keep_pictures_apart_and_failures_are_counted():
    table = [
        {"codes": codes, "model": model, "n": 10, "error": [0.5 if codes == "b" else 0.05, 0.3]}
        for codes in ("a", "b")
        for model in ("one", "two")
    ]
    figure = Figure(
        x="n",
        y="error",
        series="model",
        panels="codes",
        panel_names={"a": "read as they are"},
        failed_above=0.1,
        upright=10.0,
        upright_name="ten",
    )
    page = draw_sweep_page(DATA, table, figure)
    assert re.findall("<h3>([^<]*)</h3>", page) == ["read as they are", "b"]
    assert page.count("one 2 runs, median 0.175, 1 failures</title>") == 1
    assert page.count("one 2 runs, median 0.4, 2 failures</title>") == 1
    assert page.count(">failures</th>") == 2
    assert page.count(">ten</text>") == 2
    assert count_failures([0.1, 0.2, 0.3], Figure(x="n", y="e", failed_below=0.2)) == 1
    assert count_failures([0.1], Figure(x="n", y="e")) is None


def test_a_map_draws_every_line_of_theory_it_names():
    held = rows({(q, m): 0.0 for q in (1, 2) for m in (1, 2)})
    lines = {"needed": [(1, 1), (2, 2)], "enough": [(1, 2), (2, 2)]}
    figure = structs.replace(MAP, boundaries=lines, boundary=[(1, 1), (2, 1)], boundary_name="fit")
    drawn = draw_sweep_map(held, figure)
    assert drawn.count('class="line limit"') == 3
    assert all(f">{name}</text>" in drawn for name in ("needed", "enough", "fit"))
