r"""How long the tokens of a basis are made: scores of half a unit.

One zero token beside y leaves $F([0; y]) = F([y])\,w/(w + 3)$ with $w = e^{T(y,y,y)}$, and T grows
as the cube of the length.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.learners.third_order.lone_values import Ask

_DIRECTIONS = 8
_WANTED = 0.5  # the largest |T(y, y, y)| that is aimed at
_READ = 4.0  # a score up to which it is read off one answer
_MOST = 12  # scales tried
_STEP = 30.0  # by which a length that shows nothing is changed
_NEAR = 1.5  # a length within this factor of the one aimed at is taken


def count_scale_questions() -> tuple[int, int]:
    """Questions that finding the length usually takes, and at most."""
    return 3 * _DIRECTIONS, (_MOST + 1) * _DIRECTIONS


def find_token_length(ask: Ask, width: int, roundoff: float, *, rng: np.random.Generator) -> float:
    """The length at which the largest of a few own scores is about a half.

    Args:
        ask: answers to sequences, outputs that act only.
        width: of a token.
        roundoff: relative rounding of answers.
        rng: source of the directions.
    """
    drawn = rng.normal(size=(_DIRECTIONS, width))
    directions = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    alone = ask([y[None] for y in directions])
    length = 1.0
    lowest, highest = 0.0, np.inf
    for _ in range(_MOST):
        share = _measure_shares(ask, length * directions, length**2 * alone)
        score = _read_largest_score(share, roundoff)
        # Too long where weights are 0 or 1, too short where they cannot be told from even ones.
        if score is not None and score > 0.0:
            wanted = length * float(np.cbrt(_WANTED / score))
            if 1.0 / _NEAR <= wanted / length <= _NEAR:
                return wanted
            lowest, highest = (length, highest) if wanted > length else (lowest, length)
        elif score is None:
            highest, wanted = length, length / _STEP
        else:
            lowest, wanted = length, length * _STEP
        inside = lowest < wanted < highest
        length = wanted if inside else float(np.sqrt(max(lowest, highest * 1e-3) * highest))
    return length


def _measure_shares(ask: Ask, tokens: Matrix, alone: Matrix) -> Vector:
    """F([0; y]) / F([y]) of every token, by the output that answers most."""
    answers = ask([np.stack([0.0 * y, y]) for y in tokens])
    best = np.abs(alone).argmax(axis=1)
    rows = np.arange(len(tokens))
    return answers[rows, best] / np.where(alone[rows, best] != 0, alone[rows, best], np.inf)


def _read_largest_score(share: Vector, roundoff: float) -> float | None:
    """The largest |log 3 share / (1 - share)|; None where one is too large to be read."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.abs(np.log(3.0 * share / (1.0 - share)))
    if not (scores <= _READ).all():
        return None
    largest = float(scores.max())
    return largest if largest > 1e4 * roundoff else 0.0
