"""What the words promise: every claim and command is documented, and the first example runs."""

import importlib.util
import re

import pytest

import keyhole
from keyhole import cli
from keyhole.theorems import AtHand
from support.paths import ROOT

COMMANDS = sorted(name for name in cli.app if not name.startswith("-"))
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def words(name):
    return (ROOT / name).read_text(encoding="utf-8")


def headings(name):
    return re.findall(r"^#+ +(.*?) *$", words(name), re.MULTILINE)


def first_example(text):
    return FENCE.search(text).group(1)


PAGES = [
    "README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]


def examples():
    pages = PAGES
    return [
        pytest.param(code, id=f"{page}-{i}")
        for page in pages
        for i, code in enumerate(FENCE.findall(words(page)))
    ]


@pytest.mark.parametrize("theorem", keyhole.THEOREMS)
def test_every_theorem_has_its_section(theorem):
    assert theorem in headings("docs/theorems.md")


@pytest.mark.parametrize("theorem", keyhole.THEOREMS)
def test_every_theorem_marks_a_test(theorem):
    assert generator().read_markers()[theorem]


def source_of(theorem):
    return f"src/{theorem.module.replace('.', '/')}.py"


@pytest.mark.parametrize("theorem", keyhole.THEOREMS.values(), ids=lambda theorem: theorem.id)
def test_every_theorem_names_a_module_that_names_it_and_a_test_marked_with_it(theorem):
    assert importlib.import_module(theorem.module)
    assert re.search(rf"{re.escape(theorem.id)}(?![\w-])", words(source_of(theorem)))
    assert theorem.test in generator().read_markers()[theorem.id]


@pytest.mark.parametrize("theorem", keyhole.THEOREMS.values(), ids=lambda theorem: theorem.id)
def test_every_page_of_a_theorem_links_its_module_and_its_test(theorem):
    page = words(f"docs/theorems/{generator().slug(theorem.id)}.md")
    files = {link.removeprefix("../../") for link in re.findall(r"\]\((\.\./\.\./[^)]+)\)", page)}
    assert {source_of(theorem), theorem.test} <= files


@pytest.mark.parametrize("theorem", keyhole.THEOREMS.values(), ids=lambda theorem: theorem.id)
def test_the_argument_for_a_claim_says_how_it_stands(theorem):
    section = words("docs/theorems.md").split(f"## {theorem.id}\n")[1].split("\n## ")[0]
    assert f"tanding: {theorem.standing}" in " ".join(section.split())


@pytest.mark.parametrize("theorem", keyhole.THEOREMS.values(), ids=lambda theorem: theorem.id)
def test_what_a_paper_states_is_kept_apart_from_what_is_ours(theorem):
    cited = not theorem.id.startswith("keyhole/")
    # Of these the paper has the task or the definition, and no more of the claim.
    derived = theorem.id in {"SHT23/third-order", "SHT23/bigram", "SHT23/local"}
    derived |= theorem.standing == "conjecture"
    assert (cited and not derived) == (theorem.standing == "paper")
    assert theorem.standing != "paper" or theorem.at_hand is not AtHand.RECALLED
    assert theorem.at_hand is not AtHand.UNRECORDED
    assert bool(theorem.paper_states) == (theorem.at_hand is not AtHand.OURS)
    assert bool(theorem.paper_states) or not cited
    # Whatever a statement adds to the paper's part of it has to be named as ours.
    assert theorem.our_constant or theorem.paper_states in {"", theorem.statement}


def test_registry_markers_and_pages_list_the_same_theorems():
    registry = set(keyhole.THEOREMS)
    assert set(generator().read_markers()) == registry
    pages = [page for page in PAGES if page.startswith("docs/theorems/")]
    assert {headings(page)[0] for page in pages} == registry


def test_theorems_are_marked_for_whole_files():
    marked = {file for files in generator().read_markers().values() for file in files}
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    named = {path for path, text in texts.items() if re.search(r"^@?.*mark\.theorem", text, re.M)}
    assert {path.relative_to(ROOT).as_posix() for path in named} == marked


def test_the_readme_fits_its_length():
    assert len(words("README.md").splitlines()) <= 120


def test_the_contributing_page_fits_its_length():
    assert len(words("CONTRIBUTING.md").splitlines()) < 60


def test_the_changelog_has_an_unreleased_section():
    assert "[Unreleased]" in headings("CHANGELOG.md")


def test_the_first_example_of_the_readme_recovers_what_it_hides(capsys):
    exec(first_example(words("README.md")), {})  # noqa: S102
    verdict, error = capsys.readouterr().out.splitlines()
    assert verdict.startswith("EXACT ")
    assert float(error.removeprefix("error ")) < 1e-12


def test_the_first_example_of_the_readme_has_six_lines():
    assert len(first_example(words("README.md")).splitlines()) == 6


@pytest.mark.parametrize("code", examples())
def test_every_python_example_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(code, {})  # noqa: S102


def test_there_are_commands_to_document():
    assert {"demo", "learn", "plan", "verify", "compare", "sample"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_section_and_is_in_the_readme(command):
    assert any(
        re.match(rf"`keyhole {command}\b", heading) for heading in headings("docs/command-line.md")
    )
    assert f"keyhole {command}" in words("README.md")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_documented(command):
    section = re.split(r"^## ", words("docs/command-line.md"), flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(f"`keyhole {command}"))
    names = [
        name
        for argument in cli.app[command].assemble_argument_collection()
        for name in argument.names
    ]
    options = {
        name
        for name in names
        if name.startswith("--") and not name.startswith(("--no-", "--empty-"))
    } - {"--json"}
    assert options
    for option in options:
        bare = option.removeprefix("--")
        assert (
            f"`{option}`" in text
            or f"`--no-{bare}`" in text
            or bare.upper() in text.splitlines()[0]
        )


@pytest.mark.parametrize("name", [*keyhole.Verdict.__members__, *keyhole.Status.__members__])
def test_every_verdict_and_status_is_explained(name):
    assert re.search(rf"\b{name}\b", words("docs/learning-one-head.md"))


@pytest.mark.parametrize("name", keyhole.__all__)
def test_every_public_name_is_listed(name):
    text = words("docs/api.md")
    listed = re.search(rf"^::: keyhole\.{name}$", text, re.MULTILINE)
    assert listed or (hasattr(keyhole.errors, name) and "::: keyhole.errors" in text)


def anchor(heading):
    """The address of a heading inside its page, as the builder makes it."""
    plain = re.sub(r"[`*]|\$[^$]*\$", "", heading).lower()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip())


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", words(page))
    for link, place in links:
        target = (folder / link).resolve() if link else ROOT / page
        assert target.is_file(), link
        if place and target.suffix == ".md":
            assert place in {anchor(heading) for heading in headings(target.relative_to(ROOT))}, (
                f"{link}#{place}"
            )


def test_the_navigation_lists_every_page_once():
    listed = re.findall(r": ([\w/.-]+\.md)$", words("mkdocs.yml"), re.MULTILINE)
    assert sorted(f"docs/{name}" for name in listed) == sorted(set(PAGES) - {"README.md"})


def test_the_navigation_of_theorems_is_the_one_that_is_generated():
    assert generator().write_navigation(words("mkdocs.yml")) == words("mkdocs.yml"), (
        "run `make docs`: the navigation in mkdocs.yml is not current"
    )


def test_the_navigation_of_theorems_is_written_between_its_markers_only():
    made = generator()
    bare = f"before\n{made._FIRST}      - gone: theorems/gone.md\n{made._LAST}after\n"
    lines = made.write_navigation(bare).splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert lines[2] == "      - BSHK26/4.1: theorems/bshk26-4-1.md"
    assert len(lines) == len(keyhole.THEOREMS) + 4
    with pytest.raises(ValueError, match="needs the lines"):
        made.write_navigation("nav:\n")


def generator():
    spec = importlib.util.spec_from_file_location(
        "theorem_pages", ROOT / "tools" / "theorem_pages.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_theorem_has_a_page_of_what_the_registry_and_the_argument_say():
    made = generator().render({})
    assert sorted(path.name for path in (ROOT / "docs" / "theorems").iterdir()) == sorted(made)
    for name, text in made.items():
        argued, _, _ = text.partition("## Measured")
        assert words(f"docs/theorems/{name}").startswith(argued), (
            f"run `make docs`: {name} is not current"
        )


@pytest.mark.slow
def test_the_certificates_on_the_pages_of_theorems_are_what_is_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    for name, text in generator().pages().items():
        assert words(f"docs/theorems/{name}") == text


def test_a_certificate_is_shown_with_both_sides_of_every_inequality():
    made = generator()
    held = keyhole.Certificate(
        "SHT23/2", (keyhole.Check("a | b", 1e-15, 2.0),), (keyhole.Check("c", 3.25, 3.0),)
    )
    text = made.shown("a case", held)
    assert "| assumed: a \\| b | rounding | 2 | holds |" in text
    assert "| concluded: c | 3.2 | 3 | fails |" in text
    assert "**REFUTED**" in text


@pytest.mark.parametrize("page", [page for page in PAGES if "guides" in page])
def test_no_sample_of_a_guide_is_written_over_another(page):
    samples = re.findall(r"keyhole sample (\w+)([^`\n]*)", words(page))
    files = [
        (re.findall(r"--out (\S+)", rest) or [f"{kind}.safetensors"])[0] for kind, rest in samples
    ]
    assert len(files) == len(set(files))
