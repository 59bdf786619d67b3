"""Error bars of layers behind float32 answers, or noisy ones: how many intervals hold the truth.

Run: python bench/layer_bars.py [--width 16] [--heads 4] [--seeds 20] [--first 4800]
    [--positions rope] [--noise 1e-7]
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from keyhole import Cast, Local, Noisy, Wiring, random_layer
from keyhole.claims import Verdict
from keyhole.learners.positions.learner import WiredLayer

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.aligned_layers import list_shares

DISPLACEMENTS = 32


def main() -> None:
    """Print one row: layers found, errors, and the share of 95 % intervals that hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=4800)
    parser.add_argument("--positions", default="rope")
    parser.add_argument("--noise", type=float, default=0.0, help="instead of float32 answers")
    given = parser.parse_args()
    wiring = Wiring(norm="rms", eps=1e-5, residual=True, positions=given.positions)
    held, errors, asked = [], [], []
    start, verified = time.process_time(), 0
    for seed in range(given.first, given.first + given.seeds):
        drawing, rng, fresh = np.random.default_rng(seed).spawn(3)
        options = {"heads": given.heads, "wiring": wiring, "displacements": DISPLACEMENTS}
        truth = replace(random_layer(given.width, **options, rng=drawing), gain=None)
        learner = WiredLayer(wiring, displacements=DISPLACEMENTS)
        target = Cast(Local(truth), "f32")
        if given.noise:
            target = Noisy(Local(truth), given.noise, seed)
        found = learner.run(target, rng=rng)
        verified += found.verdict is Verdict.WITHIN_TOLERANCE
        asked.append(found.ledger.total(without="verify").sequences)
        if found.bars:
            held.append(float(np.mean(np.abs(list_shares(truth, found)) < 1.96)))
            X = fresh.normal(size=(20, 16, given.width))
            gap = np.linalg.norm(truth(X) - found.model(X)) / np.linalg.norm(truth(X))
            errors.append(float(gap))
    seconds = (time.process_time() - start) / given.seeds
    print(
        f"| {given.positions} | {given.width}, {given.heads} | {verified}/{given.seeds} |"
        f" {len(held)} | {np.mean(held):.1%} ({min(held):.1%} to {max(held):.1%}) |"
        f" {np.median(errors):.0e} / {max(errors):.0e} | {np.median(asked):.0f},"
        f" at most {max(asked)} | {seconds:.1f} |"
    )


if __name__ == "__main__":
    main()
