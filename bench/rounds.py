"""Calls of whole recoveries by phase, verification included, beside the bar.

    python bench/rounds.py [--seeds 5] [--latency 0.02]

A call is a round: behind a network each costs its latency, however many questions it carries. One
head of width 64 should take at most 40 calls, four heads of width 16 at most 90. `waits` is what
the calls of the worst seed cost at that latency; `queries` are those of the median.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import keyhole

Hidden = keyhole.Head | keyhole.MultiHead


@dataclass(frozen=True)
class Goal:
    """What is hidden, and how many calls its recovery should take at most."""

    draw: Callable[[np.random.Generator], Hidden]
    bar: int


GOALS = {
    "one head, d = 64": Goal(lambda rng: keyhole.Head.random(64, rng=rng), 40),
    "one head, d = 64, rank 8": Goal(lambda rng: keyhole.Head.random(64, rank=8, rng=rng), 40),
    "four heads, d = 16": Goal(lambda rng: keyhole.MultiHead.random(16, heads=4, rng=rng), 90),
}


def recover(goal: Goal, seed: int) -> keyhole.Recovery:
    """One recovery by `auto`."""
    hiding, learning = np.random.default_rng([seed, 20]).spawn(2)
    found = keyhole.learn(keyhole.Local(goal.draw(hiding)), rng=learning)
    if found.verdict is not keyhole.Verdict.EXACT:
        raise SystemExit(f"seed {seed} ended {found.verdict.name}: {found.sentence}")
    return found


def describe(found: list[keyhole.Recovery], goal: Goal, latency: float) -> str:
    """Calls of all seeds, and where the worst of them went."""
    worst = max(found, key=lambda one: one.ledger.total().calls).ledger
    calls = [one.ledger.total().calls for one in found]
    queries = statistics.median(one.ledger.total().sequences for one in found)
    phases = ", ".join(f"{name} {entry.calls}" for name, entry in worst.phases.items())
    met = "met" if max(calls) <= goal.bar else "MISSED"
    return (
        f"{statistics.median(calls):4.0f} calls median, {max(calls):4} worst (bar {goal.bar},"
        f" {met});"
        f" waits {latency * max(calls):.2f} s; {queries:,.0f} queries; worst: {phases}"
    )


def main() -> None:
    """Print a line for every goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--latency", type=float, default=0.02)
    given = parser.parse_args()
    for name, goal in GOALS.items():
        found = [recover(goal, seed) for seed in range(given.seeds)]
        print(f"{name:26} {describe(found, goal, given.latency)}")


if __name__ == "__main__":
    main()
