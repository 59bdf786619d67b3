"""The house: rooms with walls, names that can be searched, commands that load their own rooms."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import fields
from pathlib import Path
from statistics import median

import pytest

from keyhole.lab import running
from keyhole.lab.jobs import COMMANDS
from keyhole.learners import registry
from keyhole.learners.base import Learner

SOURCE = Path(running.__file__).parents[1]
MODULES = {
    path.relative_to(SOURCE.parent).with_suffix("").as_posix().replace("/", "."): path
    for path in sorted(SOURCE.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
ROOMS = sorted({path.parent for path in MODULES.values()} - {SOURCE})
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
FORBIDDEN = {"behind", "boxes", "chains", "determined", "drawn", "explained", "judged", "mixing"}
FORBIDDEN |= {"other_page", "posing", "rough", "said", "spots", "switches", "together", "unseen"}
# Every room has a base or a learner; the other names are found once in a wing.
COMMON = {"__init__", "base", "learner", "files", "shared"}
# A name that is no literal is imported by the registries, and where a person names a module.
BY_STRING = {
    "keyhole.__init__",
    "keyhole.lab.targets.importing",
    "keyhole._places",
}
# Registries, whose places tests resolve.
BY_PLACE = {"keyhole.learners.registry", "keyhole.models.registry", "keyhole.tasks.registry"}
BY_PLACE |= {"keyhole.lab.jobs.__init__"}
OPTIONAL = {
    "torch": (
        "keyhole.oracles",
        "keyhole.lab.onnx",
        "keyhole.lab.training",
        "keyhole.lab.commands.computing",
    ),
    "onnx": ("keyhole.lab.onnx", "keyhole.oracles"),
    "onnxruntime": ("keyhole.oracles",),
    "httpx2": ("keyhole.oracles",),
    "starlette": ("keyhole.lab.serving", "keyhole.web"),
    "uvicorn": ("keyhole.lab.serving", "keyhole.web"),
    "matplotlib": ("keyhole.lab.pages.figures",),
    "flint": ("keyhole.constructions.proofs",),
    "pyarrow": ("keyhole.lab.runs",),
    "pandas": ("keyhole.drawing", "keyhole.lab.pages.run_faces"),
}


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, FUNCTION)]


def top_level_names(tree):
    return {node.name for node in tree.body if isinstance(node, (*FUNCTION, ast.ClassDef))}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(SOURCE).as_posix())
def test_a_room_has_at_most_fifteen_modules_and_says_what_it_is_for(room):
    modules = [path for path in room.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= 15
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    assert said is not None
    assert "Enters:" in said
    assert "Leaves:" in said


def test_modules_are_named_once_in_a_wing():
    wings = defaultdict(list)
    for name in MODULES:
        parts = name.split(".")
        if len(parts) > 2 and parts[-1] not in COMMON:
            wings[parts[1], parts[-1]].append(name)
    assert [names for names in wings.values() if len(names) > 1] == []


def test_few_names_are_defined_in_three_modules_or_more():
    places = Counter(name.lstrip("_") for tree in TREES.values() for name in top_level_names(tree))
    assert len([name for name, count in places.items() if count >= 3]) < 20


def test_names_that_nobody_would_search_for_are_gone():
    named = {name.lstrip("_") for tree in TREES.values() for name in top_level_names(tree)}
    assert FORBIDDEN.isdisjoint(named | {name.rpartition(".")[2] for name in MODULES})


def test_modules_are_short_and_functions_too():
    lengths = {name: path.read_text(encoding="utf-8").count("\n") for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
    every = [node for tree in TREES.values() for node in functions(tree)]
    sizes = [node.end_lineno - node.lineno + 1 for node in every]
    assert median(sizes) < 10


def test_only_the_ending_builds_a_recovery():
    builders = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Recovery"
    }
    assert builders == {"keyhole.learners.verifying.ending"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_registry_of_commands_names_what_there_is_and_where_it_may_stand(name):
    command = COMMANDS[name]
    rooms = {
        "run": (
            "keyhole.lab.commands.",
            "keyhole.lab.demo.",
            "keyhole.lab.sweeps.",
            "keyhole.web.",
        ),
        "record": ("keyhole.lab.runs.",),
        "page": ("keyhole.lab.pages.",),
        "question": ("keyhole.lab.runs.",),
        "summary": ("keyhole.lab.runs.",),
    }
    for part, allowed in rooms.items():
        place = getattr(command, part)
        assert place is None or (place.startswith(allowed) and callable(command.load(part)))
    # A record says what it is of by the name of its command.
    assert command.load("record").__struct_config__.tag == name


def test_commands_are_declared_in_the_registry_alone():
    """Nobody else has a table of jobs or of pages: a new command is one entry there."""
    jobs = {command.job.__name__ for command in COMMANDS.values()}
    listing = {}
    for name, tree in TREES.items():
        held = {
            node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in jobs
        }
        listing[name] = len(held)
    assert [name for name, count in listing.items() if count > 4] == ["keyhole.lab.jobs.__init__"]


@pytest.mark.parametrize("name", registry.LEARNERS)
def test_the_table_of_learners_names_what_there_is(name):
    entry = registry.LEARNERS[name]
    assert set(entry.needs) <= set(entry.takes) <= {field.name for field in fields(registry.Hints)}
    options = [option.name for option in fields(entry.load_class())]
    assert len(entry.takes) <= len(options)
    assert issubclass(entry.load_class(), Learner)


def imports(tree):
    """Modules that a module names in its import statements, wherever these stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_nothing_below_the_table_of_commands_imports_it():
    above = {"keyhole.cli", "keyhole.lab.running"}
    users = {name for name, tree in TREES.items() if "keyhole.lab.running" in imports(tree)}
    assert {name for name in users - above if not name.startswith("keyhole.web.")} == set()


