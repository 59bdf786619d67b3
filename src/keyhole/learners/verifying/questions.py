"""Fresh questions: sequences on which a model is asked to prove itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from keyhole._arrays import Array, Matrix, Sequences, Stack, rms
from keyhole.models import Head, Model, OneLayer

LENGTHS = range(1, 33)
LOGITS = (0.3, 1.0, 3.0)  # root-mean-square score differences; a fourth sequence has unit tokens
QUERIES = len(LENGTHS) * (len(LOGITS) + 1)


def measure_score_parts(model: Model, X: Sequences) -> tuple[float, float]:
    """Root mean squares of the quadratic and the linear part of score differences."""
    one, two = (s[..., :-1] - s[..., -1:] for s in (model.logits(X), model.logits(2 * X)))
    quadratic = rms((two - 2 * one) / 2)
    linear = rms((4 * one - two) / 2)
    # Of a linear part that is zero the subtraction leaves rounding.
    return quadratic, linear if linear > 1e-12 * quadratic else 0.0


def choose_token_scales(model: Model, *, rng: np.random.Generator) -> tuple[float, ...]:
    """Token lengths at which the model's score differences have the sizes of LOGITS, then 1.

    Scores at token scale s are $s^2 a + s b$, and $s^4 A + s^2 B = t^2$ for the mean squares A, B
    gives s without iteration.
    """
    X = rng.normal(size=(8, LENGTHS[-1], model.width)) / np.sqrt(model.width)
    a, b = measure_score_parts(model, X)
    # Without scores no length is better than another.
    if max(a, b) == 0.0:
        return (0.01, 1.0, 100.0, 1.0)
    # s^2 = 2 t^2 / (b^2 + sqrt(b^4 + 4 a^2 t^2)), written so that no square over- or underflows
    lengths = [
        float(np.sqrt(2.0) * t / np.hypot(b, np.sqrt(np.hypot(b * b, 2 * a * t)))) for t in LOGITS
    ]
    return (*lengths, 1.0)


def draw_fresh_sequences(
    model: Model, *, rng: np.random.Generator, reach: float = 1.0
) -> Iterator[Sequences]:
    """Batches of Gaussian tokens of lengths 1 to 32, each at every scale of `choose_token_scales`.

    Where a constant would hide the token values and no score bias acts, tokens before the last are
    made longer and the last one shorter by the same factor, which leaves the scores as they are.
    Where a score bias acts, tokens of even lengths are orthogonal to it, so that a large one does
    not hide W. Two of the lone tokens are `reach` times longer: what bends only far away is no
    head.
    """
    scales = np.array(choose_token_scales(model, rng=rng))[:, None, None]
    without, across = _drop_score_bias(model)
    across_scales = np.array(choose_token_scales(without, rng=rng))[:, None, None]
    longer = _choose_lengthening(model, scales, rng)
    far = np.array([1.0, reach, 1.0, -reach])[:, None, None]
    for length in LENGTHS:
        X = rng.normal(size=(len(scales), length, model.width)) / np.sqrt(model.width)
        X = scales * X if length % 2 else across_scales * (X - X @ across @ across.T)
        X[:, :-1] *= longer
        X[:, -1:] *= longer if length == 1 else 1.0 / longer
        yield X * far if length == 1 else X


def shorten_to_bound(batches: Iterable[Stack], bound: float | None) -> Iterator[Stack]:
    """The same sequences, shortened where a token would be longer than the bound."""
    if bound is None:
        yield from batches
        return
    for X in batches:
        longest = np.sqrt((X**2).sum(axis=2).max(axis=1))
        yield X * np.minimum(1.0, bound / np.maximum(longest, 1e-300))[:, None, None]


def _drop_score_bias(model: Model) -> tuple[Model, Matrix]:
    """The model without its score bias, and that bias as a unit column, where there is one."""
    head = model.head if isinstance(model, OneLayer) else model
    # In width 1 nothing is orthogonal to a bias.
    if not isinstance(head, Head) or head.h is None or head.width == 1 or not head.h.any():
        return model, np.zeros((model.width, 0))
    without = replace(head, h=None)
    unit = head.h[:, None] / np.linalg.norm(head.h)
    return replace(model, head=without) if isinstance(model, OneLayer) else without, unit


def _choose_lengthening(model: Model, scales: Array, rng: np.random.Generator) -> Array:
    X = rng.normal(size=(len(scales), LENGTHS[-1], model.width)) / np.sqrt(model.width)
    values = model.magnitude(scales * X)
    constant = np.abs(model(np.zeros((1, 1, model.width)))).max()
    # A linear part of the scores would grow with the tokens before the last.
    if measure_score_parts(model, X)[1] > 0.0:
        return np.ones_like(scales)
    longer = np.maximum(1.0, 2.0**6 * constant / np.where(values > 0, values, np.inf))
    longer[-1] = 1.0  # the sequence of unit tokens stays as it is
    return longer[:, None, None]
