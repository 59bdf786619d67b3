"""Targets of no class of ours: other functions, other attention, coarse and noisy answers; and
needles, which no number of questions is sure to meet.
"""

import zlib
from functools import partial

import numpy as np

from hunt.base import Kind, Target, Truth, draw_everywhere, draw_normal, draw_width
from hunt.own_classes import draw_both
from keyhole import Head, ReluNet
from keyhole._arrays import softmax

RELU = partial(np.maximum, 0.0)


def wrap_function(function, width, **options) -> Target:
    """A function with one output, asked everywhere."""

    def draw(rng):
        return draw_everywhere(width, rng=rng)

    return Target(lambda X: function(X)[:, None], width, 1, options.pop("draw", draw), **options)


def on_last_token(make):
    """A kind whose targets read the last token: `make(width, rng)` gives a function of points."""

    def draw(rng):
        width = draw_width(rng)
        function = make(width, rng)
        return wrap_function(lambda X: function(X[:, -1]), width)

    return Kind(Truth.FOREIGN, draw)


def on_sequences(make):
    """A kind whose targets read whole sequences: `make(width, rng)` gives their function."""

    def draw(rng):
        width = draw_width(rng)
        return wrap_function(make(width, rng), width)

    return Kind(Truth.FOREIGN, draw)


def least_coordinate(width, rng):
    return lambda x: RELU(x.min(axis=1))


def least_form(width, rng):
    A = rng.normal(size=(width, 4)) / np.sqrt(width)
    return lambda x: RELU((x @ A).min(axis=1) - 0.1)


def two_hidden_layers(width, rng):
    A, B = rng.normal(size=(width, 2 * width)), rng.normal(size=(2 * width, width))
    a, b, v = rng.normal(size=2 * width), rng.normal(size=width), rng.normal(size=width)
    return lambda x: RELU(RELU(x @ A + a) @ B + b) @ v


def sawtooth(width, rng):
    w = rng.normal(size=width)
    return lambda x: (x @ w) % 1.0


def steps(width, rng):
    w = rng.normal(size=width)
    return lambda x: np.sign(x @ w) + np.floor(x[:, 0])


def rough_waves(width, rng):
    """Weierstrass: cosines of ever higher frequency."""
    w = rng.normal(size=width)
    octaves = 3.0 ** np.arange(12)
    return lambda x: np.cos((x @ w)[:, None] * octaves) @ (0.5 ** np.arange(12))


def cubic(width, rng):
    w = rng.normal(size=width)
    return lambda x: (x @ w) ** 3 + x[:, 0]


def sine(width, rng):
    w = rng.normal(size=width)
    return lambda x: np.sin(x @ w)


def gated(width, rng):
    A, B = rng.normal(size=(2, width, width))
    v = rng.normal(size=width)
    return lambda x: (silu(x @ A) * (x @ B)) @ v


def silu(z):
    return z / (1.0 + np.exp(-np.clip(z, -700.0, 700.0)))


def tanh_network(width, rng):
    A, a, v = rng.normal(size=(width, width)), rng.normal(size=width), rng.normal(size=width)
    return lambda x: np.tanh(x @ A + a) @ v


def largest_token(width, rng):
    v = rng.normal(size=width)
    return lambda X: (X @ v).max(axis=1)


def sum_of_tokens(width, rng):
    v = rng.normal(size=width)
    return lambda X: (X @ v).sum(axis=1)


def mean_of_units(width, rng):
    A, v = rng.normal(size=(width, width)), rng.normal(size=width)
    return lambda X: RELU(X @ A).mean(axis=1) @ v


def score_tokens(W, X):
    return np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T)


def draw_weights(width, rng):
    return rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width)


def linear_attention(width, rng):
    W, v = draw_weights(width, rng)
    return lambda X: (score_tokens(W, X) * (X @ v)).mean(axis=1)


def sigmoid_attention(width, rng):
    W, v = draw_weights(width, rng)
    # (1 + tanh(s/2))/2 is the sigmoid, and cannot overflow.
    return lambda X: ((1.0 + np.tanh(score_tokens(W, X) / 2)) / 2 * (X @ v)).sum(axis=1)


