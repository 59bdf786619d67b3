"""Gated networks recovered: verdicts, queries beside the limit, function error, time."""

from __future__ import annotations

import argparse
import sys

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole
from networks import HEADINGS, Case, format_line, format_row, parse_sizes, recover


def recover_one(size: tuple[int, int, int], kind: str, seed: int) -> Case:
    """Hide one Gaussian network and recover it."""
    d, k, m = size
    rng = np.random.default_rng([seed, *size])
    truth = keyhole.Gated.random(d, hidden=k, outputs=m, activation=kind, rng=rng)
    return recover(truth, keyhole.GatedNetwork(), truth.degrees_of_freedom / m, rng)


def main() -> int:
    """Print the table; 1 when a network is not EXACT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="8-16-8,24-64-24", help="d-k-m, separated by commas")
    parser.add_argument("--kinds", default="silu,gelu", help="activations, separated by commas")
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


if __name__ == "__main__":
    sys.exit(main())
