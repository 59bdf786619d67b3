"""Fresh queries: what a model's word is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Array, Matrix, PerSequence, Sequences, Stack, rms
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Fresh
from keyhole.models import Head, Model, MultiHead, OneLayer
from keyhole.oracles import Counted, Oracle

LENGTHS = range(1, 33)
LOGITS = (0.3, 1.0, 3.0)  # root-mean-square score differences; a fourth sequence has unit tokens
QUERIES = len(LENGTHS) * (len(LOGITS) + 1)
EXACT = 1e-9
_FAR = 1e3  # how much longer two of the lone tokens are, on which scores do not depend


@dataclass(frozen=True, eq=False, slots=True)
class Examination:
    """What fresh queries showed.

    Args:
        fresh: agreement.
        worst: the shortest sequence that breaks the tolerance, else the one with the largest relative gap.
        passed: whether every answer was within the tolerance.
        hidden: whether rounding of the answers hides the token values, so that agreement or failure says nothing.
        complete: whether the budget allowed all of them.
    """

    fresh: Fresh
    worst: Counterexample | None
    passed: bool
    hidden: bool
    complete: bool


def score_parts(model: Model, X: Sequences) -> tuple[float, float]:
    """Root mean squares of the quadratic and of the linear part of score differences, from s = 1 and s = 2."""
    one, two = (s[..., :-1] - s[..., -1:] for s in (model.logits(X), model.logits(2 * X)))
    quadratic, linear = rms((two - 2 * one) / 2), rms((4 * one - two) / 2)
    return quadratic, linear if linear > 1e-12 * quadratic else 0.0


def token_scales(model: Model, *, rng: np.random.Generator) -> tuple[float, ...]:
    """Token lengths at which the model's score differences have the sizes of LOGITS, then 1.

    Scores at token scale s are $s^2 a + s b$, and $s^4 A + s^2 B = t^2$ for the mean squares A, B gives s
    without iteration.
    """
    X = rng.normal(size=(8, LENGTHS[-1], model.width)) / np.sqrt(model.width)
    a, b = score_parts(model, X)
    if max(a, b) == 0.0:
        return (0.01, 1.0, 100.0, 1.0)
    # s^2 = 2 t^2 / (b^2 + sqrt(b^4 + 4 a^2 t^2)), written so that no square over- or underflows
    lengths = [float(np.sqrt(2.0) * t / np.hypot(b, np.sqrt(np.hypot(b * b, 2 * a * t)))) for t in LOGITS]
    return (*lengths, 1.0)


def fresh_sequences(model: Model, *, rng: np.random.Generator, reach: float = 1.0) -> Iterator[Sequences]:
    """Batches of Gaussian tokens of lengths 1 to 32, each at every scale of `token_scales`.

    Where a constant would hide the token values and no score bias acts, tokens before the last are made longer
    and the last one shorter by the same factor, which leaves the scores as they are. Where a score bias acts,
    tokens of even lengths are orthogonal to it, so that a large one does not hide W. Two of the lone tokens are `reach`
    times longer: what bends only far away is no head.
    """
    scales = np.array(token_scales(model, rng=rng))[:, None, None]
    without, across = _unbiased(model)
    across_scales = np.array(token_scales(without, rng=rng))[:, None, None]
    longer = _lengthening(model, scales, rng)
    far = np.array([1.0, reach, 1.0, -reach])[:, None, None]
    for length in LENGTHS:
        X = rng.normal(size=(len(scales), length, model.width)) / np.sqrt(model.width)
        X = scales * X if length % 2 else across_scales * (X - X @ across @ across.T)
        X[:, :-1] *= longer
        X[:, -1:] *= longer if length == 1 else 1.0 / longer
        yield X * far if length == 1 else X


def inside(batches: Iterable[Stack], bound: float | None) -> Iterator[Stack]:
    """The same sequences, shortened where a token would be longer than the bound."""
    for X in batches:
        longest = np.sqrt((X**2).sum(axis=2).max(axis=1))
        yield X if bound is None else X * np.minimum(1.0, bound / np.maximum(longest, 1e-300))[:, None, None]


def _unbiased(model: Model) -> tuple[Model, Matrix]:
    """The model without its score bias, and that bias as a unit column (none where there is no bias)."""
    head = model.head if isinstance(model, OneLayer) else model
    if not isinstance(head, Head) or head.h is None or head.width == 1 or not head.h.any():
        return model, np.zeros((model.width, 0))
    without = replace(head, h=None)
    return replace(model, head=without) if isinstance(model, OneLayer) else without, (
        head.h[:, None] / np.linalg.norm(head.h)
    )


def _lengthening(model: Model, scales: Array, rng: np.random.Generator) -> Array:
    X = rng.normal(size=(len(scales), LENGTHS[-1], model.width)) / np.sqrt(model.width)
    values, constant = model.magnitude(scales * X), np.abs(model(np.zeros((1, 1, model.width)))).max()
    if score_parts(model, X)[1] > 0.0:
        return np.ones_like(scales)
    longer = np.maximum(1.0, 2.0**6 * constant / np.where(values > 0, values, np.inf))
    longer[-1] = 1.0  # the sequence of unit tokens stays as it is
    return longer[:, None, None]


@dataclass(frozen=True, eq=False, slots=True)
class _Row:
    """One fresh answer: the case, its gap beyond what is allowed, the largest token value, the size of the answer."""

    case: Counterexample
    gap: float
    value: float
    size: float


def examine(
    oracle: Oracle,
    model: Model,
    *,
    tolerance: float = EXACT,
    roundoff: float,
    rng: np.random.Generator,
    batches: Iterable[Sequences] | None = None,
    allowance: Callable[[Sequences], PerSequence] | None = None,
) -> Examination:
    """Ask fresh sequences, or the given ones, and compare: |f - model| <= tolerance * max_i |x_i V| + allowance."""
    rows: list[_Row] = []
    complete = True
    reach = _FAR if roundoff <= EPS and isinstance(model, Head | MultiHead) else 1.0
    for X in fresh_sequences(model, rng=rng, reach=reach) if batches is None else batches:
        try:
            answers = oracle.ask(X.copy())
        except BudgetSpent as spent:
            complete, answers = False, spent.answers
        rows += _compare(model, X, answers, allowance) if answers is not None else []
        if not complete:
            break
    return _summary(rows, tolerance, roundoff, complete)


def _compare(
    model: Model, asked: Stack, answers: Matrix, allowance: Callable[[Sequences], PerSequence] | None
) -> list[_Row]:
    X = asked[: len(answers)]
    predicted = model(X)
    gap = np.abs(answers - predicted).max(axis=1)
    if allowance is not None:
        gap = np.maximum(gap - allowance(X), 0.0)
    size = np.maximum(np.abs(answers), np.abs(predicted)).max(axis=1)
    columns = (X, answers, predicted, gap, model.magnitude(X), size)
    return [
        _Row(Counterexample(x, a, p), float(g), float(v), float(s)) for x, a, p, g, v, s in zip(*columns, strict=True)
    ]


def _summary(rows: list[_Row], tolerance: float, roundoff: float, complete: bool) -> Examination:
    """Judge all rows; one whose rounding is coarser than the tolerance says nothing unless it is beyond rounding."""
    largest = max((row.size for row in rows), default=0.0)

    def relative(row: _Row) -> float:
        return row.gap / (row.value or largest) if row.gap > 0 else 0.0

    silent = [
        row
        for row in rows
        if 2 * roundoff * row.size > tolerance * row.value > 0 and row.gap <= 32 * roundoff * row.size
    ]
    shown = [row for row in rows if row not in silent]
    failed = [row for row in shown if not relative(row) <= tolerance]
    if failed:
        worst = min(failed, key=lambda row: (len(row.case.tokens), -relative(row))).case
    else:
        worst = max(shown, key=relative).case if shown else None
    fresh = Fresh(len(rows), max((r.case.gap for r in shown), default=0.0), max(map(relative, shown), default=0.0))
    return Examination(fresh, worst, not failed, len(silent) > len(rows) / 2, complete)


NO_ROOM = "A sequence disagrees, but the budget left no room to ask it again."


def asked_again(
    oracle: Counted, probe: tuple[Stack, Matrix] | None, case: Counterexample | None, roundoff: float
) -> float | None:
    """How far answers differ when doubtful sequences are asked again; None where the budget does not allow it."""
    cases = [] if probe is None else [probe]
    cases += [] if case is None else [(case.tokens[None], case.answer[None])]
    try:
        with oracle.phase("verify"):
            return answers_differ(oracle, cases, roundoff)
    except BudgetSpent:
        return None


def answers_differ(oracle: Counted, cases: list[tuple[Stack, Matrix]], roundoff: float) -> float:
    """Ask sequences again, twice, and return the largest difference beyond rounding (0 when there is none).

    An answer that cancels to almost nothing still carries the rounding of its tokens: what counts is its size
    or, where larger, that of its tokens times the largest answer per unit of token seen.
    """
    lengths = [float(np.abs(X).max()) for X, _ in cases]
    sizes = [float(np.abs(answers).max()) for _, answers in cases]
    slope = max((size / length for size, length in zip(sizes, lengths, strict=True) if length > 0), default=0.0)
    worst = 0.0
    for (X, answers), size, length in zip(cases, sizes, lengths, strict=True):
        gap = max(float(np.abs(oracle.ask(X.copy()) - answers).max()) for _ in range(2))
        if gap > max(1e-11, 64 * roundoff) * max(size, slope * length):
            worst = max(worst, gap)
    return worst
