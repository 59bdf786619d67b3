"""Model servers nobody here wrote, as black boxes: MLServer (JSON) and KServe (bytes), each in its
own environment.

    make interop

For each server: an environment under .interop, the server on this machine with a hidden head and
one that answers NaN, `keyhole learn` on both, and the server stopped whatever happens. What cannot
be installed is skipped with a sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import keyhole

HERE, FOLDER = Path(__file__).parent.resolve(), Path(".interop").resolve()
WIDTH, OUTPUTS = 8, 2


class Skipped(Exception):
    """A server that cannot be had here; the message says why."""


@dataclass(frozen=True)
class Foreign:
    """A server: what to install, what to run, how to ask it, and the first Python it does not run
    on.
    """

    name: str
    package: str
    script: str
    options: str
    below: tuple[int, int] = (4, 0)

    def python(self) -> str:
        """An interpreter it runs on."""
        if sys.version_info[:2] < self.below:
            return sys.executable
        found = (shutil.which(f"python3.{minor}") for minor in range(self.below[1] - 1, 9, -1))
        for path in found:
            if path is not None:
                return path
        raise Skipped(
            f"{self.package} needs Python below {self.below[0]}.{self.below[1]}, and there is none"
            " here."
        )

    def environment(self) -> Path:
        """Its environment, made on the first call."""
        place = FOLDER / self.name
        if not (place / "ready").is_file():
            quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", self.package]
            try:
                subprocess.run(
                    [self.python(), "-m", "venv", place], check=True, capture_output=True, text=True
                )
                subprocess.run(
                    [place / "bin" / "python", *quiet], check=True, capture_output=True, text=True
                )
            except (OSError, subprocess.CalledProcessError) as error:
                said = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
                raise Skipped(
                    f"{self.package} cannot be installed ({' '.join(said)[:200]})."
                ) from error
            (place / "ready").touch()
        return place / "bin" / "python"

    @contextmanager
    def serving(self, folder: Path) -> Generator[str]:
        """The server, in a process group that is stopped at the end, and its address."""
        python, port = self.environment(), free_port()
        with open(folder / "server.log", "w", encoding="utf-8") as log:
            command = [python, HERE / self.script, str(port)]
            process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )
            try:
                address = f"http://127.0.0.1:{port}/v2"
                self.wait(process, f"{address}/models/head/ready", folder / "server.log")
                yield address
            finally:
                stop(process)

    def wait(self, process: subprocess.Popen, address: str, log: Path) -> None:
        """Until the server is ready, a minute at most."""
        for _ in range(240):
            if process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(address, timeout=2):  # noqa: S310
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.25)
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise Skipped(f"{self.package} did not start ({' '.join(last)[:200]}).")


SERVERS = (
    Foreign("mlserver", "mlserver==1.7.1", "mlserver_head.py", "", (3, 13)),
    Foreign("kserve", "kserve==0.21.0", "kserve_head.py", "?binary=true"),
)


def free_port() -> int:
    """The first of three neighbouring ports that are free now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        try:
            for number in (port + 1, port + 2):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except (OSError, OverflowError):
            continue
        return port


def stop(process: subprocess.Popen) -> None:
    """End a process and what it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(15)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    process.wait()


def learned(address: str, folder: Path, name: str) -> tuple[int, dict]:
    """`keyhole learn ADDRESS` in a process of its own: its exit code and its record."""
    command = [sys.executable, "-m", "keyhole", "learn", address, "--out", folder / name, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if not done.stdout:
        raise SystemExit(f"keyhole learn {address} printed nothing: {done.stderr.strip()[-400:]}")
    return done.returncode, json.loads(done.stdout)


def rate(address: str, hidden: keyhole.Head) -> float:
    """Two-token questions per second, in one batch of 4,000; the answers must be right."""
    X = np.random.default_rng(2).normal(size=(4_000, 2, WIDTH))
    oracle = keyhole.HttpService(address)
    start = time.perf_counter()
    answers = oracle.ask(X.copy())
    seconds = time.perf_counter() - start
    oracle.close()
    np.testing.assert_allclose(answers, hidden(X), rtol=0, atol=1e-12)
    return len(X) / seconds


def tried(server: Foreign) -> bool:
    """One server from beginning to end; whether all was as it should be."""
    hidden = keyhole.Head.random(WIDTH, outputs=OUTPUTS, rng=np.random.default_rng(1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "head.npz", W=np.asarray(hidden.W), V=hidden.V)
        with server.serving(folder) as address:
            head, broken = (
                f"{address}/models/{which}{server.options}" for which in ("head", "broken")
            )
            code, record = learned(head, folder, "run")
            refused, why = learned(broken, folder, "broken")
            many = rate(head, hidden)
        gap = keyhole.compare(keyhole.load(folder / "run" / "model.safetensors"), hidden).W
    found = (record["verdict"], record["width"], record["outputs"])
    good = code == 0 and found == ("EXACT", WIDTH, OUTPUTS) and gap < 1e-9
    good = good and (refused, why["status"]) == (3, "BAD_ANSWER")
    seconds = record["seconds"]["total"]
    print(
        f"{server.package:<16} {found[0]}, width {found[1]}, outputs {found[2]}, from the metadata;"
        f" W to {gap:.0e};"
    )
    print(
        f"{'':<16} {record['queries']['total']} queries in {seconds:.2f} s; {many:,.0f} two-token"
        " questions/s"
    )
    print(f"{'':<16} NaN: {why['sentence'][:150]}")
    return good


def main() -> None:
    """Try every server; exit code 1 where one was there and something was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", choices=[server.name for server in SERVERS], help="one server alone"
    )
    options = parser.parse_args()
    results = []
    for server in SERVERS:
        if options.only in (None, server.name):
            try:
                results.append(tried(server))
            except Skipped as reason:
                print(f"skipped: {reason}")
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
