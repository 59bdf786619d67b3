"""Words of strangers on every kind of page: escaped, spelt out, and never part of its structure."""

import json
import shutil
from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keyhole.lab.pages.comparing.comparison_page import draw_comparison_page
from keyhole.lab.pages.run_page import draw_run_page
from keyhole.lab.runs.reading import read_run
from support.pages import Walk
from support.run_records import EVIL, KINDS, TRAINED

# Fields that choose how a page is drawn: a record with other words there is damaged.
KEPT = {"theorem", "outcome", "symmetry", "verdict", "axis", "sender", "receiver", "model"}
KEPT |= {"record", "x", "y", "value", "kind", "status"}
FOREIGN = st.text(
    st.one_of(
        st.sampled_from("<>&\"'/=` \n\t\\\x00\x07\x1b\x7f\x9b\u202e\u2028\ufeff"), st.characters()
    )
)


def poison(value, words, key=""):
    """A record with foreign words at the end of every text that may hold any."""
    if isinstance(value, dict):
        return {name: poison(entry, words, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [poison(entry, words, key) for entry in value]
    return value + words if isinstance(value, str) and key not in KEPT else value


@pytest.fixture(scope="module")
def places(runs, tmp_path_factory):
    """A copy of a run of every kind, one that no page is made for among them."""
    folder = tmp_path_factory.mktemp("foreign")
    for name in KINDS:
        shutil.copytree(runs[name], folder / name)
    for name, record in (
        ("train", TRAINED),
        ("other", {"sentence": "s", "list": ["a", {"b": "c"}]}),
    ):
        (folder / name).mkdir()
        (folder / name / "record.json").write_text(json.dumps(record))
    return folder


def draw(places, name, words):
    """The page of a run whose record was written by a stranger."""
    return draw_run_page(poison_run(read_run(str(places / name)), words))


def poison_run(run, words):
    """A run whose record was written by a stranger."""
    written = poison(msgspec.to_builtins(run.data), words)
    return replace(run, data=msgspec.convert(written, type(run.data)))


def check_page(page, words):
    walk = Walk(page)
    assert (walk.errors, walk.open) == ([], [])
    assert [tag for tag, _ in walk.tags].count("script") == 1
    assert {tag for tag, _ in walk.tags} <= TAGS
    assert {name for _, attrs in walk.tags for name in attrs} <= ATTRIBUTES
    assert all(
        letter.isprintable() or letter in "\n\t" for letter in set(page) if ord(letter) < 160
    )
    page.encode()


TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "main",
    "script",
    "section",
    "figure",
    "figcaption",
    "svg",
}
TAGS |= {
    "g",
    "path",
    "circle",
    "rect",
    "text",
    "h1",
    "h2",
    "p",
    "b",
    "div",
    "span",
    "img",
    "output",
    "table",
    "thead",
    "tbody",
    "tr",
}
TAGS |= {"th", "td", "ul", "li", "pre", "code", "details", "summary"}
# The contents of a long page.
TAGS |= {"nav", "ol", "a"}
ATTRIBUTES = {
    "lang",
    "charset",
    "name",
    "content",
    "http-equiv",
    "class",
    "style",
    "viewbox",
    "width",
    "height",
}
ATTRIBUTES |= {
    "role",
    "aria-label",
    "aria-hidden",
    "tabindex",
    "d",
    "fill",
    "fill-opacity",
    "stroke-width",
}
ATTRIBUTES |= {"x", "y", "cx", "cy", "r", "transform", "text-anchor", "alt", "src", "scope"}
ATTRIBUTES |= {"id", "href"}
ATTRIBUTES |= {f"data-{name}" for name in ("cells", "step", "width", "height", "name", "csv")}


@pytest.mark.parametrize("name", [*KINDS, "train", "other"])
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(words=FOREIGN)
@example(words=EVIL)
@example(words="\"' onload=alert(1) x='\"<!-- \x00\x1b[2J\u202e\ud800 ]]></script></style></svg>")
def test_foreign_words_never_reach_a_page_unescaped(places, name, words):
    check_page(draw(places, name, words), words)


def test_foreign_words_never_reach_a_page_of_several_runs_unescaped(places):
    words = EVIL + "\"'&\x00\x1b\u202e\ud800</script>"
    runs = [read_run(str(places / name)) for name in (*KINDS, "train", "other")]
    page = draw_comparison_page([poison_run(run, words) for run in runs])
    check_page(page, words)


@pytest.mark.parametrize("name", [*KINDS, "train", "other"])
def test_foreign_words_are_shown_as_they_are_with_controls_spelt_out(places, name):
    page = Walk(draw(places, name, "<b>&amp; \"quoted\" 'so' \x1b[2J\x00"))
    assert "<b>&amp; \"quoted\" 'so' \\x1b[2J\\x00" in page.text
