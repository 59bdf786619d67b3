"""Sums of heads: queries per parameter and errors over H x d, beside the published count 4Hd^2 - 2H + 1.

Queries are all that were asked, verification apart; a parameter is one of H(d^2 + d). `tried once` counts runs that
needed no second attempt.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import keyhole

CELLS = [(h, d) for d in (4, 8, 16, 32) for h in (1, 2, 4, 8, 16)] + [(1, 64), (2, 64), (4, 64), (8, 64), (16, 64)]
HEADINGS = ("H", "d", "verified", "tried once", "queries/par", "published/par", "error median", "error max", "CPU s")


def one(heads: int, width: int, seed: int) -> tuple[keyhole.Recovery[keyhole.MultiHead], float]:
    """A recovery and the worst relative error of any head's W, V or constant (infinite without a model)."""
    hiding, learning = np.random.default_rng([seed, heads, width]).spawn(2)
    hidden = keyhole.MultiHead.random(width, heads=heads, rng=hiding)
    recovery = keyhole.SeveralHeads().run(keyhole.Local(hidden), rng=learning)
    return recovery, np.inf if recovery.model is None else keyhole.compare(hidden, recovery.model).largest


def row(heads: int, width: int, seeds: int) -> str:
    """One cell of the table."""
    start = time.process_time()
    runs = [one(heads, width, seed) for seed in range(seeds)]
    seconds = (time.process_time() - start) / seeds
    parameters = heads * (width * width + width)
    asked = statistics.median(r.ledger.total(without="verify").sequences for r, _ in runs) / parameters
    published = (4 * heads * width * width - 2 * heads + 1) / parameters
    verified = sum(r.verdict.verified for r, _ in runs)
    once = sum(r.certificate is not None and r.certificate.outcome is keyhole.Outcome.HOLDS for r, _ in runs)
    errors = [error for _, error in runs]
    return (
        f"{heads:3} {width:3} {verified:4}/{seeds:<3} {once:9}/{seeds:<3} {asked:10.2f} {published:13.2f} "
        f"{statistics.median(errors):13.1e} {max(errors):10.1e} {seconds:6.2f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--largest", type=int, default=32, help="largest width")
    options = parser.parse_args()
    print("  ".join(HEADINGS))
    for heads, width in CELLS:
        if width <= options.largest:
            print(row(heads, width, options.seeds), flush=True)


if __name__ == "__main__":
    main()
