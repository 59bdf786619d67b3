r"""Fresh queries: what a model's word is worth.

A gap is explained where $|f(X) - \hat f(X)| \le \max(10^{-9}\,\mathrm{size}(X), 16 E(X))$, and by
the last digits of the largest entries where it is at most $16 D(X)$; see `models.yardsticks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, PerSequence, Sequences, Stack
from keyhole.errors import BadAnswer, BudgetSpent, TargetFailed
from keyhole.learners.base import Counterexample, Examined, Fresh, KindSeen
from keyhole.learners.verifying.examined_kinds import Asked, list_examined
from keyhole.learners.verifying.question_kinds import AGAIN
from keyhole.learners.verifying.questions import (
    Batch,
    Limits,
    draw_questions,
    read_limits,
)
from keyhole.learners.verifying.vacuity import (
    HeldAnswer,
    is_vacuous,
    measure_gaps_beside_variation,
)
from keyhole.models import Model, read_longest
from keyhole.oracles import Counted, Oracle

EXACT = 1e-9
ROUNDINGS = 16.0  # of what reordering of sums does to an answer
_REFUSED = (BadAnswer, TargetFailed)
# Kinds whose tokens are long, which a target may not bear.
_LONG_TOKENS = ("levels", "far", "lone", "mixed")
_HALVINGS = 3
# Of the tolerance, beside answers of typical size: a constant is read from such answers.
_CONSTANT_FLOOR = 0.5
_FLOOR = 1e-3
_DEAD = 1e-12  # of a large answer, not of the largest, below which one is rounding
_VEILED = 0.1  # of the token values, which rounding may not reach


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
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
        changed: by how much a question asked twice was answered differently, 0 where it was not.
        unresolved: whether only the last digits of the largest entries explain some gap.
        vacuous: whether so many answers could have been anything, and been explained, that
            agreement says nothing.
        examined: what was asked, by kind.
    """

    fresh: Fresh
    worst: Counterexample | None
    passed: bool
    complete: bool
    hidden: bool = False
    changed: float = 0.0
    unresolved: bool = False
    vacuous: bool = False
    examined: Examined | None = None


@dataclass(frozen=True, eq=False, slots=True)
class _Row:
    """One fresh answer beside the model's.

    Args:
        case: question, answer and prediction.
        kind: of the question.
        gap: the largest over the outputs.
        relative: the gap in units of what a relative error of 1 would explain.
        failed: whether nothing explains the gap.
        unresolved: whether only the last digits of the largest entries explain it.
        explained: up to what a gap is explained; 0 where answers are coarse, which is declared.
        hidden: whether rounding is as large as the token values.
        changed: by how much the answer differs from that to the same question before.
        parts: what the parts of the model add up to before they cancel.
    """

    case: Counterexample
    kind: str
    gap: float
    relative: float
    failed: bool
    unresolved: bool
    explained: float
    hidden: bool
    changed: float
    parts: float

    @property
    def asked(self) -> Asked:
        """What is told of it."""
        return Asked(self.kind, len(self.case.tokens), self.gap, self.relative)

    @property
    def held(self) -> HeldAnswer:
        """What is held against how answers vary."""
        return HeldAnswer(self.gap, self.explained, self.kind, self.case.answer, self.parts)


@dataclass(frozen=True, eq=False, slots=True)
class Explained:
    """What explains gaps, per sequence: rounding, and the last digits of the largest entries."""

    rounding: PerSequence
    digits: PerSequence

    @property
    def most(self) -> PerSequence:
        """The larger of the two."""
        return np.maximum(self.rounding, self.digits)


