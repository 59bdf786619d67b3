"""Numbers and times as people read them."""

import pytest

from keyhole.drawing.html import format_number, format_seconds


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (1024.0, "1,024"),
        (599.92, "600"),
        (1e-9, "1e-9"),
        (5.43723e-14, "5.4e-14"),
        (0.30812, "0.308"),
        (12345.6, "12,346"),
        (2.5e7 + 0.5, "2.5e7"),
        (float("nan"), "not finite"),
        (None, "not finite"),
        (-0.25, "-0.25"),
    ],
)
def test_a_number_is_short_and_plain(value, said):
    assert format_number(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0743, "74 ms"), (0.999, "1.0 s"), (12.34, "12.3 s"), (3661, "61 min 1 s")],
)
def test_a_time_has_a_unit(value, said):
    assert format_seconds(value) == said
