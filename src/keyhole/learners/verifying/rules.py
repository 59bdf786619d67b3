"""Rules that every member of a class keeps, and witnesses: a few answers that break one.

A rule is evaluated on questions and answers alone, so that a witness is replayed from its record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector, find_power_of_two
from keyhole.errors import InvalidInput
from keyhole.learners.findings import Witness
from keyhole.learners.verifying.error_bar import (
    Band,
    ErrorBar,
    describe_coarseness,
    measure_error_bar,
)
from keyhole.oracles import Oracle, read_imperfection

Questions = Sequence[Matrix]
Replies = Sequence[Vector]

_EQUAL_BENDS = 0.05  # two bends side by side that differ by less are those of a smooth function
_DEGREES = (2, 3)
_MOST_OUTPUTS = 64  # whose pairs are compared


@dataclass(frozen=True, slots=True)
class Measured:
    """By how much answers break a rule, what rounding explains, and what it cannot explain."""

    gap: float
    tolerance: float
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether rounding explains the gap."""
        return self.gap <= self.tolerance

    @property
    def differs(self) -> bool:
        """Whether rounding does not explain the gap, by far."""
        return self.gap > self.allowed


@dataclass(frozen=True, slots=True)
class Rule:
    """What a person reads of a rule, and how answers are held against it.

    Args:
        sentence: the rule in words.
        measure: gap and error bar, from questions, answers and what is known of rounding.
    """

    sentence: str
    measure: Callable[[Questions, Replies, ErrorBar], Measured]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A witness asked again."""

    gap: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether the target breaks the rule this time too."""
        return self.gap > self.allowed


def describe_witness(witness: Witness) -> str:
    """The rule that is broken, and by how much."""
    said = RULES[witness.rule].sentence
    return f"{said} Here it fails by {witness.gap:.2g}; rounding explains {witness.allowed:.2g}."


def _check_rule(name: str) -> None:
    if name not in RULES:
        raise InvalidInput(f"a rule is one of {', '.join(RULES)}; got {name!r}.")


def hold_rule(name: str, questions: Questions, answers: Replies, bar: ErrorBar) -> Measured:
    """By how much answers break a rule, in units of answers.

    Raises:
        InvalidInput: there is no such rule.
    """
    _check_rule(name)
    # Products of three answers neither overflow nor vanish beside the largest of them.
    unit = find_power_of_two(float(np.max(np.abs(answers)))) or 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        divided = [answer / unit for answer in answers]
        seen = RULES[name].measure(questions, divided, bar.divide(unit))
    return Measured(seen.gap * unit, seen.tolerance * unit, seen.allowed * unit)


def replay_witness(oracle: Oracle, witness: Witness) -> Replayed:
    """Ask the questions of a witness again, one call per length, and hold the rule against them.

    Raises:
        InvalidInput: there is no such rule, or it takes other questions.
    """
    _check_rule(witness.rule)
    answers = ask_by_length(oracle, witness.questions)
    coarseness = describe_coarseness(read_imperfection(oracle))
    bar = measure_error_bar(witness.questions, answers, coarseness)
    try:
        measured = hold_rule(witness.rule, witness.questions, answers, bar)
    except (IndexError, ValueError) as error:
        raise InvalidInput(
            f"the rule {witness.rule} is not held against {len(answers)} answers; the witness is"
            " damaged."
        ) from error
    # The run knew more answers of the target than these few: its error bar may be the larger.
    return Replayed(measured.gap, max(measured.allowed, witness.allowed))


def ask_by_length(oracle: Oracle, questions: Questions) -> list[Vector]:
    """Answers to questions of any lengths, one call per length."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for i, question in enumerate(questions):
        groups[len(question)].append(i)
    answers: dict[int, Vector] = {}
    for places in groups.values():
        replies = oracle.ask(np.stack([questions[i] for i in places]))
        answers.update(zip(places, replies, strict=True))
    return [answers[i] for i in range(len(questions))]


def _add_answers(
    weights: Sequence[float], questions: Questions, replies: Replies, bar: ErrorBar
) -> tuple[Vector, Band]:
    """A weighted sum of answers, with its error bar."""
    factors = np.array(weights, dtype=np.float64)
    answers = np.array(replies)
    return factors @ answers, bar.bound_sum(factors, questions, answers)


def _pick_worst(gaps: Array, band: Band) -> Measured:
    """The number that breaks the rule most, in units of what is allowed there."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(gaps > 0, gaps / band.allowed, 0.0)
    worst = np.unravel_index(int(np.argmax(shares)), shares.shape)
    return Measured(float(gaps[worst]), float(band.tolerance[worst]), float(band.allowed[worst]))


