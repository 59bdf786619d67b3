"""Attention layers as they are built, against torch written in the test, and their files."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

import keyhole
from keyhole import AttentionLayer, InvalidInput, Wiring, random_layer
from keyhole._arrays import EPS
from keyhole.lab.jobs import SampleJob
from keyhole.lab.running import run_job
from support.wired_layers import WIRINGS, answer_in_torch, draw_wired


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("name", WIRINGS)
def test_a_layer_answers_as_the_same_layer_in_torch(name, biases, rng):
    layer = draw_wired(name, rng, biases=biases)
    for length in (1, 2, 7):
        X = rng.normal(size=(5, length, 8))
        np.testing.assert_allclose(layer(X), answer_in_torch(layer, X), atol=1e-12)


@pytest.mark.parametrize("name", WIRINGS)
def test_a_layer_comes_back_bit_for_bit(name, rng, tmp_path):
    layer = draw_wired(name, rng, biases=True)
    keyhole.save(layer, tmp_path / "layer.safetensors")
    again = keyhole.load(tmp_path / "layer.safetensors")
    assert again.wiring == layer.wiring
    X = rng.normal(size=(3, 6, 8))
    assert np.array_equal(again(X), layer(X))


@pytest.mark.parametrize("name", WIRINGS)
def test_rounding_explains_what_another_order_of_arithmetic_gives(name, rng):
    """Torch adds in another order; sizes of tokens over six decades."""
    layer = draw_wired(name, rng, biases=True)
    for size in (1e-3, 1.0, 1e3):
        X = size * rng.normal(size=(20, 6, 8)) + size
        gap = np.abs(layer(X) - answer_in_torch(layer, X)).max(axis=1)
        stick = layer.yardstick(X, EPS)
        assert (gap <= 2 * stick.rounding).all()
        assert (stick.coarse >= 0.9 * stick.rounding).all()
        assert (stick.rounding < 1e-9 * stick.size + 1e-11).all()


def test_the_size_of_a_layer_is_the_largest_part_of_an_answer(rng):
    layer = draw_wired("rms rope residual", rng)
    X = rng.normal(size=(4, 1, 8))
    n = layer.normed(X)[:, 0]
    heads = [np.abs(n @ (layer.Wo[h] @ layer.Wv[h]).T) for h in range(4)]
    expected = (sum(heads) + np.abs(X[:, 0])).max(axis=1)
    np.testing.assert_allclose(layer.yardstick(X, EPS).size, expected, rtol=1e-12)


def test_a_lone_token_is_read_whatever_the_scores(rng):
    layer = draw_wired("table", rng)
    X = rng.normal(size=(4, 1, 8))
    expected = sum(layer.normed(X)[:, 0] @ (layer.Wo[h] @ layer.Wv[h]).T for h in range(4))
    np.testing.assert_allclose(layer(X), expected, atol=1e-13)


def test_a_token_outside_the_window_is_not_read(rng):
    layer = draw_wired("window", rng)
    X = rng.normal(size=(1, 6, 8))
    moved = X.copy()
    moved[0, 2] += 1.0
    assert np.array_equal(layer(X), layer(moved))
    moved[0, 3] += 1.0
    assert np.abs(layer(X) - layer(moved)).max() > 1e-3


def test_what_is_not_told_is_absent_or_usual():
    wiring = Wiring(norm="rms", positions="rope").complete(3)
    assert (wiring.eps, wiring.rope_base, wiring.rotary_share) == (1e-5, 10_000.0, 1.0)
    assert (wiring.groups, wiring.residual, wiring.sinks, wiring.window) == (3, False, False, None)
    assert Wiring().complete(1).eps is None


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"norm": "batch"}, "norm is one of none, rms, layer; got 'batch'"),
        ({"positions": "sine"}, "positions is one of none, rope, alibi, table, absolute"),
        ({"eps": -1.0}, "eps is a finite number from 0 and at most 1; got -1.0"),
        ({"rope_base": 1.0}, "rope_base is a finite number above 1; got 1.0"),
        ({"rotary_share": 1.5}, "rotary_share is a finite number above 0 and at most 1"),
        ({"window": 0}, "window is a whole number from 1 on; got 0"),
        ({"softcap": float("nan")}, "softcap is a finite number above 0; got nan"),
    ],
)
def test_a_wiring_that_cannot_be_is_refused(told, says):
    with pytest.raises(InvalidInput, match=says):
        Wiring(**told)


def test_parts_that_do_not_fit_their_wiring_are_refused(rng):
    layer = draw_wired("table", rng)
    with pytest.raises(InvalidInput, match="a layer with rope positions has no table"):
        replace(layer, wiring=Wiring(positions="rope"))
    with pytest.raises(InvalidInput, match="a layer with table positions needs table"):
        replace(layer, table=None)
    with pytest.raises(InvalidInput, match="has no gain"):
        replace(layer, wiring=Wiring(positions="table"))
    with pytest.raises(InvalidInput, match="tells of 2 groups; Wk and Wv have 4"):
        replace(layer, wiring=replace(layer.wiring, groups=2))
    with pytest.raises(InvalidInput, match="even number of entries"):
        random_layer(6, heads=2, rank=3, wiring=Wiring(positions="rope"), rng=rng)
    with pytest.raises(InvalidInput, match="residual needs as many outputs"):
        random_layer(6, heads=2, outputs=5, wiring=Wiring(residual=True), rng=rng)
    with pytest.raises(InvalidInput, match="3 heads cannot share 2"):
        AttentionLayer(*(np.zeros((k, 2, 4)) for k in (3, 2, 2)), np.zeros((3, 5, 2)))


def test_a_sequence_beyond_the_known_positions_is_refused(rng):
    layer = draw_wired("table", rng, displacements=5)
    assert (layer.longest, draw_wired("alibi", rng).longest) == (5, None)
    with pytest.raises(InvalidInput, match="knows 5 positions; got sequences of 6 tokens"):
        layer(rng.normal(size=(1, 6, 8)))


def test_a_file_without_a_wiring_or_with_a_strange_one_is_refused(tmp_path):
    path = tmp_path / "layer.safetensors"
    tensors = {name: np.zeros((2, 2, 4)) for name in ("Wq", "Wk", "Wv")} | {
        "Wo": np.zeros((2, 4, 2))
    }
    ours = {"kind": "layer", "format": "1"}
    for words, says in (
        ({}, "says its wiring"),
        ({"wiring": "rope"}, "written as JSON"),
        ({"wiring": '{"colour": 1}'}, "a wiring has the fields"),
        ({"wiring": '{"eps": -1}'}, "eps is a finite number"),
    ):
        save_file(tensors, path, ours | words)
        with pytest.raises(InvalidInput, match=says):
            keyhole.load(path)


def test_sample_writes_a_layer_of_the_wiring_that_is_asked_for(tmp_path):
    path = str(tmp_path / "layer.safetensors")
    wired = {"norm": "rms", "positions": "rope", "groups": 2, "residual": True}
    run_job(SampleJob("layer", width=16, heads=4, out=path, **wired))
    layer = keyhole.load(path)
    assert layer.wiring == Wiring(**wired).complete(2)
    assert (layer.Wq.shape, layer.Wk.shape, layer.Wo.shape) == ((4, 4, 16), (2, 4, 16), (4, 16, 4))
    # Scores of tokens behind a norm are about 1.
    scores = layer.logits(np.random.default_rng(0).normal(size=(50, 8, 16)))
    assert 0.5 < scores.std() < 2.0
