"""Side by side with ART 1.20.1: networks with one hidden layer, the same targets, success, queries,
error, time.

ART's FunctionallyEquivalentExtraction wants an environment of its own: `make bench-art`, or
`--install` here, makes build/art. Without it this says so and ends. Each of its runs is a process
that may use `--cap` seconds of processor time. It is told the hidden width; ours is not. "right" is
a relative error of at most 1e-6 at radii 1 and 10; "wrong" is a model that was handed over as
recovered and is further off; the rest failed with an error, or met the cap.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole

HOME = Path(__file__).parents[1] / "build" / "art"
PEER = Path(__file__).parent / "peers" / "art_extraction.py"
PACKAGES = (
    "adversarial-robustness-toolbox==1.20.1",
    "packaging==26.3",
    "numpy==2.4.6",
    "scipy==1.17.1",
)
SIZES = ("10-4-3", "20-8-5", "20-16-5", "784-4-10")
PUBLISHED = 2**21.5  # queries of Carlini, Jagielski and Mironov (2020) for 784-128-1
HEADINGS = ("d-k-m", "who", "right", "wrong", "failed", "capped", "queries", "error", "seconds")
WIDTHS = (11, 8, 7, 7, 7, 7, 8, 8, 8)
BAR = 1e-6


@dataclass(frozen=True)
class Run:
    """One recovery: `ended` is right, wrong, failed or capped."""

    ended: str
    queries: float
    error: float
    seconds: float


def install() -> None:
    """Make the environment of ART."""
    venv.create(HOME, with_pip=True)
    subprocess.run(
        [HOME / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES], check=True
    )


def points(width: int, rng: np.random.Generator) -> np.ndarray:
    """Where a recovery is compared with the truth: radii 1 and 10."""
    return np.concatenate([radius * rng.normal(size=(200, width)) for radius in (1.0, 10.0)])


def error(answers: np.ndarray, values: np.ndarray) -> float:
    """The worst error of either radius, beside how answers vary there."""
    halves = zip(np.split(answers, 2), np.split(values, 2), strict=True)
    return float(max(np.abs(a - b).max() / np.abs(a - a.mean(axis=0)).max() for a, b in halves))


def ours(truth: keyhole.ReluNet, x: np.ndarray, rng: np.random.Generator) -> Run:
    """Our recovery; it is handed over only when verified."""
    start = time.process_time()
    recovery = keyhole.Network().run(keyhole.Local(truth), rng=rng)
    seconds, asked = time.process_time() - start, recovery.ledger.total().sequences
    if not recovery.verdict.verified or recovery.model is None:
        return Run("failed", asked, np.nan, seconds)
    off = error(truth.points(x), recovery.model.points(x))
    return Run("right" if off <= BAR else "wrong", asked, off, seconds)


def theirs(truth: keyhole.ReluNet, x: np.ndarray, seed: int, cap: int) -> Run:
    """ART's recovery, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.npz"
        np.savez(path, W1=truth.W1, b1=truth.b1, W2=truth.W2, b2=truth.b2, x=x)
        command = [HOME / "bin" / "python", PEER, path, str(seed), str(cap)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=20 * cap + 60, check=False
            )
        except subprocess.TimeoutExpired:
            return Run("capped", np.nan, np.nan, cap)
    if done.returncode < 0:
        return Run("capped", np.nan, np.nan, cap)
    if done.returncode > 0:
        raise SystemExit(f"ART did not run: {done.stderr[-500:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    if not told["found"] or not np.isfinite(told["values"]).all():
        return Run("failed", told["queries"], np.nan, told["seconds"])
    off = error(truth.points(x), np.array(told["values"]))
    return Run("right" if off <= BAR else "wrong", told["queries"], off, told["seconds"])


def line(cells: tuple[str, ...]) -> str:
    """Cells, right-aligned."""
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def row(size: str, who: str, runs: list[Run]) -> str:
    """One line: how the runs ended, and medians over the right ones."""
    ends = [
        f"{sum(run.ended == end for run in runs)}/{len(runs)}"
        for end in ("right", "wrong", "failed", "capped")
    ]
    good = [run for run in runs if run.ended == "right"]
    if not good:
        return line((size, who, *ends, "-", "-", "-"))
    queries, seconds = np.median([r.queries for r in good]), np.median([r.seconds for r in good])
    return line(
        (size, who, *ends, f"{queries:.0f}", f"{max(r.error for r in good):.0e}", f"{seconds:.2f}")
    )


def compare(size: str, seeds: int, cap: int) -> None:
    """The two rows of one size."""
    d, k, m = map(int, size.split("-"))
    runs: dict[str, list[Run]] = {"ours": [], "ART": []}
    for seed in range(seeds):
        rng = np.random.default_rng([13, d, k, m, seed])
        truth, x = keyhole.ReluNet.random(d, hidden=k, outputs=m, rng=rng), points(d, rng)
        runs["ours"].append(ours(truth, x, rng))
        runs["ART"].append(theirs(truth, x, seed, cap))
    for who, done in runs.items():
        print(row(size, who, done), flush=True)


def published(seeds: int) -> None:
    """784-128-1 beside the number of queries in the literature."""
    asked = []
    for seed in range(seeds):
        rng = np.random.default_rng([13, 784, 128, 1, seed])
        truth, x = keyhole.ReluNet.random(784, hidden=128, rng=rng), points(784, rng)
        run = ours(truth, x, rng)
        asked.append(run.queries)
        cells = (
            run.ended,
            "",
            "",
            "",
            f"{run.queries:.0f}",
            f"{run.error:.0e}",
            f"{run.seconds:.2f}",
        )
        print(line(("784-128-1", "ours", *cells)), flush=True)
    times = PUBLISHED / np.median(asked)
    print(
        f"784-128-1: 2^{np.log2(np.median(asked)):.1f} queries; published: 2^21.5, {times:.0f}"
        " times as many."
    )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--install", action="store_true", help="make the environment of ART first")
    parser.add_argument("--seeds", type=int, default=20, help="targets per size")
    parser.add_argument(
        "--cap", type=int, default=30, help="seconds of processor time for a run of ART"
    )
    parser.add_argument(
        "--size", choices=SIZES, action="append", help="sizes to run; all when absent"
    )
    parser.add_argument(
        "--published", type=int, default=0, help="targets of size 784-128-1 for ours alone"
    )
    options = parser.parse_args()
    if options.install:
        install()
    print(line(HEADINGS))
    with threadpool_limits(1, "blas"):
        if (HOME / "bin" / "python").exists():
            for size in options.size or SIZES:
                compare(size, options.seeds, options.cap)
        else:
            print(
                "ART is not installed here: `make bench-art` makes build/art and runs the"
                " comparison."
            )
        if options.published:
            published(options.published)
    print(
        "\nqueries, error and seconds: median, largest and median over the right runs; seconds of"
        " processor time."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
