"""Whether it is zero tokens that a target refuses, which every score is measured beside."""

from __future__ import annotations

import numpy as np

from keyhole.errors import BadAnswer, TargetFailed
from keyhole.learners.third_order.lone_values import Ask


def refuses_zero_tokens(ask: Ask, width: int, *, rng: np.random.Generator) -> bool:
    """Whether a token is answered beside its copy, and not beside a zero token.

    Args:
        ask: answers to sequences.
        width: of a token.
        rng: source of the token.
    """
    drawn = rng.normal(size=width)
    token = drawn / np.linalg.norm(drawn)
    try:
        ask([np.stack([token, token])])
    # Pairs are refused whatever is in them, or the target answers no longer.
    except (BadAnswer, TargetFailed):
        return False
    try:
        ask([np.stack([0.0 * token, token])])
    except (BadAnswer, TargetFailed):
        return True
    return False
