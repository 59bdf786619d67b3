"""Models that something small is changed in, which questions of the usual kinds hardly meet."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hunt.base import Kind, Target, Truth, draw_for_model, draw_normal, draw_width, scale_to_spread
from keyhole import Head, MultiHead, OneLayer, ReluNet
from keyhole._arrays import softmax


def keep_tokens(X):
    return X


def weigh_plainly(scores, X):
    return softmax(scores)


def keep_answers(answers, X):
    return answers


@dataclass(frozen=True)
class Deviation:
    """What is changed, and where it shows.

    Args:
        draw: questions for a model on which the change shows.
        tokens: what is done to tokens first.
        weights: attention weights from scores and tokens.
        answers: what is done to answers last, knowing the questions.
        attends: whether it needs attention to show.
        misses: share of targets on which an examination may miss it.
        relative: largest relative error of answers that a format explains.
    """

    draw: Callable[..., list[np.ndarray]]
    tokens: Callable[[np.ndarray], np.ndarray] = keep_tokens
    weights: Callable[[np.ndarray, np.ndarray], np.ndarray] = weigh_plainly
    answers: Callable[[np.ndarray, np.ndarray], np.ndarray] = keep_answers
    attends: bool = True
    misses: float = 0.0
    relative: float = 0.0


def read_head(head: Head, X, weigh):
    mixed = np.einsum("bn,bnd->bd", weigh(head.scores(X), X), X) @ head.V
    return mixed if head.c is None else mixed + head.c


def answer_changed(model: Any, change: Deviation, X):
    """A model's answers with the change."""
    tokens = change.tokens(X)
    if isinstance(model, ReluNet):
        answers = model(tokens)
    elif isinstance(model, OneLayer):
        answers = model.net.points(read_head(model.head, tokens, change.weights))
    else:
        heads = model.heads if isinstance(model, MultiHead) else (model,)
        answers = sum(read_head(head, tokens, change.weights) for head in heads)
    return change.answers(answers, X)


def mask_scores(scores, seen):
    return softmax(np.where(seen, scores, -np.inf))


def see_window(size, scores, X):
    """Attend to the last `size` tokens."""
    return mask_scores(scores, np.arange(X.shape[1]) >= X.shape[1] - size)


def see_largest(count, scores, X):
    """Attend to the `count` largest scores."""
    if X.shape[1] <= count:
        return softmax(scores)
    return mask_scores(scores, scores >= np.sort(scores, axis=1)[:, -count, None])


def double_neighbours(scores, X):
    """A token equal to the one before counts twice."""
    equal = (X[:, 1:] == X[:, :-1]).all(axis=2)
    return softmax(scores + np.log(2.0) * np.pad(equal, ((0, 0), (1, 0))))


def find_equal(X):
    return (X[:, :, None] == X[:, None]).all(axis=3)


def count_duplicates_once(scores, X):
    return softmax(scores - np.log(find_equal(X).sum(axis=2)))


def halve_repeated(scores, X):
    """Tokens that stand four times or more count half."""
    return softmax(scores - np.log(2.0) * (find_equal(X).sum(axis=2) >= 4))


def clip_scores(limit, scores, X):
    return softmax(np.clip(scores, -limit, limit))


def cap_scores(limit, scores, X):
    return softmax(limit * np.tanh(scores / limit))


def drop_weights(limit, scores, X):
    weights = softmax(scores)
    weights = np.where(weights < limit, 0.0, weights)
    return weights / weights.sum(axis=1, keepdims=True)


def slope_scores(slope, scores, X):
    """ALiBi: scores fall with distance."""
    return softmax(scores - slope * np.arange(X.shape[1])[::-1])


def add_sink(level, scores, X):
    """One more logit, whose token has no value."""
    most = np.maximum(scores.max(axis=1, keepdims=True), level)
    weights = np.exp(scores - most)
    return weights / (weights.sum(axis=1, keepdims=True) + np.exp(level - most))


def sharpen_with_length(share, scores, X):
    return softmax(scores * (1.0 + share * np.log(X.shape[1])))


def mask_zeros(scores, X):
    """Zero tokens are padding; the last is always seen."""
    seen = (X != 0).any(axis=2)
    seen[:, -1] = True
    return mask_scores(scores, seen)


def add_from_length(length, answers, X):
    return answers + 0.5 * (X.shape[1] >= length)


def stretch_beyond(length, share, answers, X):
    return answers * (1.0 + share * (X.shape[1] > length))


def cast_answers(answers, X):
    with np.errstate(over="ignore"):
        return answers.astype(np.float32).astype(np.float64)


def cast_tokens(X):
    with np.errstate(over="ignore"):
        return np.nan_to_num(X.astype(np.float32).astype(np.float64))


def round_tokens(X):
    return np.round(X, 6)


def cap_norms(limit, X):
    return X * np.minimum(1.0, limit / np.maximum(np.linalg.norm(X, axis=2), 1e-300))[..., None]


def clip_entries(limit, X):
    return np.clip(X, -limit, limit)


def draw_lengths(lengths, model, rng):
    return draw_for_model(model, rng=rng, lengths=lengths, spreads=(0.3, 1, 3))


def draw_spreads(spreads, model, rng):
    return draw_for_model(model, rng=rng, lengths=(2, 5, 12), spreads=spreads)


def draw_copies(model, rng):
    """Five tokens, of which the first stands four times; were all repeated, all would cancel."""
    X = np.repeat(draw_normal(400, 5, model.width, rng=rng), (4, 1, 1, 1, 1), axis=1)
    return [scale_to_spread(model, X, 1.0, rng=rng)]


