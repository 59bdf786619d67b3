"""The questions of recognition, by name: a fixed design around three generic tokens.

A question is an array (length, width). Names that begin with * are asked at the scale c where
attention weights are neither even nor all on one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Indices, Matrix, Vector

Questions = Mapping[str, Matrix]

NEAR = 1e-3  # a step at which smooth functions curve and few kinks are met
SHAKE = 2.0**-50
AGAIN = ("x again", *(f"x again {i}" for i in range(2, 10)))
TURN = 1e-2  # by which far directions are turned
_STEPS = (-1.0, 1.0, 2.0)
# Tokens up to eight times as long as x are asked in a ball.
_ROOM = 8.0
_WIDE = 1e6
_FAR = 10.0  # times the tokens themselves: where a target may be undefined
_LONGEST = 64


@dataclass(frozen=True, slots=True)
class Range:
    """How far tokens may reach.

    Args:
        far: how much longer than x far tokens are.
        rungs: scales at which the pair [x; y] is asked.
        lone_rungs: further scales at which y is asked alone.
        steep: how much longer than y the token z is; twice and four times z show growth.
        longest: the largest scale of all.
    """

    far: float = _WIDE
    rungs: tuple[float, ...] = (1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6)
    lone_rungs: tuple[float, ...] = (1e-2, 1e2, 1e4)
    steep: float = 1e4
    longest: float = np.inf

    @property
    def bounded(self) -> bool:
        """Whether tokens are too short to see growth."""
        return self.far < _WIDE


WIDE = Range()
BALL = Range(far=2.5, rungs=(1e-4, 1e-2, 0.1, 1.0), lone_rungs=(1e-2, 0.1), steep=1.5, longest=1.0)


@dataclass(frozen=True, eq=False, slots=True)
class Tokens:
    """Generic tokens x, y, w, v and a context, with how far and how long may be asked.

    Args:
        x: the first token.
        y: the last token of nearly every question.
        w: a third token.
        v: a direction to step in.
        context: tokens before y in the long question.
        order: how these are permuted.
        range: scales.
        lengths: the shortest and the longest sequence that may be asked.
    """

    x: Vector
    y: Vector
    w: Vector
    v: Vector
    context: Matrix
    order: Indices
    range: Range
    lengths: tuple[int, int]

    @property
    def ones(self) -> Vector:
        """The direction that a LayerNorm takes away, about as long as x."""
        return np.full(len(self.x), np.linalg.norm(self.x) / np.sqrt(len(self.x)))

    @property
    def half(self) -> int:
        """Length of the long question, which can be doubled."""
        return len(self.context) + 1


def shake_digits(token: Vector) -> Vector:
    """The token with its last digits changed, whose answer shows rounding inside a target."""
    return token * (1.0 + SHAKE * np.where(np.arange(len(token)) % 2 == 0, 1.0, -1.0))


def draw_tokens(
    width: int, bound: float | None, lengths: tuple[int, int], *, rng: np.random.Generator
) -> Tokens:
    """Generic tokens N(0, I/d), shorter where a bound is declared."""
    half = max(1, min(_LONGEST, lengths[1]) // 2)
    drawn = rng.normal(size=(4 + half - 1, width)) / np.sqrt(width)
    reach = WIDE
    if bound is not None:
        reach = BALL
        longest = float(np.linalg.norm(drawn, axis=1).max())
        drawn *= min(1.0, bound / (_ROOM * longest))
    order = rng.permutation(half - 1)
    x, y, w, v = drawn[:4]
    return Tokens(x, y, w, v, drawn[4:], order, reach, lengths)


def design_lone_tokens(tokens: Tokens) -> Questions:
    """Call 1: whether a lone token is answered by an affine map, and twice the same."""
    x, y, far = tokens.x, tokens.y, tokens.range.far
    lone = {"0": 0 * x, "x": x, "-x": -x, "y": y, "x+y": x + y, "x again": x}
    lone |= {"x shaken": shake_digits(x), "y shaken": shake_digits(y)}
    lone |= {"far x": far * x, "far -x": -far * x, "far y": far * y}
    return _stack({name: (token,) for name, token in lone.items()})


def design_pairs(tokens: Tokens) -> Questions:
    """Call 2: whether an earlier token acts, and at which scale its scores show."""
    x, y = tokens.x, tokens.y
    pairs = {"[y;y]": (y, y), "[2y-x;y]": (2 * y - x, y)}
    pairs |= {name_rung(c): (c * x, c * y) for c in tokens.range.rungs}
    return _stack(pairs)


def design_bends(tokens: Tokens) -> Questions:
    """Call 3: lone tokens that are not affine: straight or curved near x and y, far growth."""
    x, y, v = tokens.x, tokens.y, NEAR * tokens.v
    lone = {f"x{t:+.0f}v": x + t * v for t in _STEPS} | {f"y{t:+.0f}v": y + t * v for t in _STEPS}
    lone |= {name_lone(c): c * y for c in tokens.range.lone_rungs}
    z, turned = tokens.range.steep * y, TURN * tokens.v
    lone |= {f"{k}z": k * z for k in (2, 4)}
    for k in (2, 4):
        for sign, side in ((1, "+"), (-1, "-")):
            lone[f"{k}z{side}"] = k * tokens.range.steep * (y + sign * turned)
    lone["2z+1"] = 2 * z + tokens.range.steep * tokens.ones
    return _stack({name: (token,) for name, token in lone.items()})


def design_scaled_pairs(tokens: Tokens, scale: float, *, affine: bool) -> Questions:
    """Call 4: the scores of one head or several, at the scale where they show."""
    x, y, w = scale * tokens.x, scale * tokens.y, scale * tokens.w
    pairs = {"*[x;y]": (x, y), "*[w;y]": (w, y)}
    if affine:
        pairs |= {f"*g({t})": (y + t * (x - y), y) for t in (-1, 2, -2)}
        pairs |= {"*[x;0]": (x, 0 * x), "*[-x;0]": (-x, 0 * x)}
    return _stack(pairs | {"[x;y] again": (tokens.x, tokens.y)})


def design_unit(tokens: Tokens, scale: float) -> tuple[Questions, ...]:
    """Calls 4': one unit of third order: a form of rank two, and zero tokens beside y."""
    x, y, w = tokens.x, tokens.y, tokens.w
    lone = {"w": w, "x+w": x + w, "y+w": y + w}
    zero, last = 0 * x, scale * y
    return (
        _stack({name: (token,) for name, token in lone.items()}),
        _stack({"*[0;y]": (zero, last)}),
        _stack({"*[0;0;y]": (zero, zero, last)}),
    )


