"""Kinds of fresh questions: what each looks like before it is scaled, and what it is for.

A shape is a sequence of tokens of length about 1. What a kind is for is what no other kind meets:
a target that counts equal neighbours twice, masks zeros, or caps its scores agrees with a head on
Gaussian tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix

Draw = Callable[[int], Matrix]
Shape = Callable[[Matrix, np.random.Generator], Matrix]

ALL_SPREADS = (0.3, 1.0, 3.0, 10.0, 30.0)
# At these every copy still weighs something.
EVEN_SPREADS = (0.3, 1.0, 3.0)
LEVELS = (8.0, -20.0, 40.0, -8.0, 80.0, 20.0, -40.0, -80.0)
STRETCHES = (10.0, 100.0, 300.0)  # beyond, the last digits of right weights show
_SHARE = 3  # of the tokens that are copied or blanked, one in so many


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of questions.

    Args:
        shape: tokens of the kind, from generic ones.
        spreads: sizes of score differences that it is asked at, in turn.
        shortest: least length at which it is another kind than the others.
        free: whether it takes tokens of our making, which a vocabulary does not hold.
        scores: whether it is made for scores, so that a network alone is not asked it.
    """

    shape: Shape
    spreads: tuple[float, ...] = EVEN_SPREADS
    shortest: int = 2
    free: bool = False
    scores: bool = False


def keep_tokens(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """Generic tokens as they are."""
    return tokens


def mix_lengths(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """Tokens of very different lengths."""
    return tokens * np.exp(1.5 * rng.normal(size=(len(tokens), 1)))


def copy_neighbours(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """Some tokens equal to the one before them."""
    copied = _choose_some(len(tokens) - 1, rng) + 1
    X = tokens.copy()
    for i in sorted(copied):
        X[i] = X[i - 1]
    return X


def repeat_tokens(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """Earlier tokens drawn with repeats from half as many, anywhere."""
    earlier = len(tokens) - 1
    drawn = rng.integers(max(1, earlier // 2), size=earlier)
    return np.vstack([tokens[drawn], tokens[-1:]])


def repeat_last(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """Some earlier tokens equal to the last."""
    X = tokens.copy()
    X[_choose_some(len(tokens) - 1, rng)] = tokens[-1]
    return X


def make_equal(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """All tokens equal."""
    return np.repeat(tokens[-1:], len(tokens), axis=0)


def make_blocks(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """Runs of equal tokens."""
    starts = rng.random(len(tokens)) < 1.0 / _SHARE
    return tokens[np.cumsum(starts)[::-1] % len(tokens)]


def blank_some(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """Some earlier tokens zero."""
    X = tokens.copy()
    X[_choose_some(len(tokens) - 1, rng)] = 0.0
    return X


def blank_last(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """The last token zero, where only a score bias acts."""
    return np.vstack([tokens[:-1], np.zeros_like(tokens[:1])])


def make_one_hot(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """Coordinates and their opposites."""
    count, width = tokens.shape
    signs = rng.choice([-1.0, 1.0], size=(count, 1))
    return signs * np.eye(width)[rng.integers(width, size=count)]


def make_sparse(tokens: Matrix, rng: np.random.Generator) -> Matrix:
    """Tokens of which about two entries are left."""
    kept = rng.random(tokens.shape) < 2.0 / tokens.shape[1]
    kept[np.arange(len(tokens)), rng.integers(tokens.shape[1], size=len(tokens))] = True
    return tokens * kept


def _choose_some(count: int, rng: np.random.Generator) -> np.ndarray:
    """A third of the places, one at least."""
    return rng.permutation(count)[: max(1, count // _SHARE)]


KINDS: Mapping[str, Kind] = {
    "gauss": Kind(keep_tokens, ALL_SPREADS, shortest=1),
    "mixed": Kind(mix_lengths, ALL_SPREADS, free=True),
    "neighbours": Kind(copy_neighbours, shortest=3),
    "repeated": Kind(repeat_tokens, shortest=3),
    "last repeated": Kind(repeat_last, shortest=3),
    "all equal": Kind(make_equal),
    "blocks": Kind(make_blocks, shortest=4),
    "zeros": Kind(blank_some, free=True),
    "last zero": Kind(blank_last, shortest=1, free=True),
    "one-hot": Kind(make_one_hot, shortest=1, free=True),
    "sparse": Kind(make_sparse, shortest=1, free=True),
    "levels": Kind(keep_tokens, (1.0,), free=True, scores=True),
    "far": Kind(keep_tokens, (1.0,), free=True),
    "lone": Kind(keep_tokens, (1.0,), shortest=1, free=True),
}
PERMUTED = "permuted"
AGAIN = "again"

# In which order kinds are asked; each call goes on where the one before stopped.
OF_ONE = ("gauss", "lone", "last zero", "lone", "one-hot", "lone", "sparse", "lone")
OF_MORE = (
    *("gauss", "neighbours", "levels", "mixed", "zeros", PERMUTED, "far", "repeated"),
    *("gauss", "one-hot", "levels", "last repeated", "mixed", "blocks", PERMUTED),
    *("far", "sparse", "all equal", "levels", "last zero"),
)
