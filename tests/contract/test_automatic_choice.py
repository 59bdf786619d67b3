"""What `auto` says of any target: every question counted, no verdict that its own answers deny."""

import numpy as np
import pytest

from keyhole.learners.auto import learn
from keyhole.models import Head, MultiHead, OneLayer, ReluNet
from keyhole.oracles import Bounded, Local, Noisy

D = 3


class Counter:
    """A target that counts by itself what it is asked."""

    width = D

    def __init__(self, answer):
        self.answer, self.asked = answer, 0

    def __call__(self, X):
        self.asked += len(X)
        return self.answer(X)


def moody(rng):
    head, noise = Head.random(D, rng=rng), np.random.default_rng(1)
    return lambda X: head(X) + 1e-3 * noise.normal(size=(len(X), 1))


TARGETS = {
    "head": lambda rng: Head.random(D, rng=rng),
    "two heads": lambda rng: MultiHead.random(D, heads=2, rng=rng),
    "layer": lambda rng: MultiHead.random(D, heads=2, outputs=4, rng=rng),
    "network": lambda rng: ReluNet.random(D, hidden=5, rng=rng),
    "smooth network": lambda rng: ReluNet.random(D, hidden=5, activation="gelu", rng=rng),
    "one-layer": lambda rng: OneLayer.random(D, hidden=5, rng=rng),
    "noise that nobody declared": moody,
    "squares": lambda rng: lambda X: (X**2).sum(axis=(1, 2)),
}
WRAPPERS = {
    "as it is": lambda oracle: oracle,
    "bounded tokens": lambda oracle: Bounded(oracle, 2.0),
    "declared noise": lambda oracle: Noisy(oracle, 1e-4),
}
BUDGETS = (0, 1, 120, 163, 300, 581, 900)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_ledger_has_every_question_wherever_the_budget_ends(name, wrapper):
    for budget in BUDGETS if wrapper == "as it is" else BUDGETS[2::2]:
        target = Counter(TARGETS[name](np.random.default_rng(5)))
        oracle = WRAPPERS[wrapper](Local(target))
        recovery = learn(oracle, rng=np.random.default_rng(budget), budget=budget)
        counted = recovery.ledger.total().sequences
        assert counted == target.asked <= budget, (budget, recovery.sentence)
