"""Whatever is asked of a learner within its hints ends in a verdict or in words, never in an
accident.
"""

from contextlib import suppress

import numpy as np
import pytest

from keyhole.claims import Verdict
from keyhole.errors import InvalidInput
from keyhole.learners.choosing import learn
from keyhole.learners.registry import LEARNERS, Hints
from keyhole.models import Head, ReluNet
from keyhole.oracles import Bounded, Cast, Declared, Disturbed, Imperfection, Local, Noisy, Signs
from support.seeds import ALL, some

WRAPPED = {
    "labels": Signs,
    "heads-in-ball": lambda oracle: Bounded(oracle, 2.0),
    "network-in-ball": lambda oracle: Bounded(oracle, 2.0),
    "tolerant": lambda oracle: Disturbed(oracle, 1e-4),
    "noisy": lambda oracle: Noisy(oracle, 1e-4),
    "noisy-network": lambda oracle: Noisy(oracle, 1e-4),
}
SIZES = [(1, 1), (2, 1), (4, 2)] + [(2, 2), (3, 1), (4, 4), (6, 3)] * ALL
# those that stop a slow search themselves, after seconds
SLOW = ("repetition", "network-in-ball")


def hints_for(learner, width, rank):
    tokens = np.concatenate([np.eye(width), -np.eye(width), np.ones((1, width))])
    return Hints(
        rank=rank,
        grid=0.5,
        norm_bound=3.0,
        margin=0.1,
        heads=2,
        bits=12,
        bases=tuple(B for B in np.split(np.eye(width), [(width + 1) // 2], axis=1) if B.size),
        tokens=tokens if learner.startswith("restricted") else None,
    )


@pytest.mark.parametrize("learner", [name for name in LEARNERS if name not in SLOW])
def test_every_learner_ends_in_a_verdict_at_every_small_size(learner):
    for width, rank in SIZES:
        rng = np.random.default_rng([width, rank])
        head = Head.random(width, rank=rank, rng=rng)
        full = Head(
            np.asarray(head.W), head.V, h=rng.normal(size=width), U=rng.normal(size=(width, 1))
        )
        for target in (head, full, ReluNet.random(width, hidden=2, rng=rng)):
            oracle = WRAPPED.get(learner, lambda same: same)(Local(target))
            hints = hints_for(learner, width, rank)
            with suppress(InvalidInput):  # hints that do not fit are refused in words
                assert learn(oracle, rng=rng, learner=learner, hints=hints).sentence


@pytest.mark.parametrize(("width", "rank"), SIZES)
def test_one_round_recovers_heads_whose_columns_are_all_measured(width, rank):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = Head.random(width, rank=rank, rng=rng)
        recovery = learn(Local(truth), rng=rng, learner="nystrom", hints=Hints(rank=rank))
        assert recovery.verdict is Verdict.EXACT
        np.testing.assert_allclose(np.asarray(recovery.model.W), np.asarray(truth.W), atol=1e-9)


ODD = {
    "step": lambda X: (X[:, -1, 0] > 0.3).astype(float),
    "steps": lambda X: np.floor(X[:, -1].sum(axis=1)),
    "sawtooth": lambda X: X[:, -1].sum(axis=1) % 1.0,
    "constant": lambda X: np.full(len(X), 2.5),
    "length": lambda X: np.full(len(X), float(X.shape[1])),
    "sum": lambda X: X.sum(axis=(1, 2)),
    "largest": lambda X: X.max(axis=(1, 2)),
    "first": lambda X: X[:, 0, 0],
    "tiny": lambda X: 1e-30 * X[:, -1, 0],
    "beside a large constant": lambda X: 1e15 + X[:, -1, 0],
}
DECLARED = {
    "noise": Imperfection(noise=0.01),
    "tolerance": Imperfection(tolerance=0.01),
    "decimals": Imperfection.decimals(2),
    "f32": Imperfection.cast("f32"),
    "nothing": Imperfection(),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("stated", DECLARED)
def test_what_is_no_attention_ends_in_a_verdict_whatever_is_declared(name, stated):
    for width in some((3, 1)):
        oracle = Declared(Local(ODD[name], width), DECLARED[stated])
        recovery = learn(oracle, rng=np.random.default_rng(width), budget=1500)
        assert recovery.ledger.total().sequences <= 1500
        assert recovery.sentence


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_attention_ends_in_a_verdict_for_labels_and_casts(name):
    for policy in (Signs, lambda oracle: Cast(oracle, "bf16")):
        assert learn(
            policy(Local(ODD[name], 3)), rng=np.random.default_rng(0), budget=1500
        ).sentence


@pytest.mark.parametrize("name", ["sum", "first"])
def test_tokens_in_a_ball_whose_scores_do_not_bend_end_in_a_verdict(name):
    for seed in range(2):
        oracle = Bounded(Local(ODD[name], 3), 2.0)
        assert learn(oracle, rng=np.random.default_rng(seed), budget=1500).sentence


def test_a_network_without_units_far_away_ends_in_a_verdict():
    for name in ("step", "first", "constant"):
        oracle = Declared(Local(ODD[name], 3), Imperfection(noise=0.01))
        recovery = learn(oracle, rng=np.random.default_rng(0), learner="noisy-network", budget=1500)
        assert recovery.sentence
