"""Rules and witnesses: each rule holds on what keeps it, fails on what breaks it, and is replayed
from its record alone.
"""

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.learners.findings import Witness
from keyhole.learners.verifying.error_bar import (
    Coarseness,
    describe_coarseness,
    find_last_digits,
    measure_error_bar,
)
from keyhole.learners.verifying.rules import RULES, hold_rule, replay_witness
from keyhole.models import Head, MultiHead
from keyhole.models.layers.tensor_row import TensorRow
from keyhole.oracles import Declared, Imperfection, Local, Rounded

rng = np.random.default_rng(11)
WIDTH = 4
x, y, w, v = rng.normal(size=(4, WIDTH)) / 2
ZERO = np.zeros(WIDTH)
D = x - y
HEAD = Head.random(WIDTH, outputs=2, biases=True, rng=rng)
PLAIN = Head.random(WIDTH, outputs=2, rng=rng)
RESIDUAL = Head(PLAIN.W, PLAIN.V, U=rng.normal(size=(WIDTH, 2)))
HEADS = MultiHead.random(WIDTH, heads=3, outputs=2, rng=rng)
A = rng.normal(size=(WIDTH, 2))
UNIT = TensorRow.random(WIDTH, embed=2, outputs=2, rng=np.random.default_rng(8))


def bend(X):
    return np.abs(X[:, -1] @ A + 0.3)


def curve(X):
    return np.sin(X[:, -1] @ A)


def cube(X):
    return (X[:, -1] @ A) ** 3


def sum_squares(X):
    return X[:, -1] ** 2 @ A


def mean_of_squares(X):
    return (X**2 @ A).mean(axis=1)


def total(X):
    return X.sum(axis=1) @ A


def by_position(X):
    return np.einsum("n,bnd->bd", np.arange(1.0, X.shape[1] + 1), X) @ A


def kernel(X):
    """Attention whose weights are 1 + score^2: no softmax."""
    scores = 1 + np.einsum("bnd,bd->bn", X, X[:, -1]) ** 2
    return np.einsum("bn,bnd->bd", scores / scores.sum(axis=1, keepdims=True), X) @ A


def count_once(X):
    return np.concatenate([HEAD(np.unique(one, axis=0)[None][:, _last_at_end(one)]) for one in X])


def _last_at_end(tokens):
    """The order that puts the last of the tokens behind the other different ones."""
    different = np.unique(tokens, axis=0)
    last = int(np.flatnonzero((different == tokens[-1]).all(axis=1))[0])
    return [*(i for i in range(len(different)) if i != last), last]


def ask(target, *questions):
    questions = [np.stack(tokens) for tokens in questions]
    return questions, [np.asarray(target(one[None]))[0] for one in questions]


def measure(rule, target, *questions, coarseness=None):
    asked, answers = ask(target, *questions)
    bar = measure_error_bar(asked, answers, coarseness or Coarseness())
    return hold_rule(rule, asked, answers, bar)


PAIRS = {t: (y + t * D, y) for t in (-2, -1, 1, 2)}
AROUND = [(x + 1e-3 * t * v,) for t in (-1, 0, 1, 2)]
# A kink of `bend` in its first output lies between the second and the third of four points.
NORMAL = A[:, 0] / (A[:, 0] @ A[:, 0])
KINK = [((-0.3 - 4e-4 + 1e-3 * t) * NORMAL,) for t in (-1, 0, 1, 2)]
CASES = [
    ("odd", HEADS, bend, [(x,), (-x,), (ZERO,)]),
    ("additive", HEADS, curve, [(x + y,), (ZERO,), (x,), (y,)]),
    ("proportional", HEAD, bend, [(1e6 * x,), (x,), (ZERO,)]),
    ("antisymmetry", HEADS, kernel, [PAIRS[2], PAIRS[-2], PAIRS[1], PAIRS[-1]]),
    ("copies", HEAD, HEADS, [(x, y, y, y), (x, y), (x, x, x, y), (y,), (ZERO,)]),
    ("odds", HEAD, HEADS, [PAIRS[1], PAIRS[-1], PAIRS[2], (y,), (ZERO,)]),
    ("once", HEAD, count_once, [(x, x, x, y), (x, y), PAIRS[2], (y,), (ZERO,)]),
    ("doubling", HEADS, total, [(x, x, w, w, y, y), (x, w, y)]),
    ("equal copies", HEADS, total, [(y, y), (y,)]),
    ("order", HEADS, by_position, [(x, w, y), (w, x, y)]),
    ("earlier tokens", bend, HEAD, [(x, y), (y,)]),
    ("average", mean_of_squares, HEAD, [(x, x, w, y), (x, y), (w, y), (y,)]),
    ("homogeneous", bend, cube, [(1e3 * x,), (x,), (-x,), (ZERO,)]),
    ("curvature", bend, curve, AROUND),
    ("kink", curve, bend, KINK),
    ("hull", PLAIN, total, [(x, w, y), (x,), (w,), (y,)]),
    ("residual", PLAIN, RESIDUAL, [PAIRS[1], PAIRS[-1], (x,), (y,)]),
    ("bias", PLAIN, HEAD, [(x, ZERO), (-x, ZERO), (ZERO,)]),
    ("even", UNIT, cube, [(x,), (-x,)]),
    ("square", UNIT, cube, [(3 * x,), (x,)]),
    ("rank two", UNIT, sum_squares, [(x,), (y,), (w,), (x + y,), (x + w,), (y + w,)]),
    ("zero tokens", UNIT, HEAD, [(y,), (ZERO, y), (ZERO, ZERO, y)]),
]


