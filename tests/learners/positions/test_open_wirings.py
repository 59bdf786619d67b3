"""Attention layers of which nothing is told: what a few questions tell of their wiring."""

from dataclasses import replace

import numpy as np
import pytest

import keyhole
from keyhole import Local, WiredLayer, Wiring, random_layer
from keyhole.claims import Verdict
from keyhole.learners.positions.ball import NormBall
from keyhole.learners.positions.found_wiring import find_kind_of_order, find_norm, find_window
from keyhole.learners.positions.placed import Asking
from keyhole.learners.positions.position_kind import are_scores_normed
from keyhole.learners.positions.question_design import (
    design_questions,
    draw_displacements,
    make_score_form,
)
from keyhole.learners.verifying.examination import Ruler, examine_model
from keyhole.oracles import Counted
from keyhole.oracles.limits import Sized
from support.seeds import ALL, few

WIRINGS = {
    "rope": (Wiring(norm="rms", eps=1e-5, residual=True, positions="rope"), False),
    "half rope": (Wiring(norm="rms", eps=1e-5, positions="rope", rotary_share=0.5), False),
    "capped rope": (Wiring(norm="rms", eps=1e-5, positions="rope", softcap=5.0), False),
    "alibi": (Wiring(norm="layer", eps=1e-6, residual=True, positions="alibi"), True),
    "table": (Wiring(norm="layer", eps=1e-5, positions="table"), True),
    "no positions": (Wiring(norm="layer", eps=1e-5, residual=True, positions="none"), True),
    "absolute": (Wiring(norm="rms", eps=1e-5, residual=True, positions="absolute"), False),
    "no norm": (Wiring(norm="none", residual=True, positions="rope"), True),
}


class Bare:
    """A callable of which only the width is known."""

    def __init__(self, layer):
        self.layer, self.width = layer, layer.width

    def __call__(self, X):
        return self.layer(X)


def draw(name, seed):
    wiring, biases = WIRINGS[name]
    places = 8 if wiring.positions == "absolute" else 64
    rng = np.random.default_rng(seed)
    return random_layer(16, heads=4, wiring=wiring, biases=biases, displacements=places, rng=rng)


# Other classes are tried before these, which takes seconds.
SEARCHED = [name for name in WIRINGS if ALL or name not in ("no positions", "absolute")]


def test_layers_of_which_nothing_is_told_come_back_with_their_wiring():
    ends = {name: keyhole.learn(Bare(draw(name, 21)), rng=22) for name in SEARCHED}
    exact = [name for name, found in ends.items() if found.verdict is Verdict.EXACT]
    assert len(exact) >= len(SEARCHED) - 1, {name: ends[name].sentence for name in ends}
    for name in exact:
        layer, found = draw(name, 21), ends[name]
        own, seen = layer.wiring.told, found.model.wiring.told
        assert abs(seen.pop("eps", 1.0) / own.pop("eps", 1.0) - 1) < 1e-9
        assert seen == own
        assert "Of the wiring was told: nothing." in found.reason
        X = np.random.default_rng(23).normal(size=(20, 7, 16))
        np.testing.assert_allclose(found.model(X), layer(X), rtol=1e-8, atol=1e-8)


def test_wide_heads_with_rotary_positions_come_back_with_the_base_they_turn_by():
    wiring, _ = WIRINGS["rope"]
    ends = []
    for seed in few(3):
        rng = np.random.default_rng(seed)
        layer = random_layer(16, heads=2, wiring=wiring, biases=False, rng=rng)
        ends.append(keyhole.learn(Bare(layer), rng=seed + 1))
    found = [end for end in ends if end.verdict is Verdict.EXACT]
    assert len(found) >= len(ends) - 1, [end.sentence for end in ends]
    # Base 1,000 with a share of 0.75 comes within 1e-5 of them.
    assert all(end.model.wiring.rope_base == 10_000.0 for end in found)
    assert all(end.model.wiring.rotary_share == 1.0 for end in found)


@pytest.mark.parametrize("name", WIRINGS)
def test_norm_residual_and_order_are_found_from_eleven_questions(name, rng):
    layer = draw(name, 31)
    seen = find_norm(Local(layer), rng=rng)
    assert seen.norm == layer.wiring.norm
    assert seen.residual == (layer.wiring.residual if seen.norm != "none" else None)
    assert seen.odd == (layer.positions is None)
    kind = layer.wiring.positions
    assert find_kind_of_order(Local(layer), layer.wiring.norm, rng=rng).positions == (
        kind if kind in ("none", "absolute") else None
    )


def test_a_network_is_behind_no_norm(rng):
    W = rng.normal(size=(8, 16))
    target = Local(lambda X: np.maximum(X[:, -1] @ W.T, 0.0), 16)
    assert find_norm(target, rng=rng).norm is None


def test_every_displacement_of_a_table_is_asked_about_as_often(rng):
    form = make_score_form(
        Wiring(positions="table"), 4, biased=False, displacements=64, longest=None
    )
    at = draw_displacements(design_questions(form, 16, 4), form, 63, rng=rng)
    counts = np.bincount(at[:, :-1].ravel(), minlength=64)[1:]
    assert (counts == 3).all()
    assert all(len(set(row)) == 4 for row in at)


@pytest.mark.parametrize("window", [2, 5, 12, 100, 256])
def test_a_window_is_found_exactly_in_few_questions(window, rng):
    layer = random_layer(8, heads=2, wiring=Wiring(positions="rope", window=window), rng=rng)
    oracle = Counted(Local(layer))
    assert find_window(oracle, None, rng=rng) == window
    assert oracle.ledger.total().sequences <= 16


