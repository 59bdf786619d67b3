"""What a run was answered is kept, within its room, and held against a model."""

from dataclasses import replace

import numpy as np
import pytest

from keyhole import Wiring, random_layer
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Recovery, Status
from keyhole.learners.verifying.examination import Ruler
from keyhole.learners.verifying.own_answers import Remembered, find_contradiction
from keyhole.models import Head, MultiHead, ReluNet
from keyhole.oracles import Budgeted, Ledger, Local


def test_every_answer_is_kept_by_length_while_there_is_room(rng):
    head = Head.random(3, rng=rng)
    oracle = Remembered(Local(head))
    asked = [rng.normal(size=(4, length, 3)) for length in (2, 1, 2)]
    for X in asked:
        oracle.ask(X.copy())
    (lone, _), (pairs, answers) = oracle.by_length()
    np.testing.assert_array_equal(lone, asked[1])
    np.testing.assert_array_equal(pairs, np.concatenate([asked[0], asked[2]]))
    np.testing.assert_allclose(answers, head(pairs), rtol=1e-12)


def test_what_is_kept_stays_within_its_room_and_spans_the_run(rng):
    oracle = Remembered(Local(Head.random(2, rng=rng)), room=100)
    for i in range(200):
        oracle.ask(np.full((3, 1, 2), float(i)))
    ((X, answers),) = oracle.by_length()
    assert X.size <= 100
    assert len(X) == len(answers) >= 20
    assert X.min() <= 20
    assert X.max() >= 180


def test_of_a_long_run_a_tenth_of_the_tokens_is_checked_and_short_questions_are_half_of_it(rng):
    oracle = Remembered(Local(Head.random(2, rng=rng)))
    for i in range(60):
        oracle.ask(np.full((1000, 2, 2), float(i)))
        oracle.ask(np.full((20, 50, 2), float(i)))
    checked = {X.shape[1]: X for X, _ in oracle.choose_checked()}
    tokens = {length: len(X) * length for length, X in checked.items()}
    assert 0.09 * 180_000 <= sum(tokens.values()) <= 0.1 * 180_000
    assert tokens[2] >= 0.45 * sum(tokens.values())
    assert tokens[50] >= 0.45 * sum(tokens.values())
    assert all(X.min() <= 2 and X.max() >= 57 for X in checked.values())


def test_of_a_short_run_every_answer_is_checked(rng):
    oracle = Remembered(Local(Head.random(2, rng=rng)))
    for length in (1, 2, 300):
        oracle.ask(rng.normal(size=(20, length, 2)))
    assert [X.shape[:2] for X, _ in oracle.choose_checked()] == [(20, 1), (20, 2), (20, 300)]


def test_the_answers_before_the_budget_ended_are_kept(rng):
    oracle = Remembered(Budgeted(Local(Head.random(2, rng=rng)), 3))
    with pytest.raises(BudgetSpent):
        oracle.ask(rng.normal(size=(5, 1, 2)))
    ((X, answers),) = oracle.by_length()
    assert len(X) == len(answers) == 3


def test_the_shortest_question_that_denies_a_model_is_named(rng):
    truth, other = (
        ReluNet(np.eye(2), np.zeros(2), np.ones((1, 2)), np.full(1, c)) for c in (0.0, 1.0)
    )
    kept = [(X, truth(X)) for X in (rng.normal(size=(5, length, 2)) for length in (1, 3))]
    case = find_contradiction(other, kept, Ruler())
    assert case.tokens.shape == (1, 2)
    assert case.gap == pytest.approx(1.0)
    assert find_contradiction(truth, kept, Ruler()) is None


def test_a_tie_between_tokens_denies_no_model(rng):
    """Scores of 1e20 that differ in their last digit: the other token may come out ahead."""
    head, moved = (
        Head(1e20 * np.eye(2), np.array([[1.0], [0.0]]), h=np.array([h, 0.0])) for h in (0, 1e8)
    )
    X = np.array([[[1.0, 1.0], [-1.0, 3.0], [1.0, 1.0]]])  # both score 2 against the last token
    assert np.abs(head(X) - moved(X)).max() > 0.3
    assert find_contradiction(moved, [(X, head(X))], Ruler()) is None


