"""The random numbers of a training: a stream for every seed and purpose."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers is for."""

    # Numbers are part of every stream: new purposes go to the end.
    WEIGHTS = 0
    SAMPLE = 1
    BATCHES = 2
    CHECKS = 3
    TESTS = 4
    CODES = 5


def open_stream(seed: int, purpose: Purpose, number: int = 0) -> np.random.Generator:
    """The random numbers of a seed for one purpose."""
    # Spawn keys, unlike sums of seeds, never make two streams one.
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(purpose), number)))
