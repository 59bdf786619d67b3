"""What the benchmarks of network learners share: a target that is timed, a case, a table."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole

HEADINGS = ("kind", "d,k,m", "EXACT", "wrong", "queries", "/ limit", "worst", "error", "worst")
HEADINGS += ("seconds", "/ oracle")
WIDTHS = (10, 12, 7, 6, 8, 8, 6, 8, 8, 8, 9)
RADII = (0.3, 1.0, 3.0, 10.0, 1000.0)
WRONG = 1e-8  # a verified model that is farther off is a false verdict
ROUNDED = 1e-6  # of answers, beside how they vary: a gap of 1e-14 of an answer is rounding


@dataclass(slots=True)
class Timed:
    """A target that counts the seconds of processor time it takes to answer."""

    model: Any
    seconds: float = field(default=0.0, init=False)

    def __call__(self, X: Any) -> Any:
        """Answers."""
        start = time.process_time()
        answers = self.model(X)
        self.seconds += time.process_time() - start
        return answers


@dataclass(frozen=True, slots=True)
class Case:
    """One recovery, compared with the truth; queries are all but those of `verify`."""

    verdict: str
    queries: int
    limit: float
    error: float
    seconds: float
    oracle: float


def measure_error(
    truth: Any, model: Any, rng: np.random.Generator, *, number: type = np.float64
) -> float:
    """The largest gap at any radius, beside how answers vary there and a millionth of them."""
    errors = [0.0]
    for radius in RADII:
        x = (radius * rng.normal(size=(200, truth.width))).astype(number)
        answers = truth.points(x)
        spread = np.abs(answers - answers.mean(axis=0)).max() + ROUNDED * np.abs(answers).max()
        errors.append(np.abs(model.points(x) - answers).max() / spread)
    return float(max(errors))


def recover(
    truth: Any,
    learner: Any,
    limit: float,
    rng: np.random.Generator,
    measure: Callable[[Any, Any, np.random.Generator], float] = measure_error,
) -> Case:
    """Hide a network, recover it and compare."""
    target = Timed(truth)
    oracle = keyhole.Local(target, truth.width, count=truth.outputs)
    start = time.process_time()
    recovery = learner.run(oracle, rng=rng)
    seconds = time.process_time() - start
    model = recovery.model
    error = np.inf if model is None else measure(truth, model, rng)
    asked = recovery.ledger.total(without="verify").sequences
    return Case(recovery.verdict.name, asked, limit, error, seconds, target.seconds)


def format_line(cells: tuple[str, ...]) -> str:
    """Cells, right-aligned."""
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def format_row(kind: str, size: str, cases: list[Case]) -> str:
    """One row of the table, in the order of HEADINGS."""
    exact = sum(case.verdict == "EXACT" for case in cases)
    wrong = sum(case.verdict == "EXACT" and case.error > WRONG for case in cases)
    ratios = [case.queries / case.limit for case in cases]
    errors = [case.error for case in cases]
    seconds = float(np.median([case.seconds for case in cases]))
    beside = float(np.median([case.seconds / max(case.oracle, 1e-9) for case in cases]))
    cells = (kind, size, f"{exact}/{len(cases)}", str(wrong))
    cells += (f"{np.median([case.queries for case in cases]):.0f}",)
    cells += (f"{np.median(ratios):.2f}", f"{max(ratios):.2f}")
    cells += (f"{np.median(errors):.0e}", f"{max(errors):.0e}")
    return format_line((*cells, f"{seconds:.2f}", f"{beside:.0f}"))


def parse_sizes(text: str) -> list[tuple[int, int, int]]:
    """Sizes written d-k-m,d-k-m."""
    sizes: list[tuple[int, int, int]] = []
    for part in text.split(","):
        d, k, m = (int(number) for number in part.split("-"))
        sizes.append((d, k, m))
    return sizes


Size = tuple[int, int, int]


def print_table(
    recover_one: Callable[[Size, str, int], Case], *, about: str, sizes: str, kinds: str
) -> int:
    """Recover networks of every size and kind and print a row for each; 1 when one is not EXACT."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--sizes", default=sizes, help="d-k-m, separated by commas")
    parser.add_argument("--kinds", default=kinds, help="kinds of unit, separated by commas")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    options = parser.parse_args()
    missed = False
    print(format_line(HEADINGS))
    with threadpool_limits(1, "blas"):
        for size in parse_sizes(options.sizes):
            for kind in options.kinds.split(","):
                seeds = range(options.first, options.first + options.seeds)
                cases = [recover_one(size, kind, seed) for seed in seeds]
                print(format_row(kind, ",".join(map(str, size)), cases), flush=True)
                missed |= any(case.verdict != "EXACT" for case in cases)
    print("\nQueries without those of `verify`. wrong: EXACT and off by more than 1e-8.")
    return int(missed)
