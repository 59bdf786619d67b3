"""Sums of heads: queries per parameter and errors over H x d, beside the published learner and its
count.

Heads are W = G/sqrt d, V = G/sqrt d. Queries are all that were asked, verification apart; a
parameter is one of H(d^2 + d); `error` is the worst relative error of any head's W or V. The
published learner (`Repetition`, rational interpolation, H known to it) runs on the same heads; its
own count is 4Hd^2 - 2H + 1.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np

import keyhole
from keyhole.learners.base import Learner

HEADS, WIDTHS = (1, 2, 4, 8, 16), (4, 8, 16, 32, 64)
HEADINGS = (
    "  H   d  verified  once  queries/par  most/par  published/par  error median     worst  CPU s |"
    " published learner"
)


@dataclass(frozen=True)
class Run:
    """One recovery: whether verified, whether at the first attempt, queries, error and CPU
    seconds.
    """

    verified: bool
    once: bool
    queries: int
    error: float
    seconds: float


def hidden(heads: int, width: int, seed: int) -> tuple[keyhole.MultiHead, np.random.Generator]:
    """A model to hide, and a generator for who looks for it."""
    hiding, learning = np.random.default_rng([seed, heads, width]).spawn(2)
    return keyhole.MultiHead.random(width, heads=heads, rng=hiding), learning


def run(
    learner: Learner,
    oracle: keyhole.Oracle,
    model: keyhole.MultiHead,
    rng: np.random.Generator,
) -> Run:
    """What one learner makes of one oracle."""
    start = time.process_time()
    found = learner.run(oracle, rng=rng)
    seconds = time.process_time() - start
    error = np.inf if found.model is None else keyhole.compare(model, found.model).largest
    once = found.certificate is not None and found.certificate.outcome is keyhole.Outcome.HOLDS
    return Run(
        found.verdict.verified, once, found.ledger.total(without="verify").sequences, error, seconds
    )


def ours(heads: int, width: int, seed: int) -> Run:
    """Saturate and isolate, any token length."""
    model, rng = hidden(heads, width, seed)
    return run(keyhole.SeveralHeads(), keyhole.Local(model), model, rng)


def published(heads: int, width: int, seed: int) -> Run:
    """Rational interpolation in the repetition ratio, the number of heads given."""
    model, rng = hidden(heads, width, seed)
    return run(keyhole.Repetition(heads), keyhole.Local(model), model, rng)


def summary(heads: int, width: int, runs: list[Run]) -> str:
    """One cell of a table."""
    parameters, count = heads * (width * width + width), len(runs)
    asked, errors = [r.queries / parameters for r in runs], [r.error for r in runs]
    count_published = (4 * heads * width * width - 2 * heads + 1) / parameters
    return (
        f"{heads:3} {width:3} {sum(r.verified for r in runs):5}/{count:<3}"
        f" {sum(r.once for r in runs):4} {statistics.median(asked):12.2f} {max(asked):9.2f}"
        f" {count_published:14.2f} {statistics.median(errors):13.1e} {max(errors):9.1e}"
        f" {statistics.mean(r.seconds for r in runs):6.2f}"
    )


def beside(runs: list[Run], heads: int, width: int) -> str:
    """The published learner in a few words."""
    verified = [r for r in runs if r.verified]
    if not verified:
        return f"0/{len(runs)} verified"
    asked = statistics.median(r.queries for r in verified) / (heads * (width * width + width))
    return (
        f"{len(verified)}/{len(runs)} verified, {asked:.2f}/par, error"
        f" {max(r.error for r in verified):.0e}"
    )


def seeds_of(heads: int, width: int, seeds: int) -> int:
    """Fewer seeds in the largest cells."""
    return min(seeds, 3 if heads * width >= 1024 else 5 if width >= 64 else seeds)


def table(seeds: int, largest: int) -> None:
    """H x d, any token length."""
    print(HEADINGS)
    for width in [w for w in WIDTHS if w <= largest]:
        for heads in HEADS:
            which = range(seeds_of(heads, width, seeds))
            mine = summary(heads, width, [ours(heads, width, seed) for seed in which])
            print(
                mine,
                "|",
                beside([published(heads, width, seed) for seed in which[:5]], heads, width),
                flush=True,
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--largest", type=int, default=64, help="largest width")
    options = parser.parse_args()
    table(options.seeds, options.largest)


if __name__ == "__main__":
    main()
