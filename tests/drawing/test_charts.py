"""Charts: axes, names beside lines and marks, and words that stay words and never touch."""

import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyhole.drawing.arranging import arrange_chart
from keyhole.drawing.describing import (
    Area,
    Axis,
    Band,
    Bar,
    Cell,
    Chart,
    Level,
    Line,
    Point,
    name_rows,
)
from keyhole.drawing.html import escape_text
from keyhole.drawing.labels import Box
from keyhole.drawing.scales import fit_scale
from keyhole.drawing.shapes import Dot, Patch, Words
from keyhole.drawing.svg import draw_chart, draw_rows
from support.drawn_labels import Reader, count_labels, find_faults
from support.run_records import EVIL

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("base", [2, 10])
@pytest.mark.parametrize(("low", "high"), [(2.0, 30.0), (1e-9, 1.0), (3.0, 3.3), (0.5, 0.5)])
def test_a_logarithmic_axis_names_numbers_that_lie_on_it(low, high, base):
    ticks = fit_scale(Axis("x", log=True, base=base), [low, high], 0.0, 100.0).ticks()
    assert 2 <= len(ticks) <= (9 if base == 10 else 11)
    assert all(low * 0.8 <= tick <= high * 1.25 for tick in ticks)


@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 1.0), (0.0, 0.0), (2.5, 2.5), (-3e-9, 4e-9), (1e8, 3e8)]
)
def test_a_linear_axis_names_few_round_numbers_and_leaves_air_around_its_values(low, high):
    scale = fit_scale(Axis("x"), [low, high], 0.0, 100.0)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 8
    assert all(0.0 <= scale.at(tick) <= 100.0 for tick in ticks)
    assert ticks == sorted(set(ticks))
    assert 0.0 < scale.at(low) <= scale.at(high) < 100.0


def test_an_axis_keeps_the_ends_it_names():
    scale = fit_scale(Axis("x", low=0.0, high=4.0), [1.0, 2.0], 0.0, 100.0)
    assert (scale.at(0.0), scale.at(1.0), scale.at(4.0)) == (0.0, 25.0, 100.0)
    doubled = fit_scale(Axis("x", log=True, low=1.0, high=16.0), [2.0], 0.0, 100.0)
    assert doubled.at(4.0) == pytest.approx(50.0)


def draw(*lines, x=None, y=None, **options):
    return draw_chart(Chart("about", x or Axis("x"), y or Axis("y"), lines, **options))


def test_names_of_lines_stand_at_their_ends_as_near_as_others_leave_room():
    lines = [Line(f"line {k}", "ours", [Point(1, 1), Point(2, 1 + k / 1000)]) for k in range(4)]
    svg = draw(*lines, Line("far", "peer", [Point(1, 1), Point(2, 9)]))
    heights = {
        name: float(y) for y, name in re.findall(r'y="([-\d.]+)" class="\w+">([^<]+)</text>', svg)
    }
    near = sorted(heights[f"line {k}"] for k in range(4))
    assert min(np.diff(near)) >= 14
    assert max(np.diff(near)) < 20
    top = min(float(y) for y in re.findall(r'<path class="peer" d="M[\d.]+ ([\d.]+)', svg))
    assert heights["far"] - 4 == pytest.approx(top, abs=0.2)


def test_the_picture_is_wide_enough_for_its_longest_name():
    name = "noise of 0.04, tokens up to norm 5.66"
    svg = draw(Line(name, "ours", [Point(1, 1), Point(2, 2)]))
    (picture,) = Reader(svg).pictures
    assert name in [label.words for label in picture.labels]
    assert find_faults(svg) == []


def test_a_longer_name_is_cut_and_told_in_full_on_hover():
    name = "word " * 100
    svg = draw(Line(name, "ours", [Point(1, 1), Point(2, 2)]))
    assert re.search("word word [word ]*…</text>", svg)
    assert f"<title>{name}</title>" in svg
    (picture,) = Reader(svg).pictures
    assert picture.frame.right < 1000


def test_the_name_of_a_single_mark_stands_beside_that_mark_and_off_others():
    lines = [Line(f"mark {k}", "ours", [Point(k, k % 2)]) for k in range(6)]
    drawing = arrange_chart(Chart("about", Axis("x"), Axis("y"), lines))
    dots = {dot.said: dot for dot in drawing.shapes if isinstance(dot, Dot)}
    names = [words for words in drawing.shapes if isinstance(words, Words) and words.kind == "ours"]
    assert len(dots) == len(names) == 6

    def away(words, dot):
        return np.hypot(*np.subtract(words.box.reach(dot.x, dot.y), (dot.x, dot.y)))

    for words in names:
        nearest = min(dots.values(), key=lambda dot: away(words, dot))
        assert nearest is dots[words.words]
        assert away(words, nearest) < 14


