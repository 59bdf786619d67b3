"""What `auto` says of any target: every question counted, no verdict that its own answers deny."""

import re

import numpy as np
import pytest

from keyhole.claims import Verdict
from keyhole.learners.choosing import learn
from keyhole.models import Head, MultiHead, OneLayer, ReluNet
from keyhole.oracles import Bounded, Local, Noisy
from support.seeds import few, some

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
    for budget in some(BUDGETS) if wrapper == "as it is" else some(BUDGETS[2::2]):
        target = Counter(TARGETS[name](np.random.default_rng(5)))
        oracle = WRAPPERS[wrapper](Local(target))
        recovery = learn(oracle, rng=np.random.default_rng(budget), budget=budget)
        counted = recovery.ledger.total().sequences
        assert counted == target.asked <= budget, (budget, recovery.sentence)


def test_a_spent_budget_is_told_once_and_what_would_do_for_a_head_is_enough():
    head = Head.random(12, rng=np.random.default_rng(0))
    short = learn(Local(head), rng=np.random.default_rng(0), budget=60)
    assert short.verdict is Verdict.BUDGET_SPENT
    assert short.sentence.count("budget") == 1
    foreseen = re.search(r"About ([0-9,]+) queries are foreseen", short.sentence)
    assert foreseen is not None
    enough = int(foreseen[1].replace(",", ""))
    again = learn(Local(head), rng=np.random.default_rng(0), budget=enough)
    assert again.verdict is Verdict.EXACT


# --- what the run was answered ------------------------------------------------------------------


class Witness(Counter):
    """A target that keeps what it was asked and what it said."""

    def __init__(self, answer, width):
        super().__init__(answer)
        self.width, self.said = width, []

    def __call__(self, X):
        answers = super().__call__(X)
        self.said.append((X.copy(), np.array(answers).reshape(len(X), -1)))
        return answers

    def largest_denial(self, model):
        """The largest difference from the model, beside the answer and what the model answers."""
        worst = 0.0
        for X, answers in self.said:
            told = model(X)
            size = np.maximum(np.abs(answers), np.abs(told)) + model.magnitude(X)[:, None] + 1e-300
            worst = max(worst, float((np.abs(told - answers) / size).max()))
        return worst


def least_of_forms(rng, width):
    A = rng.normal(size=(4, width))
    return lambda X: np.maximum((X[:, -1] @ A.T).min(axis=1) - 0.1, 0.0)


def two_hidden_layers(rng, width):
    first = ReluNet.random(width, hidden=6, outputs=6, rng=rng)
    second = ReluNet.random(6, hidden=4, rng=rng)
    return lambda X: second.points(np.maximum(first(X), 0.0))


DEEP = {
    "least coordinate": lambda rng, width: lambda X: np.maximum(X[:, -1].min(axis=1), 0.0),
    "least of four forms": least_of_forms,
    "two hidden layers": two_hidden_layers,
    "a corner": lambda rng, width: (
        lambda X: np.maximum(X[:, -1].sum(axis=1) - 3.0 * width, 0.0) ** 2
    ),
}


@pytest.mark.parametrize("name", DEEP)
def test_no_model_is_vouched_for_that_an_answer_of_the_run_denies(name):
    for width in (2, 3, 4, 6):
        for seed in few(4):
            target = Witness(DEEP[name](np.random.default_rng([seed, width]), width), width)
            recovery = learn(Local(target), rng=np.random.default_rng(seed))
            if recovery.verdict in (Verdict.EXACT, Verdict.NOT_IDENTIFIABLE):
                assert target.largest_denial(recovery.model) < 1e-4, (width, seed)


def test_heads_are_not_denied_by_answers_to_tokens_of_any_size():
    for seed in few(12):
        rng = np.random.default_rng(seed)
        W, V = rng.normal(size=(2, 4, 4)), rng.normal(size=(2, 4, 1))
        size = 10.0 ** rng.uniform(-9, 9)
        for model in (Head(size * W[0], V[0]), MultiHead(size * W, V)):
            assert learn(Local(model), rng=rng).verdict is Verdict.EXACT


# --- the most informed verdict --------------------------------------------------------------------


def parallel_units(rng):
    """Two units on parallel hyperplanes are one far away, where such networks are read."""
    w = rng.normal(size=(1, 5))
    return ReluNet(
        np.concatenate([w, 2 * w]), np.array([0.0, 1.0]), np.ones((1, 2)), np.zeros(1), "silu"
    )


def alike_units(rng):
    """Rows that share a direction, as training leaves them."""
    net = ReluNet.random(6, hidden=48, activation="silu", rng=rng)
    W1 = 0.05 * net.W1 + rng.normal(size=(1, 6))
    return ReluNet(W1, net.b1, net.W2, net.b2, "silu")


SMOOTH = {
    "GELU 16-192-1": lambda rng: ReluNet.random(16, hidden=192, activation="gelu", rng=rng),
    "SiLU 8-96-2": lambda rng: ReluNet.random(8, hidden=96, outputs=2, activation="silu", rng=rng),
    "parallel units": parallel_units,
    "units alike": alike_units,
}


@pytest.mark.parametrize("name", SMOOTH)
def test_a_smooth_network_that_was_not_found_is_never_refuted(name):
    for seed in range(4):
        target = SMOOTH[name](np.random.default_rng(seed))
        recovery = learn(Local(target), rng=np.random.default_rng(seed))
        assert recovery.verdict in (Verdict.EXACT, Verdict.UNVERIFIED), recovery.sentence
        if not recovery.verdict.verified:
            assert "It was tried as smooth-network." in recovery.sentence
            assert recovery.recognised.label in ("smooth", "saturating")


def test_relu_networks_are_never_refuted_however_their_units_lie():
    for seed in few(10):
        rng = np.random.default_rng(seed)
        net = ReluNet.random(4, hidden=12, rng=rng)
        b1 = net.b1 * 10.0 ** rng.uniform(-4, 7, size=12)
        verdict = learn(Local(ReluNet(net.W1, b1, net.W2, net.b2)), rng=rng).verdict
        assert verdict is not Verdict.CLASS_REFUTED


def test_a_class_is_refuted_by_two_equal_questions_with_different_answers():
    target = Witness(TARGETS["squares"](None), D)
    recovery = learn(Local(target), rng=np.random.default_rng(0), learner="one-layer")
    assert recovery.verdict is Verdict.CLASS_REFUTED
    witness = recovery.counterexample
    assert witness.rule == "doubling"
    answers = [target(question[None])[0] for question in witness.questions]
    np.testing.assert_allclose(np.ravel(answers), np.ravel(witness.answers))
    np.testing.assert_allclose(np.abs(answers[0] - answers[1]), witness.gap)
