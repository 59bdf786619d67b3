"""Any callable as an oracle: shapes, failures, and whose array is whose."""

import sys

import numpy as np
import pytest

import keyhole
from keyhole import Head, Verdict, Wiring, random_layer
from keyhole.errors import BadAnswer, InvalidInput, TargetFailed
from keyhole.oracles import Counted, Local, Oracle
from keyhole.oracles.base import read_imperfection
from support.batches import batch
from support.targets import text

# --- Local ----------------------------------------------------------------------------------------


def test_answers_of_one_axis_become_one_output():
    oracle = Local(lambda X: X[:, -1, 0], 3)
    answers = oracle.ask(batch(4))
    assert answers.shape == (4, 1)
    assert oracle.outputs == 1
    np.testing.assert_array_equal(answers[:, 0], [3.0, 9.0, 15.0, 21.0])


def test_answers_of_two_axes_stay_as_they_are():
    oracle = Local(lambda X: X[:, -1, :2].tolist(), 3)
    np.testing.assert_array_equal(oracle.ask(batch(2)), [[3.0, 4.0], [9.0, 10.0]])
    assert oracle.outputs == 2


def test_float32_answers_are_read_as_float64():
    assert Local(lambda X: X[:, -1].astype(np.float32), 3).ask(batch(2)).dtype == np.float64


def test_the_width_is_the_callables_unless_it_is_given():
    def target(X):
        return X[:, -1, 0]

    target.width, target.outputs = 4, 1
    assert Local(target).width == 4
    assert Local(target).outputs == 1
    assert Local(target, 3).width == 3
    assert isinstance(Local(target), Oracle)


def test_the_longest_sequence_is_that_of_a_layer_of_ours_and_of_nothing_else():
    def target(X):
        return X[:, -1, 0]

    target.longest = 5
    assert read_imperfection(Local(target, 3)).lengths is None
    wiring = Wiring(norm="rms", positions="table")
    layer = random_layer(4, heads=2, wiring=wiring, displacements=6, rng=0)
    assert read_imperfection(Local(layer)).lengths == (1, 6)
    assert read_imperfection(Local(random_layer(4, heads=2, rng=0))).lengths is None


@pytest.mark.parametrize("width", [None, 0, -2, 2.5, "three"])
@pytest.mark.usefixtures("untyped")
def test_a_width_that_is_missing_or_no_size_is_refused_with_advice(width):
    with pytest.raises(
        InvalidInput, match=r"whole number >= 1; got .*--width .* `width` attribute"
    ):
        Local(lambda X: X[:, -1, 0], width)


@pytest.mark.usefixtures("untyped")
def test_outputs_that_are_no_size_are_refused():
    with pytest.raises(InvalidInput, match="outputs must be a whole number >= 1; got 0"):
        Local(lambda X: X[:, -1, 0], 3, 0)


def test_a_callable_that_does_not_say_its_outputs_is_an_oracle_before_its_first_answer():
    oracle = Local(lambda X: X[:, -1, :2], 3)
    assert isinstance(oracle, Oracle)
    assert Counted(oracle).ask(batch(2)).shape == (2, 2)
    assert oracle.outputs == 2


def ragged(X):
    return [[1.0], [1.0, 2.0]] + [[1.0]] * (len(X) - 2)


@pytest.mark.parametrize(
    "answer",
    [
        lambda X: 1.0,
        lambda X: None,
        lambda X: X,
        lambda X: X[:-1, -1, 0],
        lambda X: np.zeros((len(X), 0)),
        text,
        ragged,
    ],
    ids=["number", "nothing", "three axes", "a row short", "no outputs", "text", "ragged"],
)
def test_a_wrong_shape_on_the_first_call_is_misuse(answer):
    with pytest.raises(InvalidInput, match=r"must answer a batch of 4"):
        Local(answer, 3).ask(batch(4))


def test_a_wrong_shape_says_what_was_needed_and_what_came():
    with pytest.raises(InvalidInput) as refusal:
        Local(lambda X: X, 3).ask(batch(4, length=2))
    assert "shape (4,) or (4, outputs); got (4, 2, 3)" in str(refusal.value)


