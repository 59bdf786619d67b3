"""Certificates held against the truth: a wrong model never holds, a right one is never refuted."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import keyhole
from keyhole import (
    AbsAffine,
    Basis,
    Bounded,
    Budgeted,
    Cast,
    Gated,
    Head,
    Local,
    MultiHead,
    Noisy,
    OneLayer,
    Outcome,
    ReluNet,
    Rounded,
    Signs,
    Status,
    Verdict,
)
from keyhole.learners.confronting import CONFRONTATIONS, confront
from keyhole.learners.one_layer.antisymmetric import Antisymmetric
from keyhole.theorems.recovery_claims import RECOVERIES
from support.seeds import few

SEEDS = few(3)


def draw_orthogonal_heads(rng):
    Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    bases = (Q[:, :2], Q[:, 2:])
    W = np.stack([B @ rng.normal(size=(2, 2)) @ B.T for B in bases])
    V = np.stack([B @ rng.normal(size=(2, 1)) for B in bases])
    return bases, MultiHead(W, V)


def draw_layer(rng):
    W = rng.normal(size=(2, 6, 3)) @ rng.normal(size=(2, 3, 6)) / 6
    return MultiHead(W, rng.normal(size=(2, 6, 3)) @ rng.normal(size=(2, 3, 6)) / 3)


def draw_bias_free(rng):
    net = ReluNet(rng.normal(size=(4, 3)), np.zeros(4), rng.normal(size=(1, 4)), np.zeros(1))
    return OneLayer(Head.random(3, outputs=3, rng=rng), net)


def run(truth, oracle=None, *, seed, learner="auto"):
    found = keyhole.learn(
        Local(truth) if oracle is None else oracle,
        rng=np.random.default_rng([seed, 1]),
        learner=learner,
    )
    return truth, found


def recover_small_head(seed):
    rng = np.random.default_rng(seed)
    truth = Head(0.2 * rng.normal(size=(3, 3)), np.ones((3, 1)))
    return run(truth, Rounded(Local(truth), 7), seed=seed, learner=keyhole.Tolerant(1.0, 0.5))


def recover_labelled_head(seed):
    truth = Head.random(3, rng=np.random.default_rng(seed))
    return run(truth, Signs(Local(truth)), seed=seed)


def recover_noisy_head(seed):
    rng = np.random.default_rng(seed)
    truth = Head(0.05 * rng.normal(size=(6, 6)), rng.normal(size=(6, 1)))
    return run(truth, Noisy(Bounded(Local(truth), 1.0), 1e-6, seed), seed=seed)


def recover_cast_head(seed):
    truth = Head.random(4, rng=np.random.default_rng(seed))
    return run(truth, Cast(Local(truth), "bf16"), seed=seed)


def recover_network(seed):
    return run(ReluNet.random(4, hidden=5, rng=np.random.default_rng(seed)), seed=seed)


def recover_network_in_ball(seed):
    truth = ReluNet.random(4, hidden=5, rng=np.random.default_rng(seed))
    return run(truth, Bounded(Local(truth), 3.0), seed=seed)


def recover_noisy_network(seed):
    truth = ReluNet.random(3, hidden=3, rng=np.random.default_rng(seed))
    return run(truth, Noisy(Local(truth), 1e-6, seed), seed=seed)


def recover_smooth_network(seed):
    net = ReluNet.random(3, hidden=3, rng=np.random.default_rng(seed))
    return run(replace(net, activation="gelu"), seed=seed)


def recover_smooth_layer(seed):
    drawn = OneLayer.random(3, hidden=4, biases=True, rng=np.random.default_rng(seed))
    truth = replace(drawn, net=replace(drawn.net, activation="gelu"))
    return run(truth, seed=seed, learner=keyhole.SmoothLayer())


def recover_gated_network(seed):
    truth = Gated.random(4, hidden=5, outputs=3, rng=np.random.default_rng(seed))
    return run(truth, seed=seed, learner=keyhole.GatedNetwork())


def recover_orthogonal_heads(seed):
    bases, truth = draw_orthogonal_heads(np.random.default_rng(seed))
    return run(truth, seed=seed, learner=keyhole.Orthogonal(bases))


def recover_heads_in_ball(seed):
    truth = MultiHead.random(4, heads=2, rng=np.random.default_rng(seed))
    return run(truth, Bounded(Local(truth), 3.0), seed=seed)


RUNS = {
    "BSHK26/4.1": lambda s: run(
        Head.random(5, biases=True, rng=np.random.default_rng(s)), seed=s, learner="exact"
    ),
    "BSHK26/5.1": lambda s: run(Head.random(8, rank=2, rng=np.random.default_rng(s)), seed=s),
    "BSHK26/6.1": recover_small_head,
    "BSHK26/membership": recover_labelled_head,
    "BSHK26/one-layer": lambda s: run(
        draw_bias_free(np.random.default_rng(s)), seed=s, learner=Antisymmetric()
    ),
    "BSHK26/orthogonal-heads": recover_orthogonal_heads,
    "KKG26/repetition": lambda s: run(
        MultiHead.random(2, heads=1, rng=np.random.default_rng(s)),
        seed=s,
        learner=keyhole.Repetition(1),
    ),
    "keyhole/tilted-simplex": recover_noisy_head,
    "keyhole/null-balance": recover_cast_head,
    "keyhole/one-line": recover_network,
    "keyhole/chords": recover_network_in_ball,
    "keyhole/grown-network": recover_noisy_network,
    "keyhole/smooth-units": recover_smooth_network,
    "keyhole/gated-units": recover_gated_network,
    "keyhole/local-affine": lambda s: run(
        OneLayer.random(3, hidden=4, biases=True, rng=np.random.default_rng(s)), seed=s
    ),
    "keyhole/segment-scores": recover_smooth_layer,
    "keyhole/saturate-and-isolate": lambda s: run(
        MultiHead.random(4, heads=5, rng=np.random.default_rng(s)), seed=s
    ),
    "keyhole/joint-heads": lambda s: run(
        MultiHead.random(4, heads=2, outputs=4, rng=np.random.default_rng(s)),
        seed=s,
        learner="several-heads",
    ),
    "keyhole/hessian-pencil": recover_heads_in_ball,
    "keyhole/whole-layer": lambda s: run(
        draw_layer(np.random.default_rng(s)), seed=s, learner="layer"
    ),
    "keyhole/third-order-recovery": lambda s: run(
        keyhole.TensorRow.random(4, embed=2, rng=np.random.default_rng(s)),
        seed=s,
        learner="third-order",
    ),
    "keyhole/layers-as-built": lambda s: run(
        keyhole.random_layer(
            8,
            heads=2,
            wiring=keyhole.Wiring(norm="rms", positions="table"),
            displacements=8,
            rng=np.random.default_rng(s),
        ),
        seed=s,
        learner=keyhole.WiredLayer(keyhole.Wiring(norm="rms", positions="table"), displacements=8),
    ),
}


def turn_scores(model):
    """Other attention, everything else the same."""
    if isinstance(model, OneLayer):
        return replace(model, head=turn_scores(model.head))
    W = np.asarray(model.W)
    return replace(model, W=W + 1e-3 * np.abs(W).max())


def bend_otherwise(model):
    """Another slope at every bend."""
    if isinstance(model, OneLayer):
        return replace(model, net=bend_otherwise(model.net))
    if isinstance(model, AbsAffine):
        return replace(model, D=1.01 * model.D)
    if isinstance(model, Gated):
        return replace(model, C=1.01 * model.C)
    return replace(model, W2=1.01 * model.W2)


def forget_unit(model):
    """One hidden unit, or one head, less."""
    if isinstance(model, MultiHead):
        return replace(
            model, W=model.W[1:], V=model.V[1:], h=None if model.h is None else model.h[1:]
        )
    if isinstance(model, AbsAffine):
        return replace(model, n=model.n[1:], t=model.t[1:], D=model.D[1:])
    if isinstance(model, Gated):
        left = {name: getattr(model, name)[1:] for name in ("A", "a", "B", "b")}
        return replace(model, **left, C=model.C[:, 1:])
    return replace(model, W1=model.W1[1:], b1=model.b1[1:], W2=model.W2[:, 1:])


def turn_readout(model):
    """Another read-out."""
    return replace(model, V=model.V + 1e-3 * np.eye(*model.V.shape[-2:]))


def strengthen_triples(model):
    """Larger scores of a unit of third order."""
    return replace(model, unit=replace(model.unit, Q=1.001 * np.asarray(model.unit.Q)))


def turn_first_values(model):
    """Other values in the first place of a unit of third order."""
    first, second = model.unit.V
    other = first + 1e-3 * np.eye(*first.shape)
    return replace(model, unit=replace(model.unit, V=(other, second)))


def turn_queries(model):
    """Other scores of every head of a layer."""
    return replace(model, Wq=model.Wq + 1e-3 * np.eye(*model.Wq.shape[1:]))


def raise_table(model):
    """Another score at one displacement."""
    return replace(model, table=model.table + 1e-3 * np.eye(*model.table.shape))


HEAD_SPOILS = (turn_scores, turn_readout)
HEADS_SPOILS = (turn_scores, turn_readout, forget_unit)
NETWORK_SPOILS = (bend_otherwise, forget_unit)
SPOILS = {
    "BSHK26/4.1": HEAD_SPOILS,
    "BSHK26/5.1": HEAD_SPOILS,
    "BSHK26/6.1": HEAD_SPOILS,
    "BSHK26/membership": HEAD_SPOILS,
    "BSHK26/one-layer": (turn_scores, bend_otherwise),
    "BSHK26/orthogonal-heads": HEADS_SPOILS,
    "KKG26/repetition": (turn_scores, turn_readout),
    "keyhole/tilted-simplex": (turn_scores,),
    "keyhole/null-balance": (turn_scores,),
    "keyhole/one-line": NETWORK_SPOILS,
    "keyhole/chords": NETWORK_SPOILS,
    "keyhole/grown-network": NETWORK_SPOILS,
    "keyhole/smooth-units": NETWORK_SPOILS,
    "keyhole/gated-units": NETWORK_SPOILS,
    "keyhole/local-affine": (turn_scores, bend_otherwise),
    "keyhole/segment-scores": (turn_scores, bend_otherwise),
    "keyhole/saturate-and-isolate": HEADS_SPOILS,
    "keyhole/joint-heads": HEADS_SPOILS,
    "keyhole/hessian-pencil": HEADS_SPOILS,
    "keyhole/whole-layer": HEADS_SPOILS,
    "keyhole/third-order-recovery": (strengthen_triples, turn_first_values),
    "keyhole/layers-as-built": (turn_queries, raise_table),
}


@dataclass(frozen=True)
class Case:
    truth: Any
    found: Any


@pytest.fixture(scope="module", params=RUNS)
def theorem(request):
    return request.param


@pytest.fixture(scope="module")
def cases(theorem):
    return [Case(*RUNS[theorem](seed)) for seed in SEEDS]


def test_every_theorem_of_recovery_that_a_run_claims_can_be_confronted():
    # These are about pairs of parameters, both of which are always held.
    pairs = {"BSHK26/7.1", "keyhole/layer-symmetries"}
    assert set(CONFRONTATIONS) == set(RUNS) == {one.id for one in RECOVERIES} - pairs


def test_a_right_model_holds_in_the_field_and_against_the_truth(theorem, cases):
    for case in cases:
        held = confront(case.truth, case.found, rng=np.random.default_rng(0))
        assert case.found.certificate.theorem == held.theorem == theorem
        assert case.found.certificate.basis is Basis.EXAMINED
        assert held.basis is Basis.CONFRONTED
        assert (case.found.certificate.outcome, held.outcome) == (Outcome.HOLDS, Outcome.HOLDS)


def test_a_wrong_model_is_refuted_by_the_truth_though_its_run_agreed(theorem, cases):
    for case in cases:
        for spoil in SPOILS[theorem]:
            wrong = replace(case.found, model=spoil(case.found.model))
            held = confront(case.truth, wrong, rng=np.random.default_rng(0))
            assert held.outcome is Outcome.REFUTED, spoil.__name__


def test_the_refusal_of_a_truth_of_the_class_is_a_bug(theorem, cases):
    case = cases[0]
    refused = replace(case.found, verdict=Verdict.CLASS_REFUTED, status=Status.NOT_A_HEAD)
    held = confront(case.truth, refused, rng=np.random.default_rng(0))
    assert held.outcome is Outcome.REFUTED


def test_a_run_that_stopped_short_is_promised_nothing(theorem, cases):
    case = cases[0]
    short = replace(case.found, verdict=Verdict.UNVERIFIED, status=Status.UNCHECKED)
    held = confront(case.truth, short, rng=np.random.default_rng(0))
    assert held.outcome is Outcome.SILENT


def test_a_truth_of_another_class_is_outside_the_theorem(theorem, cases):
    class Stranger:
        width, outputs = cases[0].truth.width, cases[0].truth.outputs

    held = confront(Stranger(), cases[0].found, rng=np.random.default_rng(0))
    assert held.outcome is Outcome.SILENT


def test_a_unit_that_bends_far_away_is_missed_by_questions_and_not_by_the_truth():
    """Its hyperplane is a million units out, where no fresh question goes."""
    rng = np.random.default_rng(5)
    near = ReluNet.random(3, hidden=2, rng=rng)
    far = ReluNet(
        np.vstack([near.W1, [[1.0, 0.0, 0.0]]]),
        np.append(near.b1, -1e6),
        np.hstack([near.W2, [[1.0]]]),
        near.b2,
    )
    _, found = run(near, seed=5)
    assert confront(near, found, rng=rng).outcome is Outcome.HOLDS
    assert confront(far, found, rng=rng).outcome is Outcome.REFUTED


def test_a_run_that_claims_no_theorem_is_not_confronted():
    truth = Head.random(3, rng=np.random.default_rng(1))
    spent = keyhole.learn(Budgeted(Local(truth), 4), rng=np.random.default_rng(2))
    assert spent.certificate is None
    assert confront(truth, spent, rng=np.random.default_rng(3)) is None


@pytest.mark.parametrize("learner", ["exact", "low-rank"])
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e3, 1e9])
def test_no_certificate_is_refuted_beside_an_exact_model(learner, scale):
    """Scores of such sizes are asked again and again, which a count does not allow for."""
    for seed in SEEDS:
        drawn = Head.random(6, biases=True, rng=np.random.default_rng(seed))
        truth, found = run(
            replace(drawn, W=scale * np.asarray(drawn.W)), seed=seed, learner=learner
        )
        held = confront(truth, found, rng=np.random.default_rng(seed))
        for certificate in (found.certificate, held):
            assert certificate is None or certificate.outcome is not Outcome.REFUTED