def test_a_hard_switch_that_weights_decide_too_finely_denies_no_model():
    """Scores of 1e12 whose sign a last digit of W turns; beside them gaps of 1e-6 still deny."""
    W = np.array([[1.0, 0.0], [0.0, 1.0]])
    nudge = np.array([[0.0, -1e-10], [0.0, 0.0]])
    head, moved = (Head(part, np.array([[1.0], [2.0]])) for part in (W, W + nudge))
    last = 1e6 * np.array([5e-11, 1.0])
    X = np.stack([last - [1e6, 0.0], last])[None]
    assert np.abs(head(X) - moved(X)).max() > 1e5
    assert find_contradiction(moved, [(X, head(X))], Ruler()) is None
    soft = np.array([[[1.0, 0.5], [0.3, -0.2]]])
    off = Head(W + 1e4 * nudge, head.V)
    assert find_contradiction(off, [(soft, head(soft))], Ruler()) is not None
    assert find_contradiction(off, [(X, head(X))], Ruler()) is not None


def test_answers_longer_than_a_model_knows_are_not_held_against_it(rng):
    """A table of displacements says nothing of those it has no entry for."""
    known, more = (
        random_layer(3, heads=1, wiring=Wiring(positions="table"), displacements=n, rng=rng)
        for n in (4, 9)
    )
    layer = replace(more, table=more.table[:, :4])
    oracle = Remembered(Local(more))
    for length in (1, 3, 4, 7):
        oracle.ask(rng.normal(size=(5, length, 3)))
    recovery = Recovery(
        model=layer,
        status=Status.RECOVERED,
        verdict=Verdict.EXACT,
        reason="",
        determined="",
        ledger=Ledger(),
    )
    checked = oracle.check(recovery, rng=rng)
    assert (checked.verdict, checked.explained) == (Verdict.EXACT, 15)
    other = oracle.check(replace(recovery, model=known), rng=rng)
    assert other.verdict is Verdict.UNVERIFIED


def put_between_switches(truth, rng):
    """A pair of tokens, so long that softmaxes are hard, between the switches of two heads."""
    x, first, second = rng.normal(size=(3, truth.width))
    a, b = np.arctan2(-(x @ truth.W[1:] @ first), x @ truth.W[1:] @ second) % np.pi
    y = np.cos((a + b) / 2) * first + np.sin((a + b) / 2) * second
    return 2.0**40 * np.stack([y + x, y])


def draw_nearly_equal_heads(distance, sizes, rng):
    W = rng.normal(size=(3, 6, 6)) / np.sqrt(6)
    W[2] = W[1] + distance * W[2]
    return MultiHead(W, np.array(sizes)[:, None, None] * rng.normal(size=(6, 1)))


def test_heads_told_apart_to_eight_digits_are_not_denied_between_their_switches(rng):
    """Weights that are off by 1e-8 put the switches elsewhere, and give the same plateau there."""
    truth = draw_nearly_equal_heads(1e-7, (1.0, 0.5, 0.3), rng)
    W = truth.W + 1e-8 * rng.normal(size=truth.W.shape) * np.array([0, 1, 1])[:, None, None]
    near, merged = MultiHead(W, truth.V), MultiHead(W[[0, 1, 1]], truth.V)
    asked = [put_between_switches(truth, rng) for _ in range(40)]
    kept = [[(X[None], truth(X[None]))] for X in asked]
    assert sum(find_contradiction(near, pair, Ruler()) is not None for pair in kept) <= 4
    assert sum(find_contradiction(merged, pair, Ruler()) is not None for pair in kept) >= 20


def test_two_heads_merged_into_one_are_denied_by_answers_between_their_switches(rng):
    """Fresh questions hardly see the faint pair, and scores of 1e12 do: 3e-8 is no last digit."""
    truth = draw_nearly_equal_heads(3e-8, (1.0, 3e-3, -1e-3), rng)
    V = np.stack([truth.V[0], truth.V[1] + truth.V[2]])
    merged = MultiHead(truth.W[:2], V)
    between = [put_between_switches(truth, rng) for _ in range(20)]
    kept = [(X[None], truth(X[None])) for X in between]
    denied = [find_contradiction(merged, [pair], Ruler()) is not None for pair in kept]
    assert sum(denied) >= 4


def test_a_constant_beside_zero_denies_no_model(rng):
    """Nothing but rounding is in an answer to zeros, whatever share of it that is."""
    truth, near = (
        ReluNet(np.eye(2), np.zeros(2), np.ones((1, 2)), np.full(1, c)) for c in (0.0, 1e-14)
    )
    kept = [(X, truth(X)) for X in (np.zeros((1, 1, 2)), rng.normal(size=(5, 2, 2)))]
    assert find_contradiction(near, kept, Ruler()) is None
