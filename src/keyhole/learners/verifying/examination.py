"""Fresh queries: what a model's word is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Matrix, PerSequence, Sequences, Stack
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Fresh
from keyhole.learners.verifying.questions import draw_fresh_sequences
from keyhole.models import Head, Model, MultiHead
from keyhole.oracles import Counted, Oracle

EXACT = 1e-9
# How much longer two of the lone tokens are, whose answers do not depend on scores.
_FAR = 1e3


@dataclass(frozen=True, eq=False, slots=True)
class Examination:
    """What fresh queries showed.

    Args:
        fresh: agreement.
        worst: the shortest sequence that breaks the tolerance, else the one with the largest
            relative gap.
        passed: whether every answer was within the tolerance.
        hidden: whether rounding of the answers hides the token values, so that agreement or failure
            says nothing.
        complete: whether the budget allowed all of them.
    """

    fresh: Fresh
    worst: Counterexample | None
    passed: bool
    hidden: bool
    complete: bool


@dataclass(frozen=True, eq=False, slots=True)
class _ExaminedRow:
    """One fresh answer: its gap beyond what is allowed, the largest token value, its size."""

    case: Counterexample
    gap: float
    value: float
    size: float


def examine_model(
    oracle: Oracle,
    model: Model,
    *,
    tolerance: float = EXACT,
    roundoff: float,
    rng: np.random.Generator,
    batches: Iterable[Sequences] | None = None,
    allowance: Callable[[Sequences], PerSequence] | None = None,
) -> Examination:
    r"""Ask fresh sequences, or the given ones, and compare.

    $$|f(X) - \hat f(X)| \le \text{tolerance} \cdot \max_i |x_i V| + \text{allowance}(X)$$
    """
    rows: list[_ExaminedRow] = []
    complete = True
    # Heads alone are affine in a lone token, however long; a network is not known so far out.
    reach = _FAR if roundoff <= EPS and isinstance(model, Head | MultiHead) else 1.0
    for X in draw_fresh_sequences(model, rng=rng, reach=reach) if batches is None else batches:
        try:
            answers = oracle.ask(X.copy())
        except BudgetSpent as spent:
            complete = False
            answers = spent.answers
        if answers is not None:
            rows += _compare_predictions(model, X, answers, allowance)
        if not complete:
            break
    return _summarise_rows(rows, tolerance, roundoff, complete)


def _compare_predictions(
    model: Model,
    asked: Stack,
    answers: Matrix,
    allowance: Callable[[Sequences], PerSequence] | None,
) -> list[_ExaminedRow]:
    X = asked[: len(answers)]
    predicted = model(X)
    gap = np.abs(answers - predicted).max(axis=1)
    if allowance is not None:
        gap = np.maximum(gap - allowance(X), 0.0)
    size = np.maximum(np.abs(answers), np.abs(predicted)).max(axis=1)
    columns = (X, answers, predicted, gap, model.magnitude(X), size)
    return [
        _ExaminedRow(Counterexample(x, a, p), float(g), float(v), float(s))
        for x, a, p, g, v, s in zip(*columns, strict=True)
    ]


def _summarise_rows(
    rows: list[_ExaminedRow], tolerance: float, roundoff: float, complete: bool
) -> Examination:
    """Judge all rows; where rounding is coarser than the tolerance, only more than it tells."""
    largest = max((row.size for row in rows), default=0.0)

    def relative(row: _ExaminedRow) -> float:
        return row.gap / (row.value or largest) if row.gap > 0 else 0.0

    silent = [
        row
        for row in rows
        if 2 * roundoff * row.size > tolerance * row.value > 0
        and row.gap <= 32 * roundoff * row.size
    ]
    shown = [row for row in rows if row not in silent]
    failed = [row for row in shown if not relative(row) <= tolerance]
    # The shortest failure is the easiest to replay and to understand.
    if failed:
        worst = min(failed, key=lambda row: (len(row.case.tokens), -relative(row))).case
    else:
        worst = max(shown, key=relative).case if shown else None
    fresh = Fresh(
        len(rows),
        max((r.case.gap for r in shown), default=0.0),
        max(map(relative, shown), default=0.0),
    )
    return Examination(fresh, worst, not failed, len(silent) > len(rows) / 2, complete)


def measure_scatter(oracle: Counted, cases: list[tuple[Stack, Matrix]], roundoff: float) -> float:
    """Ask sequences again, twice: the largest difference beyond rounding, 0 when there is none.

    An answer that cancels to almost nothing still carries the rounding of its tokens: what counts
    is its size or, where larger, that of its tokens times the largest answer per unit of token
    seen.
    """
    lengths = [float(np.abs(X).max()) for X, _ in cases]
    sizes = [float(np.abs(answers).max()) for _, answers in cases]
    slope = max(
        (size / length for size, length in zip(sizes, lengths, strict=True) if length > 0),
        default=0.0,
    )
    worst = 0.0
    for (X, answers), size, length in zip(cases, sizes, lengths, strict=True):
        gap = max(float(np.abs(oracle.ask(X.copy()) - answers).max()) for _ in range(2))
        if gap > max(1e-11, 64 * roundoff) * max(size, slope * length):
            worst = max(worst, gap)
    return worst


def hint_at_rounding(answers: list[Matrix]) -> str:
    """A hint where answers to arbitrary questions are all float32 numbers, which is no accident."""
    numbers = np.concatenate([a.ravel() for a in answers]) if answers else np.zeros(0)
    # Whole numbers are float32 numbers whatever arithmetic made them.
    plain = numbers[np.abs(numbers) % 1.0 != 0.0]
    if not len(plain) or (plain != plain.astype(np.float32)).any():
        return ""
    return "Its answers are float32 numbers: if its arithmetic is, declare that with --answers f32."
