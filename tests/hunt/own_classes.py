"""Targets of our classes, plain and awkward."""

from functools import partial
from typing import Any

import numpy as np

from hunt.base import Kind, Target, Truth, draw_everywhere, draw_for_model, draw_width
from keyhole import Head, MultiHead, OneLayer, ReluNet


def wrap_model(model: Any) -> Target:
    return Target(model, model.width, model.outputs, partial(draw_both, model))


def draw_both(model: Any, rng):
    near = draw_everywhere(model.width, rng=rng, count=200)
    return near + draw_for_model(model, rng=rng, count=200)


def spread_evenly(low, high, *, rng, size=None):
    """Numbers whose logarithms are uniform."""
    return 10 ** rng.uniform(np.log10(low), np.log10(high), size=size)


def make_head(rng, **options):
    return Head.random(draw_width(rng), rng=rng, **options)


def head_with_rank(rng):
    d = draw_width(rng)
    return Head.random(d, rank=int(rng.integers(1, d)), rng=rng)


def head_with_constant(rng):
    head = make_head(rng)
    return Head(head.W, head.V, c=spread_evenly(1e-3, 1e3, rng=rng, size=1))


def head_with_residual(rng):
    head = make_head(rng, outputs=2)
    return Head(head.W, head.V, U=rng.normal(size=head.V.shape))


def head_without_scores(rng):
    d = draw_width(rng)
    return Head(np.zeros((d, d)), rng.normal(size=(d, 1)))


def head_with_silent_output(rng):
    head = make_head(rng, outputs=3)
    V = head.V.copy()
    V[:, rng.integers(3)] = 0.0
    return Head(head.W, V)


def head_of_any_scores(rng):
    return make_head(rng, scale=spread_evenly(1e-6, 1e6, rng=rng))


def head_of_any_readout(rng):
    head = make_head(rng)
    return Head(head.W, spread_evenly(1e-6, 1e6, rng=rng) * head.V)


def head_with_graded_readout(rng):
    head = make_head(rng)
    return Head(head.W, head.V * spread_evenly(1e-10, 1, rng=rng, size=head.V.shape))


def head_with_graded_scores(rng):
    head = make_head(rng)
    return Head(head.W * spread_evenly(1e-8, 1, rng=rng, size=head.W.shape), head.V)


def make_heads(rng, **options):
    options = {"heads": int(rng.integers(2, 5)), **options}
    return MultiHead.random(draw_width(rng), rng=rng, **options)


def heads_of_equal_scores(rng):
    heads = make_heads(rng, heads=2)
    return MultiHead(np.stack([heads.W[0], heads.W[0]]), heads.V)


def heads_that_nearly_cancel(rng):
    """W and W + E with V and -V, |E| = 1e-6."""
    heads = make_heads(rng, heads=2)
    E = rng.normal(size=heads.W[0].shape)
    W = np.stack([heads.W[0], heads.W[0] + 1e-6 * E / np.linalg.norm(E)])
    return MultiHead(W, np.stack([heads.V[0], -heads.V[0]]))


def heads_that_sum_to_zero(rng):
    heads = make_heads(rng, heads=3)
    V = heads.V.copy()
    V[2] = -V[0] - V[1]
    return MultiHead(heads.W, V)


def heads_of_all_sizes(rng):
    heads = make_heads(rng)
    sizes = spread_evenly(1e-3, 1e3, rng=rng, size=(len(heads.W), 1, 1))
    return MultiHead(heads.W, sizes * heads.V)


def heads_in_one_row_space(rng):
    """Heads of rank one that score by the same direction of the last token."""
    heads = make_heads(rng, heads=2)
    d = heads.width
    columns, row = rng.normal(size=(2, d, 1)), rng.normal(size=(1, d))
    return MultiHead(columns @ row / np.sqrt(d), heads.V)


def heads_of_which_one_is_tiny(rng):
    heads = make_heads(rng, heads=2)
    return MultiHead(
        heads.W, heads.V * np.array([1.0, spread_evenly(1e-6, 1e-3, rng=rng)])[:, None, None]
    )


def heads_with_biases(rng):
    heads = make_heads(rng)
    h = rng.normal(size=heads.W.shape[:2])
    return MultiHead(heads.W, heads.V, h, rng.normal(size=heads.outputs))


def heads_with_residual(rng) -> Target:
    heads = make_heads(rng)
    U = rng.normal(size=(heads.width, heads.outputs))
    return Target(
        lambda X: heads(X) + X[:, -1] @ U, heads.width, heads.outputs, partial(draw_both, heads)
    )


def whole_layer(rng):
    """Two or three heads of low rank that write into as many outputs as a token has numbers."""
    heads = int(rng.integers(2, 4))
    d = 2 * heads
    A, B, C, D = rng.normal(size=(4, heads, d, 2)) / np.sqrt(d)
    return MultiHead(3 * A @ B.swapaxes(1, 2), C @ D.swapaxes(1, 2))