def _expect_zero(*weights: float) -> Callable[[Questions, Replies, ErrorBar], Measured]:
    """The rule that a weighted sum of answers is 0."""

    def measure(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
        value, band = _add_answers(weights, questions, replies, bar)
        return _pick_worst(np.abs(value), band)

    return measure


def _find_factor(long: Matrix, short: Matrix) -> float:
    """By how much the last token of one question is longer than that of another."""
    return float(long[-1] @ short[-1]) / float(short[-1] @ short[-1])


def _measure_proportion(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """f(Cx) - f(0) = C (f(x) - f(0)), asked as Cx, x, 0."""
    factor = _find_factor(questions[0], questions[1])
    return _expect_zero(1.0, -factor, factor - 1.0)(questions, replies, bar)


def _measure_residual(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """g(1) - g(-1) = f(x) - f(y), the lone tokens scaled to the pair: [x;y], [2y-x;y], x, y."""
    factor = _find_factor(questions[0], questions[3])
    return _expect_zero(1.0, -1.0, -factor, factor)(questions, replies, bar)


def _measure_rises(
    count: int, questions: Questions, replies: Replies, bar: ErrorBar
) -> list[tuple[Vector, Band]]:
    """f(X) - f([y]) of the first questions; the last two are y, at a scale of its own, and 0.

    Heads answer lone tokens by an affine map, which gives f([cy]).
    """
    factor = _find_factor(questions[0], questions[-2])
    rises: list[tuple[Vector, Band]] = []
    for i in range(count):
        places = (i, len(questions) - 2, len(questions) - 1)
        asked = [questions[j] for j in places]
        told = [replies[j][:_MOST_OUTPUTS] for j in places]
        rises.append(
            _add_answers((1.0, -factor, factor - 1.0), asked, told, bar.keep_outputs(_MOST_OUTPUTS))
        )
    return rises


# With k copies of x before y, one head answers f(y) + D k/(k + r): the inverse is affine in 1/k,
# the same for all outputs. For k = 1/3, 1, 3, A, B, C: B C' - 4 A C' + 3 A B' = 0 for all pairs.
def _measure_copies(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """Copies of a token raise its odds: [x;y;y;y], [x;y], [x;x;x;y], y, 0."""
    (A, a), (B, b), (C, c) = _measure_rises(3, questions, replies, bar)
    value = np.outer(B - 4 * A, C) + 3 * np.outer(A, B)

    def spread(da: Vector, db: Vector, dc: Vector) -> Matrix:
        first = np.outer(db + 4 * da, np.abs(C)) + np.outer(np.abs(B - 4 * A), dc)
        first += 3 * np.outer(da, np.abs(B)) + 3 * np.outer(np.abs(A), db)
        return first + np.outer(db + 4 * da, dc) + 3 * np.outer(da, db)

    band = Band(
        spread(a.tolerance, b.tolerance, c.tolerance), spread(a.allowed, b.allowed, c.allowed)
    )
    return _pick_worst(np.abs(value), band)


# With u = g(2)/2, p = g(1) and m = -g(-1), one head has u/(p + m - u) = (p/m)^2.
def _measure_odds(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """Twice the score squares the odds: [x;y], [2y-x;y], [2x-y;y], y, 0."""
    (p, dp), (m, dm), (u, du) = _measure_rises(3, questions, replies, bar)
    m, u = -m, u / 2
    value = u * m**2 - p**2 * (p + m - u)

    def spread(ep: Vector, em: Vector, eu: Vector) -> Vector:
        top = np.abs(u) + eu
        high, low = np.abs(p) + ep, np.abs(m) + em
        by_p = 2 * high * np.abs(p + m - u) + high**2
        return (low**2 + high**2) * eu + (2 * top * low + high**2) * em + by_p * ep

    band = Band(
        spread(dp.tolerance, dm.tolerance, du.tolerance / 2),
        spread(dp.allowed, dm.allowed, du.allowed / 2),
    )
    return _pick_worst(np.abs(value), band)


def _measure_once(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """Copies change nothing although scores do: [x;x;x;y], [x;y], [2x-y;y], y, 0."""
    copied = _expect_zero(1.0, -1.0)(questions[:2], replies[:2], bar)
    (once, band), (twice, wide) = _measure_rises(3, questions, replies, bar)[1:]
    sum_of_bands = Band(band.tolerance + wide.tolerance / 2, band.allowed + wide.allowed / 2)
    scored = _pick_worst(np.abs(twice / 2 - once), sum_of_bands)
    return scored if copied.agrees else Measured(0.0, scored.tolerance, scored.allowed)


def _measure_degree(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """f(Cx) = C^k f(x) and f(-x) = (-1)^k f(x) for k = 2 or 3, f(0) = 0: Cx, x, -x, 0."""
    factor = _find_factor(questions[0], questions[1])
    size = _expect_zero(1.0)(questions[1:2], replies[1:2], bar)
    zero = _expect_zero(1.0)(questions[3:], replies[3:], bar)
    for degree in _DEGREES:
        grown = _expect_zero(1.0, -(factor**degree))(questions[:2], replies[:2], bar)
        turned = _expect_zero(1.0, -((-1.0) ** degree))(questions[1:3], replies[1:3], bar)
        if zero.agrees and grown.agrees and turned.agrees:
            return size
    return Measured(0.0, size.tolerance, size.allowed)


def _measure_bends(
    questions: Questions, replies: Replies, bar: ErrorBar
) -> tuple[tuple[Vector, Band], tuple[Vector, Band]]:
    """Second differences at the two inner points of four in a row."""
    weights = (1.0, -2.0, 1.0)
    first = _add_answers(weights, questions[:3], replies[:3], bar)
    return first, _add_answers(weights, questions[1:], replies[1:], bar)


def _measure_curve(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """Equal bends side by side that are not 0, at every place: four points in a row each."""
    places = range(0, len(questions), 4)
    seen = [_measure_bend(questions[i : i + 4], replies[i : i + 4], bar) for i in places]
    return min(seen, key=lambda measured: measured.gap - measured.allowed)


def _measure_bend(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """The smaller of two bends where they are equal, else 0."""
    (left, band), (right, _) = _measure_bends(questions, replies, bar)
    # Over all outputs at once: of many outputs of a bent function some are equal by chance.
    larger = float(np.maximum(np.abs(left), np.abs(right)).max())
    apart = float((np.abs(left - right) - 2 * band.tolerance).max())
    smaller = np.minimum(np.abs(left), np.abs(right))
    return _pick_worst(smaller if apart <= _EQUAL_BENDS * larger else 0.0 * smaller, band)


def _measure_kink(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """Bends side by side that are not equal: four points in a row."""
    (left, band), (right, _) = _measure_bends(questions, replies, bar)
    room = _EQUAL_BENDS * np.maximum(np.abs(left), np.abs(right))
    wider = Band(2 * band.tolerance + room, 2 * band.allowed + room)
    return _pick_worst(np.abs(left - right), wider)


def _measure_hull(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """How far an answer lies outside the box of those to its tokens alone: X, x_1, .., x_n."""
    values = np.array(replies[1:])
    outside = np.maximum(replies[0] - values.max(axis=0), values.min(axis=0) - replies[0])
    _, band = _add_answers((1.0, -1.0), questions[:2], replies[:2], bar)
    return _pick_worst(np.maximum(outside, 0.0), band)


def _measure_square(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """f(Cx) = C^2 f(x), asked as Cx, x."""
    factor = _find_factor(questions[0], questions[1])
    return _expect_zero(1.0, -(factor**2))(questions, replies, bar)


def _bound_powers(size: Vector, band: Band, degree: int, count: float) -> Band:
    """What errors of numbers up to a size do to a sum of so many products of them."""
    parts = (band.tolerance, band.allowed)
    return Band(*(count * ((size + error) ** degree - size**degree) for error in parts))


# With m zero tokens beside y a unit of third order answers F_m = F_0 w/(w + (m + 1)^2 - 1).
def _measure_zeros(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """3 F_1 (F_0 - F_2) = 8 F_2 (F_0 - F_1), asked as y, [0;y], [0;0;y]."""
    F0, F1, F2 = replies
    size = np.abs(np.array(replies)).max(axis=0)
    _, band = _add_answers((1.0,), questions[:1], replies[:1], bar)
    value = np.abs(3 * F1 * (F0 - F2) - 8 * F2 * (F0 - F1))
    return _pick_worst(value, _bound_powers(size, band, 2, 16.0))


def _measure_rank(questions: Questions, replies: Replies, bar: ErrorBar) -> Measured:
    """The form of a, b, c has rank two: a, b, c, a+b, a+c, b+c."""
    alone, sums = np.array(replies[:3]), replies[3:]
    B = np.einsum("io,ij->ijo", alone, np.eye(3))
    for (i, j), both in zip(((0, 1), (0, 2), (1, 2)), sums, strict=True):
        B[i, j] = B[j, i] = (both - alone[i] - alone[j]) / 2
    size = np.abs(B).max(axis=(0, 1))
    _, band = _add_answers((0.5, 0.5, 0.5), questions[3:], sums, bar)
    value = np.abs(np.linalg.det(B.transpose(2, 0, 1)))
    return _pick_worst(value, _bound_powers(size, band, 3, 6.0))


_SAME = _expect_zero(1.0, -1.0)

RULES: Mapping[str, Rule] = {
    "odd": Rule(
        "Heads answer single tokens by an affine map: f(x) + f(-x) = 2 f(0).",
        _expect_zero(1.0, 1.0, -2.0),
    ),
    "additive": Rule(
        "Heads answer single tokens by an affine map: f(x + y) + f(0) = f(x) + f(y).",
        _expect_zero(1.0, 1.0, -1.0, -1.0),
    ),
    "proportional": Rule(
        "Heads answer single tokens by an affine map: f(Cx) - f(0) = C (f(x) - f(0)).",
        _measure_proportion,
    ),
    "antisymmetry": Rule(
        "Softmax heads have (g(2) - g(-2))/2 = g(1) - g(-1), g(t) = f([y + t(x - y); y]) - f([y]).",
        _expect_zero(0.5, -0.5, -1.0, 1.0),
    ),
    "copies": Rule(
        "In one head k copies of a token have k times its odds, in all outputs alike.",
        _measure_copies,
    ),
    "odds": Rule("In one head a score twice as large squares the odds of a token.", _measure_odds),
    "once": Rule("Where not all weight is on one token, copies of a token count.", _measure_once),
    "doubling": Rule(
        "Without positions a sequence is answered as the same with every token twice.", _SAME
    ),
    "equal copies": Rule("Copies of one token are answered as that token alone.", _SAME),
    "order": Rule("Without positions the order of earlier tokens changes nothing.", _SAME),
    "earlier tokens": Rule("A network of the last token takes no account of others.", _SAME),
    "average": Rule(
        "Averages of token functions have 4f([x;x;w;y]) = 4f([x;y]) + 2f([w;y]) - 2f([y]).",
        _expect_zero(4.0, -4.0, -2.0, 2.0),
    ),
    "homogeneous": Rule(
        "Networks with one hidden layer are not homogeneous of degree 2 or 3.", _measure_degree
    ),
    "even": Rule("Units of third order answer a token as they answer its opposite.", _SAME),
    "square": Rule(
        "Units of third order answer C x by C^2 times the answer to x.", _measure_square
    ),
    "rank two": Rule(
        "Units of third order answer single tokens by a product of two linear forms.", _measure_rank
    ),
    "zero tokens": Rule(
        "In one unit of third order zero tokens beside y have 3 F_1 (F_0 - F_2) = 8 F_2 (F_0 -"
        " F_1), F_m = f([0; ..; 0; y]) with m of them.",
        _measure_zeros,
    ),
    "curvature": Rule("A piecewise linear function is straight between its bends.", _measure_curve),
    "kink": Rule("A smooth function bends alike on both sides of a point.", _measure_kink),
    "hull": Rule(
        "One head without residual answers between the answers to its tokens alone.",
        _measure_hull,
    ),
    "residual": Rule("Without a residual g(1) - g(-1) = f(x) - f(y).", _measure_residual),
    "bias": Rule(
        "Without a score bias f([x;0]) + f([-x;0]) = 2 f(0).", _expect_zero(1.0, 1.0, -2.0)
    ),
    "repeat": Rule("The same question has the same answer.", _SAME),
}
