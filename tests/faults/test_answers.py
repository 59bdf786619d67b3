"""Answers that are numbers, and nonsense: no learner ends in a traceback."""

import numpy as np
import pytest

import keyhole
from keyhole.errors import KeyholeError
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
