"""Several heads before a network: scores from the odd part, the network from chosen means."""

import numpy as np
import pytest

from keyhole import (
    Head,
    HeadsBeforeNetwork,
    Local,
    MultiHead,
    OneLayer,
    ReluNet,
    SeveralHeadsLayer,
    Verdict,
    learn,
    load,
    save,
)
from keyhole.learners.one_layer.chosen_means import choose_last_tokens
from keyhole.models import Gated
from support.measures import asked
from support.seeds import few


def measure_gap(truth, found, rng):
    """The largest difference on fresh sequences of several lengths, over the largest answer."""
    gaps, sizes = [], []
    for length in (1, 2, 5, 12):
        X = rng.normal(size=(50, length, truth.width))
        gaps.append(np.abs(truth(X) - found(X)).max())
        sizes.append(np.abs(truth(X)).max())
    return max(gaps) / max(sizes)


def draw_layer(seed, outputs, **options):
    hiding, learning = np.random.default_rng([31, seed]).spawn(2)
    truth = HeadsBeforeNetwork.random(6, heads=2, hidden=8, outputs=outputs, **options, rng=hiding)
    return truth, learning


def test_the_model_is_a_network_of_what_all_heads_see(rng):
    model = HeadsBeforeNetwork.random(3, heads=2, hidden=4, outputs=2, biases=True, rng=rng)
    (X,) = rng.normal(size=(1, 5, 3))
    total = np.zeros(3)
    for W, V in zip(model.heads.W, model.heads.V, strict=True):
        weights = np.exp([x @ W @ X[-1] for x in X])
        total += sum(w * x for w, x in zip(weights / weights.sum(), X, strict=True)) @ V
    net = model.net
    expected = net.W2 @ np.maximum(net.W1 @ total + net.b1, 0.0) + net.b2
    np.testing.assert_allclose(model(X[None])[0], expected, rtol=1e-12)
    alone = OneLayer(Head(model.heads.W[0], model.heads.V[0]), net)
    one = HeadsBeforeNetwork(MultiHead(model.heads.W[:1], model.heads.V[:1]), net)
    Z = rng.normal(size=(20, 4, 3))
    np.testing.assert_allclose(one(Z), alone(Z), rtol=1e-12)
    mine, theirs = (each.yardstick(Z, 2.0**-52) for each in (one, alone))
    np.testing.assert_allclose(mine.rounding, theirs.rounding)


def test_the_model_comes_back_from_its_file(rng, tmp_path):
    model = HeadsBeforeNetwork.random(3, heads=2, hidden=4, rng=rng)
    save(model, tmp_path / "model.safetensors")
    X = rng.normal(size=(5, 3, 3))
    np.testing.assert_array_equal(load(tmp_path / "model.safetensors")(X), model(X))


@pytest.mark.parametrize("outputs", [1, 6])
def test_several_heads_before_a_network_come_back(outputs):
    spent = []
    for seed in few(20):
        truth, rng = draw_layer(seed, outputs)
        found = SeveralHeadsLayer().run(Local(truth), rng=rng)
        assert found.verdict is Verdict.EXACT, (seed, found.sentence)
        assert measure_gap(truth, found.unwrap(), rng) <= 1e-9
        spent.append(asked(found))
    assert np.median(spent) <= 900


def test_auto_finds_them_and_a_constant(rng):
    truth, learning = draw_layer(0, 3)
    net = ReluNet(truth.net.W1, truth.net.b1, truth.net.W2, rng.normal(size=3))
    shifted = HeadsBeforeNetwork(truth.heads, net)
    found = learn(shifted, rng=learning)
    assert found.verdict is Verdict.EXACT, found.sentence
    assert measure_gap(shifted, found.unwrap(), rng) <= 1e-9


def test_biases_of_units_are_no_sum_of_heads_in_the_odd_part():
    truth, rng = draw_layer(1, 6, biases=True)
    found = SeveralHeadsLayer().run(Local(truth), rng=rng)
    assert found.verdict is Verdict.UNVERIFIED


