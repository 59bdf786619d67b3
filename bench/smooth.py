"""Networks of smooth units recovered: verdicts, queries beside the limit, function error, time."""

from __future__ import annotations

import sys

import numpy as np

import keyhole
from networks import Case, Size, print_table, recover

SIZES = "32-128-32,64-256-64,120-240-120,16-256-1,32-256-1,16-512-1"


def recover_one(size: Size, kind: str, seed: int) -> Case:
    """Hide one Gaussian network and recover it."""
    d, k, m = size
    rng = np.random.default_rng([seed, *size])
    truth = keyhole.ReluNet.random(d, hidden=k, outputs=m, activation=kind, rng=rng)
    limit = (k * (d + 1 + m) + m * (d + 1)) / m
    return recover(truth, keyhole.SmoothNetwork(), limit, rng)


if __name__ == "__main__":
    sys.exit(print_table(recover_one, about=__doc__, sizes=SIZES, kinds="gelu,silu"))