def test_a_layer_without_a_window_has_none(rng):
    layer = random_layer(8, heads=2, wiring=Wiring(positions="rope"), rng=rng)
    assert find_window(Local(layer), None, rng=rng) is None


def test_a_token_that_counts_nowhere_is_no_window_of_one(rng):
    """As among the largest scores only, where the token that is moved has a low one."""
    assert find_window(Local(lambda X: X[:, -1], 4), None, rng=rng) is None


def test_a_layer_that_looks_through_a_window_comes_back_with_nothing_told():
    wiring = Wiring(norm="rms", eps=1e-5, residual=True, positions="rope", window=24, groups=2)
    layer = random_layer(16, heads=4, wiring=wiring, rng=90)
    found = WiredLayer().run(Local(layer), rng=np.random.default_rng(91))
    assert found.verdict is Verdict.EXACT
    assert (found.model.wiring.window, found.model.groups) == (24, 2)
    assert "window 24" in found.reason


def test_normed_queries_and_keys_are_called_exact_where_they_came_back_alone():
    """A cap over scores of a billion looks like them near zero, and its rounding explains all."""
    for seed in (101, *few(8)):
        wiring = Wiring(norm="layer", eps=1e-5, qk_norm=True, positions="rope")
        layer = random_layer(16, heads=4, wiring=wiring, rng=seed)
        found = keyhole.learn(Bare(layer), rng=1)
        assert found.verdict in (Verdict.EXACT, Verdict.UNVERIFIED), found.sentence
        if found.verdict.verified:
            X = np.random.default_rng(seed).normal(size=(40, 20, 16))
            gap = np.linalg.norm(found.model(X) - layer(X)) / np.linalg.norm(layer(X))
            assert gap <= 1e-9
            assert found.model.wiring.qk_norm


def test_a_model_whose_parts_dwarf_its_answers_is_verified_by_no_answers():
    wiring = Wiring(norm="rms", eps=1e-5, positions="rope", softcap=1.0)
    rng = np.random.default_rng(4)
    layer = random_layer(8, heads=2, wiring=wiring, rng=rng)
    swollen = replace(layer, Wq=1e6 * layer.Wq, Wk=1e6 * layer.Wk)
    other = replace(swollen, Wq=swollen.Wq + 1e4 * rng.normal(size=layer.Wq.shape))
    seen = examine_model(Local(other), swollen, ruler=Ruler(), rng=rng)
    assert seen.vacuous
    assert not examine_model(Local(layer), layer, ruler=Ruler(), rng=rng).vacuous


SINKS = Wiring(norm="rms", eps=1e-5, residual=True, positions="rope", sinks=True)


@pytest.mark.parametrize("groups", [None, 2])
def test_sinks_that_are_not_told_are_found(groups):
    for seed in few(4):
        truth = random_layer(16, heads=4, wiring=replace(SINKS, groups=groups), rng=seed)
        found = keyhole.learn(Bare(truth), rng=seed + 50)
        assert found.verdict is Verdict.EXACT
        assert found.model.wiring.sinks
        assert found.model.wiring.eps == 1e-5
        np.testing.assert_allclose(np.sort(found.model.sinks), np.sort(truth.sinks), atol=1e-6)


NORMED = replace(SINKS, sinks=False, qk_norm=True)


@pytest.mark.parametrize("groups", [None, 2, 1])
def test_normed_queries_and_keys_are_named_within_300_questions(groups):
    """Those that are told to have no norm of their own."""
    told = replace(NORMED, qk_norm=False, groups=None)
    for seed in few(4):
        truth = random_layer(16, heads=4, wiring=replace(NORMED, groups=groups), rng=seed)
        found = WiredLayer(told).run(Local(truth), rng=np.random.default_rng(seed + 60))
        assert found.verdict is Verdict.UNVERIFIED
        assert "queries and keys have a norm of their own" in found.detail
        assert found.ledger.total().sequences <= 300


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_scores_that_are_products_are_not_called_normed(scale):
    for name, (wiring, biases) in WIRINGS.items():
        for seed in range(4):
            drawing, rng = np.random.default_rng([seed, 3]).spawn(2)
            layer = random_layer(
                16, heads=4, wiring=wiring, biases=biases, scale=scale, rng=drawing
            )
            ball = NormBall.of(16, wiring.norm, wiring.eps or 0.0)
            asking = Asking(Local(layer), ball, bool(wiring.residual))
            assert name == "absolute" or not are_scores_normed(asking, rng=rng)


class Short(Bare):
    """A layer that fails on a sequence of 65 tokens."""

    def __call__(self, X):
        assert X.shape[1] <= 64, "a sequence was longer than declared"
        return self.layer(X)


SHORT = {
    **{name: wiring for name, (wiring, _) in WIRINGS.items()},
    "groups": replace(SINKS, sinks=False, groups=2),
    "sinks": SINKS,
    "normed queries and keys": replace(SINKS, sinks=False, qk_norm=True),
    "wide heads": replace(SINKS, sinks=False),
}


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("told", [True, False])
def test_declared_lengths_are_kept_by_every_learner_of_positions(name, told):
    wiring = SHORT[name]
    heads, rank = (3, 6) if name == "wide heads" else (2, 4)
    truth = random_layer(8, heads=heads, rank=rank, wiring=wiring, rng=41)
    hint = replace(wiring, qk_norm=False, groups=None) if told else None
    learner = WiredLayer(hint, displacements=16)
    found = learner.run(Sized(Local(Short(truth)), (1, 64)), rng=np.random.default_rng(42))
    assert found.verdict in (Verdict.EXACT, Verdict.UNVERIFIED)
    assert found.detail
