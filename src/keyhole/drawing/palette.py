"""The colours of pages and pictures, and the style a picture carries with it.

Every colour is written here and nowhere else: reports, pictures, figures for papers and the page
of the explorer with its scripts take theirs from this file.

A picture is shown in pages of ours, in notebooks and in pages of others. So it brings its rules
along, for elements of its own class alone, takes its ink from the text around it and follows the
colour scheme of where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping

COLOURS = {  # by meaning, on a light and on a dark ground; truth is drawn in ink
    "page": ("#fcfcfa", "#14171a"),
    "ink": ("#1b1f24", "#e8e6e1"),
    "ours": ("#1f6feb", "#6cb2ff"),
    "limit": ("#6b7280", "#9aa3af"),
    "bad": ("#c2410c", "#ff8a5c"),
    "built": ("#0f8a6c", "#3fc7a2"),
    "peer": ("#b7791f", "#e0b050"),
    "rule": ("#d9d9d4", "#33383d"),
}
CONTROLS = {  # what only a page with buttons and fields needs
    "faint": ("#f1f1ec", "#1c2024"),
    "on-ours": ("#ffffff", "#14171a"),
}
# Papers are white, and colours of cells are the same everywhere: those on a light ground.
LIGHT = {name: light for name, (light, _) in COLOURS.items()} | {"truth": COLOURS["ink"][0]}
# Signed numbers from -1 over 0 to 1.
SIGNED = (LIGHT["ours"], LIGHT["page"], LIGHT["bad"])
# Shares from 0 to 1. Five stops of viridis: even in brightness, and told apart without colour
# vision.
SHARES = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")

# A backslash at the end of a line joins it to the next: pages keep their bytes.
PICTURE_RULES = """
figure.keyhole { margin: 0; width: 18rem; max-width: 100%; }
.keyhole figcaption, .keyhole output { font-size: .85rem; line-height: 1.4; }
.keyhole .map { display: grid; grid-template-columns: 1.3rem 1fr; line-height: 1.3rem; \
font-size: .8rem; }
.keyhole .key { writing-mode: vertical-rl; transform: rotate(180deg); text-align: right; }
.keyhole .query, .keyhole .scale { grid-column: 2; } .keyhole .map > img { min-height: .8rem; }
.keyhole img { display: block; width: 100%; height: auto; box-sizing: border-box; \
image-rendering: pixelated;
  border: 1px solid var(--rule); }
.keyhole .scale img { height: .6rem; margin-top: .4rem; }
.keyhole .scale div { display: flex; justify-content: space-between; }
svg.keyhole { display: block; max-width: 100%; overflow: visible; }
svg.keyhole text { fill: var(--ink); font-size: 12px; } \
svg.keyhole .quiet, svg.keyhole .limit { fill: var(--limit); }
svg.keyhole .ours { fill: var(--ours); } svg.keyhole .built { fill: var(--built); }
svg.keyhole .bad { fill: var(--bad); stroke: var(--bad); } svg.keyhole .peer { fill: var(--peer); }
svg.keyhole text.bad { stroke: none; } \
svg.keyhole path.line { fill: none; stroke-width: 1.5; stroke: var(--limit); }
svg.keyhole .line.bad { stroke: var(--bad); } svg.keyhole .line.limit { stroke-dasharray: 5 4; }
svg.keyhole .line.truth { stroke: var(--ink); }
svg.keyhole .line.ours { stroke: var(--ours); } svg.keyhole .line.built { stroke: var(--built); }
svg.keyhole .line.peer { stroke: var(--peer); stroke-dasharray: 2 3; } \
svg.keyhole .rule { stroke: var(--rule); }
svg.keyhole .dashed { stroke: var(--limit); stroke-width: 1.5; stroke-dasharray: 5 4; }
svg.keyhole .truth { fill: none; stroke: var(--ink); stroke-width: 1.3; }
svg.keyhole .patch { stroke: none; } svg.keyhole .patch.edged { stroke: var(--ours); }
svg.keyhole .cell { shape-rendering: crispEdges; }
"""


def read_channels(colour: str) -> tuple[int, int, int]:
    """Red, green and blue of a colour of the palette, from 0 to 255."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue


def _declare_colours(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def _style_page(pairs: Mapping[str, tuple[str, str]], fixed: Mapping[str, str]) -> str:
    """Colours of a page of ours, which is light or dark as the system prefers.

    Args:
        pairs: those that follow the preference, on a light and on a dark ground.
        fixed: those that do not.
    """
    light, dark = ({name: pair[k] for name, pair in pairs.items()} for k in (0, 1))
    preferred = f"@media (prefers-color-scheme: dark) {{ :root {{ {_declare_colours(dark)} }} }}"
    declared = _declare_colours({**light, **fixed})
    return f":root {{ color-scheme: light dark; {declared} }}\n{preferred}"


def _style_explorer() -> str:
    """Colours of the explorer's page, and the scales its scripts paint heatmaps with."""
    # Zero has the colour of the ground, so that a matrix does not glare in the dark.
    signed = {f"signed-{k}": COLOURS[name] for k, name in enumerate(("ours", "page", "bad"))}
    scales = {f"share-{k}": colour for k, colour in enumerate(SHARES)}
    # Words and frames on a heatmap are bright or dark as its cells are, not as the page is.
    grounds = {"bright": LIGHT["page"], "dark": LIGHT["ink"]}
    return _style_page(COLOURS | CONTROLS | signed, grounds | scales) + "\n"


def _style_picture() -> str:
    """Colours of a picture among strangers; those that show on both schemes where in doubt."""
    ink = {"ink": "currentColor"}
    light = {name: pair[0] for name, pair in COLOURS.items()} | ink
    # Without light-dark() a browser takes the light colours: they can be read on dark ground too.
    both = {name: f"light-dark({', '.join(pair)})" for name, pair in COLOURS.items()} | ink
    known = f"@supports (color: light-dark(red, red)) {{ .keyhole {{ {_declare_colours(both)} }} }}"
    return f".keyhole {{ {_declare_colours(light)} }}\n{known}"


_LETTERS = "text { font-family: system-ui, sans-serif; } .ground rect { fill: var(--page); }"


def _style_alone() -> str:
    """Colours of a picture in a file of its own: light, whoever opens it."""
    light = {name: pair[0] for name, pair in COLOURS.items()}
    return f".keyhole {{ {_declare_colours(light)} }} {_LETTERS}"


def _style_both() -> str:
    """Colours of a picture that a page shows as an image: light or dark as the system prefers."""
    dark = {name: pair[1] for name, pair in COLOURS.items()}
    preferred = "@media (prefers-color-scheme: dark)"
    return f"{_style_alone()} {preferred} {{ .keyhole {{ {_declare_colours(dark)} }} }}"


PAGE_COLOURS = _style_page(COLOURS, {})
EXPLORER_COLOURS = _style_explorer()
PICTURE_STYLE = f"<style>{_style_picture()}{PICTURE_RULES}</style>"
ALONE_STYLE = f"{_style_alone()}{PICTURE_RULES}"
BOTH_STYLE = f"{_style_both()}{PICTURE_RULES}"
