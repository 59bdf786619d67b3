"""What a sweep costs beside its jobs: 1,000 jobs of about a millisecond, serially and in local
processes.
"""

import tempfile
import time
from pathlib import Path

from keyhole.lab.jobs import SweepJob
from keyhole.lab.running import run_job
from keyhole.lab.runs.store import read_rows

JOBS = 1000


def main() -> None:
    """Print the overhead per job: wall-clock time times processes, less the time inside jobs."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "plans.toml"
        file.write_text(
            f'job = "plan"\n[base]\nwidth = 64\n[grid]\noutputs.range = [1, {JOBS + 1}]\n'
        )
        for workers in (0, 2):
            out = Path(place) / str(workers)
            start = time.perf_counter()
            run_job(SweepJob(str(file), workers=workers, out=str(out)))
            spent = time.perf_counter() - start
            inside = sum(row.about.seconds or 0.0 for row in read_rows(out / "store.sqlite"))
            over = (spent * max(1, workers) - inside) / JOBS
            print(
                f"workers {workers}: {spent:.2f} s for jobs of {inside / JOBS:.1e} s, {over:.1e} s"
                " over per job"
            )


if __name__ == "__main__":
    main()
