"""ReLU networks inside a ball, and from answers with errors: success, queries beside the limit,
errors, time.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole
from keyhole.models.relu import network_freedom

BALL = {(10, 20, 1, 3.0): 20, (8, 32, 8, 3.0): 10, (32, 128, 1, 6.0): 3}
NOISE = {(1e-6, None): 10, (1e-4, None): 10, (1e-3, None): 10, (1e-4, 6.0): 3}


def points(count: int, width: int, radius: float, rng: np.random.Generator) -> np.ndarray:
    """Points uniform in a ball."""
    x = rng.normal(size=(count, width))
    return (
        x
        * radius
        * rng.random((count, 1)) ** (1 / width)
        / np.linalg.norm(x, axis=1, keepdims=True)
    )


def in_ball(size: tuple[int, int, int, float], seeds: int, seed: int) -> bool:
    """One row; whether every model was verified and none wrong on more than the stated share."""
    d, k, m, radius = size
    good, shares, queries, start = 0, [], [], time.perf_counter()
    for rng in np.random.default_rng([seed, d, k, m]).spawn(seeds):
        truth = keyhole.ReluNet.random(d, hidden=k, outputs=m, rng=rng)
        recovery = keyhole.NetworkInBall().run(
            keyhole.Bounded(keyhole.Local(truth), radius), rng=rng
        )
        queries.append(recovery.ledger.total().sequences)
        if recovery.verdict.verified:
            x = points(20_000, d, radius, rng)
            y = truth.points(x)
            off = np.abs(recovery.unwrap().points(x) - y).max(axis=1)
            shares.append(float(np.mean(off > 1e-9 * np.abs(y - y.mean(axis=0)).max())))
            good += 1
    ratio, each = (
        np.median(queries) * m / network_freedom(d, hidden=k, outputs=m),
        (time.perf_counter() - start) / seeds,
    )
    print(
        f"{d},{k},{m} R={radius:g}: EXACT {good}/{seeds}, queries {np.median(queries):.0f}"
        f" ({ratio:.2f} of the limit), largest wrong volume {max(shares, default=0.0):.4f} (stated"
        f" 0.02), {each:.1f} s",
        flush=True,
    )
    return good == seeds and max(shares, default=0.0) <= 0.02


def under_noise(noise: float, radius: float | None, seeds: int, seed: int) -> None:
    """One row."""
    good = whole = 0
    errors, queries, start = [], [], time.perf_counter()
    for i, rng in enumerate(np.random.default_rng([seed, 99]).spawn(seeds)):
        truth = keyhole.ReluNet.random(10, hidden=20, rng=rng)
        oracle = keyhole.Noisy(keyhole.Local(truth), noise, i)
        bounded = oracle if radius is None else keyhole.Bounded(oracle, radius)
        recovery = keyhole.NetworkUnderNoise().run(bounded, rng=rng)
        queries.append(recovery.ledger.total().sequences)
        if recovery.verdict.verified:
            model, x = recovery.unwrap(), points(5000, 10, radius or 5.0, rng)
            good, whole = good + 1, whole + (model.hidden == 20)
            errors.append(float(np.sqrt(np.mean((model.points(x) - truth.points(x)) ** 2))) / noise)
    each = (time.perf_counter() - start) / seeds
    print(
        f"10,20,1 noise {noise:g} R={radius}: verified {good}/{seeds}, exactly k {whole}, queries"
        f" {np.median(queries):.0f}, error over noise at most {max(errors, default=0.0):.2f},"
        f" {each:.1f} s",
        flush=True,
    )


def main() -> int:
    """Print the rows; 1 when a bar of the ball is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the seeds to run")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with threadpool_limits(1, "blas"):
        met = [
            in_ball(size, max(1, round(options.share * n)), options.seed)
            for size, n in BALL.items()
        ]
        for (noise, radius), n in NOISE.items():
            under_noise(noise, radius, max(1, round(options.share * n)), options.seed)
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
