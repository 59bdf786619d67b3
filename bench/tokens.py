"""What answers of language models give away: ranks, spaces, questions, and whole functions.

Each row is a size (vocabulary, hidden) and a policy over seeds that nothing was tuned on, half of
them behind an RMSNorm and half behind a LayerNorm. `right` counts ranks that are stated and right,
`wrong` those stated and wrong, `silent` those not stated. Errors of the space are sines of the
largest angle. A second table has one-layer models of attention alone, learned as functions.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import keyhole
from keyhole.learners.logits.reading import Reading
from keyhole.learners.logits.spaces import Prompts, count_least_questions, find_space
from keyhole.learners.tokens.learner import TokenLayer
from keyhole.models.layers.token_heads import TokenHeads
from keyhole.oracles.tokens.remembered import Remembered

SIZES = "300-16,600-32,1500-64,8000-256"
SEEDS = "600-619"
LENGTH = 8
TOP = 5
Wrap = Callable[[Any], Any]


def round_to(decimals: int, wrap: Wrap = lambda target: target) -> Wrap:
    """The policy with its numbers rounded."""
    return lambda target: keyhole.Rounded(wrap(target), decimals)


def list_policies(vocabulary: int) -> dict[str, tuple[Wrap, Reading, int]]:
    """Policies by name: how the target is wrapped and read, and the most prompts."""
    logits, logs = Reading("logits", vocabulary), Reading("log-probabilities", vocabulary)
    listed: dict[str, tuple[Wrap, Reading, int]] = {"logits": (lambda t: t, logits, 1024)}
    listed |= {f"logits, {k} decimals": (round_to(k), logits, 1024) for k in (6, 4, 2)}
    listed["log-probabilities"] = (keyhole.LogProbabilities, logs, 1024)
    listed |= {
        f"log-probabilities, {k} decimals": (round_to(k, keyhole.LogProbabilities), logs, 1024)
        for k in (6, 4, 2)
    }
    raised = round_to(4, lambda t: keyhole.TopAnswers(t, TOP, 100.0))
    reading = Reading("raised", vocabulary, TOP)
    listed["likeliest 5 with a bias, 4 decimals"] = (raised, reading, 1024)
    listed["logits, 1 decimal"] = (round_to(1), logits, 512)
    listed["logits, noise 0.1"] = (lambda t: keyhole.Noisy(t, 0.1), logits, 512)
    listed["logits, few prompts"] = (lambda t: t, logits, 12)
    return listed


class LanguageModel:
    """A head and a network before a last norm and an output projection."""

    def __init__(self, vocabulary: int, size: int, seed: int) -> None:
        rng = np.random.default_rng([seed, vocabulary])
        self.E = rng.normal(size=(vocabulary, size))
        self.Q, self.K, self.V = rng.normal(size=(3, size, size)) / np.sqrt(size)
        self.up = rng.normal(size=(4 * size, size)) / np.sqrt(size)
        self.down = rng.normal(size=(size, 4 * size)) / np.sqrt(4 * size)
        gain = rng.uniform(0.5, 1.5, size=size)
        self.projection = rng.normal(size=(vocabulary, size)) / np.sqrt(size) * gain
        self.layer_norm = bool(seed % 2)
        self.spaces: dict[bool, Any] = {}

    @property
    def rank(self) -> int:
        """Of the directions in which answers move."""
        return self.E.shape[1] - self.layer_norm

    def __call__(self, ids: Any) -> Any:
        """Logits."""
        X = self.E[ids]
        scores = np.einsum("bld,bd->bl", X @ self.K.T, X[:, -1] @ self.Q.T) / np.sqrt(X.shape[2])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        x = X[:, -1] + np.einsum("bl,bld->bd", weights, X @ self.V.T)
        x = x + np.maximum(x @ self.up.T, 0.0) @ self.down.T
        x = x - x.mean(axis=1, keepdims=True) if self.layer_norm else x
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) @ self.projection.T

    def find_space(self, *, centred: bool) -> Any:
        """An orthonormal basis of the true space."""
        P = self.projection
        P = P - P.mean(axis=1, keepdims=True) if self.layer_norm else P
        P = P - P.mean(axis=0) if centred else P
        return np.linalg.svd(P, full_matrices=False)[0][:, : self.rank]

    def find_angle(self, basis: Any, *, centred: bool) -> float:
        """Sine of the largest angle between a basis and the true space."""
        if centred not in self.spaces:
            self.spaces[centred] = self.find_space(centred=centred)
        space = self.spaces[centred]
        return float(np.linalg.norm(basis.T - space @ (space.T @ basis.T), 2))


def measure_policies(vocabulary: int, size: int, seeds: list[int]) -> None:
    """One row per policy."""
    policies = list_policies(vocabulary)
    seen: dict[str, list[tuple[bool, bool, float, int, int]]] = {name: [] for name in policies}
    start = time.perf_counter()
    for seed in seeds:
        model = LanguageModel(vocabulary, size, seed)
        target = Remembered(keyhole.TokenIds(model, vocabulary))
        for name, (wrap, reading, most) in policies.items():
            oracle = keyhole.Counted(wrap(target))
            prompts = Prompts(oracle, reading, np.random.default_rng(seed), LENGTH)
            found = find_space(prompts, most)
            angle = np.nan
            if found.rank == model.rank:
                angle = model.find_angle(found.basis, centred=reading.kind != "logits")
            limit = count_least_questions(model.rank, reading)
            seen[name].append(
                (found.rank == model.rank, found.rank is None, angle, prompts.asked, limit)
            )
    for name, rows in seen.items():
        right, silent = sum(row[0] for row in rows), sum(row[1] for row in rows)
        angles = [row[2] for row in rows if row[0]]
        told = f"{np.median(angles):.0e} / {max(angles):.0e}" if angles else ""
        ratio = np.median([row[3] / row[4] for row in rows])
        asked = int(np.median([row[3] for row in rows]))
        print(
            f"| {vocabulary}, {size} | {name} | {right}/{len(rows)} |"
            f" {len(rows) - right - silent} | {silent} | {told} | {asked:,} |"
            f" {rows[0][4]:,} | {ratio:.1f} |",
            flush=True,
        )
    print(f"# {vocabulary}, {size}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


def draw_token_heads(vocabulary: int, size: int, heads: int, seed: int) -> TokenHeads:
    """Attention alone, from Gaussian embeddings and weights."""
    rng = np.random.default_rng([seed, vocabulary, heads])
    E = rng.normal(size=(vocabulary, size))
    W = rng.normal(size=(heads, size, size)) / size
    A = rng.normal(size=(heads, size, size)) / np.sqrt(size)
    U = rng.normal(size=(size, vocabulary)) / np.sqrt(size)
    return TokenHeads(E @ A @ U, E @ W @ E.T)


def measure_functions(vocabulary: int, size: int, heads: int, seeds: list[int]) -> None:
    """One row: how many functions were found, and how they ended."""
    errors: list[float] = []
    ends: Counter[str] = Counter()
    false, asked, limit = 0, 0, 0
    for seed in seeds:
        truth = draw_token_heads(vocabulary, size, heads, seed)
        found = keyhole.learn(truth_oracle(truth), rng=seed, learner=TokenLayer())
        ids = np.random.default_rng(seed).integers(vocabulary, size=(500, 9))
        wanted = truth(keyhole.pack_ids(ids))
        said = np.full_like(wanted, np.inf)
        if found.model is not None:
            said = found.model(keyhole.pack_ids(ids))
        errors.append(float(np.abs(said - wanted).max() / np.abs(wanted).max()))
        ends[found.verdict.name] += 1
        false += found.verdict.verified and errors[-1] > 1e-8
        asked = found.ledger.total(without="verify").sequences
        limit = -(-(found.degrees_of_freedom or 0) // vocabulary)
    near = sum(error <= 1e-8 for error in errors)
    print(
        f"| {vocabulary}, {size}, {heads} | {near}/{len(seeds)} | {np.median(errors):.0e} /"
        f" {max(errors):.0e} | {', '.join(f'{n} {name}' for name, n in ends.items())} | {false} |"
        f" {asked} | {limit} |",
        flush=True,
    )


def truth_oracle(truth: TokenHeads) -> keyhole.TokenIds:
    """A layer as a target on ids."""
    return keyhole.TokenIds(lambda ids: truth(keyhole.pack_ids(ids)), truth.outputs)


def main() -> int:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--seeds", default=SEEDS)
    parser.add_argument("--heads", default="1,2,3,4", help="of the functions; none where empty")
    given = parser.parse_args()
    first, last = map(int, given.seeds.split("-"))
    seeds = list(range(first, last + 1))
    print("| size, heads | error <= 1e-8 | median / most | verdicts | false | asked | limit |")
    print("|---|---|---|---|---|---|---|")
    for heads in map(int, filter(None, given.heads.split(","))):
        measure_functions(20, 16, heads, seeds)
    print(
        "| size | policy | right | wrong | silent | angle, median / most | asked | fewest | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for size in filter(None, given.sizes.split(",")):
        vocabulary, hidden = map(int, size.split("-"))
        measure_policies(vocabulary, hidden, seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
