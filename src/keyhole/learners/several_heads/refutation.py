"""Answers that no sum of softmax heads can give, whatever the heads."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.learners.base import Counterexample
from keyhole.learners.verifying.questions import shorten_to_bound
from keyhole.oracles import Counted

_LARGEST_SCALE = 2.0**10


def find_impossible_answer(
    oracle: Counted,
    c: Vector,
    B: Matrix,
    roundoff: float,
    rng: np.random.Generator,
    *,
    bound: float | None = None,
) -> Counterexample | None:
    """A sequence whose answer breaks what every sum of heads obeys, or None.

    No token asked is longer than the bound. One token x answers c + B.x; so do any number of copies
    of it; and all tokens but the last may change places.
    """
    scales = np.geomspace(1.0, _LARGEST_SCALE, 4)[:, None, None]
    tokens = rng.normal(size=(4, 3, oracle.width)) * scales
    tokens = next(shorten_to_bound([tokens], bound))
    alone = tokens[:, -1:]
    same = np.repeat(alone, 3, axis=1)
    swapped = tokens[:, [1, 0, 2]]
    straight = oracle.ask(tokens.copy())
    expected = c + tokens[:, -1] @ B
    cases = [(alone, expected), (same, expected), (swapped, straight)]
    for X, predicted in cases:
        answers = oracle.ask(X.copy())
        # Beside the answers, what they are a sum of: read-outs may cancel, their rounding does not.
        terms = np.abs(B).max() * np.abs(X).max(axis=(1, 2))
        size = np.abs(straight).max(axis=1) + np.abs(predicted).max(axis=1) + terms
        gap = np.abs(answers - predicted).max(axis=1) / np.where(size > 0, size, 1.0)
        worst = int(np.argmax(gap))
        if gap[worst] > max(1e-7, 2.0**14 * roundoff):
            return Counterexample(X[worst], answers[worst], predicted[worst])
    return None