@dataclass(frozen=True, eq=False, slots=True)
class Ruler:
    r"""What explains a gap.

    Exact answers: $\max(10^{-9}\,\mathrm{size}, 16 E)$, or $16 D$. Weights that were read
    from answers with a relative error $\tau$ are off by as much, and scores magnify it:
    $\tau\,(\mathrm{size} + E/e)$.

    Args:
        tolerance: relative error of answers and weights that is declared, or 1e-9.
        roundoff: of the target's arithmetic.
        allowance: largest absolute error of an answer, where there is one.
        left: what is left of answers of typical size where all tokens are zero, in tolerances.
        constant: whether a constant is allowed for though the model has none.
    """

    tolerance: float = EXACT
    roundoff: float = EPS
    allowance: Callable[[Sequences], PerSequence] | None = None
    left: float = 0.0
    constant: bool = False

    def fit_to(self, model: Model, answers: Sequence[Matrix]) -> Ruler:
        """The same, with what is left of such answers where all tokens are zero."""
        sizes = np.concatenate([np.zeros(1), *(np.abs(part).max(axis=1) for part in answers)])
        # A network that is dead on a cone answers zero or rounding there: no typical size.
        sizes = sizes[np.isfinite(sizes)]
        acting = sizes[sizes > _DEAD * np.quantile(sizes, 0.75)]
        if not len(acting):
            return self
        constant = self.constant or bool(model(np.zeros((1, 1, model.width))).any())
        share = _CONSTANT_FLOOR if constant else _FLOOR
        return replace(self, left=share * float(np.quantile(acting, 0.25)))

    def measure(self, model: Model, X: Stack) -> Explained:
        """What explains gaps at these questions."""
        # Weights that are off by the tolerance decide which token wins a hard softmax.
        coarse = self.roundoff > EPS
        by = model.yardstick(X, self.tolerance if coarse else EPS)
        rounding = self.tolerance * by.size + by.rounding
        if not coarse:
            rounding = np.maximum(self.tolerance * by.size, ROUNDINGS * by.rounding)
        digits = rounding if coarse else ROUNDINGS * by.coarse
        beside: PerSequence | float = self.tolerance * self.left
        if self.allowance is not None:
            beside = beside + self.allowance(X)
        return Explained(rounding + beside, digits + beside)


def examine_model(
    oracle: Oracle,
    model: Model,
    *,
    ruler: Ruler,
    rng: np.random.Generator,
    limits: Limits | None = None,
    further: Iterable[Batch] = (),
) -> Examination:
    """Ask the questions of the examination and further ones, and compare.

    Args:
        oracle: the target.
        model: what is examined.
        ruler: what explains a gap.
        rng: source of the questions.
        limits: what may be asked; what the oracle declares when absent.
        further: questions that a class of models is asked beside.
    """
    rows: list[_Row] = []
    complete = True
    allowed = _keep_to_model(model, read_limits(oracle) if limits is None else limits)
    batches = [*draw_questions(model, allowed, rng=rng), *further]
    fitted = ruler.fit_to(model, [model(batch.X) for batch in batches])
    for batch in batches:
        asked, answers, complete = ask_bearable(oracle, batch)
        rows += _compare_answers(model, asked, answers, fitted)
        if not complete:
            break
    return _summarise_rows(rows, complete and bool(rows))


def _keep_to_model(model: Model, limits: Limits) -> Limits:
    """The limits, and no sequence longer than the model answers."""
    longest = read_longest(model)
    if longest is None:
        return limits
    shortest, most = limits.lengths
    return replace(limits, lengths=(min(shortest, longest), min(most, longest)))


def ask_bearable(oracle: Oracle, batch: Batch) -> tuple[Batch, Matrix, bool]:
    """Ask a batch, or what of it the target bears: without long tokens, then ever shorter.

    Returns:
        What was asked, the answers as far as the budget went, and whether it held.

    Raises:
        BadAnswer: lone tokens or pairs of ordinary size have no finite answer.
        TargetFailed: the target does not answer these.
    """
    for smaller in _list_smaller(batch):
        try:
            return smaller, oracle.ask(smaller.X.copy()), True
        except BudgetSpent as spent:
            answers = spent.answers
            return smaller, batch.X[:0, 0] if answers is None else answers, False
        except _REFUSED:
            if smaller.length <= 2 and not smaller.has_kind(_LONG_TOKENS):
                raise
    return batch.keep([]), np.zeros((0, 1)), True


