"""One palette: every colour is written in one file, and every page and script reads it there."""

import re

import pytest

from keyhole.drawing import palette
from keyhole.web.explorer import read_page_files
from support.paths import ROOT

HOME = ROOT / "src" / "keyhole" / "drawing" / "palette.py"
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for folder in ("src", "bench", "tools")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".js", ".css", ".html", ".svg"} and path != HOME
}
PAIRS = palette.COLOURS | palette.CONTROLS
EVERY = sorted({colour for pair in PAIRS.values() for colour in pair} | {*palette.SHARES})
HEX = re.compile(r"#(?:[0-9a-f]{8}|[0-9a-f]{6}|[0-9a-f]{3,4})\b", re.IGNORECASE)
# What the table of colours by meaning asks for, typed by hand.
MEANINGS = {
    "truth": ("#1b1f24", "#e8e6e1"),
    "ours": ("#1f6feb", "#6cb2ff"),
    "limit": ("#6b7280", "#9aa3af"),
    "built": ("#0f8a6c", "#3fc7a2"),
    "peer": ("#b7791f", "#e0b050"),
    "bad": ("#c2410c", "#ff8a5c"),
    "page": ("#fcfcfa", "#14171a"),
}


def declared(sheet):
    """The custom properties of a style sheet: on a light ground, and those a dark one changes."""
    light, _, dark = sheet.partition("@media")
    return tuple(dict(re.findall(r"--([\w-]+): ([^;]+);", part)) for part in (light, dark))


@pytest.mark.parametrize("colour", EVERY)
def test_a_colour_of_the_palette_is_written_nowhere_else(colour):
    channels = [str(int(colour[at : at + 2], 16)) for at in (1, 3, 5)]
    # As #rrggbb, or as three numbers between commas or blanks.
    told = re.compile(rf"{colour}|\b{'[, ]+'.join(channels)}\b", re.IGNORECASE)
    assert [name for name, text in TEXTS.items() if told.search(text)] == []


def test_no_other_file_brings_a_colour_of_its_own():
    assert {name: HEX.findall(text) for name, text in TEXTS.items() if HEX.search(text)} == {}
    written = re.compile(r"\b(?:rgba?|hsla?|oklch)\(\s*\d")
    assert [name for name, text in TEXTS.items() if written.search(text)] == []


@pytest.mark.parametrize("meaning", MEANINGS)
def test_colours_have_the_meaning_they_have_everywhere(meaning):
    name = "ink" if meaning == "truth" else meaning
    assert palette.COLOURS[name] == MEANINGS[meaning]
    assert palette.LIGHT[meaning] == MEANINGS[meaning][0]


def test_the_explorer_is_served_the_palette_in_light_and_dark():
    light, dark = declared(read_page_files()["palette.css"].decode())
    # Zero of a signed scale has the colour of the ground, on light and on dark.
    assert [dark.pop(f"signed-{k}") for k in range(3)] == ["#6cb2ff", "#14171a", "#ff8a5c"]
    assert {name: (light[name], dark[name]) for name in dark} == PAIRS
    assert [light[f"share-{k}"] for k in range(5)] == list(palette.SHARES)
    assert [light[f"signed-{k}"] for k in range(3)] == ["#1f6feb", "#fcfcfa", "#c2410c"]


def test_every_colour_a_page_uses_is_declared():
    light, _ = declared(palette.EXPLORER_COLOURS)
    used = {
        name: set(re.findall(r"var\(--([\w-]+)", text))
        for name, text in TEXTS.items()
        if "/web/static/" in name
    }
    assert set().union(*used.values()) - {*light} == set()
    pictures = re.findall(r"var\(--([\w-]+)", palette.PICTURE_RULES)
    assert {*pictures} <= {*palette.COLOURS}


def test_the_icon_has_its_colours_filled_in():
    icon = read_page_files()["icon.svg"].decode()
    assert set(HEX.findall(icon)) == {"#1b1f24", "#fcfcfa"}
    assert "{" not in icon


def test_channels_of_a_colour_are_its_bytes():
    assert palette.read_channels("#1f6feb") == (31, 111, 235)
