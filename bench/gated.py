"""Gated networks recovered: verdicts, queries beside the limit, function error, time.

A kind is the activation of the gates, and after an x how steep these are: silu, gelux0.1.
"""

from __future__ import annotations

import sys

import numpy as np

import keyhole
from networks import Case, Size, print_table, recover


def recover_one(size: Size, kind: str, seed: int) -> Case:
    """Hide one Gaussian network and recover it."""
    d, k, m = size
    rng = np.random.default_rng([seed, *size])
    activation, _, scale = kind.partition("x")
    truth = keyhole.Gated.random(
        d, hidden=k, outputs=m, activation=activation, scale=float(scale or 1), rng=rng
    )
    return recover(truth, keyhole.GatedNetwork(), truth.degrees_of_freedom / m, rng)


if __name__ == "__main__":
    sys.exit(print_table(recover_one, about=__doc__, sizes="8-16-8,24-64-24", kinds="silu,gelu"))