def design_copies(tokens: Tokens, scale: float) -> Questions:
    """Call 5: copies and their order."""
    x, y, w = scale * tokens.x, scale * tokens.y, scale * tokens.w
    return _stack(
        {
            "*[x;x;x;y]": (x, x, x, y),
            "*[x;y;y;y]": (x, y, y, y),
            "*[x;x;y;y]": (x, x, y, y),
            "*[x;x;w;y]": (x, x, w, y),
            "*[x;w;x;y]": (x, w, x, y),
            "*[w;x;x;y]": (w, x, x, y),
        }
    )


def design_long(tokens: Tokens, scale: float) -> Questions:
    """Call 6: a long context, and its earlier tokens in another order."""
    Z = scale * tokens.context
    y = scale * tokens.y
    return {"*Z": np.vstack([Z, y]), "*Z permuted": np.vstack([Z[tokens.order], y])}


def design_doubled(tokens: Tokens, scale: float) -> Questions:
    """Call 7: every token twice, a pair many times over, and the first of these again."""
    Z = np.repeat(scale * np.vstack([tokens.context, tokens.y]), 2, axis=0)
    pair = np.repeat(scale * np.stack([tokens.x, tokens.y]), tokens.half, axis=0)
    return {"*Z doubled": Z, "*[x^n;y^n]": pair, "*Z doubled again": Z}


def design_three(tokens: Tokens) -> Questions:
    """Call 5': whether two earlier tokens act where one does not."""
    return _stack({"[w;x;y]": (tokens.w, tokens.x, tokens.y)})


def design_contexts(tokens: Tokens) -> Questions:
    """Call 6': whether many do."""
    Z = np.repeat(tokens.context, 2, axis=0)
    return {
        "[Z;y]": np.vstack([Z, tokens.x, tokens.y]),
        "[-Z;y]": np.vstack([-Z, tokens.w, tokens.y]),
    }


def design_repeats(tokens: Tokens) -> Questions:
    """A call more, where last digits of x changed its answer altogether: x itself, again."""
    return _stack(dict.fromkeys(AGAIN[1:], (tokens.x,)))


def name_rung(scale: float) -> str:
    """The pair [x; y] at a scale of the ladder."""
    return "[x;y]" if scale == 1.0 else f"{scale:g} [x;y]"


def name_lone(scale: float) -> str:
    """The token y at a scale of the ladder."""
    return "y" if scale == 1.0 else f"{scale:g} y"


def is_far(question: Matrix, tokens: Tokens) -> bool:
    """Whether a target may be undefined there, so that the question may be lost."""
    unit = max(float(np.linalg.norm(token)) for token in (tokens.x, tokens.y, tokens.w))
    return float(np.abs(question).max()) > _FAR * unit


def _stack(tokens: Mapping[str, tuple[Vector, ...]]) -> Questions:
    return {name: np.stack(parts) for name, parts in tokens.items()}
