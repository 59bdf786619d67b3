"""How many seeds a test takes: a quarter of them in `make test`, all in `make test-all`."""

import os

ALL = bool(os.environ.get("KEYHOLE_ALL_SEEDS"))


def few(count):
    """The seeds 0, 1, ... of a rate: `count` of them with all, else a quarter, two at least."""
    return range(count if ALL else max(2, -(-count // 4)))


def some(cases, step=2):
    """All cases with all, else every second or `step`th."""
    return list(cases)[:: 1 if ALL else step]
