"""How many seeds a test takes: a quarter of them in `make test`, all in `make test-all`."""

import os

ALL = bool(os.environ.get("KEYHOLE_ALL_SEEDS"))


def few(count):
    """The seeds 0, 1, ... of a rate: `count` of them with all, else a quarter, two at least."""
    return range(count if ALL else max(2, -(-count // 4)))
