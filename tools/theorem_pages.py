"""A page for each theorem, from the registry, its argument in docs/theorems.md and a certificate
that is measured here.

Run without arguments it writes docs/theorems/ and their part of the navigation in mkdocs.yml.
Numbers that are rounding are not printed, so that the pages do not change from machine to machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from keyhole.bounds.formulas import Inequality
from keyhole.claims import THEOREMS, Certificate, Theorem

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "theorems"
CONFIGURATION = ROOT / "mkdocs.yml"
_FIRST = "      # The pages of theorems, written by `make docs`:\n"
_LAST = "      # The end of the pages of theorems.\n"
_ROUNDING = 1e-8  # numbers below are different on every machine
_LARGEST = 1e300


def slug(theorem: str) -> str:
    """The name of a theorem's page."""
    return theorem.replace("/", "-").replace(".", "-").lower()


def arguments() -> dict[str, str]:
    """The section of docs/theorems.md on each theorem, its links made to work one folder deeper."""
    text = (ROOT / "docs" / "theorems.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        name.strip(): _deeper(body.strip())
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def _deeper(body: str) -> str:
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", r"](../\1)", body)


def read_markers() -> dict[str, list[str]]:
    """The files of tests that are marked with each theorem, as `pytest.mark.theorem("ID", ...)`."""
    marked: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        markers = re.findall(r"^pytestmark = pytest\.mark\.theorem\(([^)]*)\)", text, re.MULTILINE)
        for theorem in re.findall(r'"([^"]+)"', " ".join(markers)):
            marked.setdefault(theorem, []).append(path.relative_to(ROOT).as_posix())
    return marked


def page(theorem: Theorem, argument: str, measured: str, tested: Iterable[str]) -> str:
    """The page of one theorem."""
    facts = {
        "Stated there": theorem.paper_states,
        "Ours": theorem.our_constant,
        "Text of the source": theorem.at_hand,
        "Standing": theorem.standing,
        "Implemented in": link_module(theorem.module),
        "Tested in": link_tests(theorem.test, tested),
    }
    rows = "".join(f"| {name} | {_cell(fact)} |\n" for name, fact in facts.items() if fact)
    return (
        f"# {theorem.id}\n\n> {theorem.statement}\n\n| Source | {theorem.source} |\n| --- | ---"
        f" |\n{rows}\n## The argument\n\n{argument}\n\n## Measured\n\n{measured}\n\n[All"
        " theorems](../theorems.md) · [what an outcome means](../theorems.md#theorems)\n"
    )


def link_module(module: str) -> str:
    """A module as a link to its file, from a page in docs/theorems/ or site/theorems/."""
    return f"[`{module}`](../../src/{module.replace('.', '/')}.py)"


def link_tests(first: str, tested: Iterable[str]) -> str:
    """The test that a theorem names, then the others marked with it, as links to their files."""
    names = dict.fromkeys([first, *tested])
    return ", ".join(f"[`{name}`](../../{name})" for name in names)


def write_navigation(text: str) -> str:
    """The text of mkdocs.yml with a line for the page of each theorem, in the registry's order."""
    before, first, rest = text.partition(_FIRST)
    _, last, after = rest.partition(_LAST)
    if not (first and last):
        raise ValueError(f"mkdocs.yml needs the lines {_FIRST.strip()!r} and {_LAST.strip()!r}")
    lines = "".join(f"      - {name}: theorems/{slug(name)}.md\n" for name in THEOREMS)
    return f"{before}{first}{lines}{last}{after}"


def shown(said: str, held: Certificate | Inequality) -> str:
    """A certificate, or an inequality, as a table."""
    if isinstance(held, Inequality):
        verdict = (
            "does not apply here"
            if not held.applies
            else "violated: too small"
            if held.violated
            else "satisfied"
        )
        rows = [
            f"| {_cell(held.formula)} | {_number(held.needed)} | {_number(held.available)} |"
            f" {verdict} |"
        ]
        return _table(f"On {said}:", ("inequality", "needed", "available", ""), rows)
    rows = [
        f"| {part}: {_cell(check.name)} | {_number(check.measured)} | {_number(check.limit)} |"
        f" {_held(check.holds)} |"
        for part, checks in (("assumed", held.assumptions), ("concluded", held.conclusion))
        for check in checks
    ]
    basis = f"{held.basis.name.lower()}: {held.sampled or held.basis.value}"
    words = f"On {said}, the certificate says **{held.outcome.name}** ({basis}):"
    return _table(words, ("inequality", "measured", "at most", ""), rows)


def _table(words: str, columns: tuple[str, ...], rows: list[str]) -> str:
    head = f"| {' | '.join(columns)} |\n| {' | '.join('---' for _ in columns)} |"
    return "\n".join([words, "", head, *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _held(holds: bool) -> str:
    return "holds" if holds else "fails"


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if not abs(value) < _LARGEST:
        return "no limit"
    if abs(value) < _ROUNDING:
        return "rounding" if value not in (1e-9, 1e-12) else f"{value:.0e}"
    return f"{int(value):,}" if value == int(value) else f"{value:.2g}"


UNMEASURED = (
    "No run carries a certificate of this claim; the tests named above confront it with numbers."
)


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    from certificates import examples

    measured = {held.theorem: shown(said, held) for said, held in examples()}
    return render(measured)


def render(measured: Mapping[str, str]) -> dict[str, str]:
    """Every page, given what was measured."""
    argued = arguments()
    tested = read_markers()
    return {
        f"{slug(name)}.md": page(
            theorem, argued[name], measured.get(name, UNMEASURED), tested.get(name, [])
        )
        for name, theorem in THEOREMS.items()
    }


def main() -> None:
    """Write the pages and their navigation, and remove the pages of theorems that are gone."""
    written = pages()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        if old.name not in written:
            old.unlink()
    for name, text in written.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    navigation = write_navigation(CONFIGURATION.read_text(encoding="utf-8"))
    CONFIGURATION.write_text(navigation, encoding="utf-8")
    sys.stderr.write(f"{len(written)} pages of theorems written to docs/theorems\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
