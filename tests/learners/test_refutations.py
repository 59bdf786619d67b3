"""A class is refuted by a witness alone, whichever learner was named; a failed search refutes
nothing.
"""

import numpy as np
import pytest

from keyhole.claims import Verdict
from keyhole.learners.base import Status
from keyhole.learners.choosing import learn
from keyhole.learners.findings import Witness
from keyhole.learners.recognising.table import CLASSES
from keyhole.learners.registry import LEARNERS, Hints
from keyhole.learners.verifying.rules import replay_witness
from keyhole.models import Gated, Head, MultiHead, OneLayer, ReluNet, Wiring
from keyhole.models.layers.random_layers import random_layer
from keyhole.models.layers.tensor_row import TensorRow
from keyhole.oracles import Bounded, Cast, Declared, Imperfection, Local, Noisy
from support.seeds import few

D = 4
TOKENS = np.random.default_rng(3).normal(size=(20, D))
HINTS = {
    "nystrom": Hints(rank=1),
    "nuclear-norm": Hints(rank=1),
    "grid": Hints(grid=0.5),
    "restricted": Hints(tokens=TOKENS),
    "restricted-heads": Hints(tokens=TOKENS),
    "orthogonal": Hints(bases=(np.eye(D)[:, :2], np.eye(D)[:, 2:])),
    "repetition": Hints(heads=2),
    "tolerant": Hints(norm_bound=4.0, margin=1e-3),
}


