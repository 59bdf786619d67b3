"""What `auto` costs beside the learner it ends with: queries before verification, over seeds.

`python bench/auto.py --seeds 20` prints medians and worst of both, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole
from keyhole import Head, MultiHead, OneLayer, ReluNet

COLUMNS = ("target", "learner", "named", "worst", "auto", "worst", "ratio", "more", "EXACT")


@dataclass(frozen=True)
class Case:
    """Targets of a kind, and the learner that somebody who knows them would name."""

    make: Callable[[np.random.Generator], Any]
    learner: str


CASES = {
    "one head 8": Case(lambda rng: Head.random(8, rng=rng), "low-rank"),
    "one head 32": Case(lambda rng: Head.random(32, rng=rng), "low-rank"),
    "one head 64, rank 4": Case(lambda rng: Head.random(64, rank=4, rng=rng), "low-rank"),
    "2 heads 8": Case(lambda rng: MultiHead.random(8, heads=2, rng=rng), "several-heads"),
    "4 heads 16": Case(lambda rng: MultiHead.random(16, heads=4, rng=rng), "several-heads"),
    "8 heads 64": Case(lambda rng: MultiHead.random(64, heads=8, rng=rng), "several-heads"),
    "relu 3-2-1": Case(lambda rng: ReluNet.random(3, hidden=2, rng=rng), "network"),
    "relu 10-20-1": Case(lambda rng: ReluNet.random(10, hidden=20, rng=rng), "network"),
    "gelu 6-8-1": Case(
        lambda rng: ReluNet.random(6, hidden=8, activation="gelu", rng=rng), "smooth-network"
    ),
    "one layer 4": Case(lambda rng: OneLayer.random(4, hidden=8, rng=rng), "one-layer"),
}


def ask_before_verification(case: Case, seed: int, learner: str) -> tuple[int, bool]:
    """Queries but those of verification, and whether the model is exact."""
    making, learning = np.random.default_rng(seed).spawn(2)
    found = keyhole.learn(case.make(making), rng=learning, learner=learner)
    return found.ledger.total(without="verify").sequences, found.verdict.name == "EXACT"


def measure_case(name: str, seeds: range) -> tuple[str, ...]:
    """One row of the table."""
    case = CASES[name]
    both = {
        learner: [ask_before_verification(case, seed, learner) for seed in seeds]
        for learner in (case.learner, "auto")
    }
    (named, most_named), (auto, most_auto) = (
        (median(asked for asked, _ in runs), max(asked for asked, _ in runs))
        for runs in both.values()
    )
    exact = sum(right for _, right in both["auto"])
    counts = (f"{named:g}", f"{most_named}", f"{auto:g}", f"{most_auto}")
    ratio = (f"{auto / named:.3f}", f"{auto - named:g}", f"{exact} of {len(seeds)}")
    return (name, case.learner, *counts, *ratio)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--case", action="append", default=[], choices=list(CASES))
    chosen = parser.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    print("".join(f"{name:>16}" for name in COLUMNS))
    with threadpool_limits(1):
        for name in chosen.case or CASES:
            print("".join(f"{cell:>16}" for cell in measure_case(name, seeds)), flush=True)


if __name__ == "__main__":
    main()