def test_two_layers_of_one_odd_part_are_told_apart():
    """Rows V_h a_j that differ while their sums over units agree: the odd part cannot see that."""
    rng = np.random.default_rng(5)
    W = rng.normal(size=(2, 6, 6)) / 2.5
    # Two units of opposite rows through head 2: they cancel in the odd part, not in the network.
    V = rng.normal(size=(2, 6, 4)) / 2.5
    moved = V.copy()
    moved[1, :, 0] += rng.normal(size=6)
    net = ReluNet(np.eye(4), np.zeros(4), np.array([[0.0, 1.0, 1.0, 1.0]]), np.zeros(1))
    other = ReluNet(
        np.vstack([np.eye(4), np.eye(4)[:1], -np.eye(4)[:1]]),
        np.zeros(6),
        np.array([[0.0, 1.0, 1.0, 1.0, 1.0, 1.0]]),
        np.zeros(1),
    )
    plain, bent = (
        HeadsBeforeNetwork(MultiHead(W, V), net),
        HeadsBeforeNetwork(MultiHead(W, moved), other),
    )
    X = rng.normal(size=(30, 4, 6))
    np.testing.assert_allclose(plain(X) - plain(-X), bent(X) - bent(-X), atol=1e-12)
    assert np.abs(plain(X) - bent(X)).max() > 0.3
    for truth in (plain, bent):
        found = SeveralHeadsLayer().run(Local(truth), rng=np.random.default_rng(1))
        assert found.verdict is Verdict.EXACT
        assert measure_gap(truth, found.unwrap(), rng) <= 1e-9


@pytest.mark.parametrize("activation", ["gelu", "silu", "softplus"])
@pytest.mark.parametrize("outputs", [1, 6])
def test_several_heads_before_smooth_units_come_back(activation, outputs):
    exact, spent = 0, []
    for seed in few(20):
        truth, rng = draw_layer(seed, outputs, activation=activation)
        found = SeveralHeadsLayer().run(Local(truth), rng=rng)
        if found.verdict is Verdict.EXACT:
            assert measure_gap(truth, found.unwrap(), rng) <= 1e-9
            assert found.unwrap().net.activation == activation
            exact += 1
        spent.append(asked(found))
    assert exact >= 0.75 * len(spent)
    assert np.median(spent) <= 950


def test_auto_finds_several_heads_before_smooth_units(rng):
    truth, learning = draw_layer(3, 3, activation="gelu")
    found = learn(truth, rng=learning)
    assert found.verdict is Verdict.EXACT, found.sentence
    assert measure_gap(truth, found.unwrap(), rng) <= 1e-9


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e9])
def test_every_head_sees_the_token_that_was_chosen_for_it(heads, size, rng):
    W = rng.normal(size=(heads, 10, 10)) / np.sqrt(10)
    tokens = size * rng.normal(size=(40, heads, 10))
    tokens[0] = 0.0
    last = choose_last_tokens(W, tokens, rng=rng)
    X = np.concatenate([tokens, last[:, None]], axis=1)
    for h in range(heads):
        scores = np.einsum("nid,de,ne->ni", X, W[h], last)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        seen = np.einsum("ni,nid->nd", weights / weights.sum(axis=1, keepdims=True), X)
        assert np.abs(seen - tokens[:, h]).max() <= 1e-15 * size


def test_smooth_units_with_biases_and_gates_are_refused_within_fifty_questions():
    truth, rng = draw_layer(2, 6, activation="gelu", biases=True)
    gates = Gated.random(6, hidden=8, outputs=2, rng=rng)
    for target in (truth, HeadsBeforeNetwork(truth.heads, gates)):
        found = SeveralHeadsLayer().run(Local(target), rng=rng)
        assert found.verdict is Verdict.UNVERIFIED
        assert asked(found) <= 50
