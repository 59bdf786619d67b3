"""Text, numbers, tables and sections of a page, escaped."""

from __future__ import annotations

import html
import math
from typing import Any

from keyhole.drawing.palette import PICTURE_STYLE


def escape_text(value: Any) -> str:
    """Text that is safe inside a page."""
    return html.escape(str(value))


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
) -> str:
    """Rows of text, the first cell of each its name; columns of `numbers` are set flush right."""
    # Tables without a head may have any number of columns; none here has more than 33.
    kinds = [' class="number"' if i in numbers else "" for i in range(max(33, len(columns)))]
    lines = ""
    for first, *rest in rows:
        cells = "".join(
            f"<td{kind}>{escape_text(cell)}</td>"
            for kind, cell in zip(kinds[1:], rest, strict=False)
        )
        lines += f'<tr><th scope="row">{escape_text(first)}</th>{cells}</tr>'
    head = "".join(
        f'<th scope="col"{kind}>{escape_text(c)}</th>'
        for kind, c in zip(kinds, columns, strict=False)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def format_section(title: str, body: str) -> str:
    """A part of a page; its title is the finding in a sentence."""
    return f"<section><h2>{escape_text(title)}</h2>{body}</section>"


def make_scrollable(body: str, name: str) -> str:
    """Something that is scrolled sideways where the page is narrow."""
    return (
        f'<div style="overflow-x:auto" role="region" aria-label="{escape_text(name)}"'
        f' tabindex="0">{body}</div>'
    )


def format_command(command: str, versions: str) -> str:
    """A command to be copied, and what it was run with."""
    return (
        f'<pre tabindex="0"><code>{escape_text(command)}</code></pre><p>{escape_text(versions)}</p>'
    )


def draw_svg(marks: str, *, size: str, label: str) -> str:
    """A drawing that carries its style.

    Args:
        marks: its shapes and texts, which have the classes the palette knows.
        size: its view box, and other attributes.
        label: what it shows, in words.
    """
    about = f'class="keyhole" {size} role="img" aria-label="{escape_text(label)}"'
    return f"<svg {about}>{PICTURE_STYLE}{marks}</svg>"


def frame_figure(body: str, caption: str = "", *, width: str = "18rem") -> str:
    """A picture with its caption under it; pictures inside share its one style."""
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    # One copy of the style is enough for all that stands in the figure.
    inside = body.replace(PICTURE_STYLE, "")
    return f'<figure class="keyhole" style="width:{width}">{PICTURE_STYLE}{inside}{below}</figure>'
