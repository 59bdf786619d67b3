"""Long work and long waits are stopped: by Ctrl-C within a second, and by --max-seconds."""

import json
import signal
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import numpy as np
import pytest

from keyhole.errors import OutOfTime
from keyhole.learners.blocks.unit_reads import fit_shapes
from keyhole.learners.fitting import solve_whole_step
from keyhole.oracles.own_time import Stopwatch, bound_own_work, work_apart
from support.fault_proxy import Proxy
from support.faults import BREAKS
from support.served_head import serving

# Bends nowhere and everywhere: no class of ours, and every learner of networks works at it.
ROUGH = """
import numpy as np

rng = np.random.default_rng(0)
A, B = rng.normal(size=(24, 8)), rng.normal(size=(4, 24))


def rough(X):
    with open("asked.log", "a") as log:
        log.write("1\\n")
    return np.abs(X[:, -1] @ A.T) ** 1.5 @ B.T


rough.width = 8
"""


def start(folder, *arguments):
    command = [sys.executable, "-m", "keyhole", "learn", *map(str, arguments), "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, **pipes)


def wait_for(happened):
    until = time.monotonic() + 60
    while not happened() and time.monotonic() < until:
        time.sleep(0.02)


def interrupt(running):
    """Seconds until a command that gets a Ctrl-C has ended."""
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    spent = time.monotonic() - began
    assert running.returncode == 130, err
    assert err.startswith("keyhole: stopped by Ctrl-C.")
    assert json.loads(out)["status"] == "INTERRUPTED"
    return spent


def count_lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("moment", [0.2, 1.0])
def test_ctrl_c_in_the_middle_of_own_work_answers_within_a_second(moment, tmp_path):
    (tmp_path / "target.py").write_text(ROUGH)
    running = start(tmp_path, "target:rough", "--out", "run")
    wait_for(lambda: count_lines(tmp_path / "asked.log") >= 3)
    time.sleep(moment)
    assert interrupt(running) < 1.0


def test_ctrl_c_that_falls_into_code_made_from_text_has_its_exit_code_all_the_same(tmp_path):
    """Dataclasses are made so while modules are loaded; Python would end by the signal itself."""
    source = "def stopped(X):\n    exec('raise KeyboardInterrupt')\n\n\nstopped.width = 4\n"
    (tmp_path / "target.py").write_text(source)
    running = start(tmp_path, "target:stopped", "--out", "run")
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.startswith("keyhole: stopped by Ctrl-C.")
    assert json.loads(out)["status"] == "INTERRUPTED"


def test_ctrl_c_while_a_server_is_silent_answers_within_a_second(tmp_path):
    silence = BREAKS["silence"]
    with serving() as (address, _), Proxy(urlsplit(address).port, silence) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/v2/models/head"
        running = start(tmp_path, url, "--out", "run", "--timeout", 60)
        wait_for(lambda: proxy.met)
        assert interrupt(running) < 1.0


def test_own_work_is_bounded_and_the_record_says_by_how_much(keyhole, tmp_path):
    (tmp_path / "target.py").write_text(ROUGH)
    began = time.monotonic()
    ran = keyhole("learn", "target:rough", "--out", "run", "--max-seconds", 1, "--json")
    assert (ran.code, ran.json["status"], ran.json["max_seconds"]) == (3, "OUT_OF_TIME", 1.0)
    assert time.monotonic() - began < 10


def test_the_fit_of_a_wide_head_ends_with_the_time(keyhole, tmp_path):
    """It takes seconds in which nothing is asked."""
    made = ("--width", 64, "--heads", 4, "--positions", "rope", "--out", "wide.safetensors")
    assert keyhole("sample", "layer", *made).code == 0
    ran = keyhole("learn", "wide.safetensors", "--out", "run", "--max-seconds", 0.7, "--json")
    assert (ran.code, ran.json["status"]) == (3, "OUT_OF_TIME")
    assert ran.json["seconds"]["total"] < 4


class Products:
    """Derivatives that are one matrix."""

    def __init__(self, matrix):
        self.matrix = matrix

    def forward(self, step):
        return self.matrix @ step["C"]

    def backward(self, left):
        return {"C": self.matrix.T @ left}

    def lengths(self):
        return {"C": np.ones((self.matrix.shape[1], 1))}


def solve_whole(rng):
    solve_whole_step(
        Products(rng.normal(size=(60, 40))), rng.normal(size=(60, 1)), ("C",), iterations=600
    )


def fit_many_curves(rng):
    t = rng.normal(size=(40, 7))
    fit_shapes(t, np.tanh(t + 0.3), lambda z: (np.tanh(z), 1 - np.tanh(z) ** 2), np.ones(1))


@pytest.mark.parametrize("work", [solve_whole, fit_many_curves])
def test_long_steps_of_learners_look_at_the_clock_on_their_way(work):
    """Each takes seconds at the sizes of real layers. The clock goes on when it is looked at."""
    looks = iter(range(1000))
    with pytest.raises(OutOfTime), bound_own_work(Stopwatch(3, clock=lambda: next(looks))):
        work(np.random.default_rng(0))


def test_a_call_that_hears_nothing_is_left_behind_when_the_time_is_over():
    go_on = threading.Event()
    with pytest.raises(OutOfTime), bound_own_work(Stopwatch(0.2)):
        work_apart(lambda: go_on.wait(60))
    go_on.set()


def test_work_apart_returns_and_raises_what_the_work_does():
    assert work_apart(lambda: 3) == 3
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        work_apart(lambda: np.linalg.inv(np.zeros((2, 2))))
