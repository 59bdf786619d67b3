"""Checking weights against brute force."""

from dataclasses import dataclass

import numpy as np

from keyhole.constructions import check_model
from keyhole.models.attention import SelfAttention
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import Match2


@dataclass(frozen=True)
class Answer:
    """Replaces what a layer gives by a function of the input kept aside."""

    function: object

    name = "answer"
    settings = {}  # noqa: RUF012
    tensors = {}  # noqa: RUF012

    def __call__(self, X):
        return self.function(X)


def model(function):
    copy = SelfAttention(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), np.zeros((1, 1, 1)))
    return Transformer((Block(Answer(function), copy, residual=True),))


def test_the_truth_passes_and_one_wrong_label_is_counted_once():
    task = Match2(2, 3)
    right = check_model(task, model(task.target), allowed=0.0, rng=np.random.default_rng(0))
    assert (right.inputs, right.errors, right.exhaustive, right.worst) == (9, 0, True, 0.0)

    def once(X):
        Y = task.target(X)
        Y[(X[..., 0] == [1, 1]).all(axis=1), 0] = 1.0
        return Y

    wrong = check_model(task, model(once), allowed=0.0, rng=np.random.default_rng(0))
    assert (wrong.errors, wrong.worst) == (1, 0.5)


def test_long_lists_are_sampled_from_every_kind():
    task = Match2(10, 1000)
    seen = check_model(
        task, model(task.target), allowed=0.0, rng=np.random.default_rng(0), sampled=5
    )
    assert (seen.inputs, seen.exhaustive) == (5 * len(task.kinds), False)
    assert (
        check_model(
            task, model(lambda X: 1.0 - task.target(X)), allowed=0.0, rng=np.random.default_rng(0)
        ).errors
        == 256
    )