def alibi(rng):
    """Attention that prefers late tokens: order acts, as in no class of ours."""
    W, v = rng.normal(size=(D, D)) / 2, rng.normal(size=D)

    def answer(X):
        scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T) + 0.3 * np.arange(X.shape[1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return (weights * (X @ v)).sum(axis=1) / weights.sum(axis=1)

    return answer


def expose(name, target):
    """The target with what the learner of that name needs declared."""
    oracle = Local(target, D)
    if name in ("heads-in-ball", "network-in-ball"):
        return Bounded(oracle, 3.0)
    if name == "tolerant":
        return Declared(oracle, Imperfection(tolerance=1e-6))
    return oracle


# Labels show no rule broken; repetition does not tell such answers from amplified rounding; layers
# with positions are what wired-layer learns; no rule says what a whole block cannot answer.
SILENT = ("labels", "repetition", "wired-layer", "pre-norm-block", "post-norm-block", "gated-block")
REFUTING = [name for name in LEARNERS if name not in SILENT]


@pytest.mark.parametrize("name", REFUTING)
def test_every_learner_refutes_positions_by_a_witness_that_can_be_replayed(name):
    rng = np.random.default_rng(7)
    target = expose(name, alibi(rng))
    recovery = learn(target, rng=rng, learner=name, hints=HINTS.get(name, Hints()))
    assert recovery.verdict is Verdict.CLASS_REFUTED, recovery.sentence
    witness = recovery.counterexample
    assert isinstance(witness, Witness)
    assert witness.gap > witness.allowed
    assert replay_witness(target, witness).holds
    assert recovery.ledger["recognise"].sequences > 0
    # Tokens of a vocabulary are not recognised: only a few rules are held against them.
    assert name.startswith("restricted") or recovery.recognised.label == "positions"


OWN = {
    "head": lambda rng: Head.random(D, rng=rng),
    "multihead": lambda rng: MultiHead.random(D, heads=2, rng=rng),
    "layer": lambda rng: MultiHead.random(D, heads=2, outputs=6, rng=rng),
    "relu": lambda rng: ReluNet.random(D, hidden=6, rng=rng),
    "smooth": lambda rng: ReluNet.random(D, hidden=6, activation="gelu", rng=rng),
    "gated": lambda rng: Gated.random(D, hidden=6, outputs=3, rng=rng),
    "onelayer": lambda rng: OneLayer.random(D, hidden=6, rng=rng),
    "tensor": lambda rng: TensorRow.random(D, embed=2, rng=rng),
}


# One output only, and tokens in no ball: what these are told does not fit their class's targets.
SEARCHED = [name for name in REFUTING if name not in ("layer", "nuclear-norm")]


@pytest.mark.parametrize("name", SEARCHED)
def test_no_learner_refutes_the_class_of_the_target(name):
    for seed in few(4):
        rng = np.random.default_rng(seed)
        target = expose(name, OWN[LEARNERS[name].finds](rng))
        recovery = learn(target, rng=rng, learner=name, hints=HINTS.get(name, Hints()))
        assert recovery.verdict is not Verdict.CLASS_REFUTED, (seed, recovery.sentence)


def test_every_learner_names_a_class_that_is_recognised():
    assert {entry.finds for entry in LEARNERS.values()} == CLASSES.keys()


def test_read_outs_that_sum_to_zero_are_no_counterexample():
    for seed in few(10):
        rng = np.random.default_rng(seed)
        W, V = rng.normal(size=(3, D, D)), rng.normal(size=(3, D, 1))
        V[2] = -V[0] - V[1]
        for learner in ("auto", "low-rank", "layer", "repetition"):
            hints = Hints(heads=3)
            recovery = learn(MultiHead(W, V), rng=rng, learner=learner, hints=hints)
            refuted = recovery.verdict is Verdict.CLASS_REFUTED
            # One head they are not.
            assert not refuted or learner == "low-rank", recovery.sentence
            assert recovery.verdict is not Verdict.NOT_IDENTIFIABLE


def test_a_scattering_target_is_never_refuted():
    for seed in few(5):
        rng = np.random.default_rng(seed)
        head, own = Head.random(D, rng=rng), np.random.default_rng(seed)
        dropout = Local(lambda X, f=head, r=own: f(X * (r.random(X.shape) > 0.1) / 0.9), D)
        for learner in ("auto", "low-rank", "network", "one-layer"):
            recovery = learn(dropout, rng=rng, learner=learner)
            assert recovery.verdict is Verdict.UNVERIFIED, recovery.sentence


def test_a_failed_search_says_what_was_tried_and_what_to_try_next():
    target = Local(lambda X: np.sin(X[:, -1].sum(axis=1)), D)
    recovery = learn(target, rng=np.random.default_rng(0))
    assert recovery.verdict is Verdict.UNVERIFIED
    assert recovery.recognised.advice in recovery.sentence


def test_declared_noise_hides_no_order():
    target = Noisy(Local(alibi(np.random.default_rng(7)), D), 1e-6)
    recovery = learn(target, rng=np.random.default_rng(0))
    witness = recovery.recognised.excluded["head"]
    assert witness.rule == "order"
    assert replay_witness(target, witness).holds


LAYERS = {
    "alibi": Wiring(positions="alibi"),
    "rope": Wiring(norm="rms", eps=1e-5, residual=True, positions="rope"),
    "sinks": Wiring(sinks=True),
    "sinks, rope": Wiring(positions="rope", sinks=True),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", ["f64", "f32", "bf16"])
def test_no_layer_as_it_is_built_is_refuted_however_coarse_its_answers(name, kind):
    """No few answers exclude every layer with positions or sinks, which may not be learned yet."""
    for seed in few(4):
        layer = random_layer(8, heads=2, wiring=LAYERS[name], rng=seed)
        target = Local(layer) if kind == "f64" else Cast(Local(layer), kind)
        recovery = learn(target, rng=np.random.default_rng(seed))
        assert recovery.verdict is not Verdict.CLASS_REFUTED, (seed, recovery.sentence)


def test_what_grows_faster_than_tokens_and_breaks_rules_is_refuted():
    target = Local(lambda X: (X**2).sum(axis=(1, 2)), D)
    recovery = learn(target, rng=np.random.default_rng(0))
    assert (recovery.verdict, recovery.status) == (Verdict.CLASS_REFUTED, Status.NO_CLASS)
    assert replay_witness(target, recovery.counterexample).holds
