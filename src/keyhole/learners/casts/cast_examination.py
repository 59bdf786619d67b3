r"""Fresh queries for a head behind cast answers: every answer must be the model's own, cast.

All lie on the way from one random sequence to another whose answer has the other sign. Half of them
where the recovered model answers 0: there the cast resolves the smallest numbers. The others just
beside a number at which answers pass from one float to the next. A target that is off by more than
$10^{-11}$ of its token values shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Array, Format, Stack, Vector
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Examined, Fresh
from keyhole.learners.verifying.examination import Asked, list_examined
from keyhole.learners.verifying.informative_scales import choose_token_scales
from keyhole.learners.verifying.question_kinds import EVEN_SPREADS
from keyhole.models import Head
from keyhole.oracles import Counted

_GRID = np.linspace(0.0, 1.0, 65)[:, None, None]
_LONGEST = 32  # of fresh sequences
_ROUNDS = 9  # of narrowing an interval 64 times
_ROUNDINGS = 64.0  # of the largest term of a token value, which weights and sums may carry


@dataclass(frozen=True, eq=False, slots=True)
class Agreement:
    """What fresh queries showed.

    Args:
        fresh: agreement with the model's cast answers.
        equal: share of the answers, those near nulls left out, that are the model's bit for bit.
        worst: the shortest sequence that disagrees, else the one with the largest relative gap.
        passed: whether every answer was the cast of a number within the tolerance of the model's.
        complete: whether the budget allowed all of them.
        examined: what was asked, by kind.
    """

    fresh: Fresh
    equal: float
    worst: Counterexample | None
    passed: bool
    complete: bool
    examined: Examined


@dataclass(frozen=True, eq=False, slots=True)
class _CastRow:
    """One fresh answer.

    Args:
        case: question, answer and prediction.
        null: whether it is near a null.
        value: the largest token value.
        reach: the same before its terms cancel.
        spread: of its scores.
    """

    case: Counterexample
    null: bool
    value: float
    reach: float
    spread: float

    @property
    def relative(self) -> float:
        """The gap relative to the token values."""
        return self.case.gap / (self.value or 1.0)

    @property
    def asked(self) -> Asked:
        """What is told of it."""
        kind = "near a null" if self.null else "near a rounding boundary"
        return Asked(kind, len(self.case.tokens), self.case.gap, self.relative)

    def differs(self, exact: Vector, form: Format, tolerance: float) -> bool:
        """Whether the answer is the cast of no number within what errors of scores explain."""
        slack = tolerance * self.value * self.spread + _ROUNDINGS * EPS * self.reach
        low, high = (form.cast(end) for end in (exact - slack, exact + slack))
        return not bool(((low <= self.case.answer) & (self.case.answer <= high)).all())


def measure_spacing(numbers: Array, form: Format) -> Array:
    """The spacing of the format's numbers at `numbers`."""
    exponent = np.maximum(np.frexp(numbers)[1] - 1, form.least) - (form.digits - 1)
    return np.ldexp(1.0, exponent)


def fit_to_format(X: Stack, head: Head, form: Format) -> Stack:
    """Sequences whose token values are neither too large nor too small for the format.

    All tokens are shortened where a value would overflow. Where all would vanish, those before the
    last are made longer and the last one shorter by the same factor, which changes no score but its
    own.
    """
    values = head.magnitude(X)
    faint = (values < 2.0 ** (form.least + form.digits)) & (values > 0)
    more = np.where(faint, 2.0 ** -np.round(np.log2(np.where(faint, values, 1.0))), 1.0)
    more = more[:, None, None]
    last = X[:, -1:] * (1.0 / more if X.shape[1] > 1 else more)
    X = np.concatenate([X[:, :-1] * more, last], axis=1)
    values = head.magnitude(X)
    room = 2.0 ** (form.largest - 2)
    return X * np.minimum(1.0, room / np.maximum(values, room))[:, None, None]


def draw_random_sequences(
    head: Head, form: Format, lengths: list[int], *, kinds: int = 4, rng: np.random.Generator
) -> list[Stack]:
    """One sequence of each length, at the first `kinds` of the model's token scales in turn."""
    scales = choose_token_scales(head, rng=rng)[:kinds]
    drawn = [rng.normal(size=(1, n, head.width)) / np.sqrt(head.width) for n in lengths]
    return [fit_to_format(scales[i % len(scales)] * X, head, form) for i, X in enumerate(drawn)]


def find_crossings(
    head: Head,
    form: Format,
    lengths: list[int],
    *,
    null: bool,
    aside: float,
    rng: np.random.Generator,
) -> list[Stack]:
    """One sequence of each length, of scores of order one, answered with a chosen number.

    Args:
        head: the model.
        form: the format of answers.
        lengths: of the sequences.
        null: the number is 0; otherwise half-way between two floats, half as large as an answer.
        aside: by how much of the token values the answer is above or below it, at random.
        rng: source of randomness.
    """
    starts, ends = (
        draw_random_sequences(head, form, lengths, kinds=len(EVEN_SPREADS), rng=rng)
        for _ in range(2)
    )
    seen = np.flatnonzero(head.V.any(axis=0))
    found: list[Stack] = []
    for start, end in zip(starts, ends, strict=True):
        output = int(rng.choice(seen))
        answer = float(head(start)[0, output])
        level = 0.0
        if not null:
            level = _draw_rounding_boundary(answer, form, rng)
            level += aside * head.magnitude(start)[0] * rng.choice([-1, 1])
        found.append(_find_crossing(head, start, end, output, float(level)))
    return found


