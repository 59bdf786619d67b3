"""Numbers and times as people read them; elements whose text and attributes are escaped."""

import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.drawing.html import (
    Markup,
    draw_svg,
    element,
    format_number,
    format_seconds,
    format_section,
    format_table,
    join_markup,
)

BIDI = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
NONE = "\u200e\u200f\ufeff\ufffe\uffff"  # marks of direction and of bytes, and no letters at all
HOSTILE = """<script>alert("1")</script> & 'so on'"""


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


class Read(HTMLParser):
    """What a browser makes of a page: its elements with their attributes, and its text."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_text_and_attributes_of_an_element_are_escaped():
    seen = Read(element("p", HOSTILE, " and more", title=HOSTILE))
    assert seen.elements == [("p", {"title": HOSTILE})]
    assert seen.text == f"{HOSTILE} and more"


@given(st.text(st.characters()), st.text("<>&\"'\x00\x1b\x9b\u202e\ud800ab \n"))
def test_any_text_comes_back_as_it_was_with_controls_spelt_out(some, hostile):
    text = some + hostile
    page = join_markup(element("p", text, title=text), format_table([(text, text)], (text,)))
    seen = Read(page)
    assert {tag for tag, _ in seen.elements} == {"p", "table", "thead", "tbody", "tr", "th", "td"}
    spelt = "".join(c if c in "\n\t" or not is_control(c) else spell(c) for c in text)
    assert seen.elements[0] == ("p", {"title": spelt})
    assert seen.text == 4 * spelt
    page.encode()


def is_control(letter):
    turning = unicodedata.bidirectional(letter) in BIDI
    return unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") or turning or letter in NONE


def spell(letter):
    code = ord(letter)
    if letter == "\r":
        return "\\r"
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def test_markup_is_kept_and_escaped_where_an_attribute_asks_for_text():
    bold = element("b", "a < b")
    assert bold == "<b>a &lt; b</b>"
    assert element("p", bold) == "<p><b>a &lt; b</b></p>"
    assert Read(element("p", title=bold)).elements == [("p", {"title": bold})]


@pytest.mark.parametrize("mixed", [lambda b: b + HOSTILE, lambda b: f"{b}{HOSTILE}", str])
def test_what_is_made_of_markup_by_hand_is_text_again(mixed):
    text = mixed(element("b", "x"))
    assert not isinstance(text, Markup)
    assert Read(element("p", text)).elements == [("p", {})]
    assert Read(join_markup(text)).elements == []


def test_names_of_attributes_may_be_words_of_python_and_none_is_left_out():
    drawn = element("text", "y", class_="quiet", text_anchor="end", x=1.5, y=0, id=None)
    assert drawn == '<text class="quiet" text-anchor="end" x="1.5" y="0">y</text>'


def test_elements_without_an_end_have_none():
    assert element("img", alt="") == '<img alt="">'
    assert element("path", d="M0 0") == '<path d="M0 0"/>'
    assert element("path", element("title", "t")) == "<path><title>t</title></path>"
    assert element("td") == "<td></td>"


def test_tables_sections_and_drawings_are_markup_with_their_words_escaped():
    table = format_table([(HOSTILE, HOSTILE)], (HOSTILE, "n"), (1,))
    page = format_section(HOSTILE, join_markup(table, draw_svg("", size={}, label=HOSTILE)))
    assert isinstance(page, Markup)
    seen = Read(page)
    assert "script" not in dict(seen.elements)
    assert seen.text.count(HOSTILE) == 4
    assert dict(seen.elements)["svg"]["aria-label"] == HOSTILE
