"""Running the command line as a person does: another process, a directory of its own."""

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from keyhole.models import Head, save

WIDTH = 4


@dataclass(frozen=True)
class Ran:
    """One finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one object on standard output; non-finite numbers are not JSON and are refused."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.fixture
def keyhole(tmp_path):
    """`keyhole("learn", ...)` in tmp_path."""

    def run(*arguments, timeout=120):
        command = [sys.executable, "-m", "keyhole", *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=timeout)
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def targets(tmp_path):
    """The module `targets`, a copy of which lies beside the command."""
    shutil.copy(Path(__file__).with_name("targets.py"), tmp_path)
    spec = importlib.util.spec_from_file_location("targets_here", tmp_path / "targets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def head(tmp_path, rng):
    """A head, saved beside the command as head.safetensors."""
    model = Head.random(WIDTH, rng=rng)
    save(model, tmp_path / "head.safetensors")
    return model


@pytest.fixture
def asked(tmp_path):
    """`asked()` is how many sequences the targets that keep a log were asked."""
    log = tmp_path / "asked.log"
    return lambda: sum(map(int, log.read_text().split())) if log.exists() else 0
