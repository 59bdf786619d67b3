"""Whole Transformer blocks: queries beside the counting limit, errors, successes.

Run: python bench/blocks.py [--seeds 20] [--first 500] [--style gpt2|bert|llama]
[--width 16] [--heads 2] [--answers f32] [--each]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from keyhole import (
    GatedBlock,
    Local,
    PostNormBlock,
    PreNormBlock,
    TransformerBlock,
    random_block,
)
from keyhole.oracles import Cast

LENGTHS = (1, 2, 8, 32)
LEARNERS = {"gpt2": PreNormBlock, "bert": PostNormBlock, "llama": GatedBlock}


@dataclass(frozen=True)
class Cell:
    """Blocks of one size."""

    width: int
    heads: int
    hidden: int
    style: str = "gpt2"
    groups: int | None = None


CELLS = (
    Cell(8, 2, 8),
    Cell(16, 2, 32),
    Cell(16, 4, 64),
    Cell(32, 4, 128),
    Cell(32, 2, 128),
    Cell(64, 4, 256),
    Cell(8, 2, 8, "bert"),
    Cell(16, 2, 32, "bert"),
    Cell(16, 4, 48, "bert"),
    Cell(32, 4, 128, "bert"),
    Cell(32, 2, 128, "bert"),
    Cell(64, 4, 256, "bert"),
    Cell(8, 2, 5, "llama", 1),
    Cell(8, 2, 6, "llama"),
    Cell(16, 4, 24, "llama", 2),
    Cell(16, 4, 24, "llama"),
    Cell(32, 4, 64, "llama", 2),
    Cell(64, 8, 128, "llama", 2),
)


def measure_error(
    truth: TransformerBlock, model: TransformerBlock, rng: np.random.Generator
) -> float:
    """The largest error over the lengths, beside what a pre-norm block adds to the last token."""
    errors: list[float] = []
    for length in LENGTHS:
        X = rng.normal(size=(20, length, truth.width))
        made = truth(X) - (X[:, -1] if truth.style == "pre" else 0.0)
        errors.append(float(np.linalg.norm(truth(X) - model(X)) / np.linalg.norm(made)))
    return max(errors)


def run_cell(cell: Cell, seeds: range, answers: str, each: bool) -> None:
    """Recover one block per seed and print the row."""
    errors: list[float] = []
    asked: list[int] = []
    seconds: list[float] = []
    limit = 0.0
    for seed in seeds:
        truth_rng, rng, fresh = np.random.default_rng(seed).spawn(3)
        truth = random_block(
            cell.width,
            style=cell.style,
            heads=cell.heads,
            groups=cell.groups,
            hidden=cell.hidden,
            rng=truth_rng,
        )
        start = time.process_time()
        target = Local(truth) if answers == "f64" else Cast(Local(truth), answers)
        found = LEARNERS[cell.style]().run(target, rng=rng)
        seconds.append(time.process_time() - start)
        asked.append(found.ledger.total(without="verify").sequences)
        if found.verdict.verified and found.model is not None:
            errors.append(measure_error(truth, found.model, fresh))
            limit = (found.degrees_of_freedom or 0) / cell.width
        if each:
            print(f"  {seed} {found.verdict.name} {asked[-1]} {errors[-1:]} {seconds[-1]:.1f} s")
    shared = f" in {cell.groups} groups" if cell.groups else ""
    size = f"{cell.style}, {cell.width} wide, {cell.heads} heads{shared}, {cell.hidden} units"
    worst = f"{np.median(errors):.1e} / {max(errors):.1e}" if errors else "none"
    ratio = np.median(asked) / limit if limit else np.nan
    print(
        f"{size} | {len(errors)}/{len(seeds)} | {worst} | {int(np.median(asked)):,}"
        f" (max {max(asked):,}) | {limit:.0f} | {ratio:.1f} | {np.median(seconds):.1f}",
        flush=True,
    )


def main() -> None:
    """Print one row per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=500)
    parser.add_argument("--style", choices=LEARNERS, default=None)
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--heads", type=int, default=None)
    parser.add_argument("--answers", choices=("f64", "f32"), default="f64")
    parser.add_argument("--each", action="store_true")
    told = parser.parse_args()
    print("block | verified | error median / max | queries | limit | ratio | CPU s", flush=True)
    for cell in CELLS:
        wanted = (told.style, told.width, told.heads)
        sizes = (cell.style, cell.width, cell.heads)
        if all(want in (None, has) for want, has in zip(wanted, sizes, strict=True)):
            run_cell(cell, range(told.first, told.first + told.seeds), told.answers, told.each)


if __name__ == "__main__":
    main()
