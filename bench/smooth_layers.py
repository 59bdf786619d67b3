"""Attention before smooth and gated networks recovered: verdicts, queries, error of W."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

import keyhole
from keyhole.identify import one_layer_freedom
from networks import Case, Size, print_table, recover

SIZES = "16-64-16,16-64-1"


def draw_layer(size: Size, kind: str, rng: np.random.Generator) -> keyhole.OneLayer:
    """A Gaussian layer with biases; g- in a kind says gated units, r- a residual."""
    d, k, m = size
    residual = "r-" in kind
    drawn = keyhole.OneLayer.random(d, hidden=k, outputs=m, biases=True, residual=residual, rng=rng)
    activation = kind.removeprefix("r-").removeprefix("g-")
    if "g-" in kind:
        gated = keyhole.Gated.random(d, hidden=k, outputs=m, activation=activation, rng=rng)
        return replace(drawn, net=gated)
    return replace(drawn, net=replace(drawn.net, activation=activation))


def compare_scores(
    truth: keyhole.OneLayer, model: keyhole.OneLayer, rng: np.random.Generator
) -> float:
    """The largest error of W, beside its largest entry, and of answers to pairs where larger."""
    W = np.asarray(truth.head.W)
    X = rng.normal(size=(400, 2, truth.width))
    answers = truth(X)
    gap = np.abs(model(X) - answers).max() / np.abs(answers - answers.mean(axis=0)).max()
    return float(max(np.abs(np.asarray(model.head.W) - W).max() / np.abs(W).max(), gap))


def recover_one(size: Size, kind: str, seed: int) -> Case:
    """Hide one layer and recover it."""
    d, k, m = size
    rng = np.random.default_rng([seed, *size])
    truth = draw_layer(size, kind, rng)
    # every unit has a width, a gated one a second vector
    more = k * (1 + d) - m * d if "g-" in kind else k
    freedom = one_layer_freedom(d, hidden=k, outputs=m, score_bias=d, residual=truth.residual)
    limit = (freedom + more) / m
    return recover(truth, keyhole.SmoothLayer(), limit, rng, compare_scores)


if __name__ == "__main__":
    sys.exit(print_table(recover_one, about=__doc__, sizes=SIZES, kinds="gelu,silu"))
