"""Attention layers modulo what answers do not determine: their distance is that of functions."""

from dataclasses import replace

import numpy as np
import pytest

import keyhole
from keyhole import AttentionLayer, InvalidInput, Wiring, random_layer

KINDS = {
    "plain": {"norm": "none", "positions": "none"},
    "table behind LayerNorm": {"norm": "layer", "positions": "table"},
    "ALiBi behind RMSNorm": {"norm": "rms", "positions": "alibi"},
    "rotary behind RMSNorm": {"norm": "rms", "positions": "rope"},
    "half rotary": {"norm": "rms", "positions": "rope", "rotary_share": 0.5},
    "capped rotary": {"norm": "rms", "positions": "rope", "softcap": 5.0},
    "absolute behind LayerNorm": {"norm": "layer", "positions": "absolute"},
    "absolute behind RMSNorm": {"norm": "rms", "positions": "absolute"},
    "absolute without a norm": {"norm": "none", "positions": "absolute"},
}


def drawn(kind, rng):
    wiring = (
        Wiring(eps=1e-5, residual=True, **KINDS[kind])
        if KINDS[kind]["norm"] != "none"
        else (Wiring(residual=True, **KINDS[kind]))
    )
    return random_layer(8, heads=2, wiring=wiring, biases=True, displacements=12, rng=rng)


def turned_pairs(layer):
    if layer.wiring.positions != "rope":
        return 0
    return round(4 * layer.wiring.rotary_share) // 2


def mix_scores(layer, rng):
    """Queries and keys of every head moved by what their product does not show."""
    p = turned_pairs(layer)
    Wq, Wk, bq, bk = (np.array(part) for part in (layer.Wq, layer.Wk, layer.bq, layer.bk))
    for h in range(len(Wq)):
        for f in range(p):
            z = complex(*rng.normal(size=2))
            for W, b, factor in ((Wq, bq, z), (Wk, bk, 1 / np.conj(z))):
                rows, ends = W[h, [f, f + p]].copy(), b[h, [f, f + p]].copy()
                turn = np.array([[factor.real, -factor.imag], [factor.imag, factor.real]])
                W[h, [f, f + p]], b[h, [f, f + p]] = turn @ rows, turn @ ends
        C = rng.normal(size=(4 - 2 * p, 4 - 2 * p))
        Wq[h, 2 * p :], bq[h, 2 * p :] = C @ Wq[h, 2 * p :], C @ bq[h, 2 * p :]
        back = np.linalg.inv(C).T
        Wk[h, 2 * p :], bk[h, 2 * p :] = back @ Wk[h, 2 * p :], back @ bk[h, 2 * p :]
    return replace(layer, Wq=Wq, Wk=Wk, bq=bq, bk=bk)


def mix_values(layer, rng):
    C = rng.normal(size=(2, 4, 4))
    return replace(
        layer,
        Wv=C @ layer.Wv,
        bv=np.einsum("hij,hj->hi", C, layer.bv),
        Wo=layer.Wo @ np.linalg.inv(C),
    )


def fold_gain(layer):
    if layer.gain is None:
        return layer
    shift = np.zeros(8) if layer.shift is None else layer.shift
    moved = {f"W{x}": getattr(layer, f"W{x}") * layer.gain for x in "qkv"}
    moved |= {f"b{x}": getattr(layer, f"b{x}") + getattr(layer, f"W{x}") @ shift for x in "qkv"}
    return replace(layer, gain=None, shift=None, **moved)


def disguise(layer, rng):
    """Other parameters of the same function."""
    other = fold_gain(mix_values(mix_scores(layer, rng), rng))
    parts = {
        name: getattr(other, name)[::-1] for name in ("Wq", "Wk", "Wv", "Wo", "bq", "bk", "bv")
    }
    if other.table is not None:
        lifted = 0.0 if layer.wiring.positions == "alibi" else rng.normal(size=(2, 1))
        parts["table"] = (other.table + lifted)[::-1]
    return move_positions(replace(other, **parts), rng)


def move_positions(layer, rng):
    """Position vectors moved by what no answer shows."""
    if layer.positions is None or layer.wiring.norm == "rms":
        return layer
    if layer.wiring.norm == "layer":
        moved = float(rng.normal())
        return replace(layer, positions=layer.positions + moved, bo=layer.bo - moved)
    moved = rng.normal(size=8)
    parts = {f"b{x}": getattr(layer, f"b{x}") - getattr(layer, f"W{x}") @ moved for x in "qkv"}
    return replace(layer, positions=layer.positions + moved, bo=layer.bo - moved, **parts)


@pytest.mark.parametrize("kind", KINDS)
def test_disguised_layers_answer_alike_and_are_no_distance_apart(kind, rng):
    layer = drawn(kind, rng)
    other = disguise(layer, rng)
    X = rng.normal(size=(20, 9, 8))
    np.testing.assert_allclose(other(X), layer(X), rtol=1e-9, atol=1e-9)
    assert np.abs(other.Wq - layer.Wq).max() > 1e-2
    assert keyhole.compare(layer, other).largest <= 1e-10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Wq", "Wk", "Wv", "Wo", "bq", "bo"])
def test_a_change_of_any_part_is_a_distance_of_its_size(kind, name, rng):
    layer = drawn(kind, rng)
    changed = getattr(layer, name) + 1e-4 * rng.normal(size=getattr(layer, name).shape)
    other = disguise(replace(layer, **{name: changed}), rng)
    X = rng.normal(size=(20, 9, 8))
    assert np.abs(other(X) - layer(X)).max() > 1e-7
    assert 1e-6 < keyhole.compare(layer, other).largest < 1e-2


def test_equal_entries_of_positions_are_nothing_behind_a_norm_without_a_residual(rng):
    layer = drawn("absolute behind LayerNorm", rng)
    layer = replace(layer, wiring=replace(layer.wiring, residual=False))
    other = replace(layer, positions=layer.positions + rng.normal(size=(12, 1)))
    X = rng.normal(size=(20, 9, 8))
    np.testing.assert_allclose(other(X), layer(X), rtol=1e-9, atol=1e-9)
    assert keyhole.compare(layer, other).largest <= 1e-10


def test_an_unturned_key_bias_does_not_show_and_a_turned_one_does(rng):
    for kind, shown in (("table behind LayerNorm", False), ("rotary behind RMSNorm", True)):
        layer = drawn(kind, rng)
        other = replace(layer, bk=layer.bk + 0.3)
        X = rng.normal(size=(20, 9, 8))
        assert (np.abs(other(X) - layer(X)).max() > 1e-6) == shown
        assert (keyhole.compare(layer, other).largest > 1e-6) == shown


def test_an_eps_that_was_found_is_a_distance_and_no_obstacle(rng):
    layer = drawn("rotary behind RMSNorm", rng)
    other = replace(layer, wiring=replace(layer.wiring, eps=1e-5 * (1 + 1e-12)))
    assert keyhole.compare(layer, other).largest < 2e-12
    far = replace(layer, wiring=replace(layer.wiring, eps=2e-5))
    assert keyhole.compare(layer, far).largest > 0.4


def test_layers_of_other_wirings_are_not_compared(rng):
    layer, other = drawn("plain", rng), drawn("rotary behind RMSNorm", rng)
    with pytest.raises(InvalidInput, match="differ in norm, positions, rope_base"):
        keyhole.compare(layer, other)
    assert isinstance(layer, AttentionLayer)
