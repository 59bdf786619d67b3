"""Build the wheel and try it, installed without constraints, on every Python of 3.11 to 3.14 here.

    make wheel

Each Python gets a clean environment under build/smoke. What is not on the machine is skipped with a
sentence; the exit code is 1 where the wheel fails, or where there was no Python to try it on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "smoke"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
ASK_VERSION = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
ASK_NUMPY = "import numpy; print('numpy', numpy.__version__)"
# A name that needs an extra says which; any other failure is one.
IMPORT_ALL = """
import keyhole
for name in keyhole.__all__:
    try:
        getattr(keyhole, name)
    except ImportError as missing:
        if "keyhole[" not in str(missing):
            raise
"""


class Missing(Exception):
    """A Python that cannot be had here; the message says why."""


class Failed(Exception):
    """A step that did not do what it must; the message says which, and what was printed."""


def find_python(version: str) -> Path:
    """The first interpreter of `version` that runs and can make environments."""
    places = [folder / f"python{version}" for folder in list_folders()]
    there = [place for place in places if place.is_file()]
    for place in there:
        if answers_as(place, version):
            return place
    if there:
        raise Missing(f"{there[0]} does not run, or cannot make environments")
    raise Missing("not on this machine")


def list_folders() -> Iterator[Path]:
    """Folders that may hold interpreters: of PATH, then of pyenv, whose shims need not run."""
    path = os.environ.get("PATH", "").split(os.pathsep)
    yield from (Path(folder) for folder in path if folder)
    if pyenv := shutil.which("pyenv"):
        done = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False)
        yield from sorted(Path(done.stdout.strip()).glob("versions/*/bin"), reverse=True)


def answers_as(place: Path, version: str) -> bool:
    """Whether an interpreter runs, is of `version` and has what environments are made with."""
    command = [place, "-c", ASK_VERSION]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def run(*command: str | Path, folder: Path) -> str:
    """Run a command away from this tree and from anything that pins versions; return its output."""
    pinned = ("PYTHONPATH", "PIP_CONSTRAINT")
    env = {name: value for name, value in os.environ.items() if name not in pinned}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        words = " ".join(map(str, command))
        said = f"{done.stdout}{done.stderr}"
        raise Failed(f"{words}\nended with exit code {done.returncode}:\n{said}")
    return done.stdout


def build_wheel() -> Path:
    """The wheel, made from a copy of this tree: leftovers of an earlier build would go into it."""
    source, made = FOLDER / "source", FOLDER / "wheel"
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(ROOT / "src", source / "src", ignore=leave_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ("--quiet", "--no-deps", "--wheel-dir", made)
    run(sys.executable, "-m", "pip", "wheel", *options, source, folder=FOLDER)
    (wheel,) = made.glob("*.whl")
    check_contents(wheel, source / "src")
    return wheel


def check_contents(wheel: Path, source: Path) -> None:
    """Raise unless the wheel holds every file of the package, pages and scripts included."""
    package = (source / "keyhole").rglob("*")
    wanted = {path.relative_to(source).as_posix() for path in package if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        missing = sorted(wanted - set(archive.namelist()))
    if missing:
        raise Failed(f"the wheel lacks {len(missing)} files, such as {', '.join(missing[:5])}")


def try_wheel(wheel: Path, python: Path, folder: Path) -> str:
    """Install the wheel into a clean environment, use it, and return the numpy it stands on."""
    run(python, "-m", "venv", "--clear", folder, folder=FOLDER)
    inside = folder / "bin" / "python"
    run(inside, "-m", "pip", "install", "--quiet", wheel, folder=folder)
    run(inside, "-c", IMPORT_ALL, folder=folder)
    printed = run(inside, "-c", read_example(), folder=folder)
    if not printed.startswith("EXACT "):
        raise Failed(f"the example of the README printed {printed!r} where EXACT was due")
    run(folder / "bin" / "keyhole", "demo", "--out", "tour", folder=folder)
    if not (folder / "tour" / "report.html").is_file():
        raise Failed("keyhole demo ended well but wrote no report.html")
    return run(inside, "-c", ASK_NUMPY, folder=folder).strip()


def read_example() -> str:
    """The first Python example of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]


def report_python(wheel: Path, version: str) -> str:
    """Try the wheel on one version, say how it went, and return that in a word."""
    try:
        numpy = try_wheel(wheel, find_python(version), FOLDER / version)
    except Missing as reason:
        return say("skipped", f"Python {version}: skipped, {reason}")
    except Failed as reason:
        return say("failed", f"Python {version}: FAILED, {reason}")
    return say("works", f"Python {version}: import, README example and demo work, {numpy}")


def say(word: str, sentence: str) -> str:
    """Print a sentence at once, and return the word for it."""
    sys.stdout.write(sentence + "\n")
    sys.stdout.flush()
    return word


def main() -> int:
    """Build the wheel, try it on every Python, and return the exit code."""
    try:
        wheel = build_wheel()
    except Failed as reason:
        say("failed", f"no wheel: {reason}")
        return 1
    words = [report_python(wheel, version) for version in VERSIONS]
    return 0 if "works" in words and "failed" not in words else 1


if __name__ == "__main__":
    sys.exit(main())
