"""The directory of a live run is nobody else's: not even --force takes it, before its process has
ended.
"""

import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from keyhole.lab.commands.computing import bound as bounding
from keyhole.lab.commands.computing import build as building
from keyhole.lab.commands.recovery import twins as twinning
from keyhole.lab.demo import tour
from keyhole.lab.jobs import BoundJob, BuildJob, DemoJob, LearnJob, TwinsJob
from keyhole.lab.running import run_job
from keyhole.lab.runs import directories

TASK = ("sparse-average", "--length", 4, "--q", 1, "--width", 2)
SWEEP = """
name = "small"
job = "learn"
list = [{ target = "targets:waiting", width = 4 }]
"""
LIVE = {
    "learn": ("learn", "targets:waiting", "--width", 4),
    "audit": ("audit", "targets:waiting", "--width", 4),
    "train": ("train", *TASK, "--steps", 10_000_000, "--patience", 10_000_000),
    "sweep": ("sweep", "small.toml"),
}
OTHERS = {
    "learn": ("learn", "head.safetensors", "--force"),
    "learn anew": ("learn", "head.safetensors"),
    "resume": ("learn", "targets:waiting", "--width", 4, "--resume"),
    "audit": ("audit", "head.safetensors", "--force"),
    "twins": ("twins", "head.safetensors", "--force"),
    "build": ("build", *TASK, "--force"),
    "bound": ("bound", *TASK, "--embed", 8, "--force"),
    "train": ("train", *TASK, "--model", "constructed", "--force"),
    "demo": ("demo",),
    "sweep": ("sweep", "small.toml"),
    "report": ("report", "done", "other"),
}


@contextmanager
def living(tmp_path, *arguments):
    """A command under way in the directory `run`."""
    command = [sys.executable, "-m", "keyhole", *map(str, arguments), "--out", "run"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not any((tmp_path / "run").glob("*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def contents(directory):
    return {path.name for path in directory.iterdir()}


@pytest.fixture
def files(keyhole, targets, head, tmp_path):
    (tmp_path / "small.toml").write_text(SWEEP)
    for name in ("done", "other"):
        assert keyhole("learn", "head.safetensors", "--out", name).code == 0


def test_every_command_leaves_the_directory_of_a_live_run_alone(keyhole, files, tmp_path):
    with living(tmp_path, *LIVE["learn"]) as process:
        before = contents(tmp_path / "run")
        for name, arguments in OTHERS.items():
            ran = keyhole(*arguments, "--out", "run")
            assert (name, ran.code) == (name, 2)
            assert f"still going on (process {process.pid} on " in ran.err, name
        added = contents(tmp_path / "run") - before
        assert all(name.startswith("transcript.sqlite") for name in added)
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert keyhole("learn", *LIVE["learn"][1:], "--out", "run", "--resume", "--json").code == 0
    assert not list((tmp_path / "run").glob("*.lock"))


@pytest.mark.parametrize("kind", LIVE)
def test_a_run_of_every_kind_keeps_its_directory_while_it_lives(kind, keyhole, files, tmp_path):
    with living(tmp_path, *LIVE[kind]) as process:
        ran = keyhole("learn", "head.safetensors", "--out", "run", "--force")
        assert (ran.code, process.poll()) == (2, None)
        assert "still going on" in ran.err


@pytest.mark.parametrize("option", ["--force", "--resume"])
def test_what_a_killed_run_leaves_is_taken_over(option, keyhole, files, tmp_path):
    with living(tmp_path, *LIVE["learn"]) as process:
        process.kill()
        process.wait()
        assert list((tmp_path / "run").glob("*.lock"))
        (tmp_path / "go").touch()
        ran = keyhole(*LIVE["learn"], "--out", "run", option, "--json")
    assert (ran.code, ran.json["verdict"]) == (0, "EXACT")
    assert not list((tmp_path / "run").glob("*.lock"))


SIZES = {"length": 4, "q": 1, "width": 2}
QUICK = {
    "bound": (bounding, "write_atomically", BoundJob("sparse-average", embed=8, **SIZES)),
    "build": (building, "write_atomically", BuildJob("sparse-average", **SIZES)),
    "twins": (twinning, "write_atomically", TwinsJob("head.safetensors")),
    "demo": (tour, "finish_recovery_run", DemoJob()),
}


@pytest.mark.parametrize("kind", QUICK)
def test_a_quick_command_has_its_directory_until_its_record_is_written(
    kind, head, tmp_path, monkeypatch
):
    module, name, job = QUICK[kind]
    write, refused = getattr(module, name), []

    def interfere(*given):
        with pytest.raises(directories.InvalidInput, match="still going on"):
            run_job(LearnJob("head.safetensors", out="run", force=True))
        refused.append(kind)
        return write(*given)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, name, interfere)
    run_job(replace(job, out="run"))
    assert refused


def test_two_runs_of_one_moment_get_directories_of_their_own(tmp_path, monkeypatch):
    # both have looked, neither has begun
    monkeypatch.setattr(Path, "exists", lambda self, **_: False)
    first, second = (directories.make_new_directory("x", tmp_path / "runs") for _ in range(2))
    assert first != second