def test_a_first_answer_of_another_size_than_declared_is_refused():
    with pytest.raises((InvalidInput, BadAnswer), match=r"\(4,\) or \(4, 2\); got \(4, 3\)"):
        Local(lambda X: X[:, -1], 3, 2).ask(batch(4))


def test_a_wrong_shape_later_is_a_bad_answer():
    answers = iter([np.zeros((4, 1)), np.zeros((4, 2))])
    oracle = Local(lambda X: next(answers), 3)
    oracle.ask(batch(4))
    with pytest.raises(BadAnswer, match=r"\(4,\) or \(4, 1\); got \(4, 2\)"):
        oracle.ask(batch(4))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_answer_that_is_not_finite_names_its_sequence(value):
    def answer(X):
        out = X[:, -1, 0]
        out[2] = value
        return out

    with pytest.raises(BadAnswer, match=r"to sequence 2 of a batch of 4; answers must be finite"):
        Local(answer, 3).ask(batch(4))


def test_a_long_answer_that_is_not_finite_names_its_number_and_stays_short():
    def answer(X):
        out = np.zeros((len(X), 3000))
        out[1, 700] = np.nan
        return out

    with pytest.raises(BadAnswer, match=r"nan as number 700 \(from 0\) of 3000") as refusal:
        Local(answer, 3).ask(batch(4))
    assert len(str(refusal.value)) < 250


def test_imaginary_parts_are_refused_and_not_lost():
    with pytest.raises(InvalidInput, match="with numbers, one row per sequence"):
        Local(lambda X: X[:, -1] + 1j, 3).ask(batch(4))


def test_a_target_that_raises_is_reported_with_its_words():
    def broken(X):
        raise RuntimeError("out of tea")

    with pytest.raises(
        TargetFailed, match=r"raised RuntimeError: out of tea, when asked .* \(4, 2, 3\)"
    ) as failure:
        Local(broken, 3).ask(batch(4))
    assert isinstance(failure.value.__cause__, RuntimeError)


def test_a_first_failure_about_shapes_asks_whether_the_width_is_right():
    weights = np.zeros((5, 1))
    with pytest.raises(InvalidInput, match="Is --width 3 right"):
        Local(lambda X: X[:, -1] @ weights, 3).ask(batch(4))


def test_the_same_failure_later_is_the_targets_own():
    def answer(X):
        if len(X) == 4:
            raise ValueError("shape mismatch")
        return X[:, -1, 0]

    oracle = Local(answer, 3)
    oracle.ask(batch(1))
    with pytest.raises(TargetFailed, match="shape mismatch"):
        oracle.ask(batch(4))


@pytest.mark.parametrize("width", [3, 256])
def test_a_target_may_write_on_its_input(width):
    head = Head.random(width, rank=2, rng=np.random.default_rng(0))

    def rude(X):
        answers = head(X)
        X[...] = 7.0
        return answers

    recovery = keyhole.learn(Local(rude, width), rng=np.random.default_rng(1))
    assert recovery.verdict is Verdict.EXACT
    assert np.linalg.norm(np.asarray(recovery.model.W) - np.asarray(head.W)) <= 1e-9


@pytest.mark.parametrize("width", [3, 256])
def test_a_target_may_keep_its_input(width):
    head, kept = Head.random(width, rank=1, rng=np.random.default_rng(0)), []

    def collector(X):
        kept.append((X, X.copy()))
        return head(X)

    keyhole.learn(Local(collector, width), rng=np.random.default_rng(1))
    assert all(np.array_equal(X, copy) for X, copy in kept)


def test_an_answer_that_is_a_view_of_the_question_is_not_tied_to_it():
    X = batch(4)
    answers = Local(lambda X: X[:, -1, :1], 3).ask(X)
    X[...] = 0.0
    np.testing.assert_array_equal(answers[:, 0], [3.0, 9.0, 15.0, 21.0])


def test_a_target_that_ends_the_process_ends_no_run_of_ours():
    with pytest.raises(TargetFailed, match="raised SystemExit: 4"):
        Local(lambda X: sys.exit(4), 3).ask(np.zeros((1, 2, 3)))
