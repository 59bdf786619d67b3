"""Five ways to a matrix of low rank, on the same heads: queries over degrees of freedom, error,
seconds, success.

Our learners ask an oracle for everything and their queries are all counted, verification aside. The
peers (marked *) are handed exact forms a . W b and charged one query for each and d for the
read-out. The range finder alone also runs on large heads held as factors, each in a process of its
own: `time/oracle` is 1 for a learner that costs nothing.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole
from keyhole.learners.one_head.nuclear import NuclearNorm

SIZES, RANKS, LARGE, FULL = (16, 32, 64), (1, 4, 8), ((768, 64),), ((768, 64), (4096, 128))
SUCCESS = 1e-6  # relative error of W
ALTERNATIONS, STARTS = 300, 5
HEADINGS = ("method", "queries/dof", "error median", "error max", "seconds", "success")
WIDTHS = (24, 11, 12, 9, 8, 7)
LARGE_HEADINGS = (
    "d",
    "r",
    "rank",
    "queries",
    "freedom",
    "ratio",
    "error",
    "time/oracle",
    "CPU s",
    "peak MB",
)
LARGE_WIDTHS = (5, 4, 7, 10, 10, 8, 8, 11, 7, 7)
LARGE_BARS = {"ratio": 1.02, "error": 1e-12, "time/oracle": 1.25}

Found = tuple[np.ndarray | None, int]  # W and the queries it took
Method = Callable[[keyhole.Head, int, np.random.Generator], Found]


def learnt(
    learner: keyhole.LowRank | NuclearNorm, head: keyhole.Head, rng: np.random.Generator
) -> Found:
    """What a learner of ours returns, if verified."""
    recovery = learner.run(keyhole.Local(head), rng=rng)
    asked = recovery.ledger.total(without="verify").sequences
    verified = recovery.model is not None and recovery.verdict.verified
    return np.asarray(recovery.model.W) if verified else None, asked


def finder(head: keyhole.Head, rank: int, rng: np.random.Generator) -> Found:
    """Range finder that finds the rank as well."""
    return learnt(keyhole.LowRank(), head, rng)


def finder_given(head: keyhole.Head, rank: int, rng: np.random.Generator) -> Found:
    """Range finder told the rank."""
    return learnt(keyhole.LowRank(rank), head, rng)


def nuclear(head: keyhole.Head, rank: int, rng: np.random.Generator) -> Found:
    """Least nuclear norm, our solver."""
    return learnt(NuclearNorm(rank), head, rng)


def measured(
    W: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gaussian vectors and exact forms."""
    A, B = rng.normal(size=(2, count, len(W)))
    return A, B, ((A @ W) * B).sum(axis=1)


def conic(head: keyhole.Head, rank: int, rng: np.random.Generator) -> Found:
    """Least nuclear norm, a general conic solver; with d^2 measurements it would have nothing to
    do.
    """
    import cvxpy

    d = head.width
    A, B, t = measured(np.asarray(head.W), min(3 * rank * (2 * d - rank), d * d - 1), rng)
    W = cvxpy.Variable((d, d))
    problem = cvxpy.Problem(
        cvxpy.Minimize(cvxpy.normNuc(W)), [cvxpy.sum(cvxpy.multiply(A @ W, B), axis=1) == t]
    )
    problem.solve(solver=cvxpy.CLARABEL)
    return W.value, len(t) + d


def alternating(head: keyhole.Head, rank: int, rng: np.random.Generator) -> Found:
    """W = L R^T by least squares for L and R in turn, from a spectral start, then from random
    ones.
    """
    d = head.width
    A, B, t = measured(np.asarray(head.W), int(np.ceil(1.5 * rank * (2 * d - rank))), rng)
    starts = [
        np.linalg.svd(A.T @ (t[:, None] * B))[2][:rank].T,
        *rng.normal(size=(STARTS - 1, d, rank)),
    ]
    W = np.zeros((d, d))
    for start in starts:
        W, misfit = alternated(A, B, t, start)
        if misfit <= SUCCESS * np.linalg.norm(t):
            break
    return W, len(t) + d


