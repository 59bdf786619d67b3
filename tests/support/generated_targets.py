"""Targets drawn at random: of our classes over extreme scales, and of others that look alike.

A kind draws a target and its width from a generator. `OWN` holds what is of a class of ours, with
the class; `FOREIGN` what is of none, with the labels that recognition may give it.
"""

import numpy as np

from keyhole._arrays import softmax
from keyhole.models import Head, MultiHead, OneLayer, ReluNet


def power(rng, low, high):
    return 10.0 ** rng.uniform(low, high)


def sizes(rng):
    return int(rng.integers(2, 11)), int(rng.integers(1, 4))


def matrix(rng, *shape):
    return rng.normal(size=shape) / np.sqrt(shape[-2])


def maybe(rng, array, chance):
    return array if rng.random() < chance else None


def one_head(rng):
    d, o = sizes(rng)
    V = power(rng, -6, 6) * matrix(rng, d, o)
    size = np.abs(V).max()
    h = maybe(rng, power(rng, -6, 6) * rng.normal(size=d), 0.3)
    c = maybe(rng, size * power(rng, -4, 4) * rng.normal(size=o), 0.3)
    U = maybe(rng, size * power(rng, -3, 3) * matrix(rng, d, o), 0.3)
    return Head(power(rng, -12, 12) * matrix(rng, d, d), V, h=h, c=c, U=U), d


def degenerate_head(rng):
    d, o = sizes(rng)
    shapes = (np.zeros((d, d)), np.eye(d), -np.eye(d), np.outer(*rng.normal(size=(2, d))))
    V = matrix(rng, d, o)
    V[rng.integers(d)] = 0.0
    return Head(power(rng, -6, 6) * shapes[rng.integers(4)], V), d


def sharp_biased_head(rng):
    d, o = sizes(rng)
    return Head(1e12 * matrix(rng, d, d), matrix(rng, d, o), h=1e12 * rng.normal(size=d)), d


def heads(rng):
    d, o = sizes(rng)
    count = int(rng.integers(2, 7))
    W = power(rng, -9, 9) * 10.0 ** rng.uniform(-3, 3, (count, 1, 1)) * matrix(rng, count, d, d)
    V = 10.0 ** rng.uniform(-2, 2, (count, 1, 1)) * matrix(rng, count, d, o)
    h = maybe(rng, rng.normal(size=(count, d)), 0.3)
    c = maybe(rng, power(rng, -3, 3) * rng.normal(size=o), 0.3)
    return MultiHead(W, V, h=h, c=c), d


def cancelling_heads(rng):
    d, o = sizes(rng)
    count = int(rng.integers(2, 5))
    V = matrix(rng, count, d, o)
    left = rng.integers(2) * power(rng, -12, -1) * matrix(rng, d, o)
    V[-1] = left - V[:-1].sum(axis=0)
    h = maybe(rng, rng.normal(size=(count, d)), 0.3)
    return MultiHead(power(rng, -6, 6) * matrix(rng, count, d, d), V, h=h), d


def opposite_heads(rng):
    d, o = sizes(rng)
    W = power(rng, -3, 3) * matrix(rng, d, d)
    E = np.abs(W).max() * power(rng, -9, -1) * matrix(rng, d, d)
    V = matrix(rng, d, o)
    return MultiHead(np.stack([W, W + E]), np.stack([V, -V])), d


def tiny_second_head(rng):
    d, o = sizes(rng)
    V = matrix(rng, 2, d, o)
    V[1] *= power(rng, -12, -3)
    return MultiHead(power(rng, -3, 3) * matrix(rng, 2, d, d), V), d


def heads_of_equal_scores(rng):
    d, o = sizes(rng)
    W = power(rng, -3, 3) * matrix(rng, d, d)
    return MultiHead(np.stack([W, W]), matrix(rng, 2, d, o)), d


def draw_network(rng, width, outputs, activation, far=1.0):
    hidden = int(rng.integers(1, 40))
    W1 = matrix(rng, hidden, width) * np.sqrt(hidden) * 10.0 ** rng.uniform(-1, 1, (hidden, 1))
    W2 = power(rng, -6, 6) * matrix(rng, outputs, hidden)
    b2 = rng.integers(2) * rng.normal(size=outputs)
    return ReluNet(W1, far * rng.normal(size=hidden), W2, b2, activation)


def relu_network(rng):
    d, o = sizes(rng)
    return draw_network(rng, d, o, "relu", power(rng, -2, 5)), d


def relu_network_with_line(rng):
    d, o = sizes(rng)
    net = draw_network(rng, d, o, "relu", power(rng, -2, 3))
    A = power(rng, -2, 4) * np.abs(net.W2).max() * matrix(rng, d, o)
    return lambda X: net(X) + X[:, -1] @ A, d


