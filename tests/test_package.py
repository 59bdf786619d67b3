"""The front door: what importing loads, and which names are there."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import keyhole

ROOT = Path(__file__).parents[1]
STUB = Path(keyhole.__file__).with_suffix(".pyi")

HEAVY = (
    "numpy",
    "scipy",
    "torch",
    "onnxruntime",
    "rich",
    "safetensors",
    "msgspec",
    "cyclopts",
    "jaxtyping",
)
OPTIONAL = ("httpx2", "onnx", "onnxruntime", "starlette", "torch", "uvicorn")


def loaded_after(code, names):
    """Which of `names` a fresh interpreter has loaded after running `code`."""
    code = (
        f"import sys\n{code}\nsys.stderr.write(','.join(n for n in {names!r} if n in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stderr


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import keyhole", HEAVY + OPTIONAL) == ""


def test_working_in_this_process_loads_nothing_optional():
    code = "import keyhole.lab.running, keyhole.oracles, keyhole.learners.choosing"
    assert loaded_after(code, OPTIONAL) == ""


def test_asking_for_help_loads_neither_numpy_nor_scipy():
    code = (
        "import runpy\nsys.argv = ['keyhole', '--help']\ntry:\n    runpy.run_module('keyhole',"
        " run_name='__main__')\nexcept SystemExit as end:\n    assert not end.code"
    )
    assert loaded_after(code, ("numpy", "scipy", "torch")) == ""


@pytest.mark.parametrize(
    "command", ["learn", "plan", "verify", "compare", "sample", "serve", "demo"]
)
def test_help_on_a_command_loads_neither_numpy_nor_scipy(command):
    code = (
        f"import runpy\nsys.argv = ['keyhole', '{command}', '--help']\ntry:\n   "
        " runpy.run_module('keyhole', run_name='__main__')\nexcept SystemExit as end:\n    assert"
        " not end.code"
    )
    assert loaded_after(code, ("numpy", "scipy", "torch")) == ""


def test_help_names_every_command():
    done = subprocess.run(
        [sys.executable, "-m", "keyhole", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert all(
        name in done.stdout for name in ("compare", "demo", "learn", "plan", "sample", "verify")
    )


@pytest.mark.parametrize("name", keyhole.__all__)
def test_every_public_name_resolves(name):
    assert getattr(keyhole, name) is not None


def test_public_names_are_sorted_and_stand_once():
    assert list(keyhole.__all__) == sorted(set(keyhole.__all__))
    assert dir(keyhole) == sorted(keyhole.__all__)


def test_the_names_people_meet_first_are_there():
    assert {"load", "save", "learn", "verify", "compare"} <= set(keyhole.__all__)


def imports_of_stub():
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    return [node for node in tree.body if isinstance(node, ast.ImportFrom)]


def test_what_type_checkers_see_is_what_is_there():
    handed_on = [
        alias.name
        for node in imports_of_stub()
        for alias in node.names
        if alias.asname == alias.name
    ]
    assert sorted(handed_on) == keyhole.__all__


@pytest.mark.parametrize("node", imports_of_stub(), ids=ast.unparse)
def test_a_name_of_the_stub_is_what_its_import_statement_gives(node):
    given = {}
    exec(ast.unparse(node), given)  # noqa: S102
    for alias in node.names:
        assert getattr(keyhole, alias.name) is given[alias.name]


def test_the_stub_holds_nothing_but_imports_and_the_version():
    docstring, *rest = ast.parse(STUB.read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr)
    *imports, version = rest
    assert all(isinstance(node, ast.ImportFrom) for node in imports)
    assert ast.unparse(version) == "__version__: str"


def test_two_extras_that_need_the_same_install_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["web"] == ["keyhole[serve]"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'keyhole' has no attribute 'boat'"):
        _ = keyhole.boat


# numpy 2.5 makes NDArray an alias in the sense of PEP 695, which jaxtyping takes for no class.
ALIASED = """
import importlib, pkgutil, typing
import numpy, numpy.typing, typing_extensions

Scalar = typing.TypeVar("Scalar", bound=numpy.generic)
meant = numpy.ndarray[tuple[typing.Any, ...], numpy.dtype[Scalar]]
numpy.typing.NDArray = typing_extensions.TypeAliasType("NDArray", meant, type_params=(Scalar,))
import keyhole
for module in pkgutil.walk_packages(keyhole.__path__, "keyhole."):
    if module.name != "keyhole.__main__":
        importlib.import_module(module.name)
"""


def test_every_module_imports_where_ndarray_is_an_alias_as_in_numpy_2_5():
    command = [sys.executable, "-c", ALIASED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_one_installed():
    from importlib.metadata import version

    assert keyhole.__version__ == version("keyhole")