def make_network(rng, **options):
    d = draw_width(rng)
    return ReluNet.random(d, hidden=int(rng.integers(2, 2 * d)), rng=rng, **options)


def network_with_kinks_near_and_far(rng):
    net = make_network(rng)
    away = spread_evenly(1e-3, 1e3, rng=rng, size=net.hidden)
    return ReluNet(net.W1, away * net.b1, net.W2, net.b2)


def network_with_parallel_units(rng):
    net = make_network(rng)
    W1 = net.W1.copy()
    W1[1] = -2 * W1[0]
    return ReluNet(W1, net.b1, net.W2, net.b2)


def network_of_ridges(rng):
    """Fewer units than a token has numbers."""
    d = draw_width(rng)
    return ReluNet.random(d, hidden=int(rng.integers(1, d)), rng=rng)


def network_dead_at_the_origin(rng):
    net = make_network(rng)
    return ReluNet(net.W1, -np.abs(net.b1), net.W2, net.b2)


def network_without_biases(rng):
    net = make_network(rng)
    return ReluNet(net.W1, 0 * net.b1, net.W2, 0 * net.b2)


def make_layer(rng, **options):
    d = draw_width(rng)
    return OneLayer.random(d, hidden=int(rng.integers(d, 2 * d)), rng=rng, **options)


def layer_without_biases(rng):
    layer = make_layer(rng)
    net = layer.net
    return OneLayer(layer.head, ReluNet(net.W1, 0 * net.b1, net.W2, 0 * net.b2))


def layer_of_gelu(rng):
    layer = make_layer(rng)
    net = layer.net
    return OneLayer(layer.head, ReluNet(net.W1, net.b1, net.W2, net.b2, "gelu"))


def constant(rng):
    d = draw_width(rng)
    return Head(np.zeros((d, d)), np.zeros((d, 1)), c=rng.normal(size=1))


def affine_map(rng):
    d = draw_width(rng)
    none = np.zeros((d, 1))
    return Head(np.zeros((d, d)), none, c=rng.normal(size=1), U=rng.normal(size=(d, 1)))


def list_kind(make, base, **options) -> Kind:
    return Kind(Truth.OURS, lambda rng: as_target(make(rng)), base, **options)


def as_target(made) -> Target:
    return made if isinstance(made, Target) else wrap_model(made)


HEADS = {
    "one head": make_head,
    "one head, biases": partial(make_head, biases=True),
    "one head, constant": head_with_constant,
    "one head, residual": head_with_residual,
    "one head, low rank": head_with_rank,
    "one head, W = 0": head_without_scores,
    "one head, a silent output": head_with_silent_output,
    "one head, |W| 1e-6..1e6": head_of_any_scores,
    "one head, |v| 1e-6..1e6": head_of_any_readout,
    "one head, three outputs": partial(make_head, outputs=3),
    "one head, graded v": head_with_graded_readout,
    "one head, graded W": head_with_graded_scores,
}
SUMS = {
    "heads": make_heads,
    "heads, three outputs": partial(make_heads, outputs=3),
    "heads, equal W": heads_of_equal_scores,
    "heads, near-equal and opposite": heads_that_nearly_cancel,
    "heads, read-outs sum to zero": heads_that_sum_to_zero,
    "heads, sizes 1e-3..1e3": heads_of_all_sizes,
    "heads, rank one in one row space": heads_in_one_row_space,
    "heads, the second tiny": heads_of_which_one_is_tiny,
    "heads, biases": heads_with_biases,
    "heads, residual": heads_with_residual,
    "whole layer": whole_layer,
}
NETWORKS = {
    "relu": make_network,
    "relu, three outputs": partial(make_network, outputs=3),
    "relu, kinks near and far": network_with_kinks_near_and_far,
    "relu, parallel units": network_with_parallel_units,
    "relu, ridges": network_of_ridges,
    "relu, dead at the origin": network_dead_at_the_origin,
    "relu, no biases": network_without_biases,
}
SMOOTH = {
    "gelu": partial(make_network, activation="gelu"),
    "silu": partial(make_network, activation="silu"),
}
LAYERS = {
    "one layer": make_layer,
    "one layer, biases": partial(make_layer, biases=True),
    "one layer, residual": partial(make_layer, residual=True),
    "one layer, residual and biases": partial(make_layer, biases=True, residual=True),
    "one layer, no biases": layer_without_biases,
    "one layer, gelu": layer_of_gelu,
}
OPEN = {"constant": constant, "affine map": affine_map}

OWN = {
    **{name: list_kind(make, "head") for name, make in HEADS.items()},
    **{name: list_kind(make, "multihead") for name, make in SUMS.items()},
    **{name: list_kind(make, "relu") for name, make in NETWORKS.items()},
    **{name: list_kind(make, "smooth") for name, make in SMOOTH.items()},
    **{name: list_kind(make, "onelayer") for name, make in LAYERS.items()},
    **{name: list_kind(make, "head", free=True) for name, make in OPEN.items()},
}
