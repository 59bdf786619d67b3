"""Heads whose queries and keys have a norm of their own come back, and nothing that looks so."""

from dataclasses import replace

import numpy as np
import pytest

import keyhole
from keyhole import Local, WiredLayer, Wiring, random_layer
from keyhole.claims import Verdict
from keyhole.identify.layers import layer_freedom
from keyhole.learners.positions.normed.shared_gains import share_gains
from keyhole.learners.positions.question_design import make_score_form
from keyhole.learners.positions.score_form import HeadScores
from support.normed_foreign import CHANGES, EPS, NormedForeign, draw_normed_foreign
from support.seeds import few
from support.wired_layers import differentiate

pytestmark = pytest.mark.theorem("keyhole/layers-as-built")

NORMED = Wiring(norm="rms", eps=EPS, residual=True, qk_norm=True)


def measure_error(truth, model, rng):
    """Largest relative error over lengths up to 32, of tokens of all sizes."""
    errors = []
    for length in (1, 2, 8, 32):
        sizes = 10.0 ** rng.uniform(-5, 1, size=(20, length, 1))
        X = sizes * rng.normal(size=(20, length, truth.width))
        errors.append(np.linalg.norm(truth(X) - model(X)) / np.linalg.norm(truth(X)))
    return max(errors)


@pytest.mark.parametrize("positions", ["rope", "none"])
@pytest.mark.parametrize("heads", [2, 4])
def test_heads_with_normed_queries_and_keys_come_back(heads, positions):
    wiring = replace(NORMED, positions=positions)
    for seed in few(8):
        drawing, rng, fresh = np.random.default_rng([seed, 60]).spawn(3)
        truth = random_layer(16, heads=heads, wiring=wiring, rng=drawing)
        found = WiredLayer(wiring).run(Local(truth), rng=rng)
        assert found.verdict is Verdict.EXACT, found.sentence
        assert measure_error(truth, found.model, fresh) <= 1e-9
        products = truth.q_gain * truth.k_gain
        if positions == "none":
            got = found.model.q_gain * found.model.k_gain
            np.testing.assert_allclose(np.sort(got), np.sort(np.abs(products)), rtol=1e-6)


@pytest.mark.parametrize("positions", ["rope", "none"])
def test_norms_of_queries_and_keys_are_found_where_they_are_not_told(positions):
    truth = random_layer(16, heads=4, wiring=replace(NORMED, positions=positions), rng=61)
    found = WiredLayer().run(Local(truth), rng=np.random.default_rng(62))
    assert found.verdict is Verdict.EXACT
    assert found.model.wiring.qk_norm
    assert "qk_norm yes" in found.reason


@pytest.mark.parametrize("positions", ["rope", "none"])
@pytest.mark.parametrize("groups", [1, 2])
def test_heads_that_share_keys_with_norms_of_their_own_come_back(groups, positions):
    wiring = replace(NORMED, positions=positions, groups=groups)
    for seed in few(8):
        drawing, rng, fresh = np.random.default_rng([seed, 70]).spawn(3)
        truth = random_layer(16, heads=4, wiring=wiring, rng=drawing)
        found = WiredLayer(wiring).run(Local(truth), rng=rng)
        assert found.verdict is Verdict.EXACT, found.sentence
        assert found.model.groups == groups
        assert measure_error(truth, found.model, fresh) <= 1e-9


@pytest.mark.parametrize("gains", ["of their own", "of one"])
def test_shared_keys_with_norms_are_found_where_nothing_is_told(gains):
    wiring = replace(NORMED, positions="rope", groups=2)
    truth = random_layer(16, heads=4, wiring=wiring, rng=71)
    truth = truth if gains == "of their own" else replace(truth, q_gain=np.ones(4), k_gain=None)
    found = keyhole.learn(truth, rng=72)
    assert found.verdict is Verdict.EXACT
    assert found.model.wiring.qk_norm
    assert found.model.groups == 2


def test_gains_that_are_all_one_come_back():
    truth = random_layer(16, heads=4, wiring=replace(NORMED, positions="rope"), rng=63)
    truth = replace(truth, q_gain=np.ones(4), k_gain=None)
    found = keyhole.learn(truth, wiring=replace(NORMED, positions="rope"), rng=64)
    assert found.verdict is Verdict.EXACT


@pytest.mark.parametrize("groups", [None, 2])
def test_a_plan_tells_what_normed_heads_cost(groups):
    wiring = replace(NORMED, positions="rope", groups=groups)
    truth = random_layer(16, heads=4, wiring=wiring, rng=65)
    learner = WiredLayer(wiring)
    asked = learner.run(Local(truth), rng=np.random.default_rng(66)).ledger.total().sequences
    assert asked <= learner.plan(16, outputs=16).queries <= 1.3 * asked


