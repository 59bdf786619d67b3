"""Runs whose pages are looked at; each is made once."""

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.lab.pages import audit_page
from keyhole.lab.runs.reading import read_run
from support import run_records
from support.paths import TARGETS
from support.recovery_runs import KINDS, opened


@pytest.fixture(scope="session")
def ran(commands, tmp_path_factory):
    """`ran(kind)` is the directory of a run of that kind; each is made once."""

    @functools.cache
    def run(kind):
        sample, target, options, _ = KINDS[kind]
        directory = tmp_path_factory.mktemp("report")
        shutil.copy(TARGETS, directory)
        commands(directory, *sample)
        if target is not None:
            commands(directory, "learn", target, *options, "--out", "run")
        return directory / "run"

    return run


@pytest.fixture
def learned(ran):
    """`learned(kind)` is a run of that kind."""
    return lambda kind: opened(ran(kind))


@pytest.fixture
def demo(learned):
    return learned("demo")


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A small run of every kind but the demo, by its name, made by another process; the audit is a
    record by hand.
    """
    folder = tmp_path_factory.mktemp("runs")
    (folder / "small.toml").write_text(run_records.SWEEP)
    subprocess.run(
        [sys.executable, "-c", run_records.MAKE],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (folder / "audit").mkdir()
    (folder / "audit" / "record.json").write_text(json.dumps(run_records.AUDIT))
    record = read_run(str(folder / "audit")).data
    (folder / "audit" / "report.html").write_text(audit_page.draw_audit_page(record))
    return {name: str(folder / name) for name in run_records.KINDS}


@pytest.fixture
def copied(runs, tmp_path):
    """`copied(name)` is a copy of a run that may be spoilt."""

    def copy(name):
        return Path(shutil.copytree(runs[name], tmp_path / name))

    return copy
