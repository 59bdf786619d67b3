"""ReLU networks with parallel units: ridges of several widths, ReLU6, hard tanh, leaky and absolute
units.
"""

from __future__ import annotations

import sys

import numpy as np

import keyhole
from networks import Case, Size, print_table, recover

SIZES = "8-16-3,8-16-8,16-32-3,16-64-8"
KINDS = "relu6,hard_tanh,ridge=1,ridge=0.01,ridge=0.0001,leaky,abs"


def draw_network(size: Size, kind: str, rng: np.random.Generator) -> keyhole.ReluNet:
    """A Gaussian network of such units, written with ReLU units, two for each."""
    d, k, m = size
    drawn = keyhole.ReluNet.random(d, hidden=k, outputs=m, rng=rng)
    W, b, A = drawn.W1, drawn.b1, drawn.W2
    length = np.linalg.norm(W, axis=1)
    name, _, width = kind.partition("=")
    # phi(z) = max(z, 0) - slope max(turn z - apart, 0), one more ReLU for every unit
    turn, apart, slope = {
        "relu6": (1.0, np.full(k, 6.0), np.ones(k)),
        "hard_tanh": (1.0, np.full(k, 2.0), np.ones(k)),
        "ridge": (1.0, float(width or 1) * length, np.ones(k)),
        "leaky": (-1.0, np.zeros(k), rng.uniform(0.01, 0.3, size=k)),
        "abs": (-1.0, np.zeros(k), -np.ones(k)),
    }[name]
    return keyhole.ReluNet(
        np.concatenate([W, turn * W]),
        np.concatenate([b, turn * b - apart]),
        np.hstack([A, -A * slope]),
        drawn.b2,
    )


def recover_one(size: Size, kind: str, seed: int) -> Case:
    """Hide one network and recover it."""
    rng = np.random.default_rng([seed, *size])
    truth = draw_network(size, kind, rng)
    freedom = truth.normal_form().canonical().degrees_of_freedom
    return recover(truth, keyhole.Network(), freedom / truth.outputs, rng)


if __name__ == "__main__":
    sys.exit(print_table(recover_one, about=__doc__, sizes=SIZES, kinds=KINDS))
