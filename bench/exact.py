"""What exact recovery costs: queries over degrees of freedom, time over the target's own time,
error, memory.

Every size runs in a process of its own, so that peak memory is that size's alone. One BLAS thread
throughout, as the learner's own algebra has; `time/oracle` is 1 for a learner that costs nothing
besides its questions.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole

SIZES = (16, 32, 64, 128, 256, 512)
FULL = (*SIZES, 1024)
PLAIN_BAR, RECORDED_BAR, MEMORY_BAR = 1.10, 1.25, 0.5e9
BARS_FROM = 1024  # below it the fixed cost of a run weighs too much beside the work of the target
HEADINGS = (
    "d",
    "queries",
    "freedom",
    "ratio",
    "seconds",
    "time/oracle",
    "recorded",
    "error W",
    "error v",
    "peak MB",
)
WIDTHS = (5, 9, 9, 7, 8, 11, 8, 8, 8, 7)


@dataclass
class Timed:
    """A head written with one matrix product per batch; `seconds` is the time spent inside it."""

    W: np.ndarray
    v: np.ndarray
    seconds: float = field(default=0.0)

    @property
    def width(self) -> int:
        """Size of a token."""
        return len(self.v)

    @property
    def outputs(self) -> int:
        """Numbers per answer."""
        return 1

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Answers to a batch, timed."""
        start = time.perf_counter()
        answers = self._answers(X)
        self.seconds += time.perf_counter() - start
        return answers

    def _answers(self, X: np.ndarray) -> np.ndarray:
        queries = X[:, -1] @ self.W.T
        scores = np.einsum("bnd,bd->bn", X, queries)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return np.einsum("bn,bnd->bd", weights, X) @ self.v


@dataclass(frozen=True)
class Row:
    """One size, measured."""

    width: int
    queries: int
    freedom: int
    seconds: float
    plain: float
    recorded: float
    error_w: float
    error_v: float
    peak: float

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of HEADINGS."""
        counts = (
            str(self.width),
            f"{self.queries:,}",
            f"{self.freedom:,}",
            f"{self.queries / self.freedom:.4f}",
        )
        times = (f"{self.seconds:.2f}", f"{self.plain:.3f}", f"{self.recorded:.3f}")
        return (
            *counts,
            *times,
            f"{self.error_w:.1e}",
            f"{self.error_v:.1e}",
            f"{self.peak / 1e6:.0f}",
        )

    def missed(self) -> list[str]:
        """Bars this row does not reach."""
        bars = {"memory": self.peak >= MEMORY_BAR}
        if self.width >= BARS_FROM:
            bars |= {
                "time/oracle": self.plain > PLAIN_BAR,
                "recorded": self.recorded > RECORDED_BAR,
            }
        return [f"d = {self.width}: {name}" for name, over in bars.items() if over]


def hidden(width: int, seed: int) -> Timed:
    """A Gaussian head to recover."""
    rng = np.random.default_rng(seed)
    return Timed(rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width))


def recovered(
    target: Timed, seed: int, transcript: Path | None = None
) -> tuple[keyhole.Recovery, float]:
    """The recovery, and total time over the target's own."""
    oracle: keyhole.Oracle = keyhole.Local(target)
    if transcript is not None:
        oracle = keyhole.Recorded(oracle, transcript, {"bench": "exact"})
    start, target.seconds = time.perf_counter(), 0.0
    recovery = keyhole.learn(oracle, rng=np.random.default_rng(seed), learner=keyhole.Exact())
    if isinstance(oracle, keyhole.Recorded):
        oracle.close()
    return recovery, (time.perf_counter() - start) / target.seconds


def relative(found: np.ndarray, truth: np.ndarray) -> float:
    """Relative Frobenius distance."""
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def measured(width: int, repeats: int) -> Row:
    """One row; ratios are medians over the repeats."""
    plain, recorded = [], []
    with threadpool_limits(1, "blas"), tempfile.TemporaryDirectory() as directory:
        recovered(hidden(8, 0), 0, Path(directory) / "warm.sqlite")
        target = hidden(width, 1)
        for seed in range(repeats):
            recovery, ratio = recovered(target, seed)
            plain.append(ratio)
            seconds = ratio * target.seconds
            recorded.append(recovered(target, seed, Path(directory) / f"{seed}.sqlite")[1])
    head = recovery.unwrap()
    errors = relative(np.asarray(head.W), target.W), relative(head.V[:, 0], target.v)
    asked, freedom = recovery.ledger.total(without="verify").sequences, width * width + width
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    return Row(
        width,
        asked,
        freedom,
        seconds,
        statistics.median(plain),
        statistics.median(recorded),
        *errors,
        peak,
    )


def line(cells: tuple[str, ...]) -> str:
    """Cells, right-aligned."""
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def main() -> None:
    """Print the table, then the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "sizes",
        nargs="*",
        type=int,
        help=f"widths to run; {', '.join(map(str, SIZES))} when absent",
    )
    parser.add_argument("--full", action="store_true", help="add width 1024 to the default sizes")
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs per width; ratios are their medians"
    )
    options = parser.parse_args()
    print(line(HEADINGS))
    missed: list[str] = []
    for size in options.sizes or (FULL if options.full else SIZES):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            row = pool.submit(measured, size, 1 if size >= 512 else options.repeats).result()
        print(line(row.cells()), flush=True)
        missed += row.missed()
    print(
        f"\nqueries: before verification. Bars from d = {BARS_FROM}: time/oracle {PLAIN_BAR},"
        f" recorded {RECORDED_BAR};"
    )
    print(
        f"memory {MEMORY_BAR / 1e6:.0f} MB everywhere."
        f" {'Missed: ' + ', '.join(missed) if missed else 'All met.'}"
    )


if __name__ == "__main__":
    main()