def softmax_plus_one(width, rng):
    W, v = draw_weights(width, rng)

    def answer(X):
        scores = score_tokens(W, X)
        most = np.maximum(scores.max(axis=1, keepdims=True), 0.0)
        weights = np.exp(scores - most)
        return (weights * (X @ v)).sum(axis=1) / (weights.sum(axis=1) + np.exp(-most[:, 0]))

    return answer


def third_order(width, rng):
    """Weights on pairs of tokens, whose values multiply."""
    (W, v), (B, u) = draw_weights(width, rng), draw_weights(width, rng)

    def answer(X):
        scores = score_tokens(W, X)[:, :, None] * score_tokens(B, X)[:, None]
        values = (X @ v)[:, :, None] * (X @ u)[:, None]
        flat = (len(X), -1)
        return (softmax(scores.reshape(flat)) * values.reshape(flat)).sum(axis=1)

    return answer


def normalise_rms(X):
    return X / np.sqrt((X**2).mean(axis=-1, keepdims=True) + 1e-5)


def normalise_layer(X):
    return normalise_rms(X - X.mean(axis=-1, keepdims=True))


def behind_norm(normalise, residual, width, rng):
    W, v = draw_weights(width, rng)
    u = residual * rng.normal(size=width)
    head = Head(W, v[:, None])
    return lambda X: head(normalise(X))[:, 0] + X[:, -1] @ u


def attend_with(scores, values):
    return (softmax(scores) * values).sum(axis=1)


def learned_positions(width, rng):
    W, v = draw_weights(width, rng)
    table = rng.normal(size=(1000, width))

    def answer(X):
        placed = X + table[: X.shape[1]]
        return attend_with(score_tokens(W, placed), placed @ v)

    return answer


def alibi(width, rng):
    W, v = draw_weights(width, rng)
    return lambda X: attend_with(score_tokens(W, X) - 0.1 * np.arange(X.shape[1])[::-1], X @ v)


def bucketed_positions(width, rng):
    """T5: a bias per bucket of distances, the buckets growing."""
    W, v = draw_weights(width, rng)
    biases = rng.normal(size=16)

    def answer(X):
        distance = np.arange(X.shape[1])[::-1]
        bucket = np.minimum(np.log2(1.0 + distance).astype(int), 15)
        return attend_with(score_tokens(W, X) + biases[bucket], X @ v)

    return answer


def rotary(width, rng):
    """RoPE on queries and keys of two numbers."""
    Q, K = rng.normal(size=(2, width, 2)) / np.sqrt(width)
    v = rng.normal(size=width)

    def answer(X):
        turn = np.exp(1j * np.arange(X.shape[1])[::-1])
        keys = (X @ K) @ np.array([1.0, 1j])
        query = (X[:, -1] @ Q) @ np.array([1.0, 1j])
        return attend_with((keys * turn * query[:, None].conj()).real, X @ v)

    return answer


def make_scattering(disturb, rng) -> Target:
    """A head whose answers `disturb` changes anew each time."""
    head = Head.random(draw_width(rng), rng=rng)
    noise = rng.spawn(1)[0]
    return Target(
        lambda X: disturb(head, X, noise), head.width, 1, partial(draw_both, head), absolute=1e-4
    )


def add_noise(head, X, rng):
    return head(X) + 1e-4 * rng.normal(size=(len(X), 1))


def drop_entries(head, X, rng):
    """Dropout of a tenth of the tokens' numbers, as when a model was left in training."""
    return head(X * (rng.random(X.shape) > 0.1) / 0.9)


def make_coarse(cast, relative, absolute, rng) -> Target:
    """A head or a network whose answers are rounded, which nobody says."""
    width = draw_width(rng)
    model = (
        Head.random(width, rng=rng)
        if rng.random() < 0.5
        else ReluNet.random(width, hidden=width, rng=rng)
    )
    return Target(
        lambda X: cast(model(X)),
        width,
        1,
        partial(draw_both, model),
        relative=relative,
        absolute=absolute,
    )


def cast_to_bf16(answers):
    """Through f32, as frameworks do: the upper half of its bits, rounded to even."""
    with np.errstate(over="ignore"):
        bits = answers.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def cast_to_f16(answers):
    """Infinite beyond 65504, as the format is."""
    with np.errstate(over="ignore"):
        return answers.astype(np.float16).astype(np.float64)