def wide_relu_network(rng):
    return ReluNet.random(6, hidden=400, outputs=int(rng.integers(1, 4)), rng=rng), 6


def gelu_network(rng):
    d, o = sizes(rng)
    return draw_network(rng, d, o, "gelu", power(rng, -2, 1)), d


def silu_network(rng):
    d, o = sizes(rng)
    return draw_network(rng, d, o, "silu", power(rng, -2, 1)), d


def draw_one_layer(rng, activation):
    d, o = sizes(rng)
    net = draw_network(rng, d, o, activation, power(rng, -2, 1))
    h = maybe(rng, rng.normal(size=d), 0.3)
    head = Head(power(rng, -4, 4) * matrix(rng, d, d), matrix(rng, d, d), h=h)
    return OneLayer(head, net, residual=bool(rng.integers(2))), d


def one_layer_relu(rng):
    return draw_one_layer(rng, "relu")


def one_layer_gelu(rng):
    return draw_one_layer(rng, "gelu")


def one_layer_silu(rng):
    return draw_one_layer(rng, "silu")


OWN = {
    one_head: ("head", {"one head", "heads", "scores not seen", "saturated", "max-like"}),
    degenerate_head: ("head", {"one head", "scores not seen"}),
    sharp_biased_head: ("head", {"one head", "saturated", "max-like"}),
    heads: ("multihead", {"several heads", "one head", "heads", "saturated", "max-like"}),
    cancelling_heads: (
        "multihead",
        {"several heads", "one head", "heads", "constant", "length or repeats"},
    ),
    opposite_heads: (
        "multihead",
        {"several heads", "one head", "heads", "constant", "length or repeats"},
    ),
    tiny_second_head: ("multihead", {"several heads", "one head", "heads"}),
    heads_of_equal_scores: ("multihead", {"one head", "several heads"}),
    relu_network: ("relu", {"relu", "affine", "constant"}),
    relu_network_with_line: ("relu", {"relu", "affine"}),
    wide_relu_network: ("relu", {"relu"}),
    gelu_network: ("smooth", {"smooth", "saturating", "relu"}),
    silu_network: ("smooth", {"smooth", "saturating", "relu"}),
    one_layer_relu: ("onelayer", {"one-layer", "relu", "average"}),
    one_layer_gelu: ("onelayer", {"one-layer", "one-layer smooth"}),
    one_layer_silu: ("onelayer", {"one-layer", "one-layer smooth"}),
}


def attend(X, W, V, change_scores=None, change_weights=None, change_tokens=None):
    """A head whose parts can be replaced by others."""
    X = X if change_tokens is None else change_tokens(X)
    scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T)
    scores = scores if change_scores is None else change_scores(scores, X)
    weights = softmax(scores)
    weights = weights if change_weights is None else change_weights(weights, scores)
    return np.einsum("bn,bnd->bd", weights, X) @ V


def changed_head(**changes):
    """A kind: a head of ordinary size with other scores, weights or tokens."""

    def draw(rng):
        d, o = sizes(rng)
        W, V = power(rng, -1, 1) * matrix(rng, d, d), matrix(rng, d, o)
        parts = {name: make(rng, d) for name, make in changes.items()}
        return lambda X: attend(X, W, V, **parts), d

    return draw


def learned_positions(rng, d):
    P = rng.normal(size=(300, d))
    return lambda X: X + P[: X.shape[1]]


def relative_bias(rng, d):
    table = rng.normal(size=300)
    return lambda S, X: S + table[: S.shape[1]][::-1]


def alibi(rng, d):
    slope = power(rng, -3, 0)
    return lambda S, X: S + slope * np.arange(S.shape[1])


def keep_last(count):
    return lambda S, X: np.where(np.arange(S.shape[1]) >= S.shape[1] - count, S, -np.inf)


def keep_best(count):
    def keep(S, X):
        least = np.sort(S, axis=1)[:, max(0, S.shape[1] - count)][:, None]
        return np.where(least <= S, S, -np.inf)

    return keep


def count_once(S, X):
    same = (X[:, :, None] == X[:, None]).all(axis=3)
    return S - np.log(same.sum(axis=2))


def count_neighbours_twice(S, X):
    same = np.zeros(S.shape, dtype=bool)
    same[:, 1:] = (X[:, 1:] == X[:, :-1]).all(axis=2)
    return S + np.log(1.0 + same)


def plus_one(weights, scores):
    top = scores.max(axis=1, keepdims=True)
    mass = np.exp(scores - top).sum(axis=1, keepdims=True)
    return weights * mass / (mass + np.exp(-np.clip(top, -700, 700)))


def sum_of_values(rng):
    d, o = sizes(rng)
    V = matrix(rng, d, o)
    return lambda X: X.sum(axis=1) @ V, d