def alternated(
    A: np.ndarray, B: np.ndarray, t: np.ndarray, R: np.ndarray
) -> tuple[np.ndarray, float]:
    """L R^T after alternations from one start, and how far its forms are off."""
    L, misfit = R, np.inf
    for _ in range(ALTERNATIONS):
        L = np.linalg.qr(factor(A, B @ np.linalg.qr(R)[0], t))[0]
        R = factor(B, A @ L, t)
        misfit = float(np.linalg.norm(((A @ L) * (B @ R)).sum(axis=1) - t))
        if misfit <= 1e-13 * np.linalg.norm(t):
            break
    return L @ R.T, misfit


def factor(A: np.ndarray, C: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The L with a_k . L c_k nearest to t_k."""
    J = (A[:, :, None] * C[:, None]).reshape(len(t), -1)
    H = J.T @ J
    H[np.diag_indices_from(H)] += 1e-14 * np.trace(H) / len(H)
    return np.linalg.solve(H, J.T @ t).reshape(A.shape[1], -1)


def nystrom(head: keyhole.Head, rank: int, rng: np.random.Generator) -> Found:
    """Generalised Nystrom: W Y and X^T W in one round, X wider by half; their common block is asked
    once.
    """
    W, d = np.asarray(head.W), head.width
    k, m = min(d, rank), min(d, rank + -(-rank // 2) + 1)
    X, Y = (np.linalg.qr(rng.normal(size=(d, size)))[0] for size in (m, k))
    C, rows = W @ Y, X.T @ W
    Q, T = np.linalg.qr(X.T @ C)
    return C @ np.linalg.solve(T, Q.T @ rows), d * k + d * m - k * m + d


METHODS: dict[str, Method] = {
    "range finder": finder,
    "range finder, rank given": finder_given,
    "nuclear norm": nuclear,
    "nuclear norm, conic *": conic,
    "alternating, 1.5 dof *": alternating,
    "generalised Nystrom *": nystrom,
}


@dataclass(frozen=True)
class Case:
    """One method on one head."""

    ratio: float
    error: float
    seconds: float


def tried(method: Method, width: int, rank: int, seed: int) -> Case:
    """Hide a head and run a method; the head depends on the seed alone, not on the method."""
    hidden, own = np.random.default_rng([seed, width, rank]).spawn(2)
    head = keyhole.Head.random(width, rank=rank, rng=hidden)
    W, start = np.asarray(head.W), time.perf_counter()
    found, queries = method(head, rank, own)
    seconds = time.perf_counter() - start
    error = np.inf if found is None else float(np.linalg.norm(found - W) / np.linalg.norm(W))
    return Case(queries / (width + rank * (2 * width - rank)), error, seconds)


def row(name: str, cases: list[Case]) -> tuple[str, ...]:
    """Cells of one method, in the order of HEADINGS."""
    errors, times = [case.error for case in cases], [case.seconds for case in cases]
    good = sum(error <= SUCCESS for error in errors)
    ratio = f"{statistics.median(case.ratio for case in cases):.3f}"
    middle, worst = f"{statistics.median(errors):.1e}", f"{max(errors):.1e}"
    return name, ratio, middle, worst, f"{statistics.median(times):.3f}", f"{good}/{len(cases)}"


@dataclass
class Timed:
    """A head that keeps the time spent inside it."""

    head: keyhole.Head
    seconds: float = field(default=0.0)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.head.width

    @property
    def outputs(self) -> int:
        """Numbers per answer."""
        return self.head.outputs

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Answers to a batch, timed."""
        start = time.perf_counter()
        answers = self.head(X)
        self.seconds += time.perf_counter() - start
        return answers


def apart(found: keyhole.Factored, truth: keyhole.Factored) -> float:
    """Relative Frobenius distance, from the factors."""
    left, right = np.hstack([found.A, truth.A]), np.hstack([found.B, -truth.B])
    size = np.linalg.norm(np.linalg.qr(truth.A)[1] @ np.linalg.qr(truth.B)[1].T)
    return float(np.linalg.norm(np.linalg.qr(left)[1] @ np.linalg.qr(right)[1].T) / size)


def large(width: int, rank: int, given: bool) -> tuple[tuple[str, ...], list[str]]:
    """One large head: its row, and the bars it does not reach."""
    rng = np.random.default_rng([width, rank])
    W = keyhole.Factored(*rng.normal(size=(2, width, rank)) / np.sqrt(width))
    target = Timed(keyhole.Head(W, rng.normal(size=(width, 1))))
    with threadpool_limits(1, "blas"):
        start, cpu = time.perf_counter(), time.process_time()
        recovery = keyhole.LowRank(rank if given else None).run(keyhole.Local(target), rng=rng)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        error = apart(recovery.unwrap().W, W)
    asked, freedom = (
        recovery.ledger.total(without="verify").sequences,
        width + rank * (2 * width - rank),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    figures = {"ratio": asked / freedom, "error": error, "time/oracle": seconds / target.seconds}
    missed = [
        f"{name} at d = {width}" for name, value in figures.items() if value > LARGE_BARS[name]
    ]
    counts = str(width), str(rank), "given" if given else "found", f"{asked:,}", f"{freedom:,}"
    shown = f"{figures['ratio']:.5f}", f"{error:.1e}", f"{figures['time/oracle']:.3f}", f"{cpu:.1f}"
    return (*counts, *shown, f"{peak / 1e6:.0f}"), missed


def line(cells: tuple[str, ...], widths: tuple[int, ...]) -> str:
    """Cells, right-aligned."""
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def compare(seeds: int, methods: dict[str, Method]) -> None:
    """One table for each size and rank."""
    for width in SIZES:
        for rank in RANKS:
            print(
                f"\nd = {width}, r = {rank}, degrees of freedom"
                f" {width + rank * (2 * width - rank)}, {seeds} heads"
            )
            print(line(HEADINGS, WIDTHS))
            for name, method in methods.items():
                if method is not conic or width == SIZES[0]:
                    cases = [tried(method, width, rank, seed) for seed in range(seeds)]
                    print(line(row(name, cases), WIDTHS), flush=True)


def scale(sizes: tuple[tuple[int, int], ...]) -> None:
    """The range finder on large heads."""
    print(f"\n{line(LARGE_HEADINGS, LARGE_WIDTHS)}")
    missed: list[str] = []
    for width, rank in sizes:
        for given in (False, True):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                cells, over = pool.submit(large, width, rank, given).result()
            print(line(cells, LARGE_WIDTHS), flush=True)
            missed += over
    bars = ", ".join(f"{name} {bar:g}" for name, bar in LARGE_BARS.items())
    print(f"\nBars: {bars}. {'Missed: ' + ', '.join(missed) if missed else 'All met.'}")


def main() -> None:
    """Print the large heads, then the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="heads per size and rank")
    parser.add_argument(
        "--full", action="store_true", help="add d = 4096, r = 128 to the large heads"
    )
    parser.add_argument("--large-only", action="store_true", help="leave out the comparison")
    options = parser.parse_args()
    methods = dict(METHODS)
    if find_spec("cvxpy") is None:
        methods.pop("nuclear norm, conic *")
        print("cvxpy is not installed: the conic solver is left out.")
    # first: a child starts out with the memory of its parent as its peak
    scale(FULL if options.full else LARGE)
    if not options.large_only:
        with threadpool_limits(1, "blas"):
            compare(options.seeds, methods)
        print(
            f"\nsuccess: relative error of W at most {SUCCESS:g}. * handed exact forms, seconds"
            " without asking."
        )


if __name__ == "__main__":
    main()