@pytest.mark.parametrize("change", CHANGES)
def test_what_looks_like_normed_heads_is_not_called_exact(change):
    for seed in few(8):
        drawing, rng = np.random.default_rng([seed, CHANGES.index(change)]).spawn(2)
        target = draw_normed_foreign(change, drawing)
        for told in (replace(NORMED, positions="none"), None):
            found = WiredLayer(told).run(Local(target), rng=rng)
            assert found.verdict is Verdict.UNVERIFIED, found.sentence


@pytest.mark.parametrize("change", CHANGES)
def test_what_looks_like_normed_heads_that_share_keys_is_not_called_exact(change):
    rng = np.random.default_rng([CHANGES.index(change), 73])
    target = draw_normed_foreign(change, rng, width=16, heads=4, shared=True)
    for told in (replace(NORMED, positions="none", groups=1), None):
        found = WiredLayer(told).run(Local(target), rng=rng)
        assert found.verdict is Verdict.UNVERIFIED, found.sentence


@pytest.mark.parametrize("sizes", [{}, {"width": 16, "heads": 4, "shared": True}])
def test_the_foreign_targets_are_such_heads_but_for_one_part(sizes):
    target = draw_normed_foreign("no change", np.random.default_rng(67), **sizes)
    assert isinstance(target, NormedForeign)
    found = keyhole.learn(Local(target), wiring=replace(NORMED, positions="none"), rng=68)
    assert found.verdict is Verdict.EXACT


@pytest.mark.parametrize(
    "beside", [{"window": 4}, {"sinks": True}, {"softcap": 5.0}, {"positions": "table"}]
)
def test_what_is_not_learned_beside_normed_heads_is_refused(beside):
    layer = random_layer(8, heads=2, wiring=Wiring(), rng=0)
    with pytest.raises(keyhole.InvalidInput, match="layers with qk_norm are learned with rotary"):
        keyhole.learn(layer, wiring=replace(NORMED, **beside), rng=0)


@pytest.mark.parametrize("positions", ["rope", "none"])
def test_heads_turned_by_quarters_and_signs_have_the_same_gains(positions, rng):
    form = make_score_form(
        replace(NORMED, positions=positions), 4, biased=False, displacements=8, longest=None
    )
    none, gains = np.zeros(4), np.exp(0.3 * rng.normal(size=(2, 4)))
    heads = [
        HeadScores(*(rng.normal(size=(4, 6)), none) * 2, np.zeros(0), *gains) for _ in range(2)
    ]
    other = heads[1]
    if positions == "rope":
        # Row 0 becomes row 2 and row 2 becomes less row 0: a quarter turn of the first pair.
        order, signs = [2, 1, 0, 3], np.array([1.0, 1.0, -1.0, 1.0])
        factor = np.array([1.7, 1.0, 1.7, 1.0])
    else:
        order, signs, factor = [3, 1, 0, 2], np.array([1.0, -1.0, 1.0, 1.0]), np.ones(4)
    turned = replace(
        other,
        Wq=signs[:, None] * other.Wq[order],
        Wk=signs[:, None] * other.Wk[order],
        q_gain=factor * other.q_gain[order],
        k_gain=other.k_gain[order] / factor,
    )
    first, second = share_gains([heads[0], turned], form)
    np.testing.assert_allclose(first.q_gain * first.k_gain, second.q_gain * second.k_gain)
    products = sorted(np.prod(gains, axis=0))
    np.testing.assert_allclose(sorted(first.q_gain * first.k_gain), products)


@pytest.mark.theorem("keyhole/layer-symmetries")
@pytest.mark.parametrize(
    ("positions", "groups"), [("rope", None), ("none", None), ("rope", 1), ("none", 1)]
)
def test_what_normed_queries_and_keys_leave_free_is_counted(positions, groups, rng):
    wiring = replace(NORMED, eps=1e-1, positions=positions, groups=groups)
    layer = replace(random_layer(8, heads=2, wiring=wiring, rng=rng), gain=None)
    X = [rng.normal(size=(60, length, 8)) for length in (1, 2, 3)]
    names = ("Wq", "Wk", "Wv", "Wo", "q_gain", "k_gain")
    J = np.concatenate([differentiate(layer, name, X) for name in names], axis=1)
    values = np.linalg.svd(J / np.linalg.norm(J, axis=0), compute_uv=False)
    expected = layer_freedom(wiring, 8, heads=2, rank=4, outputs=8)
    assert (values > 1e-7).sum() == expected