def linear_attention(rng):
    d, o = sizes(rng)
    W, V = matrix(rng, d, d), matrix(rng, d, o)
    whole = bool(rng.integers(2))

    def answer(X):
        weights = np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T)
        values = np.einsum("bn,bnd->bd", weights, X) @ V
        return values if whole else values / X.shape[1]

    return answer, d


def capped_scores(rng, d):
    cap = rng.uniform(0.3, 2.0)
    return lambda S, X: cap * np.tanh(S / cap)


def norm_of(x, centred):
    x = x - x.mean(axis=-1, keepdims=True) if centred else x
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)


def norm_head(rng):
    d, o = int(rng.integers(3, 11)), int(rng.integers(1, 4))
    W, V, U = matrix(rng, d, d), matrix(rng, d, o), matrix(rng, d, o) * rng.integers(2)
    centred = bool(rng.integers(2))
    return lambda X: attend(norm_of(X, centred), W, V) + X[:, -1] @ U, d


def norm_network(rng):
    d, o = int(rng.integers(3, 11)), int(rng.integers(1, 4))
    net = draw_network(rng, d, o, "gelu")
    centred = bool(rng.integers(2))
    return lambda X: net(norm_of(X[:, -1:], centred)), d


def gated_network(rng):
    d, o = sizes(rng)
    A, B, C = rng.normal(size=(2, d, 12)), rng.normal(size=12), rng.normal(size=(12, o))

    def answer(X):
        gate = X[:, -1] @ A[0] + B
        return gate / (1 + np.exp(-np.clip(gate, -700, 700))) * (X[:, -1] @ A[1]) @ C

    return answer, d


def tanh_network(rng):
    d, o = sizes(rng)
    A, b, C = rng.normal(size=(d, 12)), rng.normal(size=12), rng.normal(size=(12, o))
    return lambda X: np.tanh(X[:, -1] @ A + b) @ C, d


def constant_from_length(rng):
    d, o = sizes(rng)
    W, V = matrix(rng, d, d), matrix(rng, d, o)
    return lambda X: attend(X, W, V) + 0.1 * (X.shape[1] >= 20), d


def noisy_head(rng):
    d, o = sizes(rng)
    W, V = matrix(rng, d, d), matrix(rng, d, o)
    size = power(rng, -6, -1)
    return lambda X: attend(X, W, V) + size * rng.normal(size=(len(X), o)), d


def head_with_dropout(rng):
    d, o = sizes(rng)
    W, V = matrix(rng, d, d), matrix(rng, d, o)
    return lambda X: attend(X, W, V, None, lambda w, S: w * (rng.random(w.shape) > 0.1)), d


def cosine_attention(rng):
    d, o = sizes(rng)
    W, V = matrix(rng, d, d), matrix(rng, d, o)

    def normalise(S, X):
        lengths = np.linalg.norm(X, axis=2) * np.linalg.norm(X[:, -1] @ W.T, axis=1)[:, None]
        return 3 * S / np.where(lengths > 0, lengths, 1.0)

    return lambda X: attend(X, W, V, normalise), d


REPEATS = {"length or repeats"}
FOREIGN = {
    "learned positions": (changed_head(change_tokens=learned_positions), {"positions"} | REPEATS),
    "relative bias": (changed_head(change_scores=relative_bias), {"positions"} | REPEATS),
    "alibi": (changed_head(change_scores=alibi), {"positions"} | REPEATS),
    "window of 20": (
        changed_head(change_scores=lambda rng, d: keep_last(20)),
        {"positions"} | REPEATS,
    ),
    "best 3": (changed_head(change_scores=lambda rng, d: keep_best(3)), REPEATS),
    "repeats once": (changed_head(change_scores=lambda rng, d: count_once), REPEATS),
    "neighbours twice": (
        changed_head(change_scores=lambda rng, d: count_neighbours_twice),
        {"neighbours"} | REPEATS,
    ),
    "softmax plus one": (changed_head(change_weights=lambda rng, d: plus_one), REPEATS),
    "capped scores": (changed_head(change_scores=capped_scores), {"other attention"}),
    "cosine scores": (cosine_attention, {"other attention", "max-like", "saturated"}),
    "sums": (sum_of_values, REPEATS),
    "linear attention": (linear_attention, {"average", "homogeneous"} | REPEATS),
    "constant from length 20": (constant_from_length, REPEATS),
    "norm before a head": (norm_head, {"norm"}),
    "norm before a network": (norm_network, {"norm"}),
    "gated network": (gated_network, {"gated"}),
    "tanh network": (tanh_network, {"saturating", "norm"}),
    "noise": (noisy_head, {"non-deterministic"}),
    "dropout": (head_with_dropout, {"non-deterministic"}),
}
