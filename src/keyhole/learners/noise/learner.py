r"""A head from answers with errors: noise, a tolerance, rounding to decimals, tokens inside a ball.

With tokens of norm at most R and errors of standard deviation s, $d^2$ queries of the v-tilted
simplex give every entry of W with a standard error of $12\sqrt3\,s/(R^3|v|)$ while scores are
small: for $W = 4G/\sqrt d$ that is $3\sqrt3\sqrt d\,s/(R^3|v|)$ of its norm. Where tokens may be of
any length, absolute errors vanish beside long ones. Error bars come from fitting again with errors
drawn anew, read-out included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, pin_one_thread
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status, bound_queries
from keyhole.learners.noise.noisy_readout import count_reads
from keyhole.learners.noise.noisy_session import NoisySession, conclude_noisy, describe_accuracy
from keyhole.learners.noise.weighted_fit import replicate_fits
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.verifying.ending import (
    DECLARED_ERRORS,
    NO_READOUT,
    NO_ROOM,
    SPENT,
    Doubt,
    Ending,
    describe_case,
    resolve_doubt,
    settle,
    withdraw,
)
from keyhole.learners.verifying.examination import EXACT, Asked, Examination, list_examined
from keyhole.learners.verifying.informative_scales import turn_from_bias
from keyhole.learners.verifying.questions import QUERIES, Batch, draw_questions, read_limits
from keyhole.models import Head
from keyhole.oracles import Counted, Oracle, read_imperfection

_FEW = 6  # tokens, of which none may show beside errors
_SIGMAS = 6.0  # standard deviations that a fresh answer may be off
_AGAIN = 8  # times a doubtful question is asked again
_VAGUE = "Errors of the answers hide what the model says: many other heads would agree as well."
# Queries beside those for V: the constant, whether a bias or a residual acts, the scale.
_READING = 60


@dataclass(frozen=True, slots=True)
class UnderNoise:
    """Recovers a head from answers whose errors are declared, every entry with its error.

    Args:
        rank: the rank of W where it is known; found by the noise edge otherwise.
        repeats: how often every question is asked; only random noise averages out.
    """

    rank: int | None = None
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InvalidInput(
                f"every question is asked a whole number >= 1 of times; got {self.repeats}."
            )
        if self.rank is not None and self.rank < 0:
            raise InvalidInput(f"a rank is a whole number >= 0; got {self.rank}.")

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Queries: 2d or 4d and 60 to read out, d^2 for W or d(r + 4) + r(d - r - 4) + rd."""
        r = width if self.rank is None else min(self.rank, width)
        k = min(r + 4, width)
        low = width * k + r * (width - k) + r * width
        measure = self.repeats * min(width * width, low)
        by_phase = {
            "read": count_reads(width) * width * self.repeats + _READING,
            "measure": measure,
            "verify": QUERIES,
        }
        freedom = head_freedom(width, outputs=outputs, rank=r)
        return Plan(
            by_phase=by_phase,
            at_most=3 * bound_queries(by_phase),
            degrees_of_freedom=freedom,
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head within what the errors explain; certificate keyhole/tilted-simplex."""
        if self.rank is not None and self.rank > oracle.width:
            raise InvalidInput(f"the rank is at most the width {oracle.width}; got {self.rank}.")
        measuring, drawing, checking = rng.spawn(3)
        stated = read_imperfection(oracle)
        session = NoisySession(self.rank, self.repeats, Counted(oracle), stated, measuring)
        try:
            session.measure()
        except BudgetSpent:
            return conclude_noisy(session, SPENT)
        except Saturated:
            return conclude_noisy(session, Ending(status=Status.SATURATED))
        return _judge(session, drawing, checking)


@dataclass(frozen=True, eq=False, slots=True)
class _NoisyRow:
    """A fresh answer, its kind, the token values it mixes, and the deviation errors explain."""

    case: Counterexample
    kind: str
    value: float
    deviation: float

    @property
    def asked(self) -> Asked:
        """What is told of it."""
        relative = self.case.gap / self.value if self.value > 0 else 0.0
        return Asked(self.kind, len(self.case.tokens), self.case.gap, relative)


def _judge(
    session: NoisySession, drawing: np.random.Generator, checking: np.random.Generator
) -> Recovery[Head]:
    head = session.head
    if head is None:
        return conclude_noisy(session, NO_READOUT)
    asked: list[tuple[Batch, Array]] = []
    complete = True
    with session.oracle.phase("verify"):
        for batch in _draw_bounded_questions(session, head, checking):
            try:
                asked.append((batch, session.oracle.ask(batch.X.copy())))
            except BudgetSpent:
                complete = False
                break
    bars, rows = _compare_fresh_answers(session, head, asked, drawing)
    failed = [row for row in rows if row.case.gap > _bound_allowed_gap(session, row)]
    worst = min(failed, key=lambda row: len(row.case.tokens), default=None)
    # To ask a doubtful question again there is no budget left.
    if not complete:
        worst = None
    ending = settle(
        session.oracle,
        Examination(
            fresh=_summarise_fresh(rows),
            worst=worst and worst.case,
            passed=worst is None,
            complete=complete,
            examined=list_examined([row.asked for row in rows]),
        ),
        lines=DECLARED_ERRORS,
        refuse=lambda: (
            Ending(status=Status.DISAGREES) if worst is None else _refuse(session, worst)
        ),
        blind=not head.V.any(),
        reservation=_find_reservation(session, rows),
        words=describe_accuracy(session, head, bars),
    )
    if ending.status is Status.DISAGREES and not session.full:
        return _measure_all_biases(
            session, conclude_noisy(session, ending, bars), drawing, checking
        )
    return conclude_noisy(session, ending, bars)


def _find_reservation(session: NoisySession, rows: list[_NoisyRow]) -> Ending | None:
    """Why agreement is worth nothing: errors hide most answers, or exact ones are not met."""
    # Generic tokens tell, some of many at least; zeros and the like are hidden by any error.
    plain = [row for row in rows if row.kind == "gauss" and len(row.case.tokens) > _FEW]
    if 2 * sum(_SIGMAS * row.deviation > row.value for row in plain) > len(plain):
        return Ending(status=Status.IMPRECISE, detail=_VAGUE)
    if session.stated.perfect and _summarise_fresh(rows).relative > EXACT:
        return Ending(status=Status.IMPRECISE)
    return None


def _draw_bounded_questions(
    session: NoisySession, head: Head, rng: np.random.Generator
) -> Iterator[Batch]:
    """Fresh questions inside the bound; where there is none, half so long that nothing is hidden.

    Tokens before the last are made longer and the last one shorter by the same factor, which keeps
    scores where no bias acts. Errors would hide a class nearly right beside tokens of order one.
    """
    reach = 0.0 if session.reading is None else session.reading.reach
    for batch in draw_questions(head, read_limits(session.oracle), rng=rng):
        if session.stated.token_bound is None and batch.length > 1:
            # All but the first and the last, which are the same question.
            chosen = range(1, len(batch.X) - 1, 2)
            for i in chosen:
                batch.X[i] = _lengthen_question(head, batch.X[i], reach)
        yield batch


def _lengthen_question(head: Head, X: Matrix, reach: float) -> Matrix:
    longer = max(1.0, reach / max(float(np.linalg.norm(X, axis=1).max()), 1e-300))
    earlier = turn_from_bias(head, X[:-1]) if longer > 1.0 else X[:-1]
    return np.vstack([earlier * longer, X[-1:] / longer])


def _measure_all_biases(
    session: NoisySession,
    doubt: Recovery[Head],
    drawing: np.random.Generator,
    checking: np.random.Generator,
) -> Recovery[Head]:
    """Measure again with all biases, also those that errors explained, before refusing a head."""
    fuller = NoisySession(
        session.rank, session.repeats, session.oracle, session.stated, session.rng, full=True
    )
    try:
        fuller.measure()
    except BudgetSpent:
        return withdraw(doubt, Status.UNCHECKED, NO_ROOM)
    except Saturated:
        return conclude_noisy(fuller, Ending(status=Status.SATURATED))
    return _judge(fuller, drawing, checking)


def _compare_fresh_answers(
    session: NoisySession, head: Head, asked: list[tuple[Batch, Array]], rng: np.random.Generator
) -> tuple[dict[str, Array], list[_NoisyRow]]:
    """Error bars, and every fresh answer beside the model's."""
    if session.reading is None:
        return {}, []
    with pin_one_thread():
        bars, spread = replicate_fits(
            session.fit, session.reading, head, [batch.X for batch, _ in asked], rng
        )
    rows: list[_NoisyRow] = []
    for (batch, answers), off in zip(asked, spread, strict=True):
        X = batch.X
        predicted = head(X)
        values = head.magnitude(X)
        noise = session.errors.deviation(8.0 * np.maximum(values, np.abs(answers).max(axis=1)))
        for i, x in enumerate(X):
            case = Counterexample(x, answers[i], predicted[i])
            deviation = float(np.hypot(noise[i], off[i]))
            rows.append(_NoisyRow(case, batch.kinds[i], float(values[i]), deviation))
    return bars, rows


def _bound_allowed_gap(session: NoisySession, row: _NoisyRow) -> float:
    exact = EXACT * row.value if session.stated.perfect else 0.0
    return session.errors.tolerance + max(_SIGMAS * row.deviation, exact)


def _summarise_fresh(rows: list[_NoisyRow]) -> Fresh:
    largest = max((np.abs(row.case.answer).max() for row in rows), default=0.0)
    relative = max((row.case.gap / (row.value or largest or 1.0) for row in rows), default=0.0)
    return Fresh(len(rows), max((row.case.gap for row in rows), default=0.0), float(relative))


def _refuse(session: NoisySession, row: _NoisyRow) -> Ending:
    """Refuse, unless the target scatters more than was declared."""
    X = np.repeat(row.case.tokens[None], _AGAIN, axis=0)
    try:
        with session.oracle.phase("verify"):
            answers = session.oracle.ask(X)
    except BudgetSpent:
        return Ending(status=Status.UNCHECKED, detail=NO_ROOM)
    case = Counterexample(row.case.tokens, answers.mean(axis=0), row.case.predicted)
    doubt = Doubt(Status.DISAGREES, case, describe_case(case, "such a head"))
    # What is fitted need not be near the target where errors hide the shares.
    if session.lost:
        doubt = Doubt(Status.IMPRECISE, detail=_VAGUE)
    elif case.gap <= _bound_allowed_gap(session, row) and session.full:
        detail = "One fresh answer was far off, and was not when asked again."
        doubt = Doubt(Status.INCONSISTENT, detail=detail)
    return resolve_doubt(session.oracle, doubt, repeat=lambda: _describe_excess(session, answers))


def _describe_excess(session: NoisySession, answers: Array) -> str:
    """By how much repeated answers scatter beyond what was declared; nothing where they do not."""
    scatter = float(answers.std(axis=0, ddof=1).max())
    rounding = 1e-11 * float(np.abs(answers).max())
    if scatter <= 3.0 * session.errors.noise + 2.0 * session.errors.tolerance + rounding:
        return ""
    return f"Answers to one sequence scatter by {scatter:.1e}, which is more than was declared."
