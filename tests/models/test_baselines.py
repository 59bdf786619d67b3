"""Networks that attention is compared with: what they compute, and their files."""

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.models import load, save
from keyhole.models.baselines import Cell, Mlp, Recurrent, encode_tokens
from keyhole.tasks import SparseAverage

TASK = SparseAverage(5, 2, 2)


def test_an_mlp_is_affine_maps_with_relu_between(rng):
    model = Mlp.random(5, q=2, dimension=2, hidden=7, rng=rng)
    X = TASK.sample(3, rng=rng)
    by_hand = [
        model.W[1] @ np.maximum(model.W[0] @ x.ravel() + model.b[0], 0) + model.b[1] for x in X
    ]
    np.testing.assert_allclose(model(X), np.reshape(by_hand, (3, 5, 2)))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_cells_follow_their_equations_token_by_token(cell, rng):
    model = Recurrent.random(cell, q=2, dimension=2, units=3, rng=rng)
    x = TASK.sample(1, rng=rng)[0]
    part, h, c = model.cells[0], np.zeros(3), np.zeros(3)

    def sigmoid(value):
        return 1 / (1 + np.exp(-value))

    for token in x:
        a, b = (part.Wx @ token + part.bx).reshape(-1, 3), (part.Wh @ h + part.bh).reshape(-1, 3)
        if cell == "gru":
            r, u = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
            h = (1 - u) * np.tanh(a[2] + r * b[2]) + u * h
        else:
            i, f, g, o = (
                sigmoid(a[0] + b[0]),
                sigmoid(a[1] + b[1]),
                np.tanh(a[2] + b[2]),
                sigmoid(a[3] + b[3]),
            )
            c = f * c + i * g
            h = o * np.tanh(c)
    np.testing.assert_allclose(model(x[None])[0, -1], model.Wo @ h + model.bo)


def test_a_rounded_state_has_as_many_values_as_its_bits_say(rng):
    model = Recurrent.random("gru", q=2, dimension=2, units=2, state_bits=3, rng=rng)
    assert model.bits == 6
    state = model.round_state(rng.normal(size=(500, 2)))
    np.testing.assert_allclose(np.unique(state), np.linspace(-1, 1, 8))
    np.testing.assert_array_equal(model.round_state(state), state)


def test_positions_are_read_as_codes():
    codes = np.array([[10.0, 11.0], [20.0, 21.0], [30.0, 31.0]])
    X = np.array([[[0.5, 2.0, -1.0, 1.0]]])
    np.testing.assert_array_equal(
        encode_tokens(X, (0,), codes), [[[0.5, 30.0, 31.0, 0.0, 0.0, 20.0, 21.0]]]
    )


def models(rng):
    codes = rng.normal(size=(5, 2))
    W = (rng.normal(size=(4, 5 * (2 + 3 * 2))), rng.normal(size=(10, 4)))
    return [
        Mlp.random(5, q=2, dimension=2, hidden=3, rng=rng),
        Mlp(W, (np.zeros(4), np.zeros(10)), 5, (0, 1), codes),
        Recurrent.random("gru", q=2, dimension=2, units=3, state_bits=4, state_range=1.5, rng=rng),
        Recurrent.random("lstm", q=2, dimension=2, units=3, layers=2, rng=rng),
    ]


@pytest.mark.parametrize("which", range(4))
def test_a_file_gives_back_the_same_network(which, tmp_path, rng):
    model = models(rng)[which]
    save(model, tmp_path / "it.safetensors")
    X = TASK.sample(4, rng=rng)
    np.testing.assert_array_equal(load(tmp_path / "it.safetensors")(X), model(X))
    assert model.width == TASK.width


def test_what_does_not_fit_is_refused(rng, tmp_path):
    with pytest.raises(InvalidInput, match="as many W as b"):
        Mlp((np.ones((3, 4)),), (), 2)
    with pytest.raises(InvalidInput, match="multiples of that"):
        Mlp((np.ones((3, 4)),), (np.ones(3),), 2)
    with pytest.raises(InvalidInput, match="gru or lstm"):
        Recurrent.random("rnn", q=1, dimension=1, units=2, rng=rng)
    cell = Cell(np.ones((6, 3)), np.ones((6, 2)), np.ones(6), np.ones(6))
    with pytest.raises(InvalidInput, match="state_bits lie between"):
        Recurrent("gru", (cell,), np.ones((1, 2)), np.ones(1), state_bits=0)
    from safetensors.numpy import save_file

    save_file(
        {"mlp.W0": np.ones((2, 4))},
        tmp_path / "half.safetensors",
        {"kind": "mlp", "format": "1", "z": "[0]"},
    )
    with pytest.raises(InvalidInput, match="lacks something"):
        load(tmp_path / "half.safetensors")
