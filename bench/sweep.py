"""What a sweep costs beside its jobs: jobs of about a millisecond, serially, in local processes and
on a Dask scheduler with two workers, each a process of its own.

    python bench/sweep.py [--jobs 1000]
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keyhole.lab.jobs import SweepJob
from keyhole.lab.running import run_job
from keyhole.lab.runs.store import read_rows

WORKERS = 2


def main() -> None:
    """Print the overhead per job: wall-clock time times processes, less the time inside jobs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as place, start_cluster() as address:
        file = Path(place) / "plans.toml"
        file.write_text(
            f'job = "plan"\n[base]\nwidth = 64\n[grid]\noutputs.range = [1, {jobs + 1}]\n'
        )
        kinds = {
            "one process": SweepJob(str(file), workers=0),
            "two local processes": SweepJob(str(file), workers=WORKERS),
            "scheduler and two workers": SweepJob(str(file), cluster=address),
        }
        for name, job in kinds.items():
            measure_sweep(name, job, Path(place) / name, jobs)


def measure_sweep(name: str, job: SweepJob, out: Path, jobs: int) -> None:
    """Run a sweep and print what it took."""
    start = time.perf_counter()
    run_job(SweepJob(job.file, workers=job.workers, cluster=job.cluster, out=str(out)))
    spent = time.perf_counter() - start
    inside = sum(row.about.seconds or 0.0 for row in read_rows(out / "store.sqlite"))
    at_once = WORKERS if job.cluster else max(1, job.workers)
    over = (spent * at_once - inside) / jobs
    print(
        f"{name}: {jobs / spent:.0f} jobs a second, {spent:.2f} s for jobs of"
        f" {inside / jobs:.1e} s, {over:.1e} s over per job"
    )


@contextmanager
def start_cluster() -> Iterator[str]:
    """The address of a scheduler with two workers, which have begun."""
    from distributed import Client

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    started = [start_dask("scheduler", "--host", "127.0.0.1", "--port", str(port))]
    started += [start_dask("worker", address, "--nthreads", "1") for _ in range(WORKERS)]
    try:
        with Client(address, timeout=120) as client:
            client.wait_for_workers(WORKERS, timeout=120)
        yield address
    finally:
        for process in started:
            process.kill()
            process.wait()


def start_dask(what: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process of Dask, as its own command starts it."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments, "--no-dashboard"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
