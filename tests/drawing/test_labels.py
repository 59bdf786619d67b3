"""Boxes of words: wide enough for any font, and placed where they touch nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.drawing.labels import (
    Box,
    box_path,
    box_words,
    measure_words,
    place_box,
    shorten_words,
    surround_place,
    wrap_words,
)

ASCII = [chr(code) for code in range(32, 127)]
OURS = "−±×→←∅≤≥σπθμ·…●○✕■é"


@pytest.mark.parametrize("letters", [ASCII, OURS], ids=["ascii", "ours"])
def test_letters_are_taken_for_wider_than_a_wide_font_draws_them(letters):
    pytest.importorskip("matplotlib")
    from support.drawn_labels import measure

    assert [one for one in letters if measure_words(one) < measure(one)] == []
    # Not by much, or pictures would be mostly air.
    assert sum(map(measure_words, letters)) < 1.35 * sum(map(measure, letters))


@given(st.text(max_size=60), st.floats(20, 300))
def test_words_that_were_shortened_fit_and_say_that_they_were_cut(words, width):
    cut = shorten_words(words, width)
    assert measure_words(cut) <= width
    assert cut.endswith("…") or "".join(cut.split()) != "" or not words.split()
    assert "\n" not in cut


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=9), max_size=20), st.floats(80, 300))
def test_wrapped_lines_hold_all_words_and_fit(words, width):
    lines = wrap_words(" ".join(words), width)
    assert " ".join(lines).split() == words
    assert all(measure_words(line) <= width for line in lines)


places = st.tuples(st.floats(0, 400), st.floats(0, 300))


@given(st.lists(places, max_size=12), places, st.text("abc ", min_size=1, max_size=12))
def test_a_place_that_is_found_touches_nothing_and_lies_inside(taken, at, words):
    frame = Box(0.0, 0.0, 400.0, 300.0)
    boxes = [box_words(*place, "taken") for place in taken]
    found = place_box(surround_place(*at, words), boxes, frame, gap=2.0)
    free = [
        box
        for box in surround_place(*at, words)
        if box.left >= 0 and box.right <= 400 and box.top >= 0 and box.bottom <= 300
        if all(
            box.right + 2 <= b.left
            or b.right + 2 <= box.left
            or box.bottom + 2 <= b.top
            or b.bottom + 2 <= box.top
            for b in boxes
        )
    ]
    assert found == (free[0] if free else None)


@settings(max_examples=30)
@given(st.lists(places, min_size=2, max_size=5), st.floats(0, 1))
def test_a_chain_of_boxes_covers_its_line(points, share):
    (a, b), (c, d) = points[0], points[1]
    x, y = a + share * (c - a), b + share * (d - b)
    chain = box_path(points)
    assert any(one.left <= x <= one.right and one.top <= y <= one.bottom for one in chain)
    assert all(one.right - one.left <= 8.01 and one.bottom - one.top <= 8.01 for one in chain)
