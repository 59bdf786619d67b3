"""Charts: axes, names beside lines, and words that stay words."""

import re

import numpy as np
import pytest

from keyhole.drawing import charts
from keyhole.drawing.html import escape_text
from support.run_records import EVIL


@pytest.mark.parametrize(("low", "high"), [(2.0, 30.0), (1e-9, 1.0), (3.0, 3.3), (0.5, 0.5)])
def test_a_logarithmic_axis_names_numbers_that_lie_on_it(low, high):
    scale = charts.fit_scale([low, high], 0.0, 100.0, log=True)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 9
    assert all(low * 0.8 <= tick <= high * 1.25 for tick in ticks)


def test_names_of_lines_do_not_touch():
    lines = [
        charts.Line(f"line {k}", "ours", [charts.Point(1, 1), charts.Point(2, 1 + k / 1000)])
        for k in range(4)
    ]
    svg = charts.draw_chart(lines, charts.Axis("x"), charts.Axis("y"), about="four lines")
    heights = sorted(float(y) for y in re.findall(r'class="ours" x="548.0" y="([\d.]+)"', svg))
    assert len(heights) == 4
    assert min(np.diff(heights)) >= 14


def test_the_picture_is_wide_enough_for_its_longest_name_and_names_keep_off_marks():
    name = "noise of 0.04, tokens up to norm 5.66"
    lines = [charts.Line(name, "ours", [charts.Point(1, 1), charts.Point(2, 2)])]
    lines += [
        charts.Line("beside", "peer", [charts.Point(1, 1.5)]),
        charts.Line("", "bad", [charts.Point(1.05, 1.5)]),
    ]
    svg = charts.draw_chart(lines, charts.Axis("x"), charts.Axis("y"), about="names")
    x, height = (float(held) for held in re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups())
    assert (x >= charts.RIGHT + 6 * len(name), height) == (True, charts.HEIGHT)
    cross = float(re.search(r'class="bad" d="M[\d.]+ ([\d.]+)', svg).group(1))
    beside = float(re.search(r'y="([\d.]+)">beside', svg).group(1)) - 4
    assert abs(beside - cross) >= 14


def test_an_axis_takes_hostile_names():
    svg = charts.draw_chart(
        [charts.Line(EVIL, "ours", [charts.Point(1, 1)])],
        charts.Axis(EVIL),
        charts.Axis(EVIL),
        about=EVIL,
    )
    assert "<script>" not in svg
    assert escape_text(EVIL) in svg
