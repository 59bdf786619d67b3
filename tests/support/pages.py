"""Pages taken apart: their tags, their words, and what is not well formed."""

import base64
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

VOID = {"meta", "img"}


class Walk(HTMLParser):
    """Every tag of a page with its attributes; a tag that does not match fails the test."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.words, self.errors = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if len(attrs) != len(dict(attrs)):
            self.errors.append(f"{tag} names an attribute twice")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.errors.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]

    @property
    def maps(self):
        """The pictures of matrices, with the numbers they hold."""
        return [attrs for attrs in self.all("img") if "data-cells" in attrs]


def walked(path):
    """A page that is well formed, has one script and names no other host."""
    page = Path(path).read_text()
    walk = Walk(page)
    assert (walk.errors, walk.open) == ([], [])
    assert [tag for tag, _ in walk.tags].count("script") == 1
    assert "://" not in page
    return walk, page


def read_cells(text):
    """Numbers of a picture, as its page holds them: float64 in base64."""
    return np.frombuffer(base64.b64decode(text), dtype="<f8")