def test_crowded_marks_keep_their_names_joined_to_them_by_a_line():
    lines = [Line(f"a crowded mark {k}", "ours", [Point(1 + k / 1e6, 1)]) for k in range(40)]
    svg = draw(*lines, Line("", "peer", [Point(9, 9)]))
    assert find_faults(svg) == []
    assert all(f">a crowded mark {k}</text>" in svg for k in range(40))
    plain = draw(*lines[:1], Line("", "peer", [Point(9, 9)]))
    assert svg.count('class="rule"') > plain.count('class="rule"') + 20


def test_a_name_keeps_off_lines_where_there_is_room():
    line = Line("", "limit", [Point(0, 0), Point(10, 10)], marked=False)
    drawing = arrange_chart(
        Chart("about", Axis("x"), Axis("y"), [line, Line("a mark", "ours", [Point(5, 5.2)])])
    )
    (name,) = [one for one in drawing.shapes if isinstance(one, Words) and one.kind == "ours"]
    (path,) = [one.points for one in drawing.shapes if getattr(one, "kind", "") == "line limit"]
    (a, b), (c, d) = path
    box = name.box
    crossed = [
        share
        for share in np.linspace(0, 1, 2001)
        if box.left <= a + share * (c - a) <= box.right
        and box.top <= b + share * (d - b) <= box.bottom
    ]
    assert crossed == []


def test_a_chart_of_nothing_is_no_picture():
    assert draw() == draw(Line("x", "ours", [Point(float("nan"), 1)])) == ""
    assert draw(Line("x", "ours", [Point(0, 1)]), x=Axis("x", log=True)) == ""


def test_levels_without_a_place_on_a_logarithmic_axis_are_left_out():
    svg = draw(
        Line("", "ours", [Point(1, 1), Point(2, 5)]),
        y=Axis("y", log=True),
        levels=[Level("none", 0.0), Level("two", 2.0)],
    )
    assert svg.count('class="dashed"') == 1
    assert ">two</text>" in svg


def test_an_axis_takes_hostile_names():
    svg = draw(Line(EVIL, "ours", [Point(1, 1)]), x=Axis(EVIL), y=Axis(EVIL))
    assert "<script>" not in svg
    assert svg.count(escape_text(EVIL)) >= 2


LETTERS = st.sampled_from("abcdefgHMW019 .,-<&>\"'")
NAMES = st.one_of(st.just(""), st.text(LETTERS, max_size=40), st.text(LETTERS, max_size=400))
KINDS = st.sampled_from(["ours", "built", "peer", "limit", "bad", "truth"])
NUMBERS = st.one_of(
    st.floats(1e-12, 1e12), st.sampled_from([1.0, 2.0, 3.0]), st.integers(1, 9).map(float)
)
POINTS = st.tuples(
    NUMBERS,
    NUMBERS,
    st.just("said"),
    st.one_of(st.none(), st.tuples(NUMBERS, NUMBERS)),
    st.one_of(st.just(""), st.text(LETTERS, max_size=12)),
)
LINES = st.tuples(NAMES, KINDS, st.lists(POINTS, max_size=6), st.booleans(), st.booleans())
AXES = st.tuples(NAMES, st.booleans(), st.sampled_from([2, 10]))
CORNERS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=5)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.tuples(AXES, AXES),
    st.lists(LINES, min_size=1, max_size=8),
    st.lists(st.tuples(NAMES, NUMBERS, st.booleans()), max_size=4),
    st.lists(st.tuples(NAMES, NUMBERS, NUMBERS), max_size=3),
    st.lists(st.tuples(CORNERS, KINDS, st.just(0.2), NAMES), max_size=2),
    st.sampled_from([(120.0, 60.0), (470.0, 280.0)]),
)
def test_no_two_labels_of_any_chart_touch_and_none_leaves_the_picture(
    axes, lines, levels, bands, areas, size
):
    chart = Chart(
        "about",
        *(Axis(*axis) for axis in axes),
        [Line(name, kind, [Point(*p) for p in points], *how) for name, kind, points, *how in lines],
        [Level(*level) for level in levels],
        [Band(name, *sorted(ends)) for name, *ends in bands],
        [Area(*area) for area in areas],
        width=size[0],
        height=size[1],
    )
    assert find_faults(draw_chart(chart)) == []
    assert find_covered_marks(arrange_chart(chart)) == []


