"""Networks with one hidden layer recovered: success, queries beside the limit, function error,
time.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole
from keyhole.identify import network_distance
from networks import Timed, parse_sizes

SIZES = {
    (10, 20, 1): 100,
    (32, 128, 1): 20,
    (64, 256, 1): 20,
    (32, 128, 32): 20,
    (64, 256, 64): 20,
    (784, 128, 1): 20,
    (16, 512, 1): 20,
    (16, 1024, 1): 20,
    (16, 512, 16): 5,
    (16, 1024, 16): 5,
}
HEADINGS = ("d,k,m", "ok", "wrong", "queries", "/ limit", "worst", "error", "error max", "seconds")
HEADINGS += ("/ oracle",)
WIDTHS = (11, 8, 6, 8, 8, 6, 8, 10, 8, 9)
_SEEDS = 20  # of sizes that are not listed
ERROR_BAR, SCALAR_BAR, VECTOR_BAR = 1e-7, 1.15, 1.6


@dataclass(frozen=True)
class Case:
    """One recovery, compared with the truth."""

    verified: bool
    right: bool
    queries: int
    error: float
    seconds: float
    oracle: float


def tried(width: int, hidden: int, outputs: int, rng: np.random.Generator) -> Case:
    """Hide one random network and recover it."""
    truth = keyhole.ReluNet.random(width, hidden=hidden, outputs=outputs, rng=rng)
    target = Timed(truth)
    start = time.process_time()
    recovery = keyhole.Network().run(keyhole.Local(target, width, count=outputs), rng=rng)
    seconds, model = time.process_time() - start, recovery.model
    asked = recovery.ledger.total(without="verify").sequences
    if model is None:
        return Case(False, False, asked, np.inf, seconds, target.seconds)
    errors = []
    for radius in (1.0, 10.0, 1000.0):
        x = radius * rng.normal(size=(300, width))
        answers = truth.points(x)
        errors.append(
            np.abs(model.points(x) - answers).max() / np.abs(answers - answers.mean(axis=0)).max()
        )
    right = network_distance(truth, model).hidden == (hidden, hidden) and max(errors) <= ERROR_BAR
    error = float(max(errors))
    return Case(recovery.verdict.verified, right, asked, error, seconds, target.seconds)


def line(cells: tuple[str, ...]) -> str:
    """Cells, right-aligned."""
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def row(size: tuple[int, int, int], cases: list[Case]) -> tuple[str, ...]:
    """Cells of one size, in the order of HEADINGS."""
    d, k, m = size
    limit = (k * (d + m) + m * (d + 1)) / m
    good, wrong = (
        sum(c.verified and c.right for c in cases),
        sum(c.verified and not c.right for c in cases),
    )
    queries, seconds = np.median([c.queries for c in cases]), np.median([c.seconds for c in cases])
    counts = (
        f"{good}/{len(cases)}",
        str(wrong),
        f"{queries:.0f}",
        f"{queries / limit:.2f}",
        f"{max(c.queries for c in cases) / limit:.2f}",
    )
    errors, beside = [c.error for c in cases], [c.seconds / c.oracle for c in cases]
    known = f"{np.median(errors):.0e}", f"{max(errors):.0e}"
    return (f"{d},{k},{m}", *counts, *known, f"{seconds:.2f}", f"{np.median(beside):.0f}")


def missed(size: tuple[int, int, int], cases: list[Case]) -> bool:
    """Whether a bar of the size is not reached."""
    d, k, m = size
    limit, queries = (k * (d + m) + m * (d + 1)) / m, np.median([c.queries for c in cases])
    few = sum(c.verified and c.right for c in cases) < 0.99 * len(cases)
    silent = any(c.verified and not c.right for c in cases)
    dear = d >= 32 and queries > (SCALAR_BAR if m == 1 else VECTOR_BAR) * limit
    return bool(few or silent or dear)


def main() -> int:
    """Print the table; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the seeds to run")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--sizes", help="rows to run, d-k-m separated by commas; all when absent")
    options = parser.parse_args()
    chosen = parse_sizes(options.sizes) if options.sizes else list(SIZES)
    over: list[str] = []
    print(line(HEADINGS))
    with threadpool_limits(1, "blas"):
        for size in chosen:
            count = max(1, round(options.share * SIZES.get(size, _SEEDS)))
            generators = np.random.default_rng([options.seed, *size]).spawn(count)
            cases = [tried(*size, rng) for rng in generators]
            print(line(row(size, cases)), flush=True)
            over += [str(size)] if missed(size, cases) else []
    print("\nQueries without those of `verify`. wrong: verified and yet not the truth.")
    print("Missed: " + ", ".join(over) if over else "All bars met.")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