def _draw_rounding_boundary(answer: float, form: Format, rng: np.random.Generator) -> float:
    """A random number half-way between two floats, one binary order below `answer`."""
    steps = 2 ** (form.digits - 1)
    below = float(np.floor(steps * rng.random()))
    share = 1.0 + (below + 0.5) / steps
    # Rounded twice, an answer stays with an even number beyond the middle.
    if form.via is not None:
        share += form.via.roundoff if below % 2 == 0 else -form.via.roundoff
    return float(np.copysign(np.ldexp(share, int(np.frexp(answer)[1]) - 2), answer))


def _find_crossing(head: Head, start: Stack, end: Stack, output: int, level: float) -> Stack:
    """A point on the way to `end`, or its negative, where an output passes through `level`."""
    first = float(head(start)[0, output])
    # Negating all tokens negates the answer and keeps the scores.
    if first * head(end)[0, output] > 0:
        end = -end
    low, high = 0.0, 1.0
    for _ in range(_ROUNDS):
        shares = low + (high - low) * _GRID
        values = head((1 - shares) * start + shares * end)[:, output]
        same = max(1, int(((values - level) * (first - level) > 0).argmin()))
        low, high = float(shares[same - 1, 0, 0]), float(shares[same, 0, 0])
    return (1 - low) * start + low * end


def compare_cast_answers(
    oracle: Counted,
    head: Head,
    form: Format,
    *,
    count: int,
    tolerance: float,
    rng: np.random.Generator,
) -> Agreement:
    """Ask `count` fresh sequences, half of them near nulls, and compare with the model's, cast."""
    near = count // 2
    lengths = _spread_lengths(count - near, 1, rng)
    floats = find_crossings(head, form, lengths, null=False, aside=16 * tolerance, rng=rng)
    lengths = _spread_lengths(near, 2, rng)
    nulls = find_crossings(head, form, lengths, null=True, aside=0.0, rng=rng)
    cases = list(zip([*floats, *nulls], [False] * len(floats) + [True] * near, strict=True))
    rows: list[_CastRow] = []
    passed: list[bool] = []
    complete = True
    for X, null in cases:
        try:
            answer = oracle.ask(X.copy())
        except BudgetSpent:
            complete = False
            break
        exact = head(X)
        case = Counterexample(X[0], answer[0], form.cast(exact)[0])
        scores = head.logits(X)[0, 0]
        spread = max(1.0, float(scores.max() - scores.min()))
        value = float(head.magnitude(X)[0])
        reach = float((np.abs(X[0]) @ np.abs(head.V)).max())
        rows.append(_CastRow(case, null, value, reach, spread))
        passed.append(not rows[-1].differs(exact[0], form, tolerance))
    return _summarise_agreement(rows, passed, complete)


def _spread_lengths(count: int, least: int, rng: np.random.Generator) -> list[int]:
    """Lengths from `least` to the largest, evenly spread, in random order."""
    lengths = np.full(count, least + 1.0)
    if count > 1:
        lengths = np.round(np.linspace(least, _LONGEST, count))
    return [int(n) for n in rng.permutation(lengths)]


def _summarise_agreement(rows: list[_CastRow], passed: list[bool], complete: bool) -> Agreement:
    failed = [row for row, fits in zip(rows, passed, strict=True) if not fits]
    if failed:
        worst = min(failed, key=lambda row: (len(row.case.tokens), -row.relative)).case
    else:
        worst = max(rows, key=lambda row: row.relative).case if rows else None
    equal = [row.case.gap == 0 for row in rows if not row.null]
    fresh = Fresh(
        len(rows),
        max((r.case.gap for r in rows), default=0.0),
        max((r.relative for r in rows), default=0.0),
    )
    return Agreement(
        fresh=fresh,
        equal=float(np.mean(equal)) if equal else 0.0,
        worst=worst,
        passed=not failed,
        complete=complete,
        examined=list_examined([row.asked for row in rows]),
    )


def measure_cast_scatter(
    oracle: Counted, case: Counterexample, head: Head | None, form: Format, inner: float
) -> float:
    """How far two more answers to a sequence are from the first, 0 where rounding explains it."""
    value = float(head.magnitude(case.tokens[None])[0]) if head is not None else 0.0
    allowed = measure_spacing(case.answer, form) + 256 * inner * value
    gaps = [np.abs(oracle.ask(case.tokens[None].copy())[0] - case.answer) for _ in range(2)]
    return max(float(gap.max()) if (gap > allowed).any() else 0.0 for gap in gaps)
