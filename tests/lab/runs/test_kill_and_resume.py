"""A run killed at any moment goes on where it was: nothing answered is asked again, no budget is
exceeded.
"""

import json
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from keyhole.models import load
from keyhole.models.files import load_bars
from support.seeds import ALL

WIDTH = 12
TARGET = '''
import os
import time
import zlib

import numpy as np

rng = np.random.default_rng(3)
W, V = rng.normal(size=(2, 12, 12)) / 3, rng.normal(size=(2, 12))


def heads(X):
    """Writes down every question before it thinks about it, slowly."""
    note = f"{len(X)} {zlib.crc32(X.tobytes()):08x}-{X.shape[1]}\\n".encode()
    log = os.open("asked.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, note)
    os.close(log)
    time.sleep(0.01 + 0.0001 * len(X))
    scores = np.einsum("bnd,hde,be->hbn", X, W, X[:, -1])
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("hbn,bnd,hd->b", weights / weights.sum(axis=2, keepdims=True), X, V)


heads.width = 12
'''


class Bench:
    """One directory with a slow target, and the runs that go on in it."""

    def __init__(self, folder):
        self.folder, self.log, self.kills = folder, folder / "asked.log", 0
        folder.mkdir(exist_ok=True)
        (folder / "slowly.py").write_text(TARGET)

    def start(self, *options):
        command = [
            sys.executable,
            "-m",
            "keyhole",
            "learn",
            "slowly:heads",
            "--out",
            "run",
            "--json",
            *options,
        ]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*map(str, command)], cwd=self.folder, **pipes)

    def finish(self, *options):
        """Run to the end; the record and the exit code."""
        running = self.start(*options)
        out, err = running.communicate(timeout=60)
        assert running.returncode in (0, 3), err
        return json.loads(out), running.returncode

    def kill(self, calls, delay, *options):
        """Start, wait for so many calls of the target and a moment more, and kill; whether it still
        ran.
        """
        before, running = len(self.asked), self.start(*options)
        until = time.monotonic() + 30
        while (
            len(self.asked) < before + calls and running.poll() is None and time.monotonic() < until
        ):
            time.sleep(0.001)
        time.sleep(delay)
        running.kill()
        _, err = running.communicate(timeout=30)
        assert running.returncode in (-9, 0, 3), err
        self.kills += running.returncode == -9
        return running.returncode == -9

    @property
    def asked(self):
        """(sequences, fingerprint) of every call, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(int(size), mark) for size, mark in (line.split() for line in lines)]

    @property
    def sequences(self):
        return sum(size for size, _ in self.asked)

    @property
    def model(self):
        return load(self.folder / "run" / "model.safetensors")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """The same run, never disturbed."""
    bench = Bench(tmp_path_factory.mktemp("quiet") / "bench")
    bench.record, bench.code = bench.finish()
    return bench


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "bench")


def batter(bench, rng, kills, *options):
    """Kill `kills` times, each after a few more calls, or sooner, or while the record is
    written.
    """
    resume = ()
    for _ in range(kills):
        calls = int(rng.integers(0, 5))
        delay = float(rng.uniform(0, 0.5)) if calls == 0 else float(rng.exponential(0.006))
        if not bench.kill(calls, delay, *options, *resume):
            return
        resume = ("--resume",)


def asked_again(bench, quiet):
    """How many calls of the target were not new, beyond those the undisturbed run repeats
    itself.
    """
    extra = Counter(mark for _, mark in bench.asked) - Counter(mark for _, mark in quiet.asked)
    return extra.total()


def assert_same_model(a, b):
    for name in ("W", "V"):
        one, two = np.asarray(getattr(a, name)), np.asarray(getattr(b, name))
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-15)
    assert (a.h is None, a.c is None, a.U is None) == (b.h is None, b.c is None, b.U is None)


def test_the_undisturbed_run_is_exact_and_makes_enough_calls_to_be_killed_between(quiet):
    assert (quiet.code, quiet.record["verdict"]) == (0, "EXACT")
    assert len(quiet.asked) >= 30
    assert quiet.sequences == quiet.record["queries"]["total"]


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_run_killed_many_times_ends_in_the_same_model_and_asks_nothing_twice(seed, bench, quiet):
    kills = 8 if ALL else 4
    batter(bench, np.random.default_rng(seed), kills, "--budget", 5000)
    assert bench.kills == kills
    record, code = bench.finish("--budget", 5000, "--resume")
    assert (code, record["verdict"]) == (0, "EXACT")
    assert_same_model(bench.model, quiet.model)
    assert load_bars(bench.folder / "run/model.safetensors") == load_bars(
        quiet.folder / "run/model.safetensors"
    )
    assert asked_again(bench, quiet) <= bench.kills
    assert bench.sequences <= record["queries"]["total"] <= 5000


def test_the_same_batch_may_be_lost_again_and_again(bench, quiet):
    bench.kill(4, 0.0)
    for _ in range(3):
        bench.kill(1, 0.0, "--resume")
    assert bench.kills == 4
    record, code = bench.finish("--resume")
    assert (code, record["verdict"]) == (0, "EXACT")
    assert_same_model(bench.model, quiet.model)
    assert asked_again(bench, quiet) <= bench.kills


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_tight_budget_is_never_exceeded_however_often_the_run_is_killed(seed, bench, quiet):
    budget = quiet.sequences + 10 * seed
    batter(bench, np.random.default_rng(100 + seed), 5 if ALL else 3, "--budget", budget)
    record, code = bench.finish("--budget", budget, "--resume")
    assert bench.sequences <= record["queries"]["total"] <= budget
    assert (code == 0) == (record["verdict"] == "EXACT")
    assert record["verdict"] in {"EXACT", "UNVERIFIED", "BUDGET_SPENT"}
    record, code = bench.finish("--budget", budget + 5000, "--resume")
    assert (code, record["verdict"]) == (0, "EXACT")
    assert_same_model(bench.model, quiet.model)
    assert bench.sequences <= record["queries"]["total"] <= budget + 5000


def test_a_run_in_progress_is_not_joined_by_a_second_one(bench):
    first = bench.start()
    while len(bench.asked) < 3 and first.poll() is None:
        time.sleep(0.001)
    first.send_signal(signal.SIGSTOP)  # it holds its breath, and its transcript
    second = bench.start("--resume")
    _, err = second.communicate(timeout=60)
    first.kill()
    first.communicate(timeout=60)
    assert second.returncode == 2
    assert "another process may be writing it" in err


def test_a_killed_run_is_not_started_over_without_being_told(bench):
    bench.kill(5, 0.0)
    running = bench.start()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 2
    assert "--resume" in err
