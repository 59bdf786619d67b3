"""One-layer Transformers: values by hand, the lone token's network, what counts as the same,
files.
"""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keyhole.errors import InvalidInput
from keyhole.identify import one_layer_distance, one_layer_freedom
from keyhole.models import AbsAffine, Head, Model, OneLayer, ReluNet, load, save

SHAPES = [(False, False), (True, False), (False, True), (True, True)]


def layer(rng, *, residual=False, biases=True, width=4, hidden=6, outputs=2):
    return OneLayer.random(
        width, hidden=hidden, outputs=outputs, biases=biases, residual=residual, rng=rng
    )


def by_hand(model, X):
    """One sequence, token by token."""
    head, last = model.head, X[-1]
    scores = [x @ (np.asarray(head.W) @ last + (0 if head.h is None else head.h)) for x in X]
    weights = [np.exp(s) for s in scores]
    z = sum(w * (x @ head.V) for w, x in zip(weights, X, strict=True)) / sum(weights)
    z = z + (0 if head.c is None else head.c) + (0 if head.U is None else last @ head.U)
    return model.net.points((z + last if model.residual else z)[None])[0]


@pytest.mark.parametrize(("residual", "biases"), SHAPES)
def test_answers_are_those_of_the_formula(residual, biases, rng):
    model, X = layer(rng, residual=residual, biases=biases), rng.normal(size=(5, 7, 4))
    np.testing.assert_allclose(model(X), [by_hand(model, x) for x in X], rtol=1e-12)


def test_it_is_a_model(rng):
    model = layer(rng)
    assert isinstance(model, Model)
    assert (model.width, model.outputs) == (4, 2)


@pytest.mark.parametrize(("residual", "biases"), SHAPES)
def test_a_lone_token_is_answered_by_the_lone_network(residual, biases, rng):
    model, x = layer(rng, residual=residual, biases=biases), rng.normal(size=(9, 4))
    np.testing.assert_allclose(model.lone().points(x), model(x[:, None]), rtol=1e-12)


@pytest.mark.parametrize(("residual", "biases"), SHAPES)
def test_lone_network_scores_and_mixing_are_all_that_answers_need(residual, biases, rng):
    model, X = layer(rng, residual=residual, biases=biases), rng.normal(size=(9, 5, 4))
    scores = model.logits(X)[:, 0]
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    mean = np.einsum("bn,bnd->bd", weights, X) - X[:, -1]
    np.testing.assert_allclose(
        model.lone().points(X[:, -1] + mean @ model.mixing.T), model(X), rtol=1e-10
    )


def recovered_form(model):
    """The same function written as a learner writes it."""
    head, M = model.head, model.mixing.T
    lone = model.lone().normal_form()
    if not model.residual:
        return OneLayer(Head(head.W, np.eye(model.width), head.h), lone)
    return OneLayer(Head(head.W, M, head.h, U=-M), lone, residual=True)


@pytest.mark.parametrize("residual", [False, True])
def test_two_ways_to_write_one_function_have_no_distance(residual, rng):
    model, X = layer(rng, residual=residual), rng.normal(size=(9, 5, 4))
    other = recovered_form(model)
    np.testing.assert_allclose(other(X), model(X), rtol=1e-10)
    assert one_layer_distance(model, other).largest < 1e-12


@pytest.mark.parametrize("part", ["W", "h", "V"])
def test_a_changed_part_shows_in_the_distance(part, rng):
    model = layer(rng, residual=True)
    parts = {name: getattr(model.head, name) for name in ("W", "V", "h", "c")}
    parts[part] = parts[part] + 1e-3 * rng.normal(size=parts[part].shape)
    gap = one_layer_distance(model, OneLayer(Head(**parts), model.net, True))
    shown = {"W": gap.W, "h": gap.h, "V": min(gap.M, gap.net.largest)}
    assert 1e-5 < shown[part] < 1e-1
    assert [name for name in ("W", "h") if name != part and shown[name] > 0] == []


def test_directions_the_network_ignores_do_not_count(rng):
    W1 = rng.normal(size=(3, 4)) * [1.0, 1.0, 1.0, 0.0]
    net = ReluNet(W1, rng.normal(size=3), rng.normal(size=(1, 3)), np.zeros(1))
    W, M, other = rng.normal(size=(3, 4, 4))
    other[:3] = M[:3]
    a, b = (OneLayer(Head(W, m.T, U=-m.T), net, True) for m in (M, other))
    assert one_layer_distance(a, b).largest < 1e-12


