"""Success rates and costs of recovering one-layer Transformers, beside the figures to reach.

Each row hides random layers (k = 4 d hidden units, seeds that nothing was tuned on) and recovers
them: how many were verified as exact, the median number of queries before verification over its
limit (degrees of freedom over outputs) and over the figure to reach, the error of W, and the time
per run. Usage: python bench/one_layer.py [WIDTH ...]
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole
from keyhole.identify import one_layer_distance

SIZES = (8, 16, 32)
FIRST_SEED = 5000
# queries to reach, by width; those of the vector row are for m = d
REACH = {
    "plain": {8: 612, 16: 1813, 32: 6167, 64: 23554},
    "residual, biases": {8: 722, 16: 2166, 32: 7426},
    "vector": {8: 251, 16: 410, 32: 754},
    "vector, residual, biases": {8: 251, 16: 410, 32: 754},
    "bias-free, paper": {},
}
HEADINGS = (
    "kind",
    "d",
    "exact",
    "queries",
    "/ limit",
    "/ figure",
    "most",
    "W error",
    "worst",
    "seconds",
)
WIDTHS = (24, 3, 7, 8, 7, 8, 7, 8, 8, 7)


@dataclass(frozen=True)
class Run:
    """One recovery."""

    exact: bool
    queries: int
    limit: float
    error: float
    seconds: float


def hidden(kind: str, width: int, rng: np.random.Generator) -> keyhole.OneLayer:
    """A random layer of that kind."""
    options = {"residual": "residual" in kind, "biases": "residual" in kind}
    layer = keyhole.OneLayer.random(
        width, hidden=4 * width, outputs=width if "vector" in kind else 1, **options, rng=rng
    )
    if "bias-free" not in kind:
        return layer
    net = layer.net
    return keyhole.OneLayer(layer.head, keyhole.ReluNet(net.W1, 0 * net.b1, net.W2, 0 * net.b2))


def recovered(kind: str, width: int, seed: int) -> Run:
    """Hide a layer and recover it."""
    rng = np.random.default_rng(FIRST_SEED + seed)
    target = hidden(kind, width, rng)
    learner = keyhole.Antisymmetric() if "paper" in kind else keyhole.OneLayerTransformer()
    start = time.perf_counter()
    recovery = learner.run(keyhole.Local(target), rng=rng)
    seconds = time.perf_counter() - start
    limit = (recovery.degrees_of_freedom or np.nan) / target.outputs
    error = np.inf if recovery.model is None else one_layer_distance(target, recovery.model).W
    exact = recovery.verdict is keyhole.Verdict.EXACT
    return Run(exact, recovery.ledger.total(without="verify").sequences, limit, error, seconds)


def row(kind: str, width: int, seeds: int) -> tuple[str, ...]:
    """One line of the table."""
    runs = [recovered(kind, width, seed) for seed in range(seeds)]
    queries = statistics.median(run.queries for run in runs)
    reach = REACH[kind].get(width)
    return (
        kind,
        str(width),
        f"{sum(run.exact for run in runs)}/{seeds}",
        f"{queries:.0f}",
        f"{statistics.median(run.queries / run.limit for run in runs):.2f}",
        "-" if reach is None else f"{queries / reach:.2f}",
        str(max(run.queries for run in runs)),
        f"{statistics.median(run.error for run in runs):.0e}",
        f"{max(run.error for run in runs):.0e}",
        f"{statistics.median(run.seconds for run in runs):.2f}",
    )


def line(cells: tuple[str, ...]) -> str:
    """Cells, right-aligned."""
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "sizes",
        nargs="*",
        type=int,
        help=f"widths to run; {', '.join(map(str, SIZES))} when absent",
    )
    parser.add_argument(
        "--kind", choices=REACH, action="append", help="rows to run; all when absent"
    )
    parser.add_argument(
        "--seeds", type=int, default=20, help="layers per row; at most 5 from width 64 on"
    )
    options = parser.parse_args()
    print(line(HEADINGS))
    with threadpool_limits(1, "blas"):
        for kind in options.kind or REACH:
            for width in options.sizes or SIZES:
                print(
                    line(row(kind, width, options.seeds if width < 64 else min(5, options.seeds))),
                    flush=True,
                )
    print(
        "\nqueries: median before verification (144 more); limit: degrees of freedom over outputs."
    )


if __name__ == "__main__":
    main()
