"""Fresh questions to a network: asked as far as a budget goes, and compared radius by radius."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Sequences
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Fresh
from keyhole.learners.networks.kinks import Ask
from keyhole.learners.verifying.examination import Examination
from keyhole.models import AbsAffine, ReluNet
from keyhole.oracles import Counted

Row = tuple[float, Counterexample]


def ask_fresh_cases(
    oracle: Counted, model: AbsAffine | ReluNet, X: Sequences
) -> tuple[list[Counterexample], bool]:
    """Answers beside what the model says; fewer of them, and False, where the budget ends."""
    complete = True
    try:
        answers = oracle.ask(X.copy())
    except BudgetSpent as spent:
        complete = False
        answers = np.zeros((0, model.outputs)) if spent.answers is None else spent.answers
    predicted = model(X[: len(answers)])
    cases = [Counterexample(*case) for case in zip(X, answers, predicted, strict=False)]
    return cases, complete


def compare_fresh_cases(
    cases: list[Counterexample], tolerance: float, roundoff: float
) -> tuple[list[Row], bool]:
    """Errors at one radius beside how much answers vary, and whether rounding hides all of it."""
    answers = np.array([case.answer for case in cases])
    size = float(np.abs(answers).max())
    spread = float(np.abs(answers - answers.mean(axis=0)).max())
    grain = 64 * roundoff * size
    # Answers that do not vary at all are measured by the largest error itself.
    yard = max(spread, grain / tolerance) or max(case.gap for case in cases)
    rows = [(case.gap / yard if case.gap > 0 else 0.0, case) for case in cases]
    return rows, grain * 1e-4 > tolerance * spread > 0


def summarise_fresh_rows(
    rows: list[Row], tolerance: float, *, hidden: bool, complete: bool
) -> Examination:
    """What all radii say together; of the cases that are off the shortest is shown."""
    worst = max(
        rows, key=lambda row: (row[0] > tolerance, -len(row[1].tokens), row[0]), default=None
    )
    gap = max((case.gap for _, case in rows), default=0.0)
    fresh = Fresh(len(rows), gap, max((share for share, _ in rows), default=0.0))
    return Examination(fresh, worst and worst[1], fresh.relative <= tolerance, hidden, complete)


def fit_tangent(ask: Ask, width: int, *, rng: np.random.Generator) -> AbsAffine:
    """The affine map through d + 1 points, as the model to refute where no other was found."""
    x = np.concatenate([np.zeros((1, width)), rng.normal(size=(width, width))])
    values = ask(x.copy())
    P: Matrix = (np.linalg.inv(x[1:]) @ (values[1:] - values[0])).T
    outputs = values.shape[1]
    flat = np.zeros((0, width)), np.zeros(0), np.zeros((0, outputs))
    return AbsAffine(*flat, P, values[0])


def allow_line_queries(width: int, *, hidden: int, outputs: int) -> float:
    """Queries that one line with its Jacobians may take, a quarter more than expected."""
    # With three outputs or more one Jacobian serves a block of kinks.
    if outputs < 3:
        return 1.25 * (hidden * width) + 7 * hidden + 200
    jacobians = (-(-hidden // max(1, int(0.85 * outputs))) + 3) * width
    return 1.25 * jacobians + 3 * hidden + 200
