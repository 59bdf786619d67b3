"""What a generated target is, and questions on which it shows what it is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

Questions = list[np.ndarray]


class Truth(StrEnum):
    """Where a target comes from, hence which verdicts are false of it."""

    OURS = "ours"
    DEVIATION = "deviation"
    FOREIGN = "foreign"
    NEEDLE = "needle"


@dataclass(frozen=True, eq=False)
class Target:
    """A black box on (batch, length, width) arrays.

    Args:
        answer: the function, asked with answers of shape (batch, outputs).
        width: size of a token.
        outputs: numbers per answer.
        draw: batches of questions on which the target shows what it is.
        relative: largest relative error of its answers that is no part of the function.
        absolute: the same, absolute.
    """

    answer: Callable[[np.ndarray], np.ndarray]
    width: int
    outputs: int
    draw: Callable[[np.random.Generator], Questions]
    relative: float = 0.0
    absolute: float = 0.0

    def __call__(self, X):
        return self.answer(X)


@dataclass(frozen=True)
class Kind:
    """A kind of targets.

    Args:
        truth: where its targets come from.
        make: a target from a generator.
        base: the class that it is, or deviates from.
        free: whether answers truly leave parameters open.
        scatters: whether the same question is answered differently when asked again.
        misses: the share of targets that may be called EXACT, as spec 10 section 5 found.
    """

    truth: Truth
    make: Callable[[np.random.Generator], Target]
    base: str = ""
    free: bool = False
    scatters: bool = False
    misses: float = 0.0


@dataclass(eq=False)
class Recording:
    """Keeps every question of a run with its answer."""

    target: Target
    kept: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    @property
    def width(self) -> int:
        return self.target.width

    @property
    def outputs(self) -> int:
        return self.target.outputs

    def __call__(self, X):
        # A target of others that overflows says nothing of keyhole.
        with np.errstate(all="ignore"):
            answers = self.target(X.copy())
        self.kept.append((X, answers))
        return answers


def draw_width(rng) -> int:
    return int(rng.integers(3, 7))


def draw_normal(count, length, width, *, rng):
    return rng.normal(size=(count, length, width)) / np.sqrt(width)


def draw_everywhere(width, *, rng, count=400) -> Questions:
    """Gaussian tokens of sizes 0.1 to 30, at lengths from 1 to 60."""
    lengths = (1, 2, 5, 17, 60)
    share = count // len(lengths)
    sizes = 10 ** rng.uniform(-1, 1.5, size=(len(lengths), share, 1, 1))
    return [
        size * draw_normal(share, n, width, rng=rng) for n, size in zip(lengths, sizes, strict=True)
    ]


def scale_to_spread(model: Any, X, spread, *, rng):
    """Each sequence scaled so that one head's scores vary by about `spread`, or as it is."""
    heads = model.logits(X[:1]).shape[1]
    if not heads:
        return X
    chosen = np.arange(len(X)), rng.integers(heads, size=len(X))
    up, down = (model.logits(sign * X)[chosen] for sign in (1, -1))
    # Scores of cX are a c^2 + b c, the part with b from a score bias.
    a, b = ((part - part.mean(axis=1, keepdims=True)) / 2 for part in (up + down, up - down))
    c = 2.0 ** np.arange(-45, 46)[:, None]
    variance = c**4 * (a**2).mean(1) + 2 * c**3 * (a * b).mean(1) + c**2 * (b**2).mean(1)
    best = np.argmin(np.abs(np.log(np.maximum(variance, 1e-300) / spread**2)), axis=0)
    # Equal tokens have equal scores at any scale.
    return np.where(variance.max(axis=0) > 0, c[best, 0], 1.0)[:, None, None] * X


def draw_for_model(model: Any, *, rng, count=400, lengths=(1, 2, 5, 17, 60), spreads=(0.3, 1, 3)):
    """Tokens at which the heads of a model weigh more than one token, at given lengths."""
    share = -(-count // (len(lengths) * len(spreads)))
    return [
        scale_to_spread(model, draw_normal(share, n, model.width, rng=rng), s, rng=rng)
        for n in lengths
        for s in spreads
    ]
