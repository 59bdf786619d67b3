"""Answers that are numbers, and nonsense: no learner ends in a traceback."""

import numpy as np
import pytest

import keyhole
from keyhole.errors import InvalidInput, KeyholeError
from keyhole.learners.registry import LEARNERS
from keyhole.models import Head, MultiHead
from support.seeds import ALL

MODELS = {
    "a head": Head.random(3, outputs=2, rng=0),
    "two heads": MultiHead.random(3, heads=2, outputs=1, rng=0),
}
NONSENSE = {
    "huge": lambda Y: np.full_like(Y, 1e308),
    "huge by turns": lambda Y: np.where(np.arange(Y.size).reshape(Y.shape) % 2, 1e308, -1e308),
    "one of them huge": lambda Y: np.concatenate([np.full_like(Y[:1], 1e308), Y[1:]]),
    "the least number": lambda Y: np.full_like(Y, 5e-324),
}


class Spoilt:
    """Answers as a model does, but for the calls of certain numbers."""

    def __init__(self, model, spoil, spoilt):
        self.model, self.spoil, self.spoilt, self.calls = model, spoil, spoilt, 0
        self.width, self.outputs = model.width, model.outputs

    def ask(self, X):
        self.calls += 1
        Y = self.model(X)
        return self.spoil(Y) if self.spoilt(self.calls) else Y


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NONSENSE)
@pytest.mark.parametrize("kind", MODELS)
def test_whatever_a_target_answers_a_recovery_ends_in_a_verdict(kind, name):
    when = [lambda n: n == 3, lambda n: n > 4, lambda n: n == 8, lambda n: n % 3 == 0]
    for spoilt in when[: 4 if ALL else 2]:
        target = Spoilt(MODELS[kind], NONSENSE[name], spoilt)
        try:
            found = keyhole.learn(target, rng=1, max_seconds=20)
        # A target may be told that its answers are none.
        except KeyholeError:
            continue
        if found.verdict.verified:
            X = np.ones((1, 2, 3))
            np.testing.assert_allclose(found.model(X), MODELS[kind](X))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_answers_that_overflow_say_so_and_what_they_cost():
    target = Spoilt(MODELS["a head"], NONSENSE["huge"], lambda n: n % 3 == 0)
    found = keyhole.learn(target, rng=1)
    assert (found.status.name, found.verdict.name) == ("NOT_COMPUTED", "UNVERIFIED")
    assert found.ledger.total().calls == target.calls


HINTS = keyhole.Hints(heads=2, rank=2, grid=0.5, tokens=np.eye(5), bases=(np.eye(5), np.eye(5)))
BLOCKS = ("pre-norm-block", "post-norm-block", "gated-block")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("outputs", [1, 3, 5, 7])
@pytest.mark.parametrize(
    "name",
    [
        *(name for name in LEARNERS if name in BLOCKS),
        *(pytest.param(name, marks=pytest.mark.slow) for name in LEARNERS if name not in BLOCKS),
    ],
)
def test_a_learner_that_is_named_for_a_target_of_other_sizes_ends_in_words(name, outputs):
    """How many numbers a callable answers is known with its first answer alone."""
    A, B = np.random.default_rng(0).normal(size=(2, 7, 5))

    def answer(X):
        return np.abs(X.sum(axis=1) @ A.T)[:, :outputs] ** 1.5 + (X[:, -1] @ B.T)[:, :outputs]

    oracle = keyhole.Local(answer, 5)
    try:
        found = keyhole.learn(oracle, rng=1, learner=name, hints=HINTS, max_seconds=2)
    except InvalidInput:
        return
    assert not found.verdict.verified
