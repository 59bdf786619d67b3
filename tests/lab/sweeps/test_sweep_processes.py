"""Sweeps as people run them: in processes that are killed, twice over, and on a cluster."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import PlanJob
from keyhole.lab.running import find_runner, run_job
from keyhole.lab.runs.store import read_rows
from keyhole.lab.sweeps import engines
from support.processes import children

SWEEP = """
name = "small"
job = "trial"
[base]
model.kind = "head"
[grid]
model.width = [3, 5]
model.seed.range = [0, 6]
"""
TARGETS = """
import os
import numpy as np

class Deadly:
    width = 2
    def __call__(self, X):
        os._exit(9)

class Fine:
    width = 2
    def __call__(self, X):
        return X.mean(axis=(1, 2))

deadly, fine = Deadly(), Fine()
"""


@pytest.fixture
def sweep(tmp_path):
    """A small sweep file beside the command."""
    (tmp_path / "small.toml").write_text(SWEEP)
    return "small.toml"


def records(path):
    return {
        row.key: (row.job, row.state, row.record, row.reason)
        for row in read_rows(path / "store.sqlite")
    }


def test_every_engine_gives_the_same_records_and_nothing_is_run_twice(keyhole, sweep, tmp_path):
    serial = keyhole("sweep", sweep, "--workers", 0, "--out", "serial", "--json", "--export", "csv")
    assert serial.code == 0
    assert serial.json["jobs"] == {"total": 12, "done": 12, "failed": 0, "run_now": 12}
    assert (tmp_path / "serial" / "rows.csv").is_file()
    assert "small: 12 of 12 jobs" in serial.err
    local = keyhole("sweep", sweep, "--out", "local", "--json")
    assert local.code == 0
    assert records(tmp_path / "local") == records(tmp_path / "serial")
    again = keyhole("sweep", sweep, "--out", "local", "--json")
    assert again.json["jobs"]["run_now"] == 0
    assert again.json["sentence"].startswith("12 of 12 jobs of small are done, 0 of them run now.")


def test_a_dask_cluster_gives_the_same_records(keyhole, sweep, tmp_path):
    distributed = pytest.importorskip(
        "distributed", reason="Dask is not installed: pip install 'keyhole[cluster]'"
    )
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            processes=True,
        ) as cluster,
    ):
        ran = keyhole(
            "sweep", sweep, "--cluster", cluster.scheduler_address, "--out", "dask", "--json"
        )
    assert ran.code == 0, ran.err
    assert keyhole("sweep", sweep, "--workers", 0, "--out", "serial").code == 0
    assert records(tmp_path / "dask") == records(tmp_path / "serial")
    nobody = keyhole("sweep", sweep, "--cluster", "tcp://127.0.0.1:9", "--out", "none", "--json")
    assert nobody.code == 3
    assert "no Dask scheduler answers" in nobody.err
    wrong = keyhole("sweep", sweep, "--cluster", "what://127.0.0.1:9", "--out", "none", "--json")
    assert wrong.code == 2
    assert "tcp://HOST:8786" in wrong.err


def test_a_job_that_kills_its_process_is_a_record_and_the_others_are_done(keyhole, tmp_path):
    (tmp_path / "aims.py").write_text(TARGETS)
    named = (("fine", 0), ("deadly", 0), ("fine", 1), ("fine", 2))
    entries = [{"target": f"aims:{name}", "seed": seed} for name, seed in named]
    (tmp_path / "mixed.json").write_text(
        json.dumps({"name": "mixed", "job": "learn", "list": entries})
    )
    ran = keyhole("sweep", "mixed.json", "--json")
    assert ran.code == 3
    assert ran.json["jobs"] == {"total": 4, "done": 3, "failed": 1, "run_now": 4}, ran.out
    assert "died" in ran.json["failures"][0]["reason"]
    assert keyhole("sweep", "mixed.json", "--json").json["jobs"]["run_now"] == 0
    (tmp_path / "aims.py").write_text(TARGETS.replace("os._exit(9)", "return X.mean(axis=(1, 2))"))
    mended = keyhole("sweep", "mixed.json", "--retry-failed", "--json").json["jobs"]
    assert mended == {"total": 4, "done": 4, "failed": 0, "run_now": 1}


def workers_of(driver):
    """Processes a driver has started to work for it."""
    with suppress(OSError):
        return [
            pid
            for pid in children(driver.pid)
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
    return []


def start(tmp_path, *arguments):
    command = [sys.executable, "-m", "keyhole", "sweep", *arguments]
    return subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def killed(tmp_path, rng, kills, whom, longest):
    """Run the sweep, killing somebody at random times, until it ends by itself; how often somebody
    was killed.
    """
    count = 0
    for _ in range(60):
        driver = start(tmp_path, "small.toml", "--out", "hurt")
        while driver.poll() is None:
            time.sleep(rng.uniform(0.05, longest))
            victims = workers_of(driver) if whom == "worker" else [driver.pid]
            if count < kills and victims and driver.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(int(rng.choice(victims)), signal.SIGKILL)
                    count += 1
        if driver.returncode == 0:
            return count
    pytest.fail("the sweep never came to its end")


def disturbed(keyhole, tmp_path, kills, longest=1.0, least=1):
    undisturbed = keyhole("sweep", "small.toml", "--workers", 0, "--out", "calm")
    assert undisturbed.code == 0
    for whom in ("worker", "driver"):
        assert killed(tmp_path, np.random.default_rng(len(whom)), kills, whom, longest) >= least
        assert records(tmp_path / "hurt") == records(tmp_path / "calm")
        for file in (tmp_path / "hurt").iterdir():
            file.unlink()


def test_processes_that_die_before_a_job_begins_are_given_up(monkeypatch):
    monkeypatch.setattr(engines, "_prepare_worker", partial(os._exit, 1))
    monkeypatch.setattr(engines, "STARTS", 3)
    pool = engines.Pool(engines.Work(find_runner, run_job), 1)
    pool.submit("key", PlanJob(width=4))
    ended = []
    for _ in range(2 * engines.STARTS):
        ended += pool.completed()
    pool.close()
    assert [(key, said.reason) for key, said in ended] == [
        ("key", "processes died 3 times before the job began.")
    ]


def test_killing_workers_and_drivers_loses_nothing(keyhole, sweep, tmp_path):
    disturbed(keyhole, tmp_path, 1)


@pytest.mark.slow
def test_twenty_kills_of_workers_and_drivers_lose_nothing(keyhole, sweep, tmp_path):
    (tmp_path / "small.toml").write_text(SWEEP.replace("[0, 6]", "[0, 1500]"))
    disturbed(keyhole, tmp_path, 20, 3.0, least=20)


def test_ctrl_c_leaves_everything_finished_on_disk(sweep, tmp_path, keyhole):
    (tmp_path / "small.toml").write_text(SWEEP.replace("[0, 6]", "[0, 1500]"))
    driver = start(tmp_path, "small.toml", "--out", "hurt", "--workers", "1")
    try:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and len(_rows(tmp_path)) < 2:
            time.sleep(0.1)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(240) == 130
    finally:
        driver.kill()
    kept = len(_rows(tmp_path))
    assert 2 <= kept < 800
    (tmp_path / "small.toml").write_text(SWEEP)
    ran = keyhole("sweep", sweep, "--out", "hurt", "--workers", 1, "--json")
    assert ran.json["jobs"]["done"] == 12
    assert ran.json["jobs"]["run_now"] == 12 - min(6, kept)


def _rows(tmp_path):
    with suppress(Exception):
        return list(read_rows(tmp_path / "hurt" / "store.sqlite"))
    return []


def test_misuse_is_told(keyhole, sweep, tmp_path):
    Path(tmp_path / "own.json").write_text(
        json.dumps({"job": "learn", "base": {"target": "a:b", "out": "here"}})
    )
    for arguments, words in (
        (("own.json",), "a directory of its own"),
        (("nowhere.toml",), "no sweep file"),
        ((sweep, "--workers", -1), "--workers"),
        ((sweep, "--resume", "--out", "nothing"), "holds no rows of a sweep to go on with"),
        ((sweep, "--export", "xml"), "--export takes csv, json, parquet"),
    ):
        ran = keyhole("sweep", *arguments)
        assert ran.code == 2
        assert words in ran.err


def start_dask(what, *arguments):
    """A scheduler or a worker of Dask on this machine."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments, "--no-dashboard"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_worker_and_a_scheduler_that_die_cost_no_row_and_the_sweep_is_resumed(tmp_path):
    pytest.importorskip("distributed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "long.json").write_text(
        json.dumps(
            {
                "job": "trial",
                "base": {"model": {"kind": "head", "width": 16}},
                "grid": {"seed.range": [0, 120]},
            }
        )
    )
    address, store = f"tcp://127.0.0.1:{port}", tmp_path / "long" / "store.sqlite"
    command = [sys.executable, "-m", "keyhole", "sweep", "long.json", "--out", "long"]
    cluster = start_cluster(port)
    running = None
    try:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running = subprocess.Popen([*command, "--cluster", address], cwd=tmp_path, **pipes)
        wait_for_rows(store, 5)
        # One of two workers: the other takes over what it held.
        cluster[1].kill()
        seen = count_rows(store)
        wait_for_rows(store, seen + 5)
        assert running.poll() is None
        cluster[0].kill()
        _, err = running.communicate(timeout=120)
        kept = count_rows(store)
        end_processes(cluster)
        cluster = start_cluster(port)
        again = [*command, "--cluster", address, "--resume", "--json"]
        # Two workers begin anew, which takes its time on a busy machine.
        went_on = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    finally:
        end_processes([*cluster, *filter(None, [running])])
    assert running.returncode == 3, err
    assert "What was done is kept" in err
    assert "Traceback" not in err
    assert seen + 5 <= kept < 120
    assert went_on.returncode == 0, went_on.stderr
    jobs = json.loads(went_on.stdout)["jobs"]
    assert jobs == {"total": 120, "done": 120, "failed": 0, "run_now": 120 - kept}


def start_cluster(port):
    """A scheduler and two workers, each a process of its own."""
    address = f"tcp://127.0.0.1:{port}"
    scheduler = start_dask("scheduler", "--host", "127.0.0.1", "--port", str(port))
    wait_for_port(port)
    return [scheduler, *(start_dask("worker", address, "--nthreads", "1") for _ in range(2))]


def end_processes(processes):
    for process in processes:
        process.kill()
        process.wait()


def wait_for_rows(store, least):
    """Until a store holds so many rows."""
    until = time.monotonic() + 240
    while time.monotonic() < until and count_rows(store) < least:
        time.sleep(0.1)
    assert count_rows(store) >= least


def count_rows(store):
    """Rows that are there; none before the store is."""
    with suppress(InvalidInput):
        return len(list(read_rows(store)))
    return 0


def wait_for_port(port):
    """Until somebody listens there."""
    until = time.monotonic() + 90
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
