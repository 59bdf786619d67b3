"""How often exact recovery succeeds, and how well, over heads of every size and awkward
read-outs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole

Draw = Callable[[int, np.random.Generator], np.ndarray]
ERROR_BAR, MEDIAN_BAR, EXTRA_BAR = 1e-12, 1e-14, 70
HEADINGS = (
    "read-out",
    "cases",
    "failures",
    "W median",
    "W max",
    "v max",
    "extra median",
    "extra max",
)
WIDTHS = (10, 6, 8, 9, 8, 8, 12, 9)


def gaussian(width: int, rng: np.random.Generator) -> np.ndarray:
    """Entries of order one."""
    return rng.normal(size=width)


def tiny(width: int, rng: np.random.Generator) -> np.ndarray:
    """Entries of order 1e-20."""
    return 1e-20 * rng.normal(size=width)


def sparse(width: int, rng: np.random.Generator) -> np.ndarray:
    """Four entries in five are zero, never all of them."""
    v = rng.normal(size=width)
    v[rng.permutation(width)[: int(0.8 * width)]] = 0.0
    return v


def graded(width: int, rng: np.random.Generator) -> np.ndarray:
    """Sizes spread over fifteen decades."""
    return rng.normal(size=width) * 10.0 ** -rng.permutation(np.linspace(0, 15, width))


KINDS: dict[str, Draw] = {"gaussian": gaussian, "1e-20": tiny, "80% zero": sparse, "graded": graded}


@dataclass(frozen=True)
class Case:
    """One recovery, compared with the truth."""

    failed: bool
    error_w: float
    error_v: float
    extra: int


def relative(found: np.ndarray, truth: np.ndarray) -> float:
    """Relative Frobenius distance."""
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def tried(draw: Draw, rng: np.random.Generator) -> Case:
    """Hide one random head and recover it."""
    width, size = int(rng.integers(1, 65)), 10.0 ** rng.uniform(-30, 30)
    truth = keyhole.Head(size * rng.normal(size=(width, width)), draw(width, rng)[:, None])
    recovery = keyhole.learn(truth, rng=rng, learner=keyhole.Exact())
    head, asked = recovery.model, recovery.ledger.total(without="verify").sequences
    if head is None or not recovery.verdict.verified:
        return Case(True, np.inf, np.inf, asked - width * width - width)
    errors = relative(np.asarray(head.W), np.asarray(truth.W)), relative(head.V, truth.V)
    return Case(False, *errors, asked - width * width - width)


def row(name: str, cases: list[Case]) -> tuple[str, ...]:
    """Cells of one kind, in the order of HEADINGS."""
    W, v = [case.error_w for case in cases], [case.error_v for case in cases]
    extra = [case.extra for case in cases]
    rates = (name, str(len(cases)), str(sum(case.failed for case in cases)))
    errors = (f"{np.median(W):.1e}", f"{max(W):.1e}", f"{max(v):.1e}")
    return (*rates, *errors, f"{np.median(extra):.0f}", str(max(extra)))


def missed(cases: list[Case]) -> list[str]:
    """Bars the cases do not reach."""
    W = [case.error_w for case in cases]
    bars = {
        "no failures": any(case.failed for case in cases),
        f"errors <= {ERROR_BAR:.0e}": max(*W, *(case.error_v for case in cases)) > ERROR_BAR,
        f"median error of W <= {MEDIAN_BAR:.0e}": float(np.median(W)) > MEDIAN_BAR,
        f"at most {EXTRA_BAR} extra queries": max(case.extra for case in cases) > EXTRA_BAR,
    }
    return [name for name, over in bars.items() if over]


def line(cells: tuple[str, ...]) -> str:
    """Cells, right-aligned."""
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def main() -> int:
    """Print the table by kind of read-out; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300, help="random heads in all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generators = np.random.default_rng(options.seed).spawn(options.cases)
    with threadpool_limits(1, "blas"):
        cases = {
            name: [tried(draw, rng) for rng in generators[i :: len(KINDS)]]
            for i, (name, draw) in enumerate(KINDS.items())
        }
    every = [case for some in cases.values() for case in some]
    print(line(HEADINGS))
    for name, some in (*cases.items(), ("all", every)):
        print(line(row(name, some)))
    over = missed(every)
    print("\nd 1..64, |W| 1e-30..1e30; extra: queries above d^2 + d, before verification.")
    print("Missed: " + ", ".join(over) if over else "All bars met.")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
