"""Third-order attention: sums of pairs and matrix products beside the dense form and the package
simplicial-attention.

Processor time of one thread. The dense form is timed on some rows of the longest sequences and
scaled to all of them. simplicial-attention (PyPI, with torch) is asked in an environment of its
own, build/simplicial; where that is absent its part is skipped, and the sentence printed says how
to make it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole
from keyhole.models import build_circle_features

AGREE, FASTER = 1e-9, 50.0
PEER = Path(__file__).parents[1] / "build" / "simplicial" / "bin" / "python"
ASK = """
import sys, time
import numpy as np, torch
from simplicial_attention.simplicial_attention import naive_two_simplicial_attend
torch.set_num_threads(1)
data = np.load(sys.argv[1])
names = ("q", "k1", "k2", "v1", "v2")
q, k1, k2, v1, v2 = (torch.from_numpy(data[name])[:, None] for name in names)
start = time.process_time()
out = naive_two_simplicial_attend(q, (k1, k2), (v1, v2))
np.savez(sys.argv[2], out=out[:, 0].numpy(), seconds=time.process_time() - start)
"""


def timed(work: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    """The answers and the processor seconds they took."""
    start = time.process_time()
    answers = work()
    return answers, time.process_time() - start


def match3_unit(modulus: int, length: int) -> keyhole.TensorAttention:
    """The unit of width 5 that finds three tokens with sum zero."""
    g = 2 * np.sin(np.pi / modulus) ** 2
    c = 2 / g * np.log(8 * length**2)
    Q = c * np.array([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1 - g / 2], [0, 0, 0, 0, 0]])
    K1 = np.array([[1, 0, 0, -1, 0], [0, -1, -1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0]])
    K2 = np.array([[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0]])
    V = np.array([[0], [0], [1.0], [0]])
    return keyhole.TensorAttention(Q, (K1, K2), (V, V))


def exact_rows(x: np.ndarray, rows: int, modulus: int) -> np.ndarray:
    """The last rows of the Match3 unit with scores in extended precision, pair by pair."""
    length = len(x)
    unit, pi = match3_unit(modulus, length), 4 * np.arctan(np.longdouble(1))
    c, blank = np.longdouble(unit.Q[0, 0]), np.longdouble(unit.Q[2, 4])
    answers = []
    for row in x[-rows:]:
        sums, counts = np.unique(
            (row + x[:, None] + x + modulus // 2) % modulus - modulus // 2, return_counts=True
        )
        near = np.abs(sums) < 50 if modulus > 10**5 else np.full(len(sums), True)
        match = np.sum(counts[near] * np.exp(-2 * c * np.sin(pi * sums[near] / modulus) ** 2))
        answers.append(float(match / (match + np.exp(blank - c) + 2 * length * np.exp(-c))))
    return np.array(answers)


def circle_row(modulus: int, length: int, rows: int) -> bool:
    """One line for Match3; whether answers agree and the ratio is met."""
    rng = np.random.default_rng(modulus)
    x = rng.integers(modulus, size=(1, length))
    unit, X = match3_unit(modulus, length), build_circle_features(x, modulus)
    fast, quick = timed(lambda: keyhole.on_circle(unit, x, modulus=modulus))
    dense, slow = timed(lambda: unit.rows(X[:, -rows:], X))
    slow *= length / rows
    gap = np.abs(fast[0, -5:, 0] - exact_rows(x[0], 5, modulus)).max()
    apart = np.abs(fast[:, -rows:] - dense).max()
    lost = unit.Q[0, 0] * np.finfo(np.float64).eps
    print(
        f"match3    N {length:5}  M {modulus:8}  dense {slow:7.2f} s  sums {quick:7.3f} s  ratio"
        f" {slow / quick:7.1f}  from exact {gap:.1e}  from dense {apart:.1e} (its scores round by"
        f" {lost:.0e})"
    )
    return bool(gap <= AGREE and apart <= max(AGREE, lost) and slow / quick >= FASTER)


def sides_row(length: int, scale: float, rows: int) -> bool:
    """One line for pairwise sums; whether answers agree."""
    rng = np.random.default_rng(length)
    a, b, c = scale * rng.normal(size=(3, 1, length, length))
    v, w = rng.normal(size=(2, 1, length, 1))
    fast, quick = timed(lambda: keyhole.pairwise_sum(a, b, c, (v, w)))

    def dense() -> np.ndarray:
        found = []
        for i in range(rows):
            scores = a[0, i][:, None] + b[0] + c[0, :, i]
            weights = np.exp(scores - scores.max())
            found.append((v[0, :, 0] @ weights @ w[0, :, 0]) / weights.sum())
        return np.array(found)

    expected, slow = timed(dense)
    slow *= length / rows
    gap = np.abs(fast[0, :rows, 0] - expected).max()
    print(
        f"sides     N {length:5}  scale {scale:6.0e}  dense {slow:7.2f} s  products {quick:7.3f} s "
        f" ratio {slow / quick:7.1f}  gap {gap:.1e}"
    )
    return bool(gap <= AGREE and np.isfinite(fast).all())


def peer_there() -> bool:
    """Whether the environment with simplicial-attention is there and whole."""
    if not PEER.exists():
        return False
    return (
        subprocess.run(
            [PEER, "-c", "import torch, simplicial_attention"], capture_output=True
        ).returncode
        == 0
    )


def peer_row(length: int, embed: int) -> bool:
    """One line beside simplicial-attention, whose scores are divided by the root of the
    dimension.
    """
    rng = np.random.default_rng(length)
    unit = keyhole.TensorAttention.random(embed, order=3, embed=embed, outputs=embed, rng=rng)
    X = rng.normal(size=(1, length, embed))
    q, k1, k2, v1, v2 = (X @ P for P in (unit.Q * np.sqrt(embed), *unit.K, *unit.V))
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(asked, q=q, k1=k1, k2=k2, v1=v1, v2=v2)
        subprocess.run(
            [PEER, "-c", ASK, asked, told], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        theirs = np.load(told)
        out, seconds = theirs["out"], float(theirs["seconds"])
    ours, mine = timed(lambda: unit(X))
    gap = np.abs(ours - out).max()
    print(
        f"peer      N {length:5}  m {embed:3}  theirs {seconds:7.3f} s  ours {mine:7.3f} s  gap"
        f" {gap:.1e}"
    )
    return bool(gap <= AGREE)


def main() -> int:
    """Print the table; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument(
        "--rows", type=int, default=50, help="rows on which the dense form is timed"
    )
    parser.add_argument(
        "--moduli", type=int, nargs="+", default=[5_000, 100_000, 1_000_000, 4_000_000]
    )
    options = parser.parse_args()
    with threadpool_limits(1, "blas"):
        met = [circle_row(modulus, options.length, options.rows) for modulus in options.moduli]
        met += [sides_row(options.length, scale, options.rows) for scale in (1.0, 1e3, 1e6)]
        if peer_there():
            met += [peer_row(length, 16) for length in (32, 96)]
        else:
            print(
                "simplicial-attention is not there: skipped. Make it with `python3 -m venv"
                " build/simplicial && build/simplicial/bin/pip install torch==2.13.0"
                " simplicial-attention==0.1.6`."
            )
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