@pytest.mark.parametrize(("rule", "keeps", "breaks", "questions"), CASES, ids=[c[0] for c in CASES])
def test_a_rule_holds_where_it_should_and_fails_where_it_should(rule, keeps, breaks, questions):
    assert measure(rule, keeps, *questions).agrees
    broken = measure(rule, breaks, *questions)
    assert broken.differs
    assert broken.gap > 1e-8


@pytest.mark.parametrize("size", [1e-150, 1e-20, 1e20, 1e150])
def test_rules_hold_and_fail_alike_whatever_the_unit_of_answers(size):
    for rule, keeps, breaks, questions in CASES:
        asked, kept = ask(keeps, *questions)
        _, broken = ask(breaks, *questions)
        for answers, differs in ((kept, False), (broken, True)):
            scaled = [size * answer for answer in answers]
            bar = measure_error_bar(asked, scaled, Coarseness())
            assert hold_rule(rule, asked, scaled, bar).differs == differs, rule


def test_every_rule_is_tried():
    assert {case[0] for case in CASES} == set(RULES) - {"repeat"}


def test_a_repeat_that_is_answered_otherwise_breaks_its_rule():
    noise = np.random.default_rng(0)

    def moody(X):
        return HEAD(X) + 1e-6 * noise.normal(size=(len(X), 2))

    assert measure("repeat", moody, (x, y), (x, y)).differs
    assert measure("repeat", HEAD, (x, y), (x, y)).agrees


def test_the_sentences_of_rules_end_as_sentences_do():
    assert all(rule.sentence.endswith(".") for rule in RULES.values())


@pytest.mark.parametrize(("rule", "keeps", "breaks", "questions"), CASES, ids=[c[0] for c in CASES])
def test_a_witness_is_replayed_from_its_record(rule, keeps, breaks, questions):
    asked, answers = ask(breaks, *questions)
    seen = measure(rule, breaks, *questions)
    witness = Witness(rule, tuple(asked), tuple(answers), seen.gap, seen.allowed)
    again = replay_witness(Local(breaks, size=WIDTH), witness)
    assert again.holds
    np.testing.assert_allclose(again.gap, seen.gap, rtol=1e-3)
    assert not replay_witness(Local(keeps, size=WIDTH), witness).holds


def test_a_replay_asks_one_call_per_length():
    calls = []

    def target(X):
        calls.append(X.shape)
        return HEADS(X)

    case = next(case for case in CASES if case[0] == "copies")
    asked, answers = ask(HEADS, *case[3])
    replay_witness(Local(target, size=WIDTH), Witness("copies", tuple(asked), tuple(answers), 1, 0))
    assert sorted(calls) == [(1, 2, WIDTH), (2, 1, WIDTH), (2, 4, WIDTH)]


def test_a_replay_forgives_what_is_declared():
    asked, answers = ask(HEADS, (x, y), (w, y))
    gap = float(np.abs(answers[0] - answers[1]).max())
    witness = Witness("repeat", tuple(asked), tuple(answers), gap, 0.0)
    assert replay_witness(Local(HEADS), witness).holds
    coarse = Declared(Local(HEADS), Imperfection(tolerance=gap))
    assert not replay_witness(coarse, witness).holds


def test_a_witness_names_a_rule_and_has_as_many_answers_as_questions():
    with pytest.raises(InvalidInput, match="a rule is one of odd, additive"):
        replay_witness(Local(HEADS), Witness("oddness", (x[None],), (A[0],), 1.0, 0.0))
    with pytest.raises(InvalidInput, match="1 questions and 0 answers"):
        Witness("odd", (x[None],), (), 1.0, 0.0)


def test_last_digits_are_the_largest_powers_of_two_that_divide():
    numbers = np.array([1.0, 3.0, 12.0, 0.75, -0.625, 2.0**-60, 1 + 2.0**-52])
    expected = [1.0, 1.0, 4.0, 0.25, 0.125, 2.0**-60, 2.0**-52]
    np.testing.assert_array_equal(find_last_digits(numbers), expected)
    assert find_last_digits(np.zeros(1))[0] == np.inf


def test_what_cancels_inside_a_target_is_rounding_and_no_gap():
    # Answers that are multiples of 2^-50 were rounded there, however small they are.
    asked = [x[None], -x[None], ZERO[None]]
    answers = [np.array([k * 2.0**-50]) for k in (3.0, 5.0, 1.0)]
    bar = measure_error_bar(asked, answers, Coarseness())
    assert not hold_rule("odd", asked, answers, bar).differs
    finer = [answer * (1 + 2.0**-40) for answer in answers]
    bar = measure_error_bar(asked, finer, Coarseness())
    assert hold_rule("odd", asked, finer, bar).differs


def test_an_error_bar_grows_where_last_digits_of_a_token_move_its_answer():
    asked = [x[None], -x[None], ZERO[None]]
    answers = [np.array([value]) for value in (1.1e-17, 2.3e-17, 0.0)]
    bar = measure_error_bar(asked, answers, Coarseness())
    assert hold_rule("odd", asked, answers, bar).differs
    steeper = bar.steepen(asked[0], 1e-17)
    assert hold_rule("odd", asked, answers, steeper).agrees


def test_declared_errors_widen_the_error_bar():
    decimals = describe_coarseness(Imperfection.decimals(3))
    assert decimals.coarse
    rounded = Rounded(Local(HEAD), 3)
    answer = lambda X: rounded.ask(X)  # noqa: E731
    questions = [(x,), (-x,), (ZERO,)]
    assert measure("odd", answer, *questions).differs
    assert not measure("odd", answer, *questions, coarseness=decimals).differs
    assert describe_coarseness(Imperfection(noise=float("nan"))).absolute == np.inf
    assert describe_coarseness(Imperfection.cast("bf16")).relative == 2.0**-8
    assert describe_coarseness(Imperfection.cast("f32")).unit == 64 * 2.0**-24