def imported_strings(tree):
    """What a module imports by a string: the text where it is written out, else None."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
        if called == "import_module":
            yield getattr(node.args[0], "value", None)


def test_modules_are_imported_by_string_only_where_that_is_said():
    for name, tree in TREES.items():
        for text in imported_strings(tree):
            # Libraries without types are imported by their written-out name.
            library = str(text).partition(".")[0]
            assert name in BY_STRING or library in {*OPTIONAL, "distributed"}, (name, text)


def test_places_are_imported_by_registries_alone():
    users = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_place"
    }
    assert users == BY_PLACE


UNTYPED = re.compile(r"(dict|Mapping)\[str, (Any|object)\]")
TYPED = tuple(
    f"keyhole.lab.{room}."
    for room in ("runs", "jobs", "commands", "sweeps", "demo", "training", "targets")
)


def test_records_and_jobs_travel_with_their_types():
    """Data of no type is left where it is foreign: protocols of others, settings of libraries."""
    found = Counter()
    for name, path in MODULES.items():
        found[name] += len(UNTYPED.findall(path.read_text(encoding="utf-8")))
    assert {name: count for name, count in found.items() if count and name.startswith(TYPED)} == {}
    assert found.total() < 20


@pytest.mark.parametrize("library", OPTIONAL)
def test_an_optional_library_is_imported_in_its_own_rooms_alone(library):
    users = {
        name
        for name, tree in TREES.items()
        if any(module.partition(".")[0] == library for module in imports(tree))
    }
    assert [name for name in users if not name.startswith(OPTIONAL[library])] == []


RUN = """
import json, sys
from keyhole.cli import main
sys.argv = ["keyhole", *json.loads(sys.argv[1])]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
loaded = [name for name in sys.modules if name.startswith("keyhole.")]
sys.stderr.write("LOADED" + json.dumps(loaded))
"""


def load_with(*command, where):
    """The rooms of learners that a command has loaded when it ends."""
    words = [str(word) for word in command]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(words)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=where,
    )
    loaded = json.loads(done.stderr.rpartition("LOADED")[2])
    return {
        name.split(".")[2]
        for name in loaded
        if name.startswith("keyhole.learners.") and len(name.split(".")) > 2
    }


BASE = {"base", "findings", "found_units"}


def test_commands_load_no_learner_they_do_not_use(tmp_path):
    small = ("--length", 6, "--q", 1, "--embed", 6, "--bits", 12)
    assert load_with("bound", "sparse-average", *small, where=tmp_path) <= BASE
    assert (
        load_with("sample", "head", "--width", 3, "--out", "a.safetensors", where=tmp_path) <= BASE
    )
    assert load_with("compare", "a.safetensors", "a.safetensors", where=tmp_path) <= BASE
    head = BASE | {"choosing", "one_head", "planning", "recognising", "recording", "searching"}
    head |= {"registry", "verifying"}
    # A plan of `auto` is that of every learner it may try.
    assert load_with("plan", "--width", 3, "--learner", "low-rank", where=tmp_path) <= head
    learned = load_with("learn", "a.safetensors", "--out", "run", where=tmp_path)
    assert learned <= head
    assert load_with("report", "run", where=tmp_path) <= {"base"}
