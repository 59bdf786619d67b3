"""Theorem BSHK26/5.1: rank r from O(rd) queries; here from d + r(2d - r), the number of
parameters.
"""

import numpy as np
import pytest

import keyhole
from keyhole import Factored, Head, Local, LowRank, Outcome, Status, Verdict
from support.measures import asked, gap
from support.seeds import few

FIRST = 40  # questions by which `auto` recognises a head

pytestmark = pytest.mark.theorem("BSHK26/5.1")


def test_an_unknown_rank_is_found_near_the_counting_limit():
    errors = []
    for seed in few(60):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(8, 65))
        r = int(rng.integers(1, d + 1)) if seed % 3 else int(rng.integers(d - 3, d + 1))
        truth = Head.random(d, rank=r, rng=rng)
        recovery = keyhole.learn(truth, rng=rng)
        assert recovery.verdict is Verdict.EXACT
        assert recovery.rank == r
        assert recovery.degrees_of_freedom == d + r * (2 * d - r)
        assert asked(recovery) <= 1.02 * recovery.degrees_of_freedom + 30 + FIRST
        errors.append(gap(recovery.model.W, truth.W))
    assert np.median(errors) <= 1e-13
    assert max(errors) <= 1e-11


@pytest.mark.parametrize(("width", "rank"), [(12, 1), (20, 5), (33, 32), (9, 9)])
def test_a_given_rank_costs_exactly_its_parameters(width, rank, rng):
    truth = Head.random(width, rank=rank, rng=rng)
    recovery = LowRank(rank).run(Local(truth), rng=rng)
    assert recovery.certificate.theorem == "BSHK26/5.1"
    assert recovery.certificate.outcome is Outcome.HOLDS
    assert recovery.ledger["measure"].sequences - rank * (2 * width - rank) <= 4
    assert gap(recovery.unwrap().W, truth.W) <= 1e-9


def test_a_rank_given_too_small_is_refused_not_believed(rng):
    recovery = LowRank(2).run(Local(Head.random(10, rank=4, rng=rng)), rng=rng)
    assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.DISAGREES)


@pytest.mark.parametrize("inside", [0, 1, 4, 8])
def test_what_the_read_out_shares_with_the_range_costs_nothing(inside):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        A, B, V = rng.normal(size=(3, 48, 8))
        V[:, :inside] = A @ rng.normal(size=(8, inside))
        truth = Head(Factored(A / 7, B / 7), V)
        recovery = LowRank().run(Local(truth), rng=rng)
        assert recovery.verdict is Verdict.EXACT
        # 8 columns of 48/8 queries, then one each
        assert recovery.ledger["measure"].sequences <= 48 + (48 - 8) + 6
        assert gap(recovery.model.W, truth.W) <= 1e-11


def shaped(name, d, rng):
    turn = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(2)]
    G, v = rng.normal(size=(d, d)), rng.normal(size=(d, 1))
    return {
        "twelve decades": (turn[0] * np.logspace(0, -12, d) @ turn[1], v),
        "identity": (np.eye(d), v),
        "skew": (G - G.T, v),
        "rank d - 1": (G[:, :-1] @ rng.normal(size=(d - 1, d)), v),
        "rank 1": (G[:, :1] @ G[:1], v),
        "read-out is the range": (v @ G[:1], v),
        "read-out inside the range": (np.hstack([v, G[:, :2]]) @ G[:3], v),
        "read-out outside the row space": (G[:, :2] @ (G[:2] - G[:2] @ v @ v.T / (v.T @ v)), v),
        "zero": (np.zeros((d, d)), v),
        "one entry": (np.outer(np.eye(d)[0], np.eye(d)[1]), v),
    }[name]


SHAPES = ["twelve decades", "identity", "skew", "rank d - 1", "rank 1", "read-out is the range",
          "read-out inside the range", "read-out outside the row space", "zero",
          "one entry"]  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_a_peculiar_matrix_is_verified(name):
    for seed in few(8):
        rng = np.random.default_rng(seed)
        W, v = shaped(name, int(rng.integers(4, 30)), rng)
        recovery = keyhole.learn(Head(W, v), rng=rng)
        assert recovery.verdict is Verdict.EXACT, (name, seed)
        assert np.linalg.norm(np.asarray(recovery.model.W) - W) <= 1e-9 * max(
            1.0, np.linalg.norm(W)
        )


@pytest.mark.parametrize("entry", ["row", "column", "one"])
def test_a_wide_matrix_with_few_entries_is_not_taken_for_zero(entry):
    """From width 256 on vectors have two entries, and would miss a W that acts elsewhere."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        a, b = np.eye(256)[rng.permutation(256)[:2]]
        g = rng.normal(size=256)
        W = {"row": np.outer(a, g), "column": np.outer(g, a), "one": np.outer(a, b)}[entry]
        recovery = keyhole.learn(Head(W, rng.normal(size=(256, 1))), rng=rng)
        assert (recovery.verdict, recovery.rank) == (Verdict.EXACT, 1)
        assert gap(recovery.model.W, W) <= 1e-11


def test_vector_outputs_give_several_logits_per_query():
    for seed in few(8):
        rng = np.random.default_rng(seed)
        truth = Head.random(64, outputs=16, rng=rng)
        recovery = keyhole.learn(truth, rng=rng)
        assert recovery.verdict is Verdict.EXACT
        assert asked(recovery) <= 64 + 64 * 64 // 16 + 10 + FIRST
        assert gap(recovery.model.W, truth.W) <= 1e-11


@pytest.mark.parametrize("outputs", [1, 3, 7, 20])
@pytest.mark.parametrize("rank", [1, 4, 9])
def test_low_rank_and_vector_outputs_go_together(outputs, rank, rng):
    truth = Head.random(9, outputs=outputs, rank=rank, rng=rng)
    recovery = keyhole.learn(truth, rng=rng)
    assert (recovery.verdict, recovery.rank) == (Verdict.EXACT, rank)
    assert gap(recovery.model.W, truth.W) <= 1e-10


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("outputs", [1, 4])
def test_biases_and_a_residual_come_back(outputs, residual):
    for seed in few(10):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(2, 16))
        truth = Head.random(d, outputs=outputs, biases=True, rng=rng)
        if residual:
            truth = Head(truth.W, truth.V, truth.h, truth.c, rng.normal(size=(d, outputs)))
        recovery = keyhole.learn(truth, rng=rng)
        assert recovery.verdict is Verdict.EXACT
        for name in ("W", "V", "h", "c") + (("U",) if residual else ()):
            assert gap(getattr(recovery.model, name), getattr(truth, name)) <= 1e-11, name


def test_a_bias_inside_the_column_space_counts_its_rank(rng):
    A, B = rng.normal(size=(2, 20, 3))
    truth = Head(Factored(A, B), rng.normal(size=(20, 1)), h=A @ rng.normal(size=3))
    recovery = keyhole.learn(truth, rng=rng)
    assert recovery.rank == 3
    assert recovery.degrees_of_freedom == 20 + 3 * 37 + 3
    assert asked(recovery) <= recovery.degrees_of_freedom + 60 + FIRST
