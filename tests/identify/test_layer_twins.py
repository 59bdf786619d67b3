"""keyhole/layer-symmetries: what no answer of an attention layer shows, and what is left."""

from dataclasses import replace

import numpy as np
import pytest

import keyhole
from keyhole import AttentionLayer, Outcome, Symmetry, Wiring, compare, random_layer
from keyhole.errors import InvalidInput
from keyhole.models.layers.layer_maps import OPTIONAL

pytestmark = pytest.mark.theorem("keyhole/layer-symmetries")

EVERY = {Symmetry.ORDER, Symmetry.VALUES}
CASES = {
    "rope": (Wiring(norm="rms", positions="rope"), {Symmetry.PAIRS, Symmetry.NORM}),
    "half rope": (
        Wiring(norm="rms", positions="rope", rotary_share=0.5),
        {Symmetry.PAIRS, Symmetry.SCORES, Symmetry.NORM},
    ),
    "capped": (Wiring(norm="rms", softcap=3.0), {Symmetry.SCORES, Symmetry.NORM}),
    "table": (
        Wiring(norm="layer", positions="table"),
        {Symmetry.SCORES, Symmetry.EQUAL_SCORES, Symmetry.NORM},
    ),
    "alibi, window": (
        Wiring(norm="layer", positions="alibi", window=5, residual=True),
        {Symmetry.SCORES, Symmetry.EQUAL_SCORES, Symmetry.NORM},
    ),
    "absolute": (
        Wiring(norm="none", positions="absolute", residual=True),
        {Symmetry.SCORES, Symmetry.EQUAL_SCORES, Symmetry.PLACES},
    ),
    "absolute, LayerNorm": (
        Wiring(norm="layer", positions="absolute", residual=True),
        {Symmetry.SCORES, Symmetry.EQUAL_SCORES, Symmetry.NORM, Symmetry.PLACES},
    ),
    "groups": (Wiring(norm="rms", positions="rope", groups=2), {Symmetry.PAIRS, Symmetry.NORM}),
    "sinks, table": (
        Wiring(norm="rms", positions="table", sinks=True),
        {Symmetry.SCORES, Symmetry.EQUAL_SCORES, Symmetry.NORM},
    ),
}


def draw(name, seed=3):
    wiring, _ = CASES[name]
    rng = np.random.default_rng(seed)
    layer = random_layer(16, heads=4, wiring=wiring, biases=True, displacements=12, rng=rng)
    if wiring.norm == "none":
        return layer
    return replace(layer, gain=rng.uniform(0.5, 2, 16), shift=rng.normal(size=16))


def list_parts(layer):
    return {
        name: getattr(layer, name)
        for name in ("Wq", "Wk", "Wv", "Wo", *OPTIONAL)
        if getattr(layer, name) is not None
    }


def answers(layer):
    rng = np.random.default_rng(0)
    return np.concatenate([layer(rng.normal(size=(5, n, 16))) for n in (1, 2, 7, 12)])


@pytest.mark.parametrize("name", CASES)
def test_twins_of_layers_differ_in_parameters_and_agree_in_answers(name, rng):
    layer, expected = draw(name), CASES[name][1] | EVERY
    found = keyhole.twins(layer, rng=rng)
    assert {twin.symmetry for twin in found} == expected
    for twin in found:
        assert twin.certificate.theorem == "keyhole/layer-symmetries"
        assert twin.certificate.outcome is Outcome.HOLDS, twin.symmetry
        np.testing.assert_allclose(answers(twin.model), answers(layer), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_twins_of_layers_share_one_canonical_form_that_answers_alike(name, rng):
    layer = draw(name)
    form = keyhole.canonical(layer)
    np.testing.assert_allclose(answers(form), answers(layer), rtol=1e-10, atol=1e-10)
    for twin in keyhole.twins(layer, rng=rng):
        parts = list_parts(keyhole.canonical(twin.model))
        assert set(parts) == set(list_parts(form))
        for part, own in list_parts(form).items():
            np.testing.assert_allclose(
                parts[part], own, rtol=1e-8, atol=1e-9, err_msg=f"{twin.symmetry.name} {part}"
            )


def test_a_layernorm_without_gain_hides_a_constant_in_every_row(rng):
    layer = replace(draw("table"), gain=None)
    found = {twin.symmetry: twin for twin in keyhole.twins(layer, rng=rng)}
    twin = found[Symmetry.MEAN].model
    assert np.ptp(twin.Wv - layer.Wv, axis=2).max() < 1e-12 < np.abs(twin.Wv - layer.Wv).min()
    np.testing.assert_allclose(answers(twin), answers(layer), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in CASES if n != "sinks, table"])
def test_twins_of_layers_are_at_distance_0_and_other_layers_are_not(name, rng):
    layer = draw(name)
    for twin in keyhole.twins(layer, rng=rng):
        assert compare(layer, twin.model).largest < 1e-10, twin.symmetry
    assert compare(layer, draw(name, seed=4)).largest > 0.1


def test_a_layer_with_an_idle_head_of_lower_rank_has_a_finite_form(rng):
    layer = draw("table")
    Wo, Wv = layer.Wo.copy(), layer.Wv.copy()
    Wo[1], Wv[2, 0] = 0.0, Wv[2, 1]
    form = keyhole.canonical(replace(layer, Wo=Wo, Wv=Wv))
    assert isinstance(form, AttentionLayer)
    assert np.linalg.norm(form.Wo[-1] @ form.Wv[-1]) == 0.0
    np.testing.assert_allclose(
        answers(form), answers(replace(layer, Wo=Wo, Wv=Wv)), rtol=1e-10, atol=1e-10
    )


def test_kinds_without_twins_or_a_form_are_refused_with_those_that_have_some(rng):
    net = keyhole.ReluNet(rng.normal(size=(2, 3)), np.ones(2), rng.normal(size=(1, 2)), np.ones(1))
    with pytest.raises(InvalidInput, match="known for a head, a multihead, a layer"):
        keyhole.twins(net, rng=rng)
    with pytest.raises(InvalidInput, match="canonical form is known"):
        keyhole.canonical(net)