def test_freedom_is_counted_as_in_the_formula():
    assert one_layer_freedom(8, hidden=32) == 32 * 9 + 9 + 64
    assert (
        one_layer_freedom(8, hidden=32, rank=2, score_bias=2, residual=True)
        == 32 * 9 + 9 + 28 + 2 + 64
    )


@pytest.mark.parametrize("form", ["relu", "absaffine"])
def test_magnitude_bounds_what_the_tokens_add_and_ignores_constants(form, rng):
    model, X = layer(rng), rng.normal(size=(6, 5, 4))
    model = model if form == "relu" else recovered_form(model)
    alone = (
        np.abs(model(X.reshape(-1, 1, 4)) - model(np.zeros((1, 1, 4))))
        .max(axis=1)
        .reshape(6, 5)
        .max(axis=1)
    )
    assert (model.magnitude(X) >= alone * (1 - 1e-12)).all()
    assert (model.magnitude(0 * X) == 0).all()


def test_hyperplanes_that_a_head_never_reaches_become_a_constant(rng):
    head = Head(rng.normal(size=(3, 3)), np.diag([1.0, 1.0, 0.0]), c=rng.normal(size=3))
    net = AbsAffine(
        np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]),
        rng.normal(size=2),
        np.ones((2, 1)),
        np.ones((1, 3)),
        np.zeros(1),
    )
    model, x = OneLayer(head, net), rng.normal(size=(5, 3))
    assert model.lone().hidden == 1
    np.testing.assert_allclose(model.lone().points(x), model(x[:, None]), rtol=1e-12)


def test_a_network_of_another_width_is_refused(rng):
    with pytest.raises(InvalidInput, match="3 numbers; it takes 4"):
        OneLayer(Head(rng.normal(size=(4, 4)), rng.normal(size=(4, 3))), layer(rng).net)


def test_a_residual_needs_as_many_outputs_as_a_token_has_numbers(rng):
    net = ReluNet.random(3, hidden=2, rng=rng)
    with pytest.raises(InvalidInput, match="as many outputs as a token has numbers, 4; it has 3"):
        OneLayer(Head(rng.normal(size=(4, 4)), rng.normal(size=(4, 3))), net, residual=True)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("kind", ["relu", "gelu", "absaffine"])
def test_a_saved_layer_comes_back_bit_for_bit(kind, rank, residual, rng, tmp_path):
    drawn = OneLayer.random(4, hidden=5, rank=rank, biases=True, residual=residual, rng=rng)
    net = (
        AbsAffine.random(4, hidden=5, rng=rng)
        if kind == "absaffine"
        else ReluNet.random(4, hidden=5, activation=kind, rng=rng)
    )
    model, X = OneLayer(drawn.head, net, residual), rng.normal(size=(6, 5, 4))
    save(model, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert type(again) is OneLayer
    assert again.residual is residual
    np.testing.assert_array_equal(again(X), model(X))


def test_a_file_names_its_parts(rng, tmp_path):
    from safetensors import safe_open

    save(layer(rng, residual=True), tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", framework="np") as file:
        about = {
            "kind": "onelayer",
            "format": "1",
            "net_kind": "relu",
            "activation": "relu",
            "residual": "true",
        }
        assert file.metadata() == about
        names = {"head.W", "head.V", "head.h", "head.c", "net.W1", "net.b1", "net.W2", "net.b2"}
        assert set(file.keys()) == names


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"net_kind": "tree"}, "net_kind"),
        ({"residual": "maybe"}, "residual"),
        ({"+": "boat"}, "unknown"),
        ({"-": "head.V"}, "missing"),
        ({"-": "net.b1"}, "missing"),
    ],
)
def test_a_damaged_file_is_refused_with_what_is_wrong(change, says, rng, tmp_path):
    save(layer(rng), tmp_path / "m.safetensors")
    about = {
        "kind": "onelayer",
        "format": "1",
        "net_kind": "relu",
        "activation": "relu",
        "residual": "false",
    }
    tensors = load_file(tmp_path / "m.safetensors")
    if "+" in change:
        tensors[change["+"]] = np.zeros(3)
    elif "-" in change:
        del tensors[change["-"]]
    else:
        about |= change
    save_file(tensors, tmp_path / "bad.safetensors", about)
    with pytest.raises(InvalidInput, match=says):
        load(tmp_path / "bad.safetensors")
