"""Elements, numbers, tables and sections of a page, escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

from keyhole.drawing.palette import PICTURE_STYLE
from keyhole.errors import spell_controls

# Elements that have no end, in HTML and in drawings.
_VOID = {"br", "img", "link", "meta"}
_SHAPES = {"circle", "image", "path", "rect"}
_LONG = 40  # letters of a cell that is a sentence


class Markup(str):
    """Text that is part of a page already: a builder does not escape it again.

    Whatever is made of it by other means (`+`, `join`, an f-string) is plain text again, and is
    escaped: what is forgotten shows on the page, and is never run.
    """

    __slots__ = ()


def escape_text(value: Any) -> str:
    """Text that is safe inside a page."""
    return html.escape(spell_controls(str(value)))


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """An element of a page or a drawing, its text and its attributes escaped.

    Args:
        tag: its name.
        children: what stands in it; plain text is escaped, markup is not.
        attributes: by name, `_` for `-` and one more at the end of words of Python (`class_`);
            those that are None are left out.
    """
    told = "".join(
        f' {name.removesuffix("_").replace("_", "-")}="{escape_text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{told}>")
    if tag in _SHAPES and not children:
        return Markup(f"<{tag}{told}/>")
    return Markup(f"<{tag}{told}>{join_markup(*children)}</{tag}>")


def join_markup(*children: str) -> Markup:
    """Parts of a page one after the other; plain text is escaped, markup is not."""
    return Markup("".join(one if isinstance(one, Markup) else escape_text(one) for one in children))


def format_number(value: float | None) -> str:
    """A number for a person: whole ones with separators, others to two or three digits."""
    if value is None or not math.isfinite(value):
        return "not finite"
    # Doubles beyond 1e15 are whole by accident, not by meaning.
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if not 1e-3 <= abs(value) < 1e6:
        digits, power = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def format_seconds(value: float) -> str:
    """A time for a person."""
    # What would be rounded to 1.0 s is already given in seconds.
    if value < 0.995:
        return f"{format_number(float(f'{1000 * value:.2g}'))} ms"
    return f"{value:.1f} s" if value < 120 else f"{int(value // 60):,} min {value % 60:.0f} s"


def format_table(
    rows: list[tuple[str, ...]], columns: tuple[str, ...] = (), numbers: tuple[int, ...] = ()
) -> Markup:
    """Rows of text, the first cell of each its name; columns of `numbers` are set flush right."""
    # Tables without a head may have any number of columns; none here has more than 33.
    kinds = ["number" if i in numbers else None for i in range(max(33, len(columns)))]
    lines: list[Markup] = []
    for first, *rest in rows:
        cells = (
            element("td", str(cell), class_=kind or ("words" if len(str(cell)) > _LONG else None))
            for kind, cell in zip(kinds[1:], rest, strict=False)
        )
        lines.append(element("tr", element("th", str(first), scope="row"), *cells))
    # A column without a name has no header: an empty one would be read out as nothing.
    head = (
        element("th", str(name), scope="col", class_=kind) if name else element("td", class_=kind)
        for kind, name in zip(kinds, columns, strict=False)
    )
    return element("table", element("thead", element("tr", *head)), element("tbody", *lines))


def format_section(title: str, *body: str) -> Markup:
    """A part of a page; its title is the finding in a sentence."""
    return element("section", element("h2", title), *body)


def make_scrollable(body: str, name: str) -> Markup:
    """Markup that is scrolled sideways where the page is narrow."""
    about = {"role": "region", "aria-label": name, "tabindex": "0"}
    return element("div", body, style="overflow-x:auto", **about)


def format_command(command: str, versions: str) -> Markup:
    """A command to be copied, and what it was run with."""
    return join_markup(
        element("pre", element("code", command), tabindex="0"), element("p", versions)
    )


def format_note(words: str) -> Markup:
    """A quiet paragraph: what to look at, and how it was made."""
    return element("p", words, class_="limit")


def join_pictures(*figures: str) -> Markup:
    """Figures side by side, as many as the page is wide."""
    return element("div", *figures, class_="pictures")


def draw_svg(marks: str, *, size: Mapping[str, str], label: str) -> Markup:
    """A drawing that carries its style.

    Args:
        marks: its shapes and texts, which have the classes the palette knows.
        size: its view box, and other attributes.
        label: what it shows, in words.
    """
    about = {"class": "keyhole", **size, "role": "img", "aria-label": label}
    return element("svg", Markup(PICTURE_STYLE), marks, **about)


def caption_picture(name: str, note: str) -> Markup:
    """What stands below a picture: its name, and what to look at."""
    return join_markup(element("b", name), f": {note}")


def frame_figure(body: str, caption: str = "", *, width: str = "18rem") -> Markup:
    """A picture with its caption; pictures inside share its one style."""
    below = element("figcaption", caption) if caption else ""
    inside = drop_styles(join_markup(body))
    style = Markup(PICTURE_STYLE)
    return element("figure", style, inside, below, class_="keyhole", style=f"width:{width}")


def drop_styles(body: Markup) -> Markup:
    """Markup without the style of each picture: what stands around them has it once."""
    return Markup(body.replace(PICTURE_STYLE, ""))
