"""The labels of drawings, read from their SVG: where each stands, and which of them touch."""

import functools
import itertools
from html.parser import HTMLParser
from typing import NamedTuple

SIZE = 12.0  # of letters, as the palette says


class Label(NamedTuple):
    words: str
    left: float
    top: float
    right: float
    bottom: float

    def touches(self, other):
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


class Picture(NamedTuple):
    frame: Label
    labels: list


@functools.cache
def load_font():
    """The widest common sans, whose letters matplotlib brings along."""
    from matplotlib import font_manager, ft2font

    font = ft2font.FT2Font(font_manager.findfont("DejaVu Sans"))
    font.set_size(SIZE, 72)
    return font


@functools.cache
def measure(words):
    """The width of words, by the tables of the font."""
    font = load_font()
    return sum(font.load_char(ord(letter)).linearHoriAdvance / 65536 for letter in words)


class Reader(HTMLParser):
    """Every drawing of a page with its labels."""

    def __init__(self, page):
        super().__init__()
        self.pictures, self.inside, self.text = [], 0, None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        held = dict(attrs)
        if tag == "svg":
            left, top, width, height = map(float, held["viewbox"].split())
            frame = Label("", left, top, left + width, top + height)
            self.pictures.append(Picture(frame, []))
        elif tag == "text":
            self.text = (held, [])

    def handle_data(self, data):
        if self.text is not None:
            self.text[1].append(data)

    def handle_endtag(self, tag):
        if tag == "text":
            held, parts = self.text
            self.text = None
            if words := "".join(parts):
                self.pictures[-1].labels.append(place(held, words))


def place(held, words):
    """The box of a text: letters reach nine above their line and three below it."""
    width = measure(words)
    before = {"start": 0.0, "middle": 0.5, "end": 1.0}[held.get("text-anchor", "start")] * width
    if "transform" in held:
        shift, turn = held["transform"].split(" rotate")
        assert turn == "(-90)"
        x, y = map(float, shift.removeprefix("translate(").rstrip(")").split())
        return Label(words, x - 9, y - width + before, x + 3, y + before)
    x, y = float(held["x"]), float(held["y"])
    return Label(words, x - before, y - 9, x - before + width, y + 3)


def find_faults(page):
    """Labels that touch another, and labels that leave their picture."""
    faults = []
    for frame, labels in Reader(page).pictures:
        faults += [
            (one.words, other.words)
            for one, other in itertools.combinations(labels, 2)
            if one.touches(other)
        ]
        faults += [
            (one.words, "leaves the picture")
            for one in labels
            if one.left < frame.left
            or one.top < frame.top
            or one.right > frame.right
            or one.bottom > frame.bottom
        ]
    return faults


def count_labels(page):
    return sum(len(picture.labels) for picture in Reader(page).pictures)
