"""Networks of thirty kinds and what `keyhole.learn` says of them: false verdicts by kind.

An EXACT is false where the model is off by more than 1e-8 of how answers vary, and by more than ten
times what the verdict says where its parts cancel; a CLASS_REFUTED where it excludes the very class
a target was drawn from.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import erf, expit, ndtr
from threadpoolctl import threadpool_limits

import keyhole
from networks import WRONG, measure_error
from ridges import draw_network

SHAPES = ((3, 5, 1), (6, 12, 1), (5, 9, 2), (6, 12, 3), (8, 20, 8))
Points = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Target:
    """A function of the last token."""

    width: int
    outputs: int
    points: Points

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Answers to sequences."""
        return self.points(X[:, -1])


def draw_weights(
    size: tuple[int, int, int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gaussian W, b, A and c."""
    d, k, m = size
    W = rng.normal(size=(k, d)) / np.sqrt(d)
    return W, rng.normal(size=k), rng.normal(size=(m, k)) / np.sqrt(k), rng.normal(size=m)


def relu(z: np.ndarray) -> np.ndarray:
    """max(z, 0)."""
    return np.maximum(z, 0.0)


SHAPED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "sigmoid": expit,
    "elu": lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))),
    "selu": lambda z: 1.05 * np.where(z > 0, z, 1.67 * np.expm1(np.minimum(z, 0.0))),
    "mish": lambda z: z * np.tanh(np.logaddexp(0.0, z)),
    "squared relu": lambda z: relu(z) ** 2,
    "sine": np.sin,
    "step": lambda z: np.where(z > 0, 1.0, 0.0),
    "step and relu": lambda z: relu(z) + 1e-3 * (z > 1),
    "hard swish": lambda z: z * np.clip(z / 6 + 0.5, 0.0, 1.0),
    "hard sigmoid": lambda z: np.clip(z / 6 + 0.5, 0.0, 1.0),
    "rounded relu": lambda z: relu(z) + 1e-5 * np.exp(-(z**2)),
    "gelu and a bump": lambda z: z * ndtr(z) + 1e-6 * np.exp(-(z**2)),
    "error function": erf,
    "swish 2": lambda z: z * expit(2 * z),
    "quick gelu": lambda z: z * expit(1.702 * z),
    "softplus": lambda z: np.logaddexp(0.0, z),
    "prelu": lambda z: np.where(z > 0, z, np.linspace(0.01, 0.6, z.shape[1]) * z),
    "leaky, one unit turned": lambda z: np.where(z > 0, z, 0.1 * z),
}


def draw_shaped(name: str, size: tuple[int, int, int], rng: np.random.Generator) -> Target:
    """One hidden layer of an activation."""
    W, b, A, c = draw_weights(size, rng)
    phi = SHAPED[name]
    return Target(size[0], size[2], lambda x: phi(x @ W.T + b) @ A.T + c)


def draw_deep(phi: Points, size: tuple[int, int, int], rng: np.random.Generator) -> Target:
    """Two hidden layers."""
    d, k, m = size
    W, b, A, c = draw_weights((d, k, k), rng)
    V, e, B, f = draw_weights((k, k, m), rng)

    def points(x: np.ndarray) -> np.ndarray:
        inner = phi(x @ W.T + b) @ A.T + c
        return phi(inner @ V.T + e) @ B.T + f

    return Target(d, m, points)


def draw_gated(kind: str, size: tuple[int, int, int], rng: np.random.Generator) -> Any:
    """Gated units: silu, gelu, ReLU, sigmoid, bilinear; `twin` has two gates of one direction."""
    W, a, C, c = draw_weights(size, rng)
    B, b, _, _ = draw_weights(size, rng)
    if kind == "twin":
        W[1], kind = W[0], "silu"
    phi = {
        "silu": lambda z: z * expit(z),
        "gelu": lambda z: z * ndtr(z),
        "relu": relu,
        "sigmoid": expit,
        "bilinear": lambda z: z,
    }[kind]
    return Target(size[0], size[2], lambda x: (phi(x @ W.T + a) * (x @ B.T + b)) @ C.T + c)


def draw_own(kind: str, size: tuple[int, int, int], rng: np.random.Generator) -> Any:
    """Networks of the classes, awkward ones among them."""
    k = size[1]
    W, b, A, c = draw_weights(size, rng)
    if kind == "near doubles":
        W[1], b[1] = W[0] * (1 + 1e-6), b[0] + 1e-4
    elif kind == "same direction":
        W[k // 2 :] = W[: k - k // 2]
    elif kind == "sparse":
        W *= rng.random(W.shape) < 0.4
        W[:, 0] += 1e-3
    elif kind == "scales":
        scales = 10.0 ** rng.uniform(-3, 3, size=k)
        W, b, A = W * scales[:, None], b * scales, A / scales
    elif kind == "faint unit":
        A[:, 0] *= 1e-7
    elif kind == "far bend":
        b[0] = 1e5
    activation = "gelu" if kind == "gelu scales" else "relu"
    if kind == "gelu scales":
        W *= 10.0 ** rng.uniform(-2, 2, size=k)[:, None]
    return keyhole.ReluNet(W, b, A, c, activation)


def draw_normed(size: tuple[int, int, int], rng: np.random.Generator) -> Target:
    """A ReLU network behind an RMS norm."""
    inner = draw_own("plain", size, rng)
    norm = lambda x: x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)  # noqa: E731
    return Target(size[0], size[2], lambda x: inner.points(norm(x)))


def draw_patched(size: tuple[int, int, int], rng: np.random.Generator) -> Target:
    """A ReLU network with a small cone in which another unit acts."""
    inner = draw_own("plain", size, rng)
    u, v = rng.normal(size=(2, size[0]))
    return Target(
        size[0],
        size[2],
        lambda x: inner.points(x) + relu(np.minimum(x @ u - 1, x @ v - 1))[:, None],
    )


SMOOTH = ("gelu", "silu", "gelu_tanh")
OWN = ("plain", "near doubles", "same direction", "sparse", "scales", "faint unit", "far bend")
RIDGES = ("relu6", "hard_tanh", "ridge=0.01", "ridge=0.0001", "leaky", "abs")
GATED = ("silu", "gelu", "relu", "sigmoid", "bilinear", "twin")

KINDS: dict[str, tuple[str, Callable[..., Any]]] = {
    **{f"relu, {kind}": ("relu", lambda s, r, k=kind: draw_own(k, s, r)) for kind in OWN},
    **{f"relu, {kind}": ("relu", lambda s, r, k=kind: draw_network(s, k, r)) for kind in RIDGES},
    **{
        kind: ("smooth", lambda s, r, k=kind: replace(draw_own("plain", s, r), activation=k))
        for kind in SMOOTH
    },
    "gelu scales": ("smooth", lambda s, r: draw_own("gelu scales", s, r)),
    **{kind: ("", lambda s, r, k=kind: draw_shaped(k, s, r)) for kind in SHAPED},
    "two layers, relu": ("", lambda s, r: draw_deep(relu, s, r)),
    "two layers, gelu": ("", lambda s, r: draw_deep(lambda z: z * ndtr(z), s, r)),
    **{f"gated, {kind}": ("", lambda s, r, k=kind: draw_gated(k, s, r)) for kind in GATED},
    "normed": ("", draw_normed),
    "patched": ("", draw_patched),
}


def measure_function_error(target: Any, model: Any, rng: np.random.Generator) -> float:
    """How far off a model is, beside how answers vary."""
    # Far from narrow ridges the target's own rounding is more than 1e-8 of how high they are.
    straight = isinstance(target, keyhole.ReluNet) and target.activation == "relu"
    if straight and isinstance(model, keyhole.AbsAffine):
        return measure_error(target, model, rng, number=np.longdouble)
    lone = Target(target.width, target.outputs, lambda x: model(x[:, None]))
    return measure_error(target, lone, rng)


def judge_target(kind: str, number: int, seed: int, budget: int) -> tuple[str, str, float, str]:
    """What is false in the verdict on one target, the verdict, the error and the class named."""
    rng = np.random.default_rng([seed, number, *kind.encode()])
    own, draw = KINDS[kind]
    target = draw(SHAPES[number % len(SHAPES)], rng)
    oracle = keyhole.Local(target, target.width, count=target.outputs)
    found = keyhole.learn(oracle, rng=rng, budget=budget)
    verdict, model = found.verdict.name, found.model
    error = np.inf
    if model is not None:
        error = measure_function_error(target, model, rng)
    false = ""
    told = 0.0 if found.examined is None else found.examined.beside
    if verdict == "EXACT" and not error <= max(WRONG, 10 * told):
        false = "exact"
    if verdict == "CLASS_REFUTED" and own:
        false = "refuted"
    return false, verdict, error, str(found.status.name)


def main() -> int:
    """Print a line for each kind; 1 when a verdict is false."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=12, help="targets of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=20_000)
    parser.add_argument("--kinds", help="parts of names, separated by semicolons")
    options = parser.parse_args()
    parts = options.kinds.split(";") if options.kinds else [""]
    chosen = [kind for kind in KINDS if any(part in kind for part in parts)]
    false = 0
    with threadpool_limits(1, "blas"):
        for kind in chosen:
            rows = [
                judge_target(kind, number, options.seed, options.budget)
                for number in range(options.targets)
            ]
            wrong = [(n, *row) for n, row in enumerate(rows) if row[0]]
            false += len(wrong)
            met = Counter(f"{verdict}/{status}" for _, verdict, _, status in rows)
            said = ", ".join(f"{count} {name}" for name, count in met.most_common())
            print(f"{kind:<26} false {len(wrong)}  {said}", flush=True)
            for n, what, _, error, status in wrong:
                print(f"    number {n}: false {what}, error {error:.1e}, {status}", flush=True)
    print(f"\n{false} false in {options.targets * len(chosen)} targets of {len(chosen)} kinds.")
    return int(false > 0)


if __name__ == "__main__":
    sys.exit(main())
