"""What keyhole answers on 200 seeded targets of all classes, as one file, and where two such files
differ.

A change that moves code must move no answer: write the file before and after, then compare.

    python tools/fingerprints.py write before.json
    python tools/fingerprints.py compare before.json after.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole

Wrap = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """A hidden function, how it is asked, and which learner asks it."""

    name: str
    seed: int
    truth: Callable[[np.random.Generator], Any]
    learner: str = "auto"
    wrap: Wrap = field(default=lambda oracle: oracle)
    hints: Callable[[Any, np.random.Generator], dict[str, Any]] = field(
        default=lambda truth, rng: {}
    )
    budget: int | None = None


def draw_head(width: int, **options: Any) -> Callable[[np.random.Generator], Any]:
    """A maker of one head."""
    return lambda rng: keyhole.Head.random(width, rng=rng, **options)


def draw_heads(width: int, heads: int, **options: Any) -> Callable[[np.random.Generator], Any]:
    """A maker of several heads."""
    return lambda rng: keyhole.MultiHead.random(width, heads=heads, rng=rng, **options)


def draw_thin_heads(width: int, heads: int) -> Callable[[np.random.Generator], Any]:
    """A maker of heads as layers have them: scores and read-outs of rank width / heads."""

    def draw(rng: np.random.Generator) -> Any:
        A, B, C, D = rng.normal(size=(4, heads, width, width // heads)) / np.sqrt(width)
        return keyhole.MultiHead(3 * A @ B.swapaxes(1, 2), C @ D.swapaxes(1, 2))

    return draw


def draw_network(width: int, hidden: int, **options: Any) -> Callable[[np.random.Generator], Any]:
    """A maker of a network."""
    return lambda rng: keyhole.ReluNet.random(width, hidden=hidden, rng=rng, **options)


def draw_layer(width: int, hidden: int, **options: Any) -> Callable[[np.random.Generator], Any]:
    """A maker of a one-layer Transformer."""
    return lambda rng: keyhole.OneLayer.random(width, hidden=hidden, rng=rng, **options)


def draw_orthogonal(width: int, heads: int) -> Callable[[np.random.Generator], Any]:
    """A maker of heads that live in orthogonal coordinate subspaces."""

    def draw(rng: np.random.Generator) -> Any:
        part = width // heads
        W, V = np.zeros((heads, width, width)), np.zeros((heads, width, 1))
        for h in range(heads):
            block = slice(h * part, (h + 1) * part)
            W[h, block, block], V[h, block] = (
                rng.normal(size=(part, part)),
                rng.normal(size=(part, 1)),
            )
        return keyhole.MultiHead(W, V)

    return draw


@dataclass(frozen=True)
class Function:
    """A function that no class of ours holds."""

    width: int
    formula: Callable[[np.ndarray], np.ndarray]

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """One number per sequence."""
        return self.formula(X)


def strangers(width: int) -> dict[str, Callable[[np.random.Generator], Any]]:
    """Functions outside every class."""
    formulas: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "sine": lambda X: np.sin(X[:, -1].sum(axis=1)),
        "steps": lambda X: np.sign(X[:, -1, 0]) + X[:, :, 1].mean(axis=1),
        "largest": lambda X: X[:, :, 0].max(axis=1),
        "cubes": lambda X: (X[:, -1] ** 3).sum(axis=1),
        "first": lambda X: X[:, 0].sum(axis=1),
    }
    return {name: lambda rng, f=f: Function(width, f) for name, f in formulas.items()}


def grid_head(width: int) -> Callable[[np.random.Generator], Any]:
    """A head whose W has entries -1, 0, 1."""
    return lambda rng: keyhole.Head(
        rng.integers(-1, 2, (width, width)).astype(float), rng.normal(size=(width, 1))
    )


def hint_bases(truth: Any, rng: np.random.Generator) -> dict[str, Any]:
    """The coordinate subspaces of `draw_orthogonal`."""
    part = truth.width // len(truth.W)
    eye = np.eye(truth.width)
    return {"bases": tuple(eye[:, h * part : (h + 1) * part] for h in range(len(truth.W)))}


def hint_tokens(truth: Any, rng: np.random.Generator) -> dict[str, Any]:
    """A vocabulary of three vectors per coordinate."""
    return {"tokens": rng.normal(size=(3 * truth.width, truth.width))}


def hint_margins(truth: Any, rng: np.random.Generator) -> dict[str, Any]:
    """The bounds that Theorem 6.1 assumes."""
    return {
        "norm_bound": float(np.linalg.norm(truth.W)) * 1.1,
        "margin": float(np.abs(truth.V).min()) * 0.9,
    }


def cases() -> Iterator[Case]:
    """Every class, every learner, every imperfection; refusals and budgets too."""
    for seed in range(5):
        yield from _heads(seed)
        yield from _imperfect_heads(seed)
        yield from _sums_of_heads(seed)
        yield from _networks(seed)
        for name, truth in strangers(4).items():
            yield Case(f"stranger {name}", seed, truth)
    for seed in range(4, 8):
        for budget in (5, 50, 300):
            yield Case(f"heads, budget {budget}", seed, draw_heads(6, 2), budget=budget)


def _heads(seed: int) -> Iterator[Case]:
    for name, options in (
        ("head", {}),
        ("rank 2", {"rank": 2}),
        ("outputs", {"outputs": 3}),
        ("biases", {"biases": True}),
    ):
        yield Case(f"{name}, auto", seed, draw_head(7, **options))
    yield Case("exact", seed, draw_head(6), "exact")
    yield Case(
        "nystrom", seed, draw_head(12, rank=2), "nystrom", hints=lambda truth, rng: {"rank": 2}
    )
    yield Case(
        "nuclear", seed, draw_head(6, rank=1), "nuclear-norm", hints=lambda truth, rng: {"rank": 1}
    )
    yield Case("grid", seed, grid_head(16), "grid", hints=lambda truth, rng: {"grid": 1.0})
    yield Case("restricted", seed, draw_head(5), "restricted", hints=hint_tokens)
    yield Case("blind", seed, lambda rng: keyhole.Head(np.eye(3), np.zeros((3, 1))))


def _imperfect_heads(seed: int) -> Iterator[Case]:
    for kind in ("f32", "f16", "bf16"):
        yield Case(
            f"cast {kind}", seed, draw_head(5), wrap=lambda o, kind=kind: keyhole.Cast(o, kind)
        )
    yield Case("noise", seed, draw_head(5), wrap=lambda o: keyhole.Noisy(o, 1e-5, 7))
    yield Case(
        "undeclared noise",
        seed,
        draw_head(4),
        wrap=lambda o: keyhole.Declared(keyhole.Noisy(o, 1e-5, 7), keyhole.Imperfection()),
    )
    yield Case("decimals", seed, draw_head(5), wrap=lambda o: keyhole.Rounded(o, 4))
    yield Case(
        "noise in ball",
        seed,
        draw_head(5),
        wrap=lambda o: keyhole.Bounded(keyhole.Noisy(o, 1e-6, 7), 1.0),
    )
    yield Case(
        "labels", seed, draw_head(4), wrap=keyhole.Signs, hints=lambda truth, rng: {"bits": 20}
    )
    yield Case(
        "tolerant",
        seed,
        draw_head(4),
        "tolerant",
        lambda o: keyhole.Bounded(keyhole.Disturbed(o, 1e-7, 7), 2.0),
        hint_margins,
    )


def hide_noise(oracle: Any) -> Any:
    """Noise that is not declared."""
    return keyhole.Declared(keyhole.Noisy(oracle, 1e-5, 7), keyhole.Imperfection())


def disturb_in_ball(oracle: Any) -> Any:
    """Errors up to 1e-7 in tokens up to norm 2."""
    return keyhole.Bounded(keyhole.Disturbed(oracle, 1e-7, 7), 2.0)


def _sums_of_heads(seed: int) -> Iterator[Case]:
    yield Case("heads, auto", seed, draw_heads(8, 2))
    yield Case("heads, named", seed, draw_heads(6, 3), "several-heads")
    yield Case("heads of rank 2", seed, draw_heads(6, 2, rank=2), "several-heads")
    yield Case(
        "heads in ball", seed, draw_heads(5, 2), "heads-in-ball", lambda o: keyhole.Bounded(o, 2.5)
    )
    yield Case("layer", seed, draw_thin_heads(12, 3), "layer")
    yield Case("orthogonal", seed, draw_orthogonal(6, 2), "orthogonal", hints=hint_bases)
    yield Case(
        "repetition", seed, draw_heads(4, 2), "repetition", hints=lambda truth, rng: {"heads": 2}
    )


def _networks(seed: int) -> Iterator[Case]:
    yield Case("relu, auto", seed, draw_network(4, 6))
    yield Case("relu, named", seed, draw_network(6, 12, outputs=4), "network")
    yield Case(
        "relu in ball",
        seed,
        draw_network(4, 6),
        "network-in-ball",
        lambda o: keyhole.Bounded(o, 3.0),
    )
    yield Case(
        "relu under noise",
        seed,
        draw_network(3, 4),
        "noisy-network",
        lambda o: keyhole.Noisy(o, 1e-6, 7),
    )
    yield Case("gelu", seed, draw_network(4, 6, activation="gelu"), "smooth-network")
    yield Case("silu, auto", seed, draw_network(3, 4, activation="silu"))
    yield Case("one layer, auto", seed, draw_layer(4, 6))
    yield Case(
        "one layer with residual", seed, draw_layer(5, 8, biases=True, residual=True), "one-layer"
    )
    yield Case("antisymmetric", seed, bias_free_layer(5, 8), "antisymmetric")


def bias_free_layer(width: int, hidden: int) -> Callable[[np.random.Generator], Any]:
    """A maker of one-layer Transformers without biases."""

    def draw(rng: np.random.Generator) -> Any:
        layer = keyhole.OneLayer.random(width, hidden=hidden, rng=rng)
        net = layer.net
        still = keyhole.ReluNet(net.W1, np.zeros(hidden), net.W2, np.zeros(len(net.W2)))
        return keyhole.OneLayer(layer.head, still, layer.residual)

    return draw


def run_case(case: Case) -> dict[str, Any]:
    """What one recovery gives: verdict, status, queries by phase, and a digest of the weights'
    bytes.
    """
    truth_rng, hint_rng, rng = np.random.default_rng(1000 + case.seed).spawn(3)
    truth = case.truth(truth_rng)
    hints = keyhole.Hints(**case.hints(truth, hint_rng))
    oracle = case.wrap(keyhole.Local(truth))
    try:
        found = keyhole.learn(
            oracle, rng=rng, learner=case.learner, hints=hints, budget=case.budget
        )
    except Exception as error:
        return {"case": case.name, "seed": case.seed, "raised": f"{type(error).__name__}: {error}"}
    return {
        "case": case.name,
        "seed": case.seed,
        "verdict": found.verdict.name,
        "status": found.status.name,
        "queries": {name: cost.sequences for name, cost in found.ledger.phases.items()},
        "weights": digest_model(found.model),
        "sentence": found.sentence,
        "determined": found.determined,
        "reason": found.reason,
    }


def digest_model(model: Any) -> str | None:
    """A digest of every array of a model, in the order of its fields."""
    if model is None:
        return None
    digest = hashlib.sha256(type(model).__name__.encode())
    for array in list_arrays(model):
        digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    return digest.hexdigest()[:16]


def list_arrays(value: Any) -> Iterator[np.ndarray]:
    """Every array inside a model."""
    if isinstance(value, np.ndarray):
        yield value
    elif is_dataclass(value):
        for part in fields(value):
            yield from list_arrays(getattr(value, part.name))


def write(path: Path) -> None:
    """Run all cases and write what came of them."""
    rows = []
    with threadpool_limits(1):
        for case in cases():
            rows.append(run_case(case))
            sys.stderr.write(f"\r{len(rows)} {case.name:<30}")
    sys.stderr.write("\n")
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(rows)} targets, {sum('raised' in row for row in rows)} raised" + "\n")


def compare(before: Path, after: Path) -> int:
    """Print the rows that differ; the number of them."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in (before, after)]
    differing = [pair for pair in zip(*rows, strict=True) if pair[0] != pair[1]]
    for old, new in differing:
        changed = {
            name: (old.get(name), new.get(name))
            for name in old | new
            if old.get(name) != new.get(name)
        }
        sys.stdout.write(f"{old['case']} {old['seed']}: {changed}\n")
    sys.stdout.write(f"{len(rows[0])} targets, {len(differing)} differ\n")
    return len(differing)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("path", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "write":
        write(chosen.path)
        return 0
    return 1 if compare(chosen.before, chosen.after) else 0


if __name__ == "__main__":
    raise SystemExit(main())