def draw_zeros(model, rng):
    """The first three of six tokens are zero."""
    X = draw_normal(400, 6, model.width, rng=rng)
    X[:, :3] = 0.0
    return [scale_to_spread(model, X, 1.0, rng=rng)]


def draw_levels(limit, model, rng):
    """Scores around twice the limit, so that a clip makes them equal: a token far along q added."""
    X = scale_to_spread(model, draw_normal(400, 5, model.width, rng=rng), 1.0, rng=rng)
    head = model.heads[0] if isinstance(model, MultiHead) else getattr(model, "head", model)
    q = head.queries(X[:, -1])
    away = 2 * limit / np.maximum((q**2).sum(axis=1), 1e-300)
    X[:, :-1] += away[:, None, None] * q[:, None]
    return [X]


def draw_sizes(sizes, model, rng):
    """Lone tokens and pairs of given sizes."""
    return [size * draw_normal(100, n, model.width, rng=rng) for n in (1, 2) for size in sizes]


def make_base(name, rng):
    """A model to change, its scores of sizes 1e-2 to 1e2."""
    d = draw_width(rng)
    scale = 10 ** rng.uniform(-2, 2)
    if name == "head":
        return Head.random(d, scale=scale, rng=rng)
    if name == "three heads":
        return MultiHead.random(d, heads=3, scale=scale, rng=rng)
    if name == "one layer":
        return OneLayer.random(d, hidden=d, scale=scale, rng=rng)
    return ReluNet.random(d, hidden=d, rng=rng)


def make_changed(base, change: Deviation, rng) -> Target:
    model = make_base(base, rng)
    return Target(
        partial(answer_changed, model, change),
        model.width,
        model.outputs,
        partial(change.draw, model),
        relative=change.relative,
    )


def change_window(size) -> Deviation:
    return Deviation(partial(draw_lengths, (2 * size,)), weights=partial(see_window, size))


def cut_context(size) -> Deviation:
    return Deviation(partial(draw_lengths, (2 * size,)), tokens=lambda X: X[:, -size:])


def keep_largest(count) -> Deviation:
    return Deviation(partial(draw_lengths, (2 * count,)), weights=partial(see_largest, count))


def limit_scores(limit) -> Deviation:
    return Deviation(partial(draw_levels, limit), weights=partial(clip_scores, limit))


def drop_below(limit, misses=0.0) -> Deviation:
    return Deviation(
        partial(draw_spreads, (3, 6, 10)), weights=partial(drop_weights, limit), misses=misses
    )


def change_long(length, change) -> Deviation:
    return Deviation(partial(draw_lengths, (2 * length,)), answers=change, attends=False)


def change_tokens(change, sizes, misses=0.0) -> Deviation:
    return Deviation(partial(draw_sizes, sizes), tokens=change, attends=False, misses=misses)


DEVIATIONS = {
    "context cut to 32": cut_context(32),
    "context cut to 100": cut_context(100),
    "context cut to 200": cut_context(200),
    "window 33": change_window(33),
    "window 48": change_window(48),
    "top-32": keep_largest(32),
    "top-128": keep_largest(128),
    "equal neighbours doubled": Deviation(draw_copies, weights=double_neighbours),
    "duplicates once": Deviation(draw_copies, weights=count_duplicates_once),
    "repeats from 4 halved": Deviation(draw_copies, weights=halve_repeated),
    "scores clipped at 15": limit_scores(15),
    "scores clipped at 30": limit_scores(30),
    "scores clipped at 60": limit_scores(60),
    "soft cap 50": Deviation(partial(draw_levels, 50), weights=partial(cap_scores, 50.0)),
    "weights under 1e-4 dropped": drop_below(1e-4),
    "weights under 1e-6 dropped": drop_below(1e-6),
    "weights under 1e-8 dropped": drop_below(1e-8, misses=0.15),
    "ALiBi 1e-5": Deviation(partial(draw_lengths, (60,)), weights=partial(slope_scores, 1e-5)),
    "sink -10": Deviation(partial(draw_lengths, (2, 5)), weights=partial(add_sink, -10.0)),
    "temperature with length": Deviation(
        partial(draw_lengths, (60,)), weights=partial(sharpen_with_length, 1e-3)
    ),
    "constant from length 20": change_long(20, partial(add_from_length, 20)),
    "constant from length 40": change_long(40, partial(add_from_length, 40)),
    "x 1.001 beyond 40": change_long(41, partial(stretch_beyond, 40, 1e-3)),
    "x 1.001 beyond 128": change_long(129, partial(stretch_beyond, 128, 1e-3)),
    "x 1.000001 beyond 40": change_long(41, partial(stretch_beyond, 40, 1e-6)),
    "answers cast to f32": Deviation(
        partial(draw_sizes, (0.1, 1)), answers=cast_answers, attends=False, relative=2**-24
    ),
    "tokens cast to f32": change_tokens(cast_tokens, (0.1, 1)),
    "tokens rounded to 1e-6": change_tokens(round_tokens, (0.1, 1)),
    "token norm capped at 100": change_tokens(partial(cap_norms, 100.0), (1e3, 1e4), 0.05),
    "zero tokens masked": Deviation(draw_zeros, weights=mask_zeros, misses=0.05),
    "entries clipped at 1e3": change_tokens(partial(clip_entries, 1e3), (1e4, 1e5), 0.05),
}
BASES = {"head": "head", "three heads": "multihead", "one layer": "onelayer", "network": "relu"}

CHANGED = {
    f"{name}, {base}": Kind(
        Truth.DEVIATION,
        partial(make_changed, base, change),
        BASES[base],
        misses=change.misses,
    )
    for name, change in DEVIATIONS.items()
    for base in BASES
    if change.attends <= (base != "network")
}
