"""Theorem BSHK26/6.1 as a plan: what a tolerance guarantees, and what a bound on weights says of
answers.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole import (
    Guarantee,
    Head,
    InvalidInput,
    guarantee,
    largest_tolerance,
)
from keyhole.learners.tolerance.answer_ranges import Box
from support.tolerant_heads import published

pytestmark = pytest.mark.theorem("BSHK26/6.1")


# ---- the planner, both ways

POSITIVE = st.floats(1e-3, 1e3)
SMALL = st.floats(1e-12, 1e3)


@given(st.integers(1, 500), POSITIVE, POSITIVE, SMALL, SMALL)
def test_the_largest_tolerance_gives_the_accuracy_and_no_larger_one_does(
    width, B, mu, eps_W, eps_v
):
    tau = largest_tolerance(width, B, mu, eps_W, eps_v)
    promised = guarantee(width, B, mu, tau)
    assert promised.eps_W <= eps_W * (1 + 1e-9)
    assert promised.eps_v <= eps_v * (1 + 1e-12)
    more = guarantee(width, B, mu, tau * (1 + 1e-6))
    assert more.eps_W > eps_W or more.eps_v > eps_v


@given(st.integers(1, 500), POSITIVE, POSITIVE, st.floats(1e-9, 0.999))
def test_a_tolerance_comes_back_from_what_it_guarantees(width, B, mu, part):
    promised = guarantee(width, B, mu, part * mu)
    assert largest_tolerance(width, B, mu, promised.eps_W, promised.eps_v) == pytest.approx(
        part * mu, rel=1e-12
    )
    assert largest_tolerance(width, B, mu, promised.eps_W, math.inf) == pytest.approx(
        part * mu, rel=1e-12
    )


# From 1e-250 on: the products of numbers that small would lose the digits that are compared.
@given(st.integers(1, 500), POSITIVE, POSITIVE, st.just(0.0) | st.floats(1e-250, 0.999))
def test_the_guarantee_is_never_weaker_than_the_published_one(width, B, mu, part):
    tau = part * mu
    assert (
        0.8 * published(width, B, mu, tau)
        <= guarantee(width, B, mu, tau).eps_W
        <= published(width, B, mu, tau)
    )
    assert guarantee(width, B, mu, tau).eps_v == pytest.approx(math.sqrt(width) * tau)


@pytest.mark.parametrize("B", [0.1, 0.9, 1.0, 10.0])
def test_the_tolerance_is_of_the_order_the_theorem_names(B):
    for width, mu, eps in itertools.product((4, 64), (1e-3, 1.0), (1e-6, 1e-2)):
        order = min(
            mu, eps / math.sqrt(width), mu * eps / (B**2 * width if B >= 1 else width * B * (B + 1))
        )
        assert order / 30 <= largest_tolerance(width, B, mu, eps, eps) <= order


def test_the_planner_by_hand():
    k = 2 * 3 * 2.0 * (2 + 2 * math.cosh(0.5)) * (1.5 * 2.0 + 1 / (1 + math.exp(-0.5)))
    assert guarantee(3, 2.0, 0.5, 0.1).eps_W == pytest.approx(k * 0.1 / 0.4)
    assert largest_tolerance(3, 2.0, 0.5, math.inf, math.inf) == 0.5
    assert largest_tolerance(3, 2.0, 0.5, 0.0, 1.0) == 0.0
    assert guarantee(3, 2.0, 0.5, 0.0) == Guarantee(0.0, 0.0)
    for wrong in ((-1.0, 0.1), (0.1, math.nan)):
        with pytest.raises(InvalidInput, match="an accuracy is a number >= 0"):
            largest_tolerance(3, 2.0, 0.5, *wrong)
    with pytest.raises(InvalidInput, match="a tolerance is a number >= 0; got -1"):
        guarantee(3, 2.0, 0.5, -1.0)


# ---- what a bound on the weights says of answers


def near(head, E, e, rng, *, corners):
    """Another head of a box around one, at a corner or anywhere."""
    signs = [
        rng.choice([-1.0, 1.0], A.shape) if corners else rng.uniform(-1, 1, A.shape) for A in (E, e)
    ]
    return Head(np.asarray(head.W) + signs[0] * E, head.V + (signs[1] * e)[:, None])


def test_no_head_of_a_box_answers_outside_its_interval():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        d, length = int(rng.integers(1, 6)), int(rng.integers(1, 7))
        head, size = Head.random(d, scale=2.0, rng=rng), 10.0 ** rng.uniform(-3, 1)
        E, e, X = size * rng.random((d, d)), size * rng.random(d), rng.normal(size=(5, length, d))
        least, greatest = Box(np.asarray(head.W), E, head.V[:, 0], e).answers(X)
        for i in range(60):
            answers = near(head, E, e, rng, corners=i % 2)(X)[:, 0]
            assert (answers >= least - 1e-12).all()
            assert (answers <= greatest + 1e-12).all()


def test_the_interval_of_a_pair_is_reached():
    """One key, one query: the answer of [x; y] is the greatest where W and v are largest, or least,
    as signs ask.
    """
    head, X = Head(np.array([[0.3]]), np.array([[2.0]])), np.array([[[3.0], [1.0]]])
    least, greatest = Box(
        np.asarray(head.W), np.array([[0.2]]), head.V[:, 0], np.array([0.1])
    ).answers(X)
    ends = [Head(np.array([[w]]), np.array([[u]]))(X)[0, 0] for w in (0.1, 0.5) for u in (1.9, 2.1)]
    assert (least[0], greatest[0]) == (pytest.approx(min(ends)), pytest.approx(max(ends)))


def test_a_box_without_extent_has_one_answer(rng):
    head, X = Head.random(4, rng=rng), rng.normal(size=(6, 5, 4))
    least, greatest = Box(np.asarray(head.W), np.zeros((4, 4)), head.V[:, 0], np.zeros(4)).answers(
        X
    )
    np.testing.assert_allclose(least, head(X)[:, 0], atol=1e-12)
    np.testing.assert_allclose(greatest, head(X)[:, 0], atol=1e-12)


def test_the_bound_on_answers_holds_for_every_head_within_the_guarantee():
    used = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        d, R = int(rng.integers(1, 6)), 10.0 ** rng.uniform(-1, 1)
        head, promised = Head.random(d, rng=rng), Guarantee(*10.0 ** rng.uniform(-4, 1, size=2))
        dW, dv = rng.normal(size=(d, d)), rng.normal(size=(d, 1))
        other = Head(
            np.asarray(head.W) + promised.eps_W * dW / np.linalg.norm(dW),
            head.V + promised.eps_v * dv / np.linalg.norm(dv),
        )
        X = rng.normal(size=(40, int(rng.integers(1, 6)), d))
        X *= R / np.linalg.norm(X, axis=2, keepdims=True)
        gap = np.abs(head(X) - other(X)).max()
        used.append(gap / promised.answers(R, float(np.linalg.norm(head.V))))
    assert 0.3 <= max(used) <= 1.0 + 1e-9