def cast_to_f32(answers):
    return answers.astype(np.float32).astype(np.float64)


def round_to_thousandths(answers):
    return np.round(answers, 3)


def imperfect(make, **options) -> Kind:
    return Kind(Truth.FOREIGN, make, "head", **options)


FOREIGN = {
    "least coordinate": on_last_token(least_coordinate),
    "least of four forms": on_last_token(least_form),
    "two hidden layers": on_last_token(two_hidden_layers),
    "sawtooth": on_last_token(sawtooth),
    "steps": on_last_token(steps),
    "rough waves": on_last_token(rough_waves),
    "cubic": on_last_token(cubic),
    "sine": on_last_token(sine),
    "gated network": on_last_token(gated),
    "tanh network": on_last_token(tanh_network),
    "largest token": on_sequences(largest_token),
    "sum of tokens": on_sequences(sum_of_tokens),
    "mean of units": on_sequences(mean_of_units),
    "linear attention": on_sequences(linear_attention),
    "sigmoid attention": on_sequences(sigmoid_attention),
    "softmax plus one": on_sequences(softmax_plus_one),
    "third-order attention": on_sequences(third_order),
    "RMS norm": on_sequences(partial(behind_norm, normalise_rms, 0.0)),
    "RMS norm, residual": on_sequences(partial(behind_norm, normalise_rms, 1.0)),
    "layer norm": on_sequences(partial(behind_norm, normalise_layer, 0.0)),
    "layer norm, residual": on_sequences(partial(behind_norm, normalise_layer, 1.0)),
    "learned positions": on_sequences(learned_positions),
    "ALiBi 0.1": on_sequences(alibi),
    "T5 positions": on_sequences(bucketed_positions),
    "rotary positions": on_sequences(rotary),
    "undeclared noise": imperfect(partial(make_scattering, add_noise), scatters=True),
    "dropout on": imperfect(partial(make_scattering, drop_entries), scatters=True),
    "undeclared bf16": imperfect(partial(make_coarse, cast_to_bf16, 2**-8, 0.0)),
    "undeclared f16": imperfect(partial(make_coarse, cast_to_f16, 2**-11, 2**-24)),
    "undeclared f32": imperfect(partial(make_coarse, cast_to_f32, 2**-24, 0.0)),
    "undeclared decimals": imperfect(partial(make_coarse, round_to_thousandths, 0.0, 5e-4)),
}


def with_bump(rng) -> Target:
    """A head that answers one more within 1e-3 of one last token."""
    head = Head.random(draw_width(rng), rng=rng)
    place = rng.normal(size=head.width)

    def answer(X):
        near = np.linalg.norm(X[:, -1] - place, axis=1, keepdims=True) < 1e-3
        return head(X) + near

    def draw(rng):
        return [place + 1e-4 * draw_normal(400, 1, head.width, rng=rng)]

    return Target(answer, head.width, 1, draw)


def with_one_odd_length(rng) -> Target:
    head = Head.random(draw_width(rng), rng=rng)
    odd = int(rng.integers(3, 200))
    return Target(
        lambda X: head(X) + (X.shape[1] == odd),
        head.width,
        1,
        lambda rng: [draw_normal(400, odd, head.width, rng=rng)],
    )


def with_rare_errors(rng) -> Target:
    """One answer in a thousand is wrong, always the same ones."""
    head = Head.random(draw_width(rng), rng=rng)

    def answer(X):
        wrong = [zlib.crc32(np.ascontiguousarray(x).tobytes()) % 1000 == 0 for x in X]
        return head(X) + np.array(wrong, dtype=float)[:, None]

    return Target(answer, head.width, 1, lambda rng: [draw_normal(8000, 2, head.width, rng=rng)])


NEEDLES = {
    "a bump of radius 1e-3": Kind(Truth.NEEDLE, with_bump, "head"),
    "one odd length": Kind(Truth.NEEDLE, with_one_odd_length, "head"),
    "one wrong answer in 1000": Kind(Truth.NEEDLE, with_rare_errors, "head"),
}
