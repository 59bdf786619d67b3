"""The check of the wheel: which Pythons it takes, what it says of the others, what it refuses."""

import importlib.util
import sys
import zipfile

import pytest

from support.paths import ROOT

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def smoke():
    spec = importlib.util.spec_from_file_location("smoke_wheel", ROOT / "tools" / "smoke_wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_python(folder, version, command):
    """An interpreter of that name that does what `command` says."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"python{version}"
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
    return path


def search_only(monkeypatch, *folders):
    monkeypatch.setenv("PATH", ":".join(map(str, folders)))


def test_a_shim_that_does_not_run_is_passed_over_for_an_interpreter_that_does(
    smoke, tmp_path, monkeypatch
):
    write_python(tmp_path / "shims", VERSION, "exit 127")
    real = write_python(tmp_path / "real", VERSION, f'exec {sys.executable} "$@"')
    search_only(monkeypatch, tmp_path / "shims", tmp_path / "real")
    assert smoke.find_python(VERSION) == real


def test_interpreters_of_pyenv_are_found_beside_shims_that_do_not_run(smoke, tmp_path, monkeypatch):
    write_python(tmp_path / "shims", VERSION, "exit 127")
    pyenv = tmp_path / "shims" / "pyenv"
    pyenv.write_text(f"#!/bin/sh\necho {tmp_path}\n")
    pyenv.chmod(0o755)
    kept = tmp_path / "versions" / f"{VERSION}.0" / "bin"
    real = write_python(kept, VERSION, f'exec {sys.executable} "$@"')
    search_only(monkeypatch, tmp_path / "shims")
    assert smoke.find_python(VERSION) == real


def test_an_interpreter_of_another_version_is_not_taken(smoke, tmp_path, monkeypatch):
    write_python(tmp_path, "3.99", f'exec {sys.executable} "$@"')
    search_only(monkeypatch, tmp_path)
    with pytest.raises(smoke.Missing, match="does not run, or cannot make environments"):
        smoke.find_python("3.99")


def test_what_is_skipped_is_said(smoke, tmp_path, monkeypatch, capsys):
    search_only(monkeypatch, tmp_path)
    assert smoke.report_python(tmp_path / "any.whl", "3.14") == "skipped"
    assert capsys.readouterr().out == "Python 3.14: skipped, not on this machine\n"


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [("works skipped", 0), ("works failed", 1), ("skipped skipped", 1)],
)
def test_a_failure_or_no_python_at_all_is_exit_code_one(smoke, monkeypatch, outcomes, code):
    told = iter(outcomes.split())
    monkeypatch.setattr(smoke, "VERSIONS", ("3.11", "3.12"))
    monkeypatch.setattr(smoke, "build_wheel", lambda: None)
    monkeypatch.setattr(smoke, "report_python", lambda wheel, version: next(told))
    assert smoke.main() == code


def test_a_wheel_without_a_file_of_the_package_is_refused(smoke, tmp_path):
    page = tmp_path / "src" / "keyhole" / "web" / "static" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("a page")
    with zipfile.ZipFile(tmp_path / "one.whl", "w") as wheel:
        wheel.writestr("keyhole/__init__.py", "")
    with pytest.raises(
        smoke.Failed, match=r"lacks 1 files, such as keyhole/web/static/index\.html"
    ):
        smoke.check_contents(tmp_path / "one.whl", tmp_path / "src")


def test_a_command_that_fails_is_named_with_what_it_said(smoke, tmp_path):
    with pytest.raises(smoke.Failed, match=r"ended with exit code 4:\nno luck"):
        smoke.run(sys.executable, "-c", "print('no luck'); raise SystemExit(4)", folder=tmp_path)
