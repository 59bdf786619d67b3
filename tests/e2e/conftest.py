"""Running the command line as a person does: another process, a directory of its own."""

import importlib.util
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

from keyhole.models import Head, save

sys.path.insert(0, str(Path(__file__).parent))
from prefork import Preforked

WIDTH = 4


@pytest.fixture(scope="session")
def commands():
    """`commands(directory, "learn", ...)`: a finished command, forked from a process that has done
    the imports.
    """
    parent = Preforked()
    yield parent
    parent.close()


@pytest.fixture
def keyhole(commands, tmp_path):
    """`keyhole("learn", ...)` in tmp_path."""
    return partial(commands, tmp_path)


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
