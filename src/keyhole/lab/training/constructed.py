"""Constructed weights measured as trained ones are, on the same fresh inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from keyhole._arrays import Array
from keyhole.constructions import build
from keyhole.lab.jobs import TrainJob
from keyhole.lab.runs.record_parts import Given
from keyhole.lab.runs.task_records import Curve
from keyhole.lab.training.inputs.labelling import Labelling
from keyhole.lab.training.inputs.lessons import Examples, Lesson
from keyhole.lab.training.inputs.streams import Purpose, open_stream
from keyhole.lab.training.outcomes import Trained

_SEEN = 200  # sequences the simple predictors are fitted to


def measure_constructed(job: TrainJob, lesson: Lesson[Any]) -> tuple[Trained, dict[str, Given]]:
    """The smallest weights that are known, on the tests of every seed, and their sizes."""
    # One set of weights for all seeds: only the tests differ.
    built = build(lesson.task, rng=open_stream(job.seed, Purpose.WEIGHTS))
    seeds = range(job.seed, job.seed + job.seeds)
    tests = [_draw_examples(lesson, seed, Purpose.TESTS, job.tests) for seed in seeds]
    answers = [built.model(X) for X, _ in tests]
    errors, last = (
        [
            _measure_test_error(lesson, given[:, rows], Y[:, rows])
            for given, (_, Y) in zip(answers, tests, strict=True)
        ]
        for rows in (slice(None), slice(-1, None))
    )
    curve = Curve(
        steps=[0],
        errors=[[e] for e in errors],
        best_steps=[0] * job.seeds,
        # Pages of trained and of constructed weights read the same fields.
        stopped=[None] * job.seeds,
    )
    lines = lesson.lines(tests[0], _draw_examples(lesson, job.seed, Purpose.CHECKS, _SEEN))
    size = built.size
    sizes: dict[str, Given] = {
        "embed": size.embed,
        "heads": size.heads,
        "layers": size.layers,
        "construction": built.construction,
    }
    return Trained(errors, curve, lines, None, [built.model] * job.seeds, 0, {}, last), sizes


def _draw_examples(lesson: Lesson[Any], seed: int, purpose: Purpose, size: int) -> Examples:
    X = lesson.draw(size, rng=open_stream(seed, purpose))
    return Examples(X, lesson.targets(X))


def _measure_test_error(lesson: Lesson[Any], answers: Array, Y: Array) -> float:
    """The share of wrong labels, or the squared error over that of answering zero."""
    if isinstance(lesson, Labelling):
        return float(np.not_equal(answers > 0.5, Y > 0.5).mean())
    return float(np.square(answers - Y).sum() / np.square(Y).sum())