def _list_smaller(batch: Batch) -> list[Batch]:
    """The batch, the same without long tokens, and shorter ones of that."""
    tame = batch.keep([i for i, kind in enumerate(batch.kinds) if kind not in _LONG_TOKENS])
    shorter = [tame.shorten(-(-tame.length // 2**k)) for k in range(1, _HALVINGS + 1)]
    return [batch, tame, *(part for part in shorter if part.length > 2)]


def _compare_answers(model: Model, batch: Batch, answers: Matrix, ruler: Ruler) -> list[_Row]:
    X = batch.X[: len(answers)]
    if not len(X):
        return []
    predicted = model(X)
    gap = np.abs(answers - predicted).max(axis=1)
    explained = ruler.measure(model, X)
    values = model.magnitude(X)
    changed = np.abs(answers - answers[:1]).max(axis=1)
    again = np.array([kind == AGAIN for kind in batch.kinds[: len(X)]])
    # Of coarse answers all digits count; of exact ones rounding has to reach far up.
    grain = max(2.0 * ruler.roundoff, 4.0 * ROUNDINGS * EPS)
    least = max(ruler.tolerance, EXACT) * float(np.abs(answers).max())
    columns = {
        "gap": gap,
        "relative": compare_with_explained(gap, explained.most, answers, ruler.tolerance),
        "failed": ~(gap <= explained.most),
        "unresolved": gap > explained.rounding,
        "explained": _choose_explained(gap, explained) * (ruler.roundoff <= EPS),
        "hidden": (grain * np.abs(answers).max(axis=1) > _VEILED * values) & (values > 0),
        # A wrong model's rounding may be less than the target's own.
        "changed": np.where(again & (changed > np.maximum(explained.most, least)), changed, 0.0),
        "parts": values,
    }
    return [
        _Row(
            Counterexample(X[i], answers[i], predicted[i]),
            batch.kinds[i],
            **{name: column[i].item() for name, column in columns.items()},
        )
        for i in range(len(X))
    ]


def _choose_explained(gap: PerSequence, explained: Explained) -> PerSequence:
    """Of the two that explain gaps the one that is needed."""
    return np.where(gap <= explained.rounding, explained.rounding, explained.digits)


def compare_with_explained(
    gap: PerSequence, explained: PerSequence, answers: Matrix, tolerance: float
) -> PerSequence:
    """Gaps in units in which a model is off by at most the tolerance where all are explained."""
    unit = explained / tolerance
    # Where a model says that nothing acts, an answer is as far off as it is large.
    unit = np.where(unit > 0, unit, np.abs(answers).max(axis=1))
    return np.divide(gap, unit, out=np.zeros_like(gap), where=unit > 0)


def _summarise_rows(rows: list[_Row], complete: bool) -> Examination:
    """Everything together; of what failed the shortest is shown."""
    failed = [row for row in rows if row.failed]
    worst = _pick_worst(failed or rows, failed=bool(failed))
    held = [row.held for row in rows]
    fresh = Fresh(
        len(rows),
        max((row.gap for row in rows), default=0.0),
        max((row.relative for row in rows), default=0.0),
    )
    return Examination(
        fresh=fresh,
        worst=worst,
        passed=not failed,
        complete=complete,
        hidden=2 * sum(row.hidden for row in rows) > len(rows),
        changed=max((row.changed for row in rows), default=0.0),
        unresolved=any(row.unresolved and not row.failed for row in rows),
        vacuous=is_vacuous(held),
        examined=replace(
            list_examined([row.asked for row in rows]), beside=measure_gaps_beside_variation(held)
        ),
    )


def _pick_worst(rows: list[_Row], *, failed: bool) -> Counterexample | None:
    if not rows:
        return None
    # The shortest failure is the easiest to replay and to understand.
    if failed:
        return min(rows, key=lambda row: (len(row.case.tokens), -row.relative)).case
    return max(rows, key=lambda row: row.relative).case


def add_fresh_points(seen: Examination, points: Fresh, kind: str) -> Examination:
    """The examination with further fresh answers that were compared before it."""
    fresh = Fresh(
        seen.fresh.sequences + points.sequences,
        max(seen.fresh.max, points.max),
        max(seen.fresh.relative, points.relative),
    )
    examined = seen.examined
    if examined is not None:
        shown = KindSeen(
            name=kind, count=points.sequences, worst=points.max, relative=points.relative
        )
        examined = replace(
            examined,
            kinds=(shown, *examined.kinds),
            sequences=examined.sequences + points.sequences,
            independent=examined.independent + points.sequences,
        )
    return replace(seen, fresh=fresh, examined=examined)


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
        if gap > max(1e-10, 64 * roundoff) * max(size, slope * length):
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
