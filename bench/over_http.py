"""A head through HTTP on this machine, against the same head in this process.

    python bench/over_http.py

Prints the time to learn a head of width 64 in bytes and in JSON beside the time in this process and
the bar (3 times that, and 20 ms a call), and how many two-token questions a second client and
server manage together.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import keyhole
from keyhole.oracles import Counted

WIDTH = 64


@contextmanager
def served(folder: Path):
    """The address of the head, served by a process of its own."""
    command = [sys.executable, "-m", "keyhole", "serve", "head.safetensors", "--port", "0"]
    running = subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        yield running.stderr.readline().split(" at ")[1].split()[0]
    finally:
        running.terminate()
        running.communicate()


def learning(oracle) -> tuple[float, int]:
    """Seconds and calls of the best of three recoveries."""
    timed = []
    for _ in range(3):
        counted, start = Counted(oracle), time.perf_counter()
        recovery = keyhole.learn(counted, rng=np.random.default_rng(1))
        assert recovery.verdict is keyhole.Verdict.EXACT
        timed.append((time.perf_counter() - start, counted.ledger.total().calls))
    return min(timed)


def throughput(oracle, seconds: float = 3.0) -> float:
    """Two-token questions a second."""
    X = np.random.default_rng(2).normal(size=(16_384, 2, WIDTH))
    oracle.ask(X)
    asked, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        asked += len(oracle.ask(X))
    return asked / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    head = keyhole.Head.random(WIDTH, rng=np.random.default_rng(0))
    here, calls = learning(keyhole.Local(head))
    print(
        f"in this process  {here:.2f} s in {calls} calls; the bar is"
        f" {3 * here + 0.02 * calls:.2f} s"
    )
    with tempfile.TemporaryDirectory() as folder:
        keyhole.save(head, Path(folder) / "head.safetensors")
        with served(Path(folder)) as address:
            for name, ending in (("bytes", "?binary=true"), ("JSON", "?binary=false")):
                oracle = keyhole.HttpService(address + ending)
                taken, calls = learning(oracle)
                rate = throughput(oracle)
                print(
                    f"{name:<6} over HTTP  {taken:.2f} s in {calls} calls; {rate:,.0f} two-token"
                    " questions a second"
                )
                oracle.close()


if __name__ == "__main__":
    main()
