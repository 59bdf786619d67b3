"""Lessons with answers yes or no: strict inputs ask what they are meant to, and answers are the
task's own.
"""

import itertools

import numpy as np
import pytest

import keyhole
from keyhole.lab.jobs import TrainJob
from keyhole.lab.running import run_job
from keyhole.lab.training.inputs.labelling import choose_lesson
from keyhole.tasks import Match2, Match3, Match3Bigram, SparseAverage

MATCHES = [Match2(7, 11), Match3(5, 23), Match3(7, 8), Match2(6, 9)]


@pytest.mark.parametrize("task", MATCHES, ids=str)
@pytest.mark.parametrize("inputs", ["random", "planted", "near-miss", "mixed"])
def test_answers_are_those_of_the_task(task, inputs, rng):
    lesson = choose_lesson(task, inputs)
    X = lesson.draw(60, rng=rng)
    np.testing.assert_array_equal(lesson.targets(X), task.target(X))


def test_every_match_of_a_strict_input_takes_three_different_tokens(rng):
    lesson = choose_lesson(Match3(7, 23))
    X = lesson.draw(200, rng=rng)
    Y = lesson.targets(X)
    assert lesson.inputs == "strict"
    assert X.shape == (200, 7, 1)
    assert X.min() >= 1
    for x, y in zip(X[..., 0].astype(int), Y[..., 0], strict=True):
        places = itertools.permutations(range(7), 3)
        found = {i for i, j, k in places if (x[i] + x[j] + x[k]) % 23 == 0}
        assert found == set(np.flatnonzero(y))


def test_what_pairs_show_says_nothing_about_strict_inputs_but_much_about_random_ones(rng):
    lines = {}
    for inputs in ("strict", "random"):
        lesson = choose_lesson(Match3(7, 23), inputs)
        X = lesson.draw(400, rng=rng)
        seen = (X, lesson.targets(X))
        lines[inputs] = lesson.lines(_examples(*seen), _examples(*seen))
    assert lines["strict"]["pairwise"] == pytest.approx(lesson_rate(Match3(7, 23)), abs=0.06)
    assert lines["random"]["pairwise"] < 0.3


def _examples(X, Y):
    from keyhole.lab.training.inputs.lessons import Examples

    return Examples(X, Y)


def lesson_rate(task):
    """How many strict labels are yes, which a guesser that never says yes gets wrong."""
    lesson = choose_lesson(task)
    return lesson.targets(lesson.draw(2000, rng=np.random.default_rng(5))).mean()


@pytest.mark.parametrize("task", [Match2(16, 23), Match2(9, 101)], ids=str)
def test_strict_pairs_have_no_zero_and_both_labels(task, rng):
    lesson = choose_lesson(task)
    X = lesson.draw(500, rng=rng)
    assert lesson.inputs == "strict"
    assert X.min() >= 1
    assert X.max() < task.modulus
    assert 0.35 <= lesson.targets(X).mean() <= 0.7


@pytest.mark.parametrize(
    ("task", "inputs", "said"),
    [
        (Match3(7, 21), "strict", "prime modulus"),
        (Match3Bigram(7, 23), "strict", "prime modulus"),
        (Match2(7, 11), "hard", "strict; got 'hard'"),
        (SparseAverage(6, 2), "random", "one kind of inputs"),
    ],
)
def test_inputs_a_task_does_not_have_are_refused(task, inputs, said):
    with pytest.raises(keyhole.InvalidInput, match=said):
        choose_lesson(task, inputs)


def test_strict_inputs_that_hardly_exist_are_refused(rng):
    with pytest.raises(keyhole.InvalidInput, match="larger --modulus"):
        choose_lesson(Match3(40, 11)).draw(10, rng=rng)


def test_constructed_weights_are_measured_on_the_same_inputs_and_make_no_error(tmp_path):
    said = run_job(
        TrainJob(
            "match2", length=8, modulus=11, model="constructed", seeds=2, out=str(tmp_path / "run")
        )
    ).data
    assert said.errors == [0.0, 0.0]
    # Five numbers of 7 bits are smaller than three of 12.
    assert (said.model_sizes["construction"], said.model_sizes["embed"]) == ("match2-waves", 5)
    assert said.lines["majority"] > 0.2
    assert (tmp_path / "run" / "report.html").is_file()
    model, X = (
        keyhole.load(said.model),
        choose_lesson(Match2(8, 11)).draw(50, rng=np.random.default_rng(3)),
    )
    assert Match2(8, 11).error(model(X), X).max() == 0.0


def test_the_least_accuracy_is_that_of_the_worst_seed():
    job = TrainJob(
        "match2", length=8, modulus=11, embed=2, steps=30, seeds=3, tests=100, keep=False
    )
    said = run_job(job).data
    rates = [1 - error for error in said.errors]
    assert len(set(rates)) > 1
    assert (said.accuracy.min, said.accuracy.max) == (min(rates), max(rates))


def test_a_unit_of_width_six_learns_match2_without_an_error():
    job = TrainJob(
        "match2", length=8, modulus=11, embed=6, steps=400, seeds=3, tests=200, keep=False
    )
    assert run_job(job).data.errors == [0.0, 0.0, 0.0]


def test_inputs_with_one_triple_are_uniform_but_for_every_other_one_that_has_a_match(rng):
    task = Match3(6, 6**4)
    lesson = choose_lesson(task, "one-triple")
    X = lesson.draw(400, rng=rng)
    matched = lesson.targets(X).any(axis=(1, 2))
    assert matched[1::2].all()
    # Chance gives a uniform sequence a match less often than 1 in 6 N, and twice or thrice the
    # same token a little more.
    assert matched[0::2].mean() < 0.15
    with pytest.raises(keyhole.InvalidInput, match="--inputs of this match3 is one of"):
        choose_lesson(Match3(6, 6**4 - 1), "one-triple")
