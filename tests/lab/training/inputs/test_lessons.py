"""Lessons: inputs drawn as their task says, and lines to hold errors against."""

from itertools import combinations

import numpy as np
import pytest

import keyhole
from keyhole.lab.running import run_job
from keyhole.lab.training.inputs.labelling import choose_lesson
from keyhole.lab.training.inputs.lessons import Examples
from support.training_jobs import job


def test_sets_are_drawn_uniformly_and_without_repetition():
    lesson = choose_lesson(keyhole.SparseAverage(5, 3))
    X = lesson.draw(4000, rng=np.random.default_rng(0))
    sets, counts = np.unique(X[..., 1:4].reshape(-1, 3), axis=0, return_counts=True)
    assert len(sets) == 10
    assert counts.min() > 0.95 * 2000
    assert counts.max() < 1.05 * 2000


@pytest.mark.parametrize("at_most", [False, True])
def test_lessons_on_averages_have_vectors_of_length_one_and_the_right_answers(at_most):
    task = keyhole.SparseAverage(6, 3, 2, at_most)
    lesson = choose_lesson(task)
    X = lesson.draw(50, rng=np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(X[..., :2], axis=-1), 1.0)
    np.testing.assert_allclose(lesson.targets(X), task.target(X), atol=1e-14)


@pytest.mark.parametrize("at_most", [False, True])
def test_the_lines_of_averages_are_what_the_predictors_reach(at_most):
    task = keyhole.SparseAverage(8, 3, 2, at_most)
    lesson = choose_lesson(task)
    X = lesson.draw(4000, rng=np.random.default_rng(0))
    Y, z = lesson.targets(X), X[..., :2]
    mean = np.broadcast_to(z.mean(axis=1, keepdims=True), Y.shape)
    named = task.members(X)
    past = np.tril(named) @ z / named.sum(axis=-1, keepdims=True)
    lines = lesson.lines(Examples(X, Y), Examples(X, Y))
    for name, answers in (("zero", 0 * Y), ("mean_of_all", mean), ("causal_floor", past)):
        seen = ((answers - Y) ** 2).sum() / (Y**2).sum()
        assert lines[name] == pytest.approx(seen, abs=0.02)


def test_the_least_error_of_linear_attention_is_that_of_the_best_matrix_of_its_rank():
    data = run_job(job(length=7, q=2, width=1, embed=3, steps=1, seeds=1)).data
    members = np.array([[i in y for i in range(7)] for y in combinations(range(7), 2)], dtype=float)
    values = np.linalg.eigvalsh(members.T @ members / len(members))
    # of M G z with G the projection on the three largest directions
    lost = values[:-3].sum() / values.sum()
    assert data.lines["linear_optimum"] == pytest.approx(lost)
    three = run_job(job(length=7, q=2, width=1, embed=1, heads=3, steps=1, seeds=1)).data
    assert three.lines["linear_optimum"] == pytest.approx(lost)


def test_lines_of_labels_are_fitted_to_what_was_seen_and_measured_on_tests():
    lesson = choose_lesson(keyhole.Match3(5, 11))
    rng = np.random.default_rng(0)
    seen, tests = (
        Examples(X, lesson.targets(X))
        for X in (lesson.draw(200, rng=rng), lesson.draw(200, rng=rng))
    )
    lines = lesson.lines(tests, seen)
    assert lines["majority"] == pytest.approx(min(tests.Y.mean(), 1 - tests.Y.mean()), abs=1e-12)
    assert lines["distinct_count"] <= lines["majority"] + 0.05
    assert 0 < lines["pairwise"] < 0.5
