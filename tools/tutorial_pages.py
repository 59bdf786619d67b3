"""Write a page of the documentation for every notebook in tutorials/: what it shows when opened.

Every notebook is run once, with its sliders where they stand at first. Words stay Markdown,
pictures are embedded with their style, and a row of sliders becomes a line that names them.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keyhole.drawing.html import Markup, drop_styles, element, join_markup
from keyhole.drawing.palette import PICTURE_STYLE

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.py"))
PAGES = ROOT / "docs" / "tutorials"
# A number that ends in an exponent is an error of rounding: it differs between processors.
_ROUNDING = re.compile(r"\d(?:\.\d+)?e-\d+|at most 0e\+00")


def run_notebook(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """What its cells show, in their order, and the names they define."""
    shown, held = runpy.run_path(str(path))["app"].run()
    return [one for one in shown if one is not None], dict(held)


def compose_page(path: Path, shown: list[Any], held: dict[str, Any]) -> str:
    """The page of a notebook, as Markdown."""
    title, *rest = list(_write_parts(shown, held))
    file = path.relative_to(ROOT).as_posix()
    how = (
        f"This is the notebook `{file}` as it opens. To move its sliders: `pip install marimo`,"
        f" then `marimo edit {file}`; `python {file}` prints its findings."
    )
    heading, _, words = title.partition("\n")
    return "\n\n".join([heading, f"*{how}*", words.strip(), *rest]) + "\n"


def _write_parts(shown: list[Any], held: dict[str, Any]) -> Iterator[str]:
    sliders = {id_of(value): value for name, value in held.items() if name.endswith("_slider")}
    for one in shown:
        text = one.text
        if "marimo-slider" in text:
            # In the order of the page; names come from cells in no order.
            there = [
                sliders[key] for key in sorted(filter(text.__contains__, sliders), key=text.find)
            ]
            yield "Sliders: " + "; ".join(map(_name_slider, there)) + "."
        elif re.search("<svg|<figure", text):
            style = Markup(PICTURE_STYLE)
            # Markdown leaves what stands on one line inside a div as it is.
            body = element("div", style, drop_styles(Markup(text)), class_="keyhole")
            yield join_markup(Markup(body.replace("\n", " ")))
        else:
            yield one._repr_markdown_()


def id_of(slider: Any) -> str:
    """What tells a slider apart in the markup of a page."""
    return str(slider._id)


def _name_slider(slider: Any) -> str:
    return f"{slider._args.label}, from {slider.start:g} to {slider.stop:g}, here {slider.value:g}"


def mask_rounding(page: str) -> str:
    """A page without what differs between processors: tiny errors, and numbers in pictures."""
    words = re.sub(r"<div class=\"keyhole\">.*?</div>$", "PICTURE", page, flags=re.MULTILINE)
    return _ROUNDING.sub("TINY", words)


def main() -> None:
    """Write the pages."""
    PAGES.mkdir(exist_ok=True)
    for path in NOTEBOOKS:
        name = path.stem.replace("_", "-")
        (PAGES / f"{name}.md").write_text(compose_page(path, *run_notebook(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
