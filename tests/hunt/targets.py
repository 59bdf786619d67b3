"""All kinds of targets by name."""

from collections.abc import Iterator

import numpy as np

from hunt.base import Kind, Target
from hunt.deviations import CHANGED
from hunt.foreign import FOREIGN, NEEDLES
from hunt.own_classes import OWN

KINDS: dict[str, Kind] = {**OWN, **CHANGED, **FOREIGN, **NEEDLES}


def list_draws(count: int, kinds=tuple(KINDS)) -> Iterator[tuple[str, int]]:
    """`count` pairs of a kind and the how-manieth of it, every kind about equally often."""
    for number in range(count):
        yield kinds[number % len(kinds)], number // len(kinds)


def make_target(name: str, number: int, seed: int) -> tuple[Target, np.random.Generator]:
    """The target of that kind and number, and the generator of whoever learns it.

    The seed of a target is its own: a filter by kind leaves it as it is.
    """
    kind = list(KINDS).index(name)
    making, learning = np.random.default_rng([seed, kind, number]).spawn(2)
    return KINDS[name].make(making), learning
