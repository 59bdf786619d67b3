"""Units of third order behind an oracle: how many come back, how exactly, for how many questions.

    python bench/third_order_recovery.py [--seeds 100] [--widths 6 8 12] [--only full]

Each cell hides fresh random units and recovers them by `ThirdOrder` with a short examination; the
error is that of T, both places exchanged where that is nearer. Then built Match3 units, and answers
cast to float32. Ends with 1 where a cell misses its line.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import keyhole
from keyhole import Cast, Local, TensorAttention, TensorRow, ThirdOrder, Verdict
from keyhole.models.layers.tensor_row import third_order_freedom
from keyhole.oracles import Examining

WORST = 1e-8
EXAMINED = 24
FIRST = 50_000  # seeds that nothing was tuned on


def draw_unit(width: int, rank: int | None, rng: np.random.Generator) -> TensorAttention:
    """A sum of so many products, or all of T random."""
    if rank is not None:
        return TensorAttention.random(width, embed=rank, rng=rng)
    T = rng.normal(size=(width, width * width)) / width
    eye = np.eye(width)
    K = np.repeat(eye, width, axis=1), np.tile(eye, width)
    return TensorAttention(T, K, tuple(rng.normal(size=(2, width, 1))))


def recover(oracle: object, seed: int) -> keyhole.Recovery:
    """What the learner makes of one unit."""
    return ThirdOrder().run(Examining(oracle, EXAMINED), rng=np.random.default_rng([seed, 1]))


def report_cell(width: int, rank: int | None, seeds: int) -> bool:
    """Print one cell; whether every unit came back."""
    exact, errors, asked, whole = 0, [], [], []
    for seed in range(FIRST, FIRST + seeds):
        unit = draw_unit(width, rank, np.random.default_rng([seed, width, rank or 0]))
        found = recover(Local(TensorRow(unit)), seed)
        exact += found.verdict is Verdict.EXACT
        errors.append(
            np.inf if found.model is None else keyhole.compare(unit, found.model.unit).scores
        )
        asked.append(found.ledger["scores"].sequences)
        whole.append(found.ledger.total(without="verify").sequences)
    limit = third_order_freedom(width, rank=rank, outputs=0)
    print(
        f"{width:5d} {rank or 'full':>5} {exact:4d}/{seeds:<4d} worst T {max(errors):.1e}"
        f"  T {np.median(asked):6.0f} (max {max(asked)})/{limit}  in all {np.median(whole):.0f}"
        f" (max {max(whole)})",
        flush=True,
    )
    return exact == seeds and max(errors) <= WORST


def report_built(modulus: int) -> bool:
    """Print what becomes of a built Match3 unit."""
    unit = keyhole.build(keyhole.Match3(4, modulus), rng=FIRST).model.blocks[0].layer
    found = keyhole.learn(Local(TensorRow(unit)), rng=FIRST)
    error = keyhole.compare(unit, found.model.unit).scores if found.model else np.inf
    print(
        f"Match3, M = {modulus}: {found.verdict.name}, T to {error:.1e},"
        f" {found.ledger.total().sequences} questions"
    )
    return found.verdict is Verdict.EXACT


def report_coarse(width: int, rank: int | None, seeds: int) -> bool:
    """Print what float32 answers leave."""
    verdicts, errors = [], []
    for seed in range(FIRST, FIRST + seeds):
        unit = draw_unit(width, rank, np.random.default_rng([seed, width, rank or 0, 32]))
        found = recover(Cast(Local(TensorRow(unit)), "f32"), seed)
        verdicts.append(found.verdict)
        errors.append(keyhole.compare(unit, found.model.unit).scores if found.model else np.inf)
    right = verdicts.count(Verdict.WITHIN_TOLERANCE)
    print(
        f"f32, d = {width}, rank {rank or 'full'}: {right}/{seeds} WITHIN_TOLERANCE, worst T"
        f" {max(errors):.1e}",
        flush=True,
    )
    return right == seeds


def main() -> int:
    """Print everything; 1 where a cell misses its line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--widths", type=int, nargs="+", default=[6, 8, 12])
    parser.add_argument("--only", choices=["few", "full", "built", "f32"])
    options = parser.parse_args()
    ranks = {"few": [1, 2, 3, 4], "full": [None], None: [1, 2, 3, 4, None]}.get(options.only, [])
    print("width  rank   exact")
    good = [report_cell(width, rank, options.seeds) for width in options.widths for rank in ranks]
    if options.only in (None, "built"):
        good += [report_built(modulus) for modulus in (11, 50, 400)]
    if options.only in (None, "f32"):
        good += [report_coarse(6, rank, max(1, options.seeds // 5)) for rank in (1, 2, 3, None)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
