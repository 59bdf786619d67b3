"""Whole layers: queries over the limit, error on fresh outputs, seconds, beside the target's own.

Weights are random, with biases. `--trained` gives them decaying spectra, channels of unequal gain
with a few outliers, and heads of unequal sharpness, which is what makes trained layers harder than
random ones.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole

SHAPES = ((16, 4, 4), (32, 4, 8), (64, 8, 8), (128, 8, 16), (384, 12, 32))
HEADINGS = (
    "d",
    "heads",
    "size",
    "verified",
    "queries",
    "limit",
    "ratio",
    "worst output error",
    "seconds",
    "target's",
)
WIDTHS = (4, 5, 4, 8, 7, 6, 6, 18, 7, 8)


@dataclass
class Projected:
    """Queries, keys and values with biases, heads side by side, an output projection; `seconds` is
    spent inside.
    """

    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray
    O: np.ndarray
    biases: tuple[np.ndarray, np.ndarray, np.ndarray]
    scale: float
    seconds: float = field(default=0.0)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.Q.shape[2]

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Answers to a batch, timed."""
        start = time.perf_counter()
        answers = self.answers(X)
        self.seconds += time.perf_counter() - start
        return answers

    def answers(self, X: np.ndarray) -> np.ndarray:
        """The formula, head by head."""
        bq, bv, bo = self.biases
        out = np.tile(bo, (len(X), 1))
        for Q, K, V, O, b, v in zip(self.Q, self.K, self.V, self.O, bq, bv, strict=True):
            queries = (X[:, -1] @ Q.T + b) @ K * self.scale
            scores = np.einsum("bnd,bd->bn", X, queries)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out += (np.einsum("bn,bnd->bd", weights, X) @ V.T + v) @ O.T
        return out


def layer(
    width: int, heads: int, size: int, rng: np.random.Generator, *, trained: bool
) -> Projected:
    """A random layer with as many outputs as coordinates."""
    Q, K, V = rng.normal(size=(3, heads, size, width)) / np.sqrt(width)
    O = rng.normal(size=(heads, width, size)) / np.sqrt(width)
    if trained:
        gain = np.exp(0.7 * rng.normal(size=width))
        gain[rng.integers(width, size=3)] *= 10.0
        decay = 2.0 * np.exp(-np.linspace(0.0, 3.0, size))[:, None] * gain
        Q, K, V = Q * decay * np.exp(0.7 * rng.normal(size=(heads, 1, 1))), K * decay, V * decay
    biases = (
        0.4 * rng.normal(size=(heads, size)),
        0.4 * rng.normal(size=(heads, size)),
        0.3 * rng.normal(size=width),
    )
    return Projected(Q, K, V, O, biases, 2.0 / np.sqrt(size))


def row(shape: tuple[int, int, int], seeds: int, *, trained: bool) -> tuple[str, ...]:
    """One shape, all seeds."""
    queries, errors, seconds, own, verified, limit = [], [], [], [], 0, 0
    for seed in range(seeds):
        rng = np.random.default_rng([seed, *shape])
        target = layer(*shape, rng, trained=trained)
        start = time.perf_counter()
        recovery = keyhole.WholeLayer().run(keyhole.Local(target), rng=rng)
        seconds.append(time.perf_counter() - start)
        own.append(target.seconds)
        queries.append(recovery.ledger.total(without="verify").sequences)
        verified += recovery.verdict is keyhole.Verdict.EXACT
        if recovery.model is not None:
            X = rng.normal(size=(32, 16, target.width))
            truth = target.answers(X)
            errors.append(np.abs(recovery.model(X) - truth).max() / np.abs(truth).max())
            limit = -(-(recovery.degrees_of_freedom or 0) // target.width)
    ratio = statistics.median(queries) / max(1, limit)
    counts = (
        f"{verified}/{seeds}",
        f"{statistics.median(queries):,.0f}",
        f"{limit:,}",
        f"{ratio:.2f}",
    )
    times = (f"{statistics.median(seconds):.2f}", f"{statistics.median(own):.2f}")
    return (*map(str, shape), *counts, f"{max(errors, default=float('nan')):.1e}", *times)


def line(cells: tuple[str, ...]) -> str:
    """Cells, right-aligned."""
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="layers per shape")
    parser.add_argument(
        "--trained", action="store_true", help="spectra and gains as trained layers have them"
    )
    parser.add_argument("--small", action="store_true", help="leave out width 384")
    options = parser.parse_args()
    print(line(HEADINGS))
    with threadpool_limits(1, "blas"):
        for shape in SHAPES[:-1] if options.small else SHAPES:
            print(line(row(shape, options.seeds, trained=options.trained)), flush=True)
    print(
        "\nqueries: before the 128 of verification. limit: degrees of freedom over outputs, of"
        " which there are d."
    )


if __name__ == "__main__":
    main()
