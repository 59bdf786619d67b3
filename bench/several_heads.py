"""Sums of heads of every kind: how often exact, queries over the limit, rounds, time, named and by
`auto`.

`python bench/several_heads.py --seeds 20` prints one row per cell of `head_cells.py`. `limit` is
degrees of freedom over outputs; queries and rounds (calls of the target) leave verification out,
what `auto` asks to recognise is in; `over` counts runs whose gap on 200 fresh sequences exceeds
1e-9; `false` counts verdicts EXACT with a gap above 1e-8, and refutations of what is a sum of
heads; `time` is own processor time over that of the target. `*` marks a goal that was not met.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole
from head_cells import CELLS, Cell, Timed, find_limit

COLUMNS = ("named", "worst", "over limit", "auto", "worst", "limit")
_LENGTHS = (1, 2, 3, 5, 9, 20)


@dataclass(frozen=True)
class Run:
    """One recovery.

    Args:
        verdict: its name.
        status: why it ended.
        queries: asked before verification.
        rounds: calls of the target before verification.
        gap: worst difference on fresh sequences, over the largest answer; infinite without a model.
        own: processor seconds outside the target.
        target: processor seconds inside it.
    """

    verdict: str
    status: str
    queries: int
    rounds: int
    gap: float
    own: float
    target: float


def run_cell(cell: Cell, seed: int, learner: str) -> tuple[Run, int | None]:
    """One recovery of one target, and its limit."""
    making, asking, learning, judging = np.random.default_rng(seed).spawn(4)
    target = Timed(cell.draw(making))
    hints = cell.hints(asking, target.width)
    oracle = cell.wrap(target, asking)
    start = time.process_time()
    found = keyhole.learn(oracle, rng=learning, learner=learner, hints=hints)
    spent = time.process_time() - start
    inside = target.seconds
    asked = found.ledger.total(without="verify")
    gap = measure_gap(target, found.model, hints, judging)
    status = found.status.name
    run = Run(found.verdict.name, status, asked.sequences, asked.calls, gap, spent - inside, inside)
    return run, find_limit(target.model)


def measure_gap(target: Timed, model: Any, hints: keyhole.Hints, rng: np.random.Generator) -> float:
    """The worst difference on fresh sequences of several lengths, over the largest answer."""
    if model is None:
        return np.inf
    gap, size = 0.0, 0.0
    for length in _LENGTHS:
        X = rng.normal(size=(40, length, target.width)) * rng.choice([0.3, 1.0, 2.0], (40, 1, 1))
        if hints.tokens is not None:
            X = hints.tokens[rng.integers(len(hints.tokens), size=(40, length))]
        truth = np.asarray(target.model(X), dtype=float).reshape(40, -1)
        gap = max(gap, float(np.abs(np.asarray(model(X)).reshape(40, -1) - truth).max()))
        size = max(size, float(np.abs(truth).max()))
    return gap / size


def judge_runs(cell: Cell, runs: list[Run]) -> str:
    """How many are right, how far off, how many are false."""
    good = ("EXACT", "WITHIN_TOLERANCE") if cell.tolerant else ("EXACT",)
    right = [run for run in runs if run.verdict in good]
    false = sum(
        run.verdict == "CLASS_REFUTED" or (run.verdict == "EXACT" and run.gap > 1e-8)
        for run in runs
    )
    worst = max((run.gap for run in right), default=np.nan)
    over = sum(run.gap > 1e-9 for run in right)
    return f"{len(right):3}/{len(runs):<3}{worst:9.0e}{over:5}{false:6}"


def count_queries(cell: Cell, runs: list[Run], limit: int | None) -> str:
    """Median and worst queries, over the limit, rounds, time."""
    asked = [run.queries for run in runs]
    middle = median(asked)
    missed = "*" if cell.goal is not None and middle > cell.goal else " "
    ratio = np.nan if not limit else middle / limit
    times = median(run.own / max(run.target, 1e-9) for run in runs)
    return (
        f"{middle:9,.0f}{missed}{max(asked):8,}{ratio:7.2f}"
        f"{median(run.rounds for run in runs):7.0f}{times:7.1f}"
    )


def list_failures(runs: list[Run]) -> str:
    """Statuses of what was not verified."""
    names = (
        f"{run.verdict}:{run.status}"
        for run in runs
        if run.verdict not in ("EXACT", "WITHIN_TOLERANCE")
    )
    return " ".join(f"{count}x{name}" for name, count in Counter(names).items())


HEADINGS = (
    f"{'cell':34}{'by':14}{'exact':>7}{'worst':>9}{'over':>5}{'false':>6}{'queries':>9} "
    f"{'most':>8}{'ratio':>7}{'rounds':>7}{'time':>7}  not verified"
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=3000, help="the first seed")
    parser.add_argument("--cell", action="append", default=[], help="part of the name of cells")
    parser.add_argument("--by", choices=("both", "named", "auto"), default="both")
    chosen = parser.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    print(HEADINGS)
    with threadpool_limits(1):
        for name, cell in CELLS.items():
            if chosen.cell and not any(part in name for part in chosen.cell):
                continue
            learners = {"both": (cell.learner, "auto"), "named": (cell.learner,)}
            for learner in learners.get(chosen.by, ("auto",)):
                tried = [run_cell(cell, seed, learner) for seed in seeds]
                runs = [run for run, _ in tried]
                print(
                    f"{name:34}{learner:14}",
                    judge_runs(cell, runs),
                    count_queries(cell, runs, tried[0][1]),
                    "",
                    list_failures(runs),
                    flush=True,
                )


if __name__ == "__main__":
    main()