def find_covered_marks(drawing):
    """Names that lie on a mark."""
    shapes = [] if drawing is None else drawing.shapes
    names = [one for one in shapes if isinstance(one, Words)]
    return [
        (name.words, dot.said)
        for dot in shapes
        if isinstance(dot, Dot)
        for name in names
        if math.dist((dot.x, dot.y), name.box.reach(dot.x, dot.y)) < dot.size
    ]


def test_a_name_keeps_off_the_mark_of_another():
    lines = [
        Line("beside", "peer", [Point(1, 1.5)]),
        Line("", "bad", [Point(1.05, 1.5)]),
        Line("", "ours", [Point(1, 1), Point(2, 2)]),
    ]
    drawing = arrange_chart(Chart("about", Axis("x"), Axis("y"), lines))
    assert find_covered_marks(drawing) == []
    assert "beside" in [one.words for one in drawing.shapes if isinstance(one, Words)]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(NAMES, st.floats(0, 1e6), NAMES), min_size=1, max_size=9),
    st.booleans(),
)
def test_no_two_labels_of_rows_touch(rows, log):
    bars = [Bar(k, 0.0, high, label=label) for k, (_, high, label) in enumerate(rows)]
    ends = [
        Line("", "ours", [Point(high, k, label=f"{high:.3g}")])
        for k, (_, high, _) in enumerate(rows)
    ]
    svg = draw_chart(
        Chart(
            "about",
            Axis("x", log=log, low=1.0 if log else 0.0),
            name_rows([name for name, _, _ in rows]),
            ends,
            [Level("limit 3", 3.0, upright=True)],
            bars=bars,
            height=24.0 * len(rows),
        )
    )
    assert find_faults(svg) == []


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(1e-15, 1e-3), min_size=1, max_size=9))
def test_rows_have_their_names_above_them_where_the_page_is_narrow(errors):
    names = [f"rounding to {k} decimals, tokens up to norm 2" for k in range(len(errors))]
    marks = [
        Line("", "ours", [Point(error, k, label=f"{k},000 queries")])
        for k, error in enumerate(errors)
    ]
    x = Axis("relative error", log=True, low=1e-16, high=2.0)
    drawn = draw_rows(Chart("about", x, name_rows(names), marks, width=560.0, height=22.0 * 9))
    assert find_faults(drawn) == []
    wide, narrow = Reader(drawn).pictures
    # A screen of 360 pixels less its margins shows a drawing that is up to a fifth wider.
    assert 0.8 * (narrow.frame.right - narrow.frame.left) < 360 - 32
    assert 0.8 * (wide.frame.right - wide.frame.left) > 360 - 32
    told = {label.words: label for label in narrow.labels}
    assert all(told[name].left > narrow.frame.left for name in names)
    tops = [told[name].top for name in names]
    assert tops == sorted(tops, reverse=True)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40), NAMES)
def test_no_two_labels_of_a_map_touch(columns, rows, name):
    cells = [Cell(x, y, 0.5, "said") for x in range(columns) for y in range(rows)][:200]
    across, up = (
        Axis(name, low=-0.5, high=count - 0.5, ticks=[(k, f"{1000 * k:.3g}") for k in range(count)])
        for count in (columns, rows)
    )
    theory = Line("theory", "limit", [Point(0, 0), Point(columns - 1, 0)], marked=False)
    svg = draw_chart(Chart("about", across, up, [theory], cells=cells, scale=("0", "1,000")))
    assert find_faults(svg) == []
    assert count_labels(svg) >= 5


@pytest.mark.parametrize("row", range(5))
def test_no_name_of_a_line_lies_on_the_scale_of_colours(row):
    axis = Axis("q", low=-0.5, high=4.5, ticks=[(k, f"{k}") for k in range(5)])
    theory = Line("theory", "limit", [Point(0, row), Point(4, row)], marked=False)
    cells = [Cell(x, y, 0.5, "said") for x in range(5) for y in range(5)]
    chart = Chart("about", axis, axis, [theory], cells=cells, scale=("0", "1"))
    shapes = arrange_chart(chart).shapes
    (name,) = [one for one in shapes if isinstance(one, Words) and one.words == "theory"]
    outlines = [np.array(one.points) for one in shapes if isinstance(one, Patch) and one.colour]
    colours = [Box(*ends.min(axis=0), *ends.max(axis=0)) for ends in outlines]
    assert len(colours) > len(cells)
    assert not any(name.box.touches(one) for one in colours)
