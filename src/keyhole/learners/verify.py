"""Fresh queries: what a model's word is worth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Sequences, rms
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Fresh
from keyhole.models import Model
from keyhole.oracles import Counted, Oracle

LENGTHS = range(1, 33)
LOGITS = (0.3, 1.0, 3.0)  # root-mean-square score differences; a fourth sequence has unit tokens
QUERIES = len(LENGTHS) * (len(LOGITS) + 1)
EXACT = 1e-9


@dataclass(frozen=True, eq=False, slots=True)
class Examination:
    """What fresh queries showed.

    Args:
        fresh: agreement.
        worst: the shortest sequence that breaks the tolerance, else the one with the largest relative gap.
        passed: whether every answer was within the tolerance.
        hidden: whether every failure is explained by the rounding of the answers alone.
        complete: whether the budget allowed all of them.
    """

    fresh: Fresh
    worst: Counterexample | None
    passed: bool
    hidden: bool
    complete: bool


def token_scales(model: Model, *, rng: np.random.Generator) -> tuple[float, ...]:
    """Token lengths at which the model's score differences have the sizes of LOGITS, then 1.

    Scores at token scale s are $s^2 a + s b$; from s = 1 and s = 2 both parts follow, and
    $s^4 A + s^2 B = t^2$ for the mean squares A, B gives s without iteration.
    """
    X = rng.normal(size=(8, LENGTHS[-1], model.width)) / np.sqrt(model.width)
    one, two = (s[..., :-1] - s[..., -1:] for s in (model.logits(X), model.logits(2 * X)))
    a, b = rms((two - 2 * one) / 2), rms((4 * one - two) / 2)
    if max(a, b) == 0.0:
        return (1.0,) * (len(LOGITS) + 1)
    # s^2 = 2 t^2 / (b^2 + sqrt(b^4 + 4 a^2 t^2)), written so that no square over- or underflows
    lengths = [float(np.sqrt(2.0) * t / np.hypot(b, np.sqrt(np.hypot(b * b, 2 * a * t)))) for t in LOGITS]
    return (*lengths, 1.0)


def fresh_sequences(model: Model, *, rng: np.random.Generator) -> Iterator[Sequences]:
    """Batches of Gaussian tokens of lengths 1 to 32, each at every scale of `token_scales`."""
    scales = np.array(token_scales(model, rng=rng))
    for length in LENGTHS:
        yield scales[:, None, None] * rng.normal(size=(len(scales), length, model.width)) / np.sqrt(model.width)


def examine(
    oracle: Oracle, model: Model, *, tolerance: float = EXACT, roundoff: float, rng: np.random.Generator
) -> Examination:
    """Ask fresh sequences and compare: |f - model| <= tolerance * max_i |x_i V|."""
    gaps: list[tuple[float, float, bool, Counterexample]] = []
    complete = True
    for X in fresh_sequences(model, rng=rng):
        try:
            answers = oracle.ask(X)
        except BudgetSpent as spent:
            complete, X = False, X[: spent.answered]
            answers = spent.answers if spent.answers is not None else np.zeros((0, model.outputs))
        gaps += _compare(model, X, answers, roundoff) if len(X) else []
        if not complete:
            break
    return _summary(gaps, tolerance, complete)


def _compare(
    model: Model, X: Sequences, answers: Sequences, roundoff: float
) -> list[tuple[float, float, bool, Counterexample]]:
    predicted = model(X)
    gap = np.abs(answers - predicted).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(gap == 0, 0.0, gap / model.magnitude(X))
    rounding = gap <= 32 * roundoff * np.maximum(np.abs(answers), np.abs(predicted)).max(axis=1)
    return [
        (float(g), float(r), bool(e), Counterexample(x, a, p))
        for g, r, e, x, a, p in zip(gap, relative, rounding, X, answers, predicted, strict=True)
    ]


def _summary(gaps: list[tuple[float, float, bool, Counterexample]], tolerance: float, complete: bool) -> Examination:
    failed = [row for row in gaps if not row[1] <= tolerance]
    if failed:
        worst = min(failed, key=lambda row: (len(row[3].tokens), -row[1]))[3]
    else:
        worst = max(gaps, key=lambda row: row[1])[3] if gaps else None
    fresh = Fresh(len(gaps), max((row[0] for row in gaps), default=0.0), max((row[1] for row in gaps), default=0.0))
    return Examination(fresh, worst, not failed, bool(failed) and all(row[2] for row in failed), complete)


def answers_differ(oracle: Counted, cases: list[tuple[Sequences, np.ndarray]], roundoff: float) -> float:
    """Ask sequences again, twice, and return the largest difference beyond rounding (0 when there is none)."""
    worst = 0.0
    for X, answers in cases:
        for _ in range(2):
            again = oracle.ask(X)
            gap = float(np.abs(again - answers).max())
            allowed = max(1e-11, 64 * roundoff) * max(float(np.abs(answers).max()), float(np.abs(again).max()))
            worst = max(worst, gap if gap > allowed else 0.0)
    return worst
