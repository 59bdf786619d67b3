"""The random numbers of a training: a stream for every seed and purpose, so that no seed feels
another.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers is for."""

    WEIGHTS = 0
    SAMPLE = 1
    BATCHES = 2
    CHECKS = 3
    TESTS = 4
    CODES = 5


def open_stream(seed: int, purpose: Purpose, number: int = 0) -> np.random.Generator:
    """The random numbers of a seed for one purpose."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(purpose), number)))
