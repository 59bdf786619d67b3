"""Before a network is fitted: how far out its hyperplanes lie, how much answers scatter."""

from __future__ import annotations

import numpy as np

from keyhole.learners.networks.chords import draw_in_ball
from keyhole.learners.networks.kinks import Ask
from keyhole.oracles import Imperfection

PLACES = 24  # where answers are listened to
_WINDOW = 7  # samples of a short line
_DIRECTIONS = 4


def measure_noise(ask: Ask, width: int, radius: float, *, rng: np.random.Generator) -> float:
    """Standard deviation of random errors, from two answers to each question."""
    x = draw_in_ball(2 * PLACES, width, radius, rng=rng)
    return float(np.sqrt(((ask(x) - ask(x)) ** 2).mean() / 2))


def measure_rounding(
    ask: Ask, width: int, radius: float, roundoff: float, *, rng: np.random.Generator
) -> float:
    """Standard deviation of rounding, from second differences along short lines.

    Few such lines meet a hyperplane, so that their median is not bent by any.
    """
    x = draw_in_ball(PLACES, width, 0.9 * radius, rng=rng)
    u = rng.normal(size=(PLACES, width))
    u *= 1e-3 * radius / np.linalg.norm(u, axis=1, keepdims=True)
    line = x[:, None] + np.arange(_WINDOW)[:, None] * u[:, None]
    y = ask(line.reshape(-1, width)).reshape(PLACES, _WINDOW, -1)
    # A second difference of independent errors has 1 + 4 + 1 = 6 times their variance.
    rough = np.sqrt((np.diff(y, 2, axis=1) ** 2).mean(axis=(1, 2)) / 6)
    size = float(np.abs(y).max())
    return float(np.clip(np.median(rough), 0.3 * roundoff * size, 16 * roundoff * size))


def measure_scale(ask: Ask, width: int, stated: Imperfection, *, rng: np.random.Generator) -> float:
    """A radius beyond most hyperplanes, where the function has stopped to bend.

    It is three times the distance at which |f(ru) + f(-ru) - 2 f(0)| / r is half of the most it
    gets; 1 where the function is odd about f(0) as far as errors show.
    """
    radii = 10.0 ** np.arange(-8.0, 8.5, 0.5)
    u = rng.normal(size=(_DIRECTIONS, width))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    x = (radii[:, None, None] * u).reshape(-1, width)
    zero, ahead, back = ask(np.zeros((1, width))), ask(x), ask(-x)
    even = np.abs(ahead + back - 2 * zero).max(axis=1).reshape(len(radii), -1)
    largest = np.maximum(np.abs(ahead), np.abs(back)).max(axis=1)
    size = largest.reshape(len(radii), -1) + np.abs(zero).max()
    # Undeclared noise is not a number; it counts as none until a radius is known to measure it.
    absolute = 10 * (np.nan_to_num(stated.noise) + stated.tolerance)
    errors = absolute + 100 * stated.roundoff * size
    share = np.where(even > errors, even, 0.0) / radii[:, None]
    half = (share >= 0.5 * share.max(axis=0)) & (share > 0)
    seen = half.any(axis=0)
    if not seen.any():
        return 1.0
    return 3.0 * float(np.median(radii[half.argmax(axis=0)[seen]]))
